"""A sandbox fleet of the benchmark's own: made in a temporary folder, taken down at the end."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from bench.measure import Failed, run

ROOT = Path(__file__).resolve().parents[1]
GPUPROV = Path(sys.executable).with_name("gpuprov")
_NUMBERS = itertools.count(1)


class Fleet:
    """`with Fleet.of_example("aws-p4d", 4) as fleet: run(fleet.up)`"""

    def __init__(self, text: str, environment: Mapping[str, str] | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="gpuprov-bench-"))
        self.name = f"bench-{os.getpid()}-{next(_NUMBERS)}"
        self.file = self.folder / "cluster.yaml"
        self.file.write_text(re.sub(r"^name:.*$", f"name: {self.name}", text, count=1, flags=re.M))
        self._environment = environment

    @classmethod
    def of_example(cls, example: str, count: int, environment: Mapping[str, str] | None = None) -> Fleet:
        text = (ROOT / "examples" / f"{example}.yaml").read_text()
        text = re.sub(r"^(\s+count:).*$", rf"\1 {count}", text, flags=re.M)
        return cls(re.sub(r"^(\s+level:).*$", r"\1 standard", text, flags=re.M), environment)

    @property
    def up(self) -> list[str]:
        return [str(GPUPROV), "up", str(self.file), "--sandbox", "--yes", "--json"]

    @property
    def verify(self) -> list[str]:
        return [str(GPUPROV), "verify", str(self.file), "--sandbox", "--json"]

    @property
    def down(self) -> list[str]:
        return [str(GPUPROV), "down", str(self.file), "--sandbox", "--yes"]

    @property
    def root(self) -> Path:
        """The run directory."""
        return self.folder / ".gpuprov" / f"{self.name}.sandbox"

    def warm_cache(self) -> None:
        """Build the image and the packages where they are missing; makes no node."""
        run([str(GPUPROV), "plan", str(self.file), "--sandbox"], env=self._environment)

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        run(self.down, env=self._environment)
        label = f"label=gpuprov.cluster={self.name}"
        if leftover := run(
            ["podman", "ps", "--all", "--quiet", "--filter", label], env=self._environment
        ).stdout.split():
            raise Failed(f"`down` left {len(leftover)} containers of {self.root}")
        shutil.rmtree(self.folder)
