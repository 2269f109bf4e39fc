"""Capacity that is not there: which zone and which kind a group is asked for next, until there is nothing left to ask.

A group stands in one zone as a whole. What was found out is kept beside the workspace (capacity.json), so that a later
`up` asks for further machines where the first ones stand. A provider says which zones there are and what its errors are
(cloud_errors.py); what follows from one is the same everywhere.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, Protocol

from provisioner import stored
from provisioner.errors import Diagnostic
from provisioner.paths import write_whole
from provisioner.plan import Plan, PlannedGroup
from provisioner.preflight import Finding
from provisioner.providers.cloud_errors import CloudError, hints

FILE = "capacity.json"
NO_CAPACITY = frozenset({"shortage", "quota", "spot-refused", "reservation-full"})
"""Classes of errors that say of a site that it has no machines for this account."""
BESIDE_NO_CAPACITY = NO_CAPACITY | {"unsupported", "throttled"}
"""Classes that other attempts at the same site may have had: a zone that does not sell the machine, too many calls."""
PAUSE_S = 15.0
"""Before the same is asked once more; doubled each time. The provider's own retries lie behind it."""
MOST_AGAIN = 3
LATER = (
    "try again later, name other zones (sites.*.zones), or allow another purchase option (groups.*.capacity.fallback)"
)
"""What a person can do where a cloud has no machines."""


@dataclass(frozen=True, slots=True)
class Way:
    """How a group's machines are asked for."""

    kind: str
    zone: str

    def __str__(self) -> str:
        return f"{self.kind} in {self.zone}"


@dataclass(frozen=True, slots=True)
class Attempt:
    """A way that was asked in vain, and what the provider said: "CODE (class): text", one for each thing."""

    way: Way
    said: tuple[str, ...]
    again: bool = False
    """The same way is asked once more."""
    kinds: tuple[str, ...] = ()
    """The classes of what was said."""

    @classmethod
    def read(cls, row: Mapping[str, Any]) -> Attempt:
        """Of capacity.json. Raises KeyError, TypeError for anything else."""
        kinds = tuple(map(str, row.get("kinds", ())))
        return cls(Way(**row["way"]), tuple(map(str, row["said"])), bool(row["again"]), kinds)


class Capacity(Protocol):
    """What a provider knows of machines that can't be had, and of their end where they are bought for a time."""

    region: str
    """For people: where they can't be had."""

    def zones(self, plan: Plan) -> Sequence[str]:
        """The zones to ask in, best first. Raises GpuprovError where none sells every machine of the site."""

    def error(self, found: Diagnostic, group: PlannedGroup | None, way: Way | None) -> CloudError:
        """What a diagnostic of Terraform says. `group`, `way`: whose machine was asked for and how; None where it is of
        something else."""

    def probe(self, plan: Plan, there: Collection[str]) -> list[Finding]:
        """Whether the machines that are still to be made of each group with `capacity.probe` can be had now, asked of
        the provider in a way that leaves nothing. The way in which they can is what they are asked for in first.
        `there`: names of nodes that stand."""

    def ends(self, plan: Plan) -> Mapping[str, datetime]:
        """Group → when what its machines are bought by ends, and the machines with it; empty where nothing does. Raises
        GpuprovError where that could not be asked."""


@dataclass(frozen=True, slots=True)
class Instead:
    """What follows from machines that could not be had. ask: those of `short` are asked for in another way now; again:
    the same is asked once more after `pause_s`; nothing: everything was tried, and what this run made of `short` goes,
    because half a group is of no use."""

    then: Literal["ask", "again", "nothing"]
    message: str
    short: tuple[str, ...] = ()
    hint: str = ""
    pause_s: float = 0.0
    no_capacity: Mapping[str, str] = field(default_factory=dict)
    """Group → what was said, for those of which every attempt said that the site has no machines."""


@dataclass(slots=True)
class Choices:
    """Group → the way that is taken now, and those that were tried in vain since the last success."""

    taken: dict[str, Way] = field(default_factory=dict)
    tried: dict[str, list[Way]] = field(default_factory=dict)
    """Also what was not asked for, because it would not have helped."""
    zones: tuple[str, ...] = ()
    """Where cluster.yaml names no zones: those that were found for it at first."""
    without: dict[str, list[str]] = field(default_factory=dict)
    """Group → its nodes that can't be had, and that it does without."""
    attempts: dict[str, list[Attempt]] = field(default_factory=dict)
    """Group → what was asked for, in order, and what was said."""
    again: int = 0
    """How often the same was asked once more since anything else was."""

    @classmethod
    def read(cls, workspace: Path) -> Choices:
        """What was kept; nothing where there is nothing, or it is damaged (then the file's own order is taken)."""
        try:
            found = stored.load(workspace / FILE)
            taken = {name: Way(**way) for name, way in found["taken"].items()}
            tried = {name: [Way(**way) for way in ways] for name, ways in found["tried"].items()}
            without = {str(name): [str(node) for node in nodes] for name, nodes in found.get("without", {}).items()}
            attempts = {
                str(name): [Attempt.read(row) for row in rows] for name, rows in found.get("attempts", {}).items()
            }
            again = int(found.get("again", 0))
            return cls(taken, tried, tuple(map(str, found["zones"])), without, attempts, again)
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return cls()

    def write(self, workspace: Path) -> None:
        document = {
            "taken": {name: asdict(way) for name, way in self.taken.items()},
            "tried": {name: [asdict(way) for way in ways] for name, ways in self.tried.items()},
            "zones": list(self.zones),
            "without": self.without,
            "attempts": {name: [asdict(one) for one in rows] for name, rows in self.attempts.items()},
            "again": self.again,
        }
        write_whole(workspace / FILE, json.dumps(document, indent=1) + "\n")

    def settled(self) -> Choices:
        """After a success, or when everything was tried: what was in vain may be there again next time."""
        return Choices(dict(self.taken), zones=self.zones, without=self.without)

    def now(self, group: PlannedGroup, zones: Sequence[str]) -> Way:
        """How a group's machines are asked for now."""
        return self.taken.get(group.name, ways_of(group, zones)[0])

    def after(self, errors: Sequence[CloudError], group: PlannedGroup, zones: Sequence[str]) -> Way | None:
        """The next way for a group, or None where every one was tried. Zones that the provider names come first."""
        ways, now = ways_of(group, zones), self.now(group, zones)
        tried = self.tried.setdefault(group.name, [])
        tried.append(now)
        if any(error.then == "kind" for error in errors):
            tried += [way for way in ways if way.kind == now.kind and way not in tried]
        kinds = list(dict.fromkeys(way.kind for way in ways))
        left = [way for way in ways if way not in tried and kinds.index(way.kind) >= kinds.index(now.kind)]
        if not left:
            return None
        offered = [zone for error in errors for zone in error.zones]
        named = {zone: place for place, zone in enumerate(dict.fromkeys(offered))}
        found = min(left, key=lambda way: (kinds.index(way.kind), named.get(way.zone, len(named)), ways.index(way)))
        self.taken[group.name] = found
        return found

    def told(self, groups: Iterable[str]) -> list[str]:
        """What was asked for these groups, in order, and what was said each time, a line each."""
        return [
            f"{group}, {one.way}: {'; '.join(one.said)}" for group in groups for one in self.attempts.get(group, ())
        ]


def ways_of(group: PlannedGroup, zones: Sequence[str]) -> list[Way]:
    """Every way that cluster.yaml allows, in its order: each zone for the first kind, then for its fallbacks."""
    capacity = group.spec.capacity
    return [Way(kind, zone) for kind in dict.fromkeys((capacity.kind, *capacity.fallback)) for zone in zones]


def instead(capacity: Capacity, plan: Plan, workspace: Path, errors: Sequence[CloudError]) -> Instead | None:
    """What to do after an apply that failed with these errors; None where the run has to stop, because another way
    would not mend one of them. The module's next inputs then say it.

    Throttling says nothing of machines: it neither stops nor counts as a shortage. A fault of the cloud's own is asked
    about once more, then it counts as one."""
    machines = {error.node: error for error in errors if error.node}
    others = [error for error in errors if not error.node]
    if not errors or any(error.then == "stop" for error in errors) or any(error.then != "again" for error in others):
        return None
    zones, choices = capacity.zones(plan), Choices.read(workspace)
    by_group: dict[str, list[CloudError]] = {}
    for name, group in plan.nodes():
        if name in machines:
            by_group.setdefault(group.name, []).extend(error for error in errors if error.node == name)
    short = {name: mine for name, mine in by_group.items() if _is_short(choices, plan.group(name), zones, mine)}
    if not short:
        return _again(choices, workspace, by_group, plan, zones, errors)
    said, gone, choices.again = [], [], 0
    for name, mine in short.items():
        group, told = plan.group(name), tuple(dict.fromkeys(error.said for error in mine))
        before = choices.now(group, zones)
        kinds = tuple(dict.fromkeys(error.kind for error in mine))
        choices.attempts.setdefault(name, []).append(Attempt(before, told, kinds=kinds))
        way = choices.after(mine, group, zones)
        codes = ", ".join(dict.fromkeys(error.code or error.kind for error in mine))
        said.append(f"{name}: {codes} for {before}" + (f", now {way}" if way else ""))
        gone += [] if way else [name]
    if gone:
        lines = choices.told(gone)
        choices.settled().write(workspace)
        head = f"{capacity.region}: machines of {', '.join(gone)} could not be had"
        what = "\n    ".join([head, "asked, in order:", *lines])
        hint = hints([error for mine in short.values() for error in mine])
        return Instead("nothing", what, tuple(short), hint, no_capacity=_no_capacity(choices, gone))
    choices.write(workspace)
    return Instead("ask", "; ".join(said), tuple(short))


def _no_capacity(choices: Choices, groups: Iterable[str]) -> dict[str, str]:
    """Group → the codes that its attempts ended with, where all of them say that the site has no machines. An error of
    another class is none: a machine whose answer was lost may yet appear."""
    found = {}
    for group in groups:
        attempts = choices.attempts.get(group, [])
        kinds = {kind for attempt in attempts for kind in attempt.kinds}
        if kinds & NO_CAPACITY and kinds <= BESIDE_NO_CAPACITY and all(attempt.kinds for attempt in attempts):
            codes = dict.fromkeys(f"{said.partition(':')[0]}, {one.way}" for one in attempts for said in one.said)
            found[group] = "; ".join(codes)
    return found


def _is_short(choices: Choices, group: PlannedGroup, zones: Sequence[str], errors: Sequence[CloudError]) -> bool:
    """Whether a group's errors say that it can't be had in this way."""
    if any(error.then != "again" for error in errors):
        return True
    now = choices.now(group, zones)
    once = any(one.again and one.way == now for one in choices.attempts.get(group.name, ()))
    return once and any(error.kind == "transient" for error in errors)


def _again(
    choices: Choices, workspace: Path, by_group: Mapping[str, Sequence[CloudError]], plan: Plan, zones: Sequence[str],
    errors: Sequence[CloudError],
) -> Instead | None:  # fmt: skip
    if choices.again >= MOST_AGAIN:
        choices.settled().write(workspace)
        return None
    choices.again += 1
    for name, mine in by_group.items():
        told = tuple(dict.fromkeys(error.said for error in mine))
        way, kinds = choices.now(plan.group(name), zones), tuple(dict.fromkeys(error.kind for error in mine))
        choices.attempts.setdefault(name, []).append(Attempt(way, told, again=True, kinds=kinds))
    choices.write(workspace)
    pause = PAUSE_S * 2 ** (choices.again - 1)
    codes = ", ".join(dict.fromkeys(error.code or error.kind for error in errors))
    return Instead("again", f"{codes}: asked once more in {pause:.0f} s", tuple(by_group), pause_s=pause)


def without(workspace: Path) -> list[str]:
    """Nodes that could not be had, and that their groups do without."""
    return [node for nodes in Choices.read(workspace).without.values() for node in nodes]


def do_without(workspace: Path, nodes: Mapping[str, Collection[str]]) -> bool:
    """Group → nodes that are not asked for from now on; {} asks for all of them again. Whether that is news."""
    choices = Choices.read(workspace)
    wanted = {group: sorted(names) for group, names in nodes.items()}
    changed = choices.without != wanted
    if changed:
        before, choices.without = choices.without, wanted
        for group in (
            name for name in wanted if wanted[name] != before.get(name)
        ):  # its machines stand where the last attempt was made, and so will the others
            tried, attempts = choices.tried.pop(group, []), choices.attempts.pop(group, [])
            if last := [one.way for one in attempts[-1:]] or tried[-1:]:
                choices.taken[group] = last[0]
        choices.write(workspace)
    return changed


def settle(workspace: Path) -> None:
    """An apply has succeeded: what was tried in vain may be tried again next time."""
    choices = Choices.read(workspace)
    if choices.tried or choices.attempts or choices.again:
        choices.settled().write(workspace)
