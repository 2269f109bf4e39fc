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

from provisioner.common import stored
from provisioner.common.errors import Diagnostic
from provisioner.common.paths import write_whole
from provisioner.common.preflight import Finding
from provisioner.machines.providers.cloud_errors import CloudError, hints
from provisioner.plan.models import Plan, PlannedGroup

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

    def error(self, diagnostic: Diagnostic, group: PlannedGroup | None, option: Way | None) -> CloudError:
        """What a diagnostic of Terraform says. `group`, `option`: whose machine was asked for and how; None where it is
        of something else."""

    def probe(self, plan: Plan, existing_nodes: Collection[str]) -> list[Finding]:
        """Whether the machines that are still to be made of each group with `capacity.probe` can be had now, asked of
        the provider in a way that leaves nothing. The way in which they can is what they are asked for in first.
        `existing_nodes`: names of nodes that stand."""

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
    retries: int = 0
    """How often the same was asked once more since anything else was."""

    @classmethod
    def read(cls, workspace: Path) -> Choices:
        """What was kept; nothing where there is nothing, or it is damaged (then the file's own order is taken)."""
        try:
            document = stored.load(workspace / FILE)
            taken = {name: Way(**option) for name, option in document["taken"].items()}
            tried = {name: [Way(**option) for option in options] for name, options in document["tried"].items()}
            without = {str(name): [str(node) for node in nodes] for name, nodes in document.get("without", {}).items()}
            attempts = {
                str(name): [Attempt.read(row) for row in rows] for name, rows in document.get("attempts", {}).items()
            }
            retries = int(document.get("again", 0))
            return cls(taken, tried, tuple(map(str, document["zones"])), without, attempts, retries)
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return cls()

    def write(self, workspace: Path) -> None:
        document = {
            "taken": {name: asdict(option) for name, option in self.taken.items()},
            "tried": {name: [asdict(option) for option in options] for name, options in self.tried.items()},
            "zones": list(self.zones),
            "without": self.without,
            "attempts": {name: [asdict(attempt) for attempt in rows] for name, rows in self.attempts.items()},
            "again": self.retries,
        }
        write_whole(workspace / FILE, json.dumps(document, indent=1) + "\n")

    def settled(self) -> Choices:
        """After a success, or when everything was tried: what was in vain may be there again next time."""
        return Choices(dict(self.taken), zones=self.zones, without=self.without)

    def current_option(self, group: PlannedGroup, zones: Sequence[str]) -> Way:
        """How a group's machines are asked for now."""
        return self.taken.get(group.name, ways_of(group, zones)[0])

    def after(self, errors: Sequence[CloudError], group: PlannedGroup, zones: Sequence[str]) -> Way | None:
        """The next way for a group, or None where every one was tried. Zones that the provider names come first."""
        options, current = ways_of(group, zones), self.current_option(group, zones)
        tried = self.tried.setdefault(group.name, [])
        tried.append(current)
        if any(error.then == "kind" for error in errors):
            tried += [option for option in options if option.kind == current.kind and option not in tried]
        kinds = list(dict.fromkeys(option.kind for option in options))
        remaining = [
            option
            for option in options
            if option not in tried and kinds.index(option.kind) >= kinds.index(current.kind)
        ]
        if not remaining:
            return None
        offered = [zone for error in errors for zone in error.zones]
        zone_rank = {zone: rank for rank, zone in enumerate(dict.fromkeys(offered))}
        next_option = min(
            remaining,
            key=lambda option: (
                kinds.index(option.kind),
                zone_rank.get(option.zone, len(zone_rank)),
                options.index(option),
            ),
        )
        self.taken[group.name] = next_option
        return next_option

    def attempt_lines(self, groups: Iterable[str]) -> list[str]:
        """What was asked for these groups, in order, and what was said each time, a line each."""
        return [
            f"{group}, {attempt.way}: {'; '.join(attempt.said)}"
            for group in groups
            for attempt in self.attempts.get(group, ())
        ]


def ways_of(group: PlannedGroup, zones: Sequence[str]) -> list[Way]:
    """Every way that cluster.yaml allows, in its order: each zone for the first kind, then for its fallbacks."""
    capacity = group.spec.capacity
    return [Way(kind, zone) for kind in dict.fromkeys((capacity.kind, *capacity.fallback)) for zone in zones]


def next_attempt(capacity: Capacity, plan: Plan, workspace: Path, errors: Sequence[CloudError]) -> Instead | None:
    """What to do after an apply that failed with these errors; None where the run has to stop, because another way
    would not mend one of them. The module's next inputs then say it.

    Throttling says nothing of machines: it neither stops nor counts as a shortage. A fault of the cloud's own is asked
    about once more, then it counts as one."""
    machines = {error.node: error for error in errors if error.node}
    other_errors = [error for error in errors if not error.node]
    if (
        not errors
        or any(error.then == "stop" for error in errors)
        or any(error.then != "again" for error in other_errors)
    ):
        return None
    zones, choices = capacity.zones(plan), Choices.read(workspace)
    by_group: dict[str, list[CloudError]] = {}
    for name, group in plan.nodes():
        if name in machines:
            by_group.setdefault(group.name, []).extend(error for error in errors if error.node == name)
    short = {
        name: group_errors
        for name, group_errors in by_group.items()
        if _is_short(choices, plan.group(name), zones, group_errors)
    }
    if not short:
        return _retry_same_options(choices, workspace, by_group, plan, zones, errors)
    messages, exhausted_groups, choices.retries = [], [], 0
    for name, group_errors in short.items():
        group, texts = plan.group(name), tuple(dict.fromkeys(error.summary for error in group_errors))
        failed_option = choices.current_option(group, zones)
        kinds = tuple(dict.fromkeys(error.kind for error in group_errors))
        choices.attempts.setdefault(name, []).append(Attempt(failed_option, texts, kinds=kinds))
        next_option = choices.after(group_errors, group, zones)
        codes = ", ".join(dict.fromkeys(error.code or error.kind for error in group_errors))
        messages.append(f"{name}: {codes} for {failed_option}" + (f", now {next_option}" if next_option else ""))
        exhausted_groups += [] if next_option else [name]
    if exhausted_groups:
        lines = choices.attempt_lines(exhausted_groups)
        choices.settled().write(workspace)
        head = f"{capacity.region}: no capacity for {', '.join(exhausted_groups)}"
        message = "\n    ".join([head, "tried, in order:", *lines])
        hint = hints([error for group_errors in short.values() for error in group_errors])
        return Instead("nothing", message, tuple(short), hint, no_capacity=_no_capacity(choices, exhausted_groups))
    choices.write(workspace)
    return Instead("ask", "; ".join(messages), tuple(short))


def _no_capacity(choices: Choices, groups: Iterable[str]) -> dict[str, str]:
    """Group → the codes that its attempts ended with, where all of them say that the site has no machines. An error of
    another class is none: a machine whose answer was lost may yet appear."""
    codes_by_group = {}
    for group in groups:
        attempts = choices.attempts.get(group, [])
        kinds = {kind for attempt in attempts for kind in attempt.kinds}
        if kinds & NO_CAPACITY and kinds <= BESIDE_NO_CAPACITY and all(attempt.kinds for attempt in attempts):
            codes = dict.fromkeys(
                f"{text.partition(':')[0]}, {attempt.way}" for attempt in attempts for text in attempt.said
            )
            codes_by_group[group] = "; ".join(codes)
    return codes_by_group


def _is_short(choices: Choices, group: PlannedGroup, zones: Sequence[str], errors: Sequence[CloudError]) -> bool:
    """Whether a group's errors say that it can't be had in this way."""
    if any(error.then != "again" for error in errors):
        return True
    current = choices.current_option(group, zones)
    once = any(attempt.again and attempt.way == current for attempt in choices.attempts.get(group.name, ()))
    return once and any(error.kind == "transient" for error in errors)


def _retry_same_options(
    choices: Choices, workspace: Path, by_group: Mapping[str, Sequence[CloudError]], plan: Plan, zones: Sequence[str],
    errors: Sequence[CloudError],
) -> Instead | None:  # fmt: skip
    if choices.retries >= MOST_AGAIN:
        choices.settled().write(workspace)
        return None
    choices.retries += 1
    for name, group_errors in by_group.items():
        texts = tuple(dict.fromkeys(error.summary for error in group_errors))
        option, kinds = (
            choices.current_option(plan.group(name), zones),
            tuple(dict.fromkeys(error.kind for error in group_errors)),
        )
        choices.attempts.setdefault(name, []).append(Attempt(option, texts, again=True, kinds=kinds))
    choices.write(workspace)
    pause = PAUSE_S * 2 ** (choices.retries - 1)
    codes = ", ".join(dict.fromkeys(error.code or error.kind for error in errors))
    return Instead("again", f"{codes}: asked once more in {pause:.0f} s", tuple(by_group), pause_s=pause)


def without(workspace: Path) -> list[str]:
    """Nodes that could not be had, and that their groups do without."""
    return [node for nodes in Choices.read(workspace).without.values() for node in nodes]


def do_without(workspace: Path, nodes: Mapping[str, Collection[str]]) -> bool:
    """Group → nodes that are not asked for from now on; {} asks for all of them again. Whether that is news."""
    choices = Choices.read(workspace)
    excluded_nodes = {group: sorted(names) for group, names in nodes.items()}
    changed = choices.without != excluded_nodes
    if changed:
        previous, choices.without = choices.without, excluded_nodes
        for group in (
            name for name in excluded_nodes if excluded_nodes[name] != previous.get(name)
        ):  # its machines stand where the last attempt was made, and so will the others
            tried, attempts = choices.tried.pop(group, []), choices.attempts.pop(group, [])
            if last := [attempt.way for attempt in attempts[-1:]] or tried[-1:]:
                choices.taken[group] = last[0]
        choices.write(workspace)
    return changed


def settle(workspace: Path) -> None:
    """An apply has succeeded: what was tried in vain may be tried again next time."""
    choices = Choices.read(workspace)
    if choices.tried or choices.attempts or choices.retries:
        choices.settled().write(workspace)
