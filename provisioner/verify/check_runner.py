"""One check on one node: what is asked before, and what its end means. No pytest is needed for it: plugin.py calls this
for a fleet, health.py on a node."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

from provisioner.common.levels import LEVELS
from provisioner.verify.baseline import Baseline
from provisioner.verify.basis import watched
from provisioner.verify.check import (
    CRASHED,
    LATER,
    NEEDS_MACHINE,
    TIMED_OUT,
    Check,
    Failed,
    Noted,
    Skipped,
    Unknown,
    seen,
)
from provisioner.verify.expectations import Expected
from provisioner.verify.facts import Facts, not_given
from provisioner.verify.peers import Peers
from provisioner.verify.tools import FILES
from provisioner.verify.watch import TooLong

PLAIN = {"node", "expected", "peers", "baseline", "name"}
"""What a check can ask for without asking anybody."""


@dataclass(frozen=True, slots=True)
class NodeUnderTest:
    """What a check can ask for of one node. `host` is a testinfra connection or None; `baseline` what the fleet's own
    record says of it, where there is one."""

    name: str
    facts: Facts
    expected: Expected
    host: str | None
    group: str = ""
    baseline: Baseline | None = None
    watched: Expected = field(init=False, repr=False, compare=False)
    """`expected` as a check is given it (basis.watched)."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "watched", watched(self.expected))


RANK = {level: rank for rank, level in enumerate(LEVELS)}
MESSAGE, COMPARED = 1000, 8000
"""Characters that a report keeps of a check's message, and of each of what it compared (as JSON)."""


class Outcome(NamedTuple):
    """How a check ended; hundreds of thousands are made and compared. `action` is None where it is the declared one."""

    status: str
    message: str
    action: str | None
    expected: Any
    actual: Any
    unread: str = ""
    """The file that could not be read, where it is unknown for that."""
    unverified: bool = False
    """Whether a failure rests on what is unverified, or an unanswered check applies for it alone: it warns then."""

    @classmethod
    def of(cls, error: BaseException | None, *, called: bool = True) -> Outcome:
        """Of what the check raised, with what it has compared; `called` false where it did not come to run."""
        status, message, action = _verdict(error, called=called)
        looked = (seen.expected, seen.actual) if called else (None, None)
        unread = error.unread if isinstance(error, Unknown) else ""
        unverified = _unverified(status, error) if called else ()
        only_told = isinstance(error, Unknown) and not error.condemns
        message = (message or seen.note)[:MESSAGE] + (f" (unverified: {', '.join(unverified)})" if unverified else "")
        return cls(status, message, action, looked[0], looked[1], unread, bool(unverified) or only_told)

    def bounded(self) -> Outcome:
        """With what was compared in a length that a report can hold."""
        if self.expected is None and self.actual is None:  # as of most checks
            return self
        return self._replace(expected=_bounded(self.expected), actual=_bounded(self.actual))


def _unverified(status: str, error: BaseException | None) -> tuple[str, ...]:
    """What a failure rests on that is unverified; of an unanswered check, which compared nothing, why it applies."""
    if status == "unknown":
        return tuple(sorted(seen.applied))
    if status != "fail":
        return ()
    limits = error.unverified if isinstance(error, Failed) else ()
    observed = isinstance(error, Failed) and error.observed
    return (*limits, *(() if observed else sorted(seen.unverified)))


def _bounded(value: Any) -> Any:
    text = json.dumps(value, default=str)
    return value if len(text) <= COMPARED else f"{text[:COMPARED]} … ({len(text)} characters)"


def plain(function: object) -> Check | None:
    """The declaration of a check that asks for nothing but PLAIN; None of anything else."""
    declared = getattr(function, "__check__", None)
    if isinstance(declared, Check) and inspect.isfunction(function):
        return declared if set(asks(function)) <= PLAIN else None
    return None


@cache
def asks(function: Callable[..., None]) -> tuple[str, ...]:
    """The names of a check's arguments: looked up once, not for each node of a fleet."""
    return tuple(inspect.signature(function).parameters)


class NotApplicable(Skipped):
    """What is expected of the node gives the check nothing to judge."""


_not_applicable: dict[str, tuple[Check, Expected, Outcome]] = {}
"""Check id → the last expectations to which it did not apply, which the nodes of a group share, with its outcome."""


def run(function: Callable[..., None], declared: Check, node: NodeUnderTest, peers: Peers) -> Outcome:
    """Call a plain check on a node."""
    last = _not_applicable.get(declared.id)
    if last is not None and last[0] is declared and last[1] is node.expected:
        return last[2]
    values = {
        "node": node.facts,
        "expected": node.watched,
        "name": node.name,
        "peers": peers,
        "baseline": node.baseline,
    }
    seen.begin()
    try:
        ready(declared, node)
        try:
            function(**{name: values[name] for name in asks(function)})
        except Skipped:
            enough(declared, node)
            raise
        enough(declared, node)
        verdict: Exception | None = None
    except Exception as raised:
        verdict = raised
    if seen.undecided and not (isinstance(verdict, Failed) and verdict.observed):
        verdict = Skipped(NEEDS_MACHINE)
    outcome = Outcome.of(verdict)
    if isinstance(verdict, NotApplicable):
        _not_applicable[declared.id] = declared, node.expected, outcome
    return outcome


def enough(declared: Check, node: NodeUnderTest) -> None:
    """What lists GPUs and says little of them proves nothing by showing nothing wrong; nor does a part of a log."""
    outputs = node.facts.outputs
    for file in declared.needs:
        if (output := outputs.get(file)) is not None and output.partial:
            raise Unknown(f"nothing wrong is seen, but {output.partial}", action="none")
    if declared.listing or not node.facts.listed_by:
        return
    if {"gpus", node.expected.gpu_file} & {*declared.needs}:
        raise Unknown(node.facts.listed_alone, action="none")


def ready(declared: Check, node: NodeUnderTest) -> None:
    """The first rule of check.py: what a check needs must have been read."""
    facts, expected = node.facts, node.expected
    try:
        reason = declared.inapplicable(node.watched)
    except (Skipped, Unknown):  # it asks for the machine type: then only what the node itself shows counts
        reason, seen.undecided = "", True
    if reason:
        raise NotApplicable(reason)
    seen.applies()
    needs = [expected.gpu_file if need == "gpus" else need for need in declared.needs]
    if RANK[expected.level] < RANK[declared.level]:
        absent = [facts.source(file).state == "absent" for file in needs or declared.reads]
        if any(absent) if needs else all(absent):
            raise Skipped(f"{LATER}{declared.level} on")
    for need in needs:
        source = facts.source(need)
        if not FILES[need].by_hand and source.state == "absent" and facts.collected is None and facts.outputs:
            raise Skipped(f"{need} is written by gpuprov's probe alone, and this bundle was not collected by gpuprov")
        if source.state != "read":
            # A busy node was slow to answer, or nobody copied the file: that calls for another look and nothing else.
            look = source.state == "hung" or source == not_given(need)
            older = FILES[need].added_later and facts.never_asked(need)
            reason = f"{source.reason}: it was collected by an older gpuprov" if older else source.reason
            raise Unknown(reason, need, "none" if look else None, condemns=not older)


def _verdict(error: BaseException | None, *, called: bool) -> tuple[str, str, str | None]:
    """(status, message, action). What is neither a verdict nor an assertion is a crash, and a crash is unknown."""
    match error:
        case None:
            return "pass", "", None
        case Failed():
            return "fail", error.message, error.action
        case Unknown():
            return "unknown", str(error), error.action
        case Skipped():
            return "skip", str(error), None
        case Noted():
            return "note", str(error), "none"
        case TooLong():
            return "unknown", TIMED_OUT, None
        case AssertionError() if called:
            return "fail", str(error).strip() or "assertion failed", None
        case _:
            return "unknown", f"{CRASHED}{type(error).__name__}: {error}", None
