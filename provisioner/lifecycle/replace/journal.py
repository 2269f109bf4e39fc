"""How far a replacement has come: replace.json in the run directory, written whole before every step, so that one that
was killed anywhere goes on, and makes no second new machine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from typing import ClassVar, Literal

from pydantic.dataclasses import dataclass

from provisioner.common.paths import ClusterPaths
from provisioner.lifecycle.quarantine import book as quarantine_book
from provisioner.lifecycle.session import Cluster
from provisioner.rundir import records
from provisioner.rundir.fleet import Node
from provisioner.rundir.release import Ledger

Step = Literal["draining", "making", "proving"]
"""draining: the old machine is being taken out of service; making: Terraform is at work; proving: the new machine is
there, to be configured, verified and put into service."""


@dataclass(config=records.STRICT, slots=True)
class Place:
    """One node that is being replaced. `id` is that of the machine that goes."""

    id: str
    step: Step


@dataclass(config=records.STRICT, slots=True)
class Journal:
    """replace.json: node name → place. A node whose new machine had its verdict is not in it."""

    FILE: ClassVar[str] = "replace.json"
    REPAIR: ClassVar[str] = "remove it, then run `gpuprov up`: it creates what is missing and verifies what is new"

    nodes: dict[str, Place] = field(default_factory=dict)

    def save(self, paths: ClusterPaths) -> None:
        records.save(paths, self)

    def set(self, paths: ClusterPaths, nodes: list[Node], step: Step) -> None:
        """These nodes are at that step; a node that is new here has its machine written down as the one that goes."""
        for node in nodes:
            self.nodes.setdefault(node.name, Place(node.id, step)).step = step
        self.save(paths)

    def end(self, paths: ClusterPaths, names: Iterable[str]) -> None:
        """The new machines of these nodes had their verdict."""
        for name in names:
            self.nodes.pop(name, None)
        self.save(paths)


def load(cluster: Cluster) -> Journal:
    """What is under way. Left out is what another command has ended since: a draining that was released, a new machine
    that `up` or `verify` has judged. Raises DamagedFileError."""
    journal = records.load(cluster.paths, Journal)
    if journal is None:
        return Journal()
    store, ledger = quarantine_book.load(cluster.paths), Ledger(cluster.paths)
    machines = {node.name: node for node in cluster.nodes()}

    def under_way(name: str, replacement: Place) -> bool:
        node = machines.get(name)
        if node is None:
            return False
        if node.id == replacement.id:
            return replacement.step == "making" or store.holds(node)
        return ledger.of(node) is None and not store.holds(node)

    return Journal({name: replacement for name, replacement in journal.nodes.items() if under_way(name, replacement)})
