"""Everything that is not gpuprov where images are built: the cloud that keeps them, clocks, the disk; and what must
hold at the moment at which something is removed."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.simulation.image_cloud import ImageCloud, StoredImage
from tests.simulation.image_recipe import NAME, Inputs
from tests.simulation.processes import Process, Processes

EFFECT_S = 0.3
"""Seconds that an effect takes: several commands that are refused fit into one."""
START = datetime(2026, 1, 31, 3, 15, tzinfo=UTC).timestamp()


@dataclass
class ImageWorld:
    """`folder`: the project folder. `skew`: seconds by which the computer's clock is ahead. `violations`: invariants
    that were broken, in words."""

    root: Path
    processes: Processes = field(default_factory=Processes)
    cloud: ImageCloud = field(default_factory=ImageCloud)
    inputs: Inputs = field(default_factory=Inputs)
    clock: float = 0.0
    skew: float = 0.0
    violations: list[str] = field(default_factory=list)
    script: list[str] = field(default_factory=list)
    """What happened, for people."""
    steps: list[dict[str, Any]] = field(default_factory=list)
    """What happened, to be done again."""
    published: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Build → its manifest as it was first seen, in that order; those that `prune` has removed too."""
    listed: set[str] = field(default_factory=set)
    """Builds that were in the book at the last look."""
    tokens: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def __post_init__(self) -> None:
        self.folder = self.root / "project"
        self.processes.beat = self.beat

    @property
    def process(self) -> Process:
        return self.processes.current

    @property
    def recipe(self) -> Path:
        return self.folder / "images" / f"{NAME}.yaml"

    @property
    def book(self) -> Path:
        """The folder of builds and channels."""
        return self.recipe.with_suffix("")

    @property
    def workshop(self) -> Path:
        """Where builds in the making are."""
        return self.recipe.parent / ".gpuprov" / f"{NAME}.image" / "builds"

    @property
    def lock(self) -> Path:
        """The lock of the fleet that starts from a channel."""
        return self.folder / "cluster.lock"

    def beat(self, process: Process) -> None:
        del process
        self.clock += EFFECT_S

    def sleep(self, seconds: float) -> None:
        self.clock += seconds

    def time(self, zone: Any = UTC) -> datetime:
        """What the computer's clock shows."""
        return datetime.fromtimestamp(START + self.clock + self.skew, zone)

    def broken(self, sentence: str) -> None:
        self.violations.append(sentence)

    def manifests(self) -> dict[str, dict[str, Any]]:
        """Build → manifest, of those in the book."""
        files = sorted(self.book.glob("builds/*/manifest.json"))
        return {file.parent.name: json.loads(file.read_text(encoding="utf-8")) for file in files}

    def channels(self) -> dict[str, str]:
        try:
            channels: dict[str, str] = json.loads((self.book / "book.json").read_text(encoding="utf-8"))["channels"]
        except FileNotFoundError:
            return {}
        return channels

    def locked(self) -> set[str]:
        """Builds that the fleet's lock names."""
        if not self.lock.exists():
            return set()
        return {build for build in self.published if build in self.lock.read_text(encoding="utf-8")}

    def removing(self, image: StoredImage) -> None:
        """An image is about to be removed."""
        process = self.process
        owners = [
            build for build, manifest in (self.published | self.manifests()).items() if image.id in ids_of(manifest)
        ]
        for build in owners:
            if process.command != "prune":
                self.broken(f"`{process.command}` removes {image.id} of build {build}, which was published")
            if build in self.channels().values():
                self.broken(f"{image.id} of build {build} is removed, and a channel has it")
            if build in self.locked():
                self.broken(f"{image.id} of build {build} is removed, and the fleet's lock names it")
            newest = list(self.published)[-1]
            if build == newest:
                self.broken(f"{image.id} of build {build} is removed, and it is the newest")
        if users := [machine for machine, source in self.cloud.fleet.items() if source == image.id]:
            self.broken(f"{image.id} is removed, and {', '.join(users)} was made of it")


def ids_of(manifest: dict[str, Any]) -> set[str]:
    """Ids of all images of a build, in all regions."""
    return {number for target in manifest["targets"].values() for number in target["ids"].values()}
