"""Capacity that is not there: which zone and which kind a group is asked for next, until there is nothing left to ask.

A group stands in one zone as a whole. What was found out is kept beside the workspace (capacity.json), so that a later
`up` asks for further machines where the first ones stand.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from provisioner import stored
from provisioner.paths import write_whole
from provisioner.plan import PlannedGroup

FILE = "capacity.json"
NO_MACHINES = (
    "InsufficientInstanceCapacity", "InsufficientCapacityOnHost", "Unsupported", "ReservationCapacityExceeded",
    "InsufficientFreeAddressesInSubnet",
)  # fmt: skip
"""RunInstances has no room for these machines in that zone, or never sells them there (EC2 API error codes)."""
NO_SPOT = ("SpotMaxPriceTooLow", "MaxSpotInstanceCountExceeded")
"""Another zone would not help: the next kind is asked for."""
_FAILED = re.compile(r'aws_instance\.node\["([^"]+)-\d+"\]: .*?api error (\w+): (.*)')
_ZONE = re.compile(r"\b[a-z]{2}(?:-[a-z]+)+-\d[a-z]\b")


@dataclass(frozen=True, slots=True)
class Way:
    """How a group's machines are asked for."""

    kind: str
    zone: str

    def __str__(self) -> str:
        return f"{self.kind} in {self.zone}"


@dataclass(frozen=True, slots=True)
class Shortage:
    """What AWS said. `zones`: those that it names as having some, in its order."""

    group: str
    code: str
    zones: tuple[str, ...]


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
        """The next way for a group, or None where every one was tried. Zones that AWS names come first."""
        ways = ways_of(group, zones)
        now = self.taken.get(group.name, ways[0])
        tried = self.tried.setdefault(group.name, [])
        tried.append(now)
        if shortage.code in NO_SPOT:
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


def shortages(error: str) -> Mapping[str, Shortage]:
    """Group → the shortage in Terraform's words; a group that failed for another reason as well is left out, because
    another zone would not help it."""
    found: dict[str, Shortage] = {}
    others: set[str] = set()
    for line in error.splitlines():
        for name, code, message in _FAILED.findall(line):
            if code in (*NO_MACHINES, *NO_SPOT):
                found.setdefault(name, Shortage(name, code, _named(message)))
            else:
                others.add(name)
    return {name: shortage for name, shortage in found.items() if name not in others}


def _named(message: str) -> tuple[str, ...]:
    """Zones that the message offers: those after "choosing"."""
    _, offered, rest = message.partition("choosing ")
    return tuple(dict.fromkeys(_ZONE.findall(rest))) if offered else ()
