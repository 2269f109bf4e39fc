"""Capacity that is not there: which zone and which kind a group is asked for next, until there is nothing left to ask.

A group stands in one zone as a whole. What was found out is kept beside the workspace (capacity.json), so that a later
`up` asks for further machines where the first ones stand. A provider says which zones there are and which of its errors
are a shortage; what follows from one is the same everywhere.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol

from provisioner import stored
from provisioner.paths import write_whole
from provisioner.plan import Plan, PlannedGroup

FILE = "capacity.json"


@dataclass(frozen=True, slots=True)
class Way:
    """How a group's machines are asked for."""

    kind: str
    zone: str

    def __str__(self) -> str:
        return f"{self.kind} in {self.zone}"


@dataclass(frozen=True, slots=True)
class Shortage:
    """What a provider said. `code`: its own; `zones`: those that it names as having some, in its order; `whole_kind`:
    another zone would not help, the next kind is asked for."""

    group: str
    code: str
    zones: tuple[str, ...] = ()
    whole_kind: bool = False


class Capacity(Protocol):
    """What a provider knows of machines that can't be had."""

    region: str
    """For people: where they can't be had."""

    def zones(self, plan: Plan) -> Sequence[str]:
        """The zones to ask in, best first. Raises GpuprovError where none sells every machine of the site."""

    def shortages(self, error: str) -> Mapping[str, Shortage]:
        """Group → the shortage that an error of Terraform's apply tells of; a group that failed for another reason as
        well is left out, because another zone would not help it."""


@dataclass(frozen=True, slots=True)
class Instead:
    """What follows from machines that could not be had. `groups`: whose machines are asked for in another way now. If
    it is empty, everything was tried, and what this run made of `short` goes: half a group is of no use."""

    message: str
    groups: tuple[str, ...]
    short: tuple[str, ...]


@dataclass(slots=True)
class Choices:
    """Group → the way that is taken now, and those that were tried in vain since the last success."""

    taken: dict[str, Way] = field(default_factory=dict)
    tried: dict[str, list[Way]] = field(default_factory=dict)
    zones: tuple[str, ...] = ()
    """Where cluster.yaml names no zones: those that were found for it at first."""
    without: dict[str, list[str]] = field(default_factory=dict)
    """Group → its nodes that can't be had, and that it does without."""

    @classmethod
    def read(cls, workspace: Path) -> Choices:
        """What was kept; nothing where there is nothing, or it is damaged (then the file's own order is taken)."""
        try:
            found = stored.load(workspace / FILE)
            taken = {name: Way(**way) for name, way in found["taken"].items()}
            tried = {name: [Way(**way) for way in ways] for name, ways in found["tried"].items()}
            without = {str(name): [str(node) for node in nodes] for name, nodes in found.get("without", {}).items()}
            return cls(taken, tried, tuple(map(str, found["zones"])), without)
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return cls()

    def write(self, workspace: Path) -> None:
        document = {
            "taken": {name: asdict(way) for name, way in self.taken.items()},
            "tried": {name: [asdict(way) for way in ways] for name, ways in self.tried.items()},
            "zones": list(self.zones),
            "without": self.without,
        }
        write_whole(workspace / FILE, json.dumps(document, indent=1) + "\n")

    def settled(self) -> Choices:
        """After a success, or when everything was tried: what was in vain may be there again next time."""
        return Choices(dict(self.taken), zones=self.zones, without=self.without)

    def after(self, shortage: Shortage, group: PlannedGroup, zones: Sequence[str]) -> Way | None:
        """The next way for a group, or None where every one was tried. Zones that the provider names come first."""
        ways = ways_of(group, zones)
        now = self.taken.get(group.name, ways[0])
        tried = self.tried.setdefault(group.name, [])
        tried.append(now)
        if shortage.whole_kind:
            tried += [way for way in ways if way.kind == now.kind and way not in tried]
        kinds = list(dict.fromkeys(way.kind for way in ways))
        left = [way for way in ways if way not in tried and kinds.index(way.kind) >= kinds.index(now.kind)]
        if not left:
            return None
        named = {zone: place for place, zone in enumerate(shortage.zones)}
        found = min(left, key=lambda way: (kinds.index(way.kind), named.get(way.zone, len(named)), ways.index(way)))
        self.taken[group.name] = found
        return found


def ways_of(group: PlannedGroup, zones: Sequence[str]) -> list[Way]:
    """Every way that cluster.yaml allows, in its order: each zone for the first kind, then for its fallbacks."""
    capacity = group.spec.capacity
    return [Way(kind, zone) for kind in dict.fromkeys((capacity.kind, *capacity.fallback)) for zone in zones]


def instead(capacity: Capacity, plan: Plan, workspace: Path, error: str) -> Instead | None:
    """What to do after an apply that failed with that text; None where no shortage is told there. The module's next
    inputs then say it."""
    short = capacity.shortages(error)
    if not short:
        return None
    zones, choices = capacity.zones(plan), Choices.read(workspace)
    told, gone = [], []
    for name, shortage in short.items():
        group = plan.group(name)
        before = choices.taken.get(name, ways_of(group, zones)[0])
        way = choices.after(shortage, group, zones)
        told.append(f"{name}: {shortage.code} for {before}" + (f", now {way}" if way else ""))
        gone += [] if way else [f"{name} ({', '.join(map(str, choices.tried[name]))})"]
    if gone:
        choices.settled().write(workspace)
        return Instead(f"{capacity.region} has no machines for {'; '.join(gone)}", (), tuple(short))
    choices.write(workspace)
    return Instead("; ".join(told), tuple(short), tuple(short))


def without(workspace: Path) -> list[str]:
    """Nodes that could not be had, and that their groups do without."""
    return [node for nodes in Choices.read(workspace).without.values() for node in nodes]


def do_without(workspace: Path, nodes: Mapping[str, Collection[str]]) -> None:
    """Group → nodes that are not asked for from now on; {} asks for all of them again."""
    choices = Choices.read(workspace)
    wanted = {group: sorted(names) for group, names in nodes.items()}
    if choices.without != wanted:
        choices.without = wanted
        for group in wanted:  # its machines stand where the last attempt was made, and so will the others
            if tried := choices.tried.pop(group, None):
                choices.taken[group] = tried[-1]
        choices.write(workspace)


def settle(workspace: Path) -> None:
    """An apply has succeeded: what was tried in vain may be tried again next time."""
    choices = Choices.read(workspace)
    if choices.tried:
        choices.settled().write(workspace)
