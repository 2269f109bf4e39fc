"""Which nodes are in quarantine: quarantine.json in the run directory.

A machine is known by its id: an entry of another machine of the same name (a replaced one) is no quarantine any more;
but the name is still out of service, so that the entry is kept until the new machine was proven and put back.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from datetime import UTC, datetime
from typing import ClassVar

from pydantic.dataclasses import dataclass

from provisioner.common.errors import DamagedFileError
from provisioner.common.levels import Level, deeper
from provisioner.common.paths import ClusterPaths
from provisioner.output.report import QuarantineOutput
from provisioner.rundir import fleet, records
from provisioner.rundir.fleet import Node

OURS = "gpuprov"
"""The owner of what a verdict put into quarantine: a later verdict takes it out. A person's stays until somebody
releases it."""

WORK = ("load.", "nccl.", "dcgm.diag", "framework.", "fabric.", "storage.io")
"""Checks, by the beginning of their ids, that judge a node at work. They are skipped while a job has its GPUs, and
skipped is not passed."""
ERASED = ("gpu.count", "gpu.xid", "dcgm.xid", "load.xid", "nvswitch.sxid", "log.")
"""Checks whose evidence is gone after a reboot, whether or not what they saw is."""
PROOF = "load.completes"
"""What has to pass where the evidence of a fault can be gone: the node at work. At level stress DCGM's own tests of the
hardware (dcgm.diag) prove as much, for nodes that cannot be loaded."""


@dataclass(config=records.STRICT, frozen=True, slots=True)
class Entry:
    """One node in quarantine. `id` is the machine's; `since` is UTC (2026-01-31T12:00:00Z); `checks` are what failed at
    `level` (None where a person decided); `drained`: the drain command worked; `trouble`: why the last command did
    not; `owed`: checks that have to pass before a verdict puts it back."""

    id: str
    owner: str
    reason: str
    since: str
    checks: tuple[str, ...] = ()
    level: Level | None = None
    drained: bool = False
    trouble: str = ""
    owed: tuple[str, ...] = ()

    @property
    def drained_alone(self) -> bool:
        """A command took the node out of service to change its machine; no verdict and no person condemned it."""
        return self.owner == OURS and not self.checks

    @property
    def leaves_at(self) -> Level | None:
        """The level of the healthy verdict that takes it out: what is owed at work only passes from standard on. None
        where a person decided."""
        at_work = any(id.startswith(WORK) for id in self.owed)
        return deeper(self.level, "standard") if self.level is not None and at_work else self.level

    def document(self) -> QuarantineOutput:
        """What reports and `status` say of it."""
        document = QuarantineOutput(owner=self.owner, reason=self.reason, since=self.since, checks=[*self.checks])
        if self.leaves_at:
            document.level = self.leaves_at
        if self.trouble:
            document.problem = self.trouble
        return document


@dataclass(config=records.STRICT, slots=True)
class Book:
    """quarantine.json: node name → entry."""

    FILE: ClassVar[str] = "quarantine.json"
    REPAIR: ClassVar[str] = (
        "check in your scheduler which nodes are out of service, then remove the file and quarantine those again"
    )

    nodes: dict[str, Entry] = field(default_factory=dict)

    def of(self, nodes: Iterable[Node]) -> dict[str, Entry]:
        """The quarantine of these machines, by node name."""
        entries = {node.name: self.nodes.get(node.name) for node in nodes if self.holds(node)}
        return {name: entry for name, entry in entries.items() if entry is not None}

    def holds(self, node: Node) -> bool:
        entry = self.nodes.get(node.name)
        return entry is not None and entry.id == node.id

    def save(self, paths: ClusterPaths) -> None:
        records.save(paths, self)


def load(paths: ClusterPaths) -> Book:
    """What is in quarantine. Raises DamagedFileError: nodes are out of service, and nobody would know."""
    store = records.load(paths, Book) or Book()
    try:
        for name, entry in store.nodes.items():  # hooks are given them, also where no machine has the name any more
            fleet.refuse_shape(name, entry.id)
    except ValueError as error:
        raise DamagedFileError(str(error), str(paths.root / Book.FILE), hint=Book.REPAIR) from error
    return store


def utc_timestamp() -> str:
    """This moment as an entry has it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
