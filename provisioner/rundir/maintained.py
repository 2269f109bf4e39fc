"""What `gpuprov maintain` did on each machine: maintained.json in the run directory."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import field
from typing import ClassVar

from pydantic.dataclasses import dataclass

from provisioner.common.paths import ClusterPaths
from provisioner.rundir import records
from provisioner.rundir.fleet import Node


@dataclass(config=records.STRICT, frozen=True, slots=True)
class Maintained:
    """The last maintenance of one machine. `id`: of the machine; `at`: UTC (2026-01-31T12:00:00Z); `packages`: version
    of each package that was in a set of its group so far; `waiting`: updates that were not taken, with the
    reason; `freed`: bytes; `rebooted`: why it was rebooted; `due`: why a reboot is due and was not done."""

    id: str
    at: str
    packages: dict[str, str] = field(default_factory=dict)
    waiting: dict[str, str] = field(default_factory=dict)
    freed: dict[str, int] = field(default_factory=dict)
    rebooted: str = ""
    due: str = ""


@dataclass(config=records.STRICT, slots=True)
class MaintainedFile:
    """maintained.json: node name → its last maintenance."""

    FILE: ClassVar[str] = "maintained.json"
    REPAIR: ClassVar[str] = "remove it: the next `gpuprov maintain` writes it again"

    nodes: dict[str, Maintained] = field(default_factory=dict)

    def of(self, node: Node) -> Maintained | None:
        """The last maintenance of this machine; None where it had none."""
        row = self.nodes.get(node.name)
        return row if row and row.id == node.id else None

    def forget(self, nodes: Collection[Node]) -> None:
        """Leave rows out whose machines are gone."""
        self.nodes = {node.name: row for node in nodes if (row := self.of(node)) is not None}

    def save(self, paths: ClusterPaths) -> None:
        records.save(paths, self)


def load(paths: ClusterPaths) -> MaintainedFile:
    """What is recorded. Raises DamagedFileError."""
    return records.load(paths, MaintainedFile) or MaintainedFile()
