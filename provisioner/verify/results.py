"""Verdicts: of a check, of a node, of the fleet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from provisioner.common.text import counted, printable, single_line
from provisioner.verify.baseline import GpuIdentity, Reached
from provisioner.verify.check import CRASHED, LATER, TIMED_OUT, Action, Severity

if TYPE_CHECKING:  # there is no pydantic on a node
    from provisioner.output.report import QuarantineOutput
    from provisioner.output.site_choice import SiteChoiceOutput

Status = Literal["pass", "fail", "unknown", "skip", "note"]
"""`note`: a check that only informs has something to say."""

PENDING = "; it stays until this has passed: "
"""In the reason of a quarantine: what follows takes the node out."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One check on one node. `expected` and `actual` are what was compared, JSON values; `message` is for a person. All
    are printable, whatever the node or a check wrote."""

    id: str
    severity: Severity
    status: Status
    action: Action
    says: str = ""
    expected: Any = None
    actual: Any = None
    message: str = ""
    unread: str = ""
    """The file that could not be read, where it is unknown for that."""
    explained_by: str = ""
    """The id of the failed check that it follows from."""
    lowered: bool = False
    """A fatal check that only warns, because it fails at an unverified limit."""
    parts: tuple[str, ...] = ()
    """The checks that made it fail, be unknown or a note, where several are reported under its name."""
    acknowledged: Mapping[str, str] | None = None
    """Who has looked at the warning, why it may stay, and until when: {"owner", "reason", "until"}."""

    def __post_init__(self) -> None:
        for text in ("says", "expected", "actual"):
            object.__setattr__(self, text, printable(getattr(self, text)))
        for line in ("id", "message"):  # a node's words in them begin no line of their own
            object.__setattr__(self, line, single_line(getattr(self, line)))

    @property
    def condemns(self) -> bool:
        """A fatal check that failed or could not be answered."""
        return self.severity == "fatal" and self.status in ("fail", "unknown")

    @property
    def warns(self) -> bool:
        """It failed, condemns nobody, and nobody has acknowledged it."""
        return self.status == "fail" and self.severity != "fatal" and self.acknowledged is None

    @property
    def acknowledgement(self) -> str:
        """For reports: who acknowledged it, until which day, and why. Empty where nobody has."""
        by = self.acknowledged
        return f"{by['owner']} until {by['until'][:10]}: {by['reason']}" if by is not None else ""

    @property
    def later(self) -> bool:
        """A higher level would have answered it."""
        return self.status == "skip" and self.message.startswith(LATER)

    @property
    def broken(self) -> bool:
        """Its own code is why it could not be answered, not the node."""
        return self.status == "unknown" and self.message.startswith((CRASHED, TIMED_OUT))


@dataclass(frozen=True, slots=True)
class NodeReport:
    """All checks of one node, and the facts that they judged: the `facts` document, of which a healthy node of a large
    fleet has what is reported of every node (document.DETAILED)."""

    name: str
    group: str
    site: str
    machine: str
    simulated: bool
    checks: tuple[CheckResult, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""
    """Why it was not looked at."""
    absent: bool = False
    """cluster.yaml wants it, and no machine is there."""
    lost: bool = False
    """It did not come back from a reboot of gpuprov's."""
    quarantine: QuarantineOutput | None = None
    """Who keeps it out of service, and why."""
    measures: tuple[Reached, ...] = ()
    """What it reached at work, beside the fleet's own record of it."""
    looks: Mapping[str, Any] | None = None
    """What the next look at it is given (growth.looks)."""
    gpus: tuple[GpuIdentity, ...] = ()
    """Those that answer."""
    ok: bool = field(init=False, repr=False, compare=False)
    """It was looked at, no fatal check failed or is unknown, and something was found right."""

    def __post_init__(self) -> None:
        right = not any(c.condemns for c in self.checks) and any(c.status == "pass" for c in self.checks)
        object.__setattr__(self, "ok", right and not self.error)
        for line in ("name", "error"):
            object.__setattr__(self, line, single_line(getattr(self, line)))

    @property
    def condemned(self) -> tuple[CheckResult, ...]:
        """What condemns it: the fatal checks that failed, else those that could not be answered."""
        condemning = [check for check in self.checks if check.condemns]
        return tuple([check for check in condemning if check.status == "fail"] or condemning)

    @property
    def borrowed(self) -> tuple[str, ...]:
        """Neighbours that were the other end of its measurements between nodes, and are not judged."""
        fabric = self.facts.get("fabric")
        return tuple(single_line(str(name)) for name in (fabric or {}).get("borrowed") or ())

    @property
    def why(self) -> str:
        """What condemns it, in one line."""
        return (
            self.error
            or "; ".join(f"{c.id}: {c.message or c.says}" for c in self.condemned[:3])
            or "nothing was checked"
        )

    @property
    def verdict(self) -> str:
        """healthy; not healthy; unknown where nothing wrong was seen, and not all was seen."""
        if self.ok:
            return "healthy"
        wrong = self.absent or self.lost or any(c.status == "fail" for c in self.condemned)
        return "not healthy" if wrong else "unknown"


@dataclass(frozen=True, slots=True)
class Breaker:
    """More nodes turned bad at once than may be in quarantine: nothing was done to any of them. `bad` are those nodes,
    `quarantined` how many were in quarantine already, `bound` how many may be of `nodes`; `check` condemns most of the
    bad ones, `shared` of them."""

    bad: tuple[str, ...]
    quarantined: int
    bound: int
    nodes: int
    check: str
    shared: int

    @property
    def message(self) -> str:
        already = f", {self.quarantined} in quarantine already" if self.quarantined else ""
        return (
            f"the breaker tripped: {counted(len(self.bad), 'node')} turned bad{already}, and at most {self.bound} of "
            f"{self.nodes} may be in quarantine. None of them was touched. {self.next_step}"
        )

    @property
    def next_step(self) -> str:
        """Where to look first: a common cause is likely where one check condemns half of several bad nodes or more."""
        if len(self.bad) == 1:
            return "Repair the node, or replace it"
        if self.shared > 1 and self.shared * 2 >= len(self.bad):
            return f"Look for a common cause: {self.check} on {self.shared} of {len(self.bad)}"
        return "They fail for different reasons: repair or replace one node at a time"


@dataclass(frozen=True, slots=True)
class Report:
    """The fleet. `seconds` has a number for each step (collect, judge, verify); `started` is seconds since 1970."""

    nodes: tuple[NodeReport, ...]
    seconds: Mapping[str, float]
    started: float
    title: str = "gpuprov"
    """The cluster's name, for people."""
    level: str = ""
    """How deep it looked: quick, standard, stress or image; "" for bundles, which are judged by what they have."""
    breaker: Breaker | None = None
    """Why bad nodes were left in service, where there were too many of them."""
    trend: Mapping[str, Sequence[Mapping[str, float]]] = field(default_factory=dict)
    """Node → what its machine reached in its last runs of this level, the oldest first and this one last."""
    limits: int = 0
    """Limits that the nodes are held to; a machine type's own count for each type."""
    site_choices: tuple[SiteChoiceOutput, ...] = ()
    """Of each group with a list of sites: the one where it is, and why the others were not taken (placement.rows)."""
    unverified: int = 0
    """Those of them that no measurement or document supports: they warn and condemn nobody."""

    @property
    def verdict(self) -> str:
        """healthy; unknown where nothing wrong was seen on any node; not healthy."""
        if self.ok:
            return "healthy"
        return "not healthy" if not self.nodes or "not healthy" in {node.verdict for node in self.nodes} else "unknown"

    @property
    def evidence(self) -> str:
        """What a limit is and what those of these machines rest on; "" where all of them rest on something, and where
        none was applied."""
        if not self.unverified:
            return ""
        return (
            "Checks compare what they read with limits (bandwidths, temperatures, counts of errors). "
            f"{self.unverified} of the {self.limits} limits for these machines have no measurement or vendor's "
            "document behind them yet: what is beyond one of those is a warning, never a failure."
        )

    @property
    def simulated(self) -> bool:
        return any(node.simulated for node in self.nodes)

    @property
    def healthy_nodes(self) -> tuple[str, ...]:
        """Nodes that are healthy and in service: one in quarantine does not count."""
        return tuple(node.name for node in self.nodes if node.ok and node.quarantine is None)

    @property
    def ok(self) -> bool:
        """Every node is healthy and there is at least one. A fleet's `min_healthy` is the caller's to apply."""
        return bool(self.nodes) and len(self.healthy_nodes) == len(self.nodes)

    def enough(self, min_healthy: int | str) -> bool:
        """Whether `verify.min_healthy` holds: a number of nodes, or a percentage ("90%") of all that are in the report,
        which has those too that are wanted and not there."""
        return is_enough(len(self.healthy_nodes), len(self.nodes), min_healthy)


def is_enough(healthy: int, total: int, min_healthy: int | str) -> bool:
    """Whether so many healthy nodes of all are `verify.min_healthy`."""
    if isinstance(min_healthy, str):
        return total > 0 and healthy * 100 >= int(min_healthy.rstrip("%")) * total
    return total > 0 and healthy >= min(min_healthy, total)


def blame(
    results: dict[str, CheckResult], explained_by: Mapping[str, Sequence[str]], suppresses: Mapping[str, Sequence[str]]
) -> list[CheckResult]:
    """The second rule of check.py: what another failure explains is unknown, and what mends that mends it. What is
    unknown and has no cause among the failures needs a look, and no reset or replacement on suspicion. A failure that
    only warns for want of evidence explains no fatal one.

    `explained_by` and `suppresses`: what checks declare as `follows` and `silences`, by the keys of `results`.
    """
    failed = {result.id: result for result in results.values() if result.status == "fail"}
    silent = {
        file: results[test].id for test, files in suppresses.items() if results[test].id in failed for file in files
    }
    blamed = []
    for test, result in results.items():
        causes = [cause for cause in explained_by.get(test, ()) if cause in failed and cause != result.id]
        if result.status == "fail" and result.severity == "fatal":
            causes = [cause for cause in causes if not failed[cause].lowered]
        if result.status == "unknown" and not causes and result.unread in silent:
            causes = [silent[result.unread]]
        if result.status in ("fail", "unknown") and causes:
            message = f"explained by {', '.join(causes)}: {result.message}"
            cause = failed[causes[0]]
            result = replace(result, status="unknown", message=message, action=cause.action, explained_by=cause.id)  # noqa: PLW2901
        elif result.status == "unknown" and result.action not in ("none", "reconfigure"):
            result = replace(result, action="reconfigure")  # noqa: PLW2901
        blamed.append(result)
    return blamed
