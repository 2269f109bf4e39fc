"""A sandbox driven as a user drives it: the real command line in a process of its own, which `run` gives gpuprov
already imported, and `start` and a terminal start anew."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from provisioner.configure.inventory import plain
from tests.support import warm
from tests.support.warm import ROOT

EXAMPLES = tuple(sorted(path.stem for path in (ROOT / "examples").glob("*.yaml")))
DEADLINE_S = 900
_NUMBERS = itertools.count(1)


@dataclass
class Done:
    """How one command ended."""

    status: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        assert self.stdout, self.stderr
        return json.loads(self.stdout)


@dataclass
class SandboxCluster:
    """A cluster.yaml in a folder of its own, and the commands on it."""

    file: Path
    name: str
    first: Done | None = None
    typed: str = ""
    """What the terminal showed of an `up` that a person typed and answered."""
    names: dict[str, str] = field(default_factory=dict)
    """Node → name of its container, of those that were asked for."""
    gpuprov: list[str] = field(default_factory=lambda: [sys.executable, "-m", "provisioner"])

    @classmethod
    def of_example(cls, example: str, folder: Path, *, count: int | None = None) -> SandboxCluster:
        """A copy of an example under a name that no other test has: what one leaves is not held against another."""
        name = f"t-{example}"[:20].strip("-") + f"-{os.getpid() % 10_000}-{next(_NUMBERS)}"
        text = (ROOT / "examples" / f"{example}.yaml").read_text(encoding="utf-8")
        text = re.sub(r"^name:.*$", f"name: {name}", text, count=1, flags=re.M)
        if count is not None:
            text = re.sub(r"^(\s+count:).*$", rf"\1 {count}", text, flags=re.M)
        file = folder / "cluster.yaml"
        file.write_text(text, encoding="utf-8")
        return cls(file, name)

    @classmethod
    @contextlib.contextmanager
    def standing_example(cls, example: str, folder: Path) -> Iterator[SandboxCluster]:
        """A copy of an example, which is taken down at the end."""
        cluster = cls.of_example(example, folder)
        try:
            yield cluster
        finally:
            cluster.down()

    @property
    def root(self) -> Path:
        return self.file.parent / ".gpuprov" / f"{self.name}.sandbox"

    def inventory(self) -> Any:
        """Ansible's inventory, without the marks that keep its texts from being templates."""
        return plain(json.loads((self.root / "inventory.yml").read_text()))

    def start(self, *arguments: object) -> subprocess.Popen[str]:
        """A command that the caller watches or ends."""
        return subprocess.Popen(
            [*self.gpuprov, *map(str, arguments)],
            cwd=self.file.parent,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: object) -> Done:
        """A command to its end; the deadline is generous, and a command that reaches it has failed."""
        if self.gpuprov[:-1] == [sys.executable, "-m"]:
            done = warm.run(
                self.gpuprov[-1], *arguments, cwd=self.file.parent, env={**os.environ, "PYTHONPATH": str(ROOT)},
                timeout=DEADLINE_S,
            )  # fmt: skip
            assert "Traceback" not in done.stderr, done.stderr
            return Done(done.returncode, done.stdout, done.stderr)
        process = self.start(*arguments)
        try:
            stdout, stderr = process.communicate(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise
        assert "Traceback" not in stderr, stderr
        return Done(process.returncode, stdout, stderr)

    def up(self, *arguments: object) -> Done:
        return self.run("up", self.file, "--sandbox", "--yes", "--json", *arguments)

    def down(self) -> Done:
        return self.run("down", self.file, "--sandbox", "--yes", "--json")

    def verify(self, *options: str) -> Done:
        return self.run("verify", self.file, "--json", *options)

    def nodes(self) -> list[str]:
        return [node["name"] for node in self.run("status", self.file, "--json").json["nodes"]]

    def container(self, node: str) -> str:
        """The name of a node's container, which stays when its machine is replaced. Raises KeyError without one."""
        if node not in self.names:
            prefix = f"gpuprov-{self.name}-"  # and behind it NODE.NETWORK
            self.names |= {name.removeprefix(prefix).rpartition(".")[0]: name for name in self.containers()}
        return self.names[node]

    def containers(self) -> list[str]:
        """Names of all containers of this cluster, running or not."""
        completed = subprocess.run(
            ["podman", "ps", "--all", "--filter", f"label=gpuprov.cluster={self.name}", "--format", "{{.Names}}"],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        return completed.stdout.split()


def failing(document: dict[str, Any]) -> dict[str, set[str]]:
    """Node → ids of the checks that failed or have a note, each by itself where several are reported under one name;
    nodes without any are left out."""
    return _checks(document, "fail", "note")


def unknown(document: dict[str, Any]) -> dict[str, set[str]]:
    """Node → ids of the checks that could not be answered."""
    return _checks(document, "unknown")


def _checks(document: dict[str, Any], *statuses: str) -> dict[str, set[str]]:
    ids_by_node = {
        node["name"]: {
            id for check in node["checks"] if check["status"] in statuses for id in check.get("parts", [check["id"]])
        }
        for node in document["nodes"]
    }
    return {name: ids for name, ids in ids_by_node.items() if ids}


def wrongs(done: Done) -> list[str]:
    """Everything of a report that is not as it should be, for an assertion's message."""
    if not done.stdout:
        return ["no report"]
    return [
        f"{node['name']} {check['id']} {check['status']}: {check['message']}"
        for node in done.json["nodes"]
        for check in node["checks"]
        if check["status"] in ("fail", "unknown")
    ]
