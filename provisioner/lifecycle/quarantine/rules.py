"""What a verdict changes of the quarantine: rules without side effects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from provisioner.common.levels import Level, deeper
from provisioner.lifecycle.quarantine.book import ERASED, OURS, PROOF, WORK, Book, Entry
from provisioner.rundir.fleet import Node
from provisioner.spec.models import Quarantine
from provisioner.verify.check import NO_GPUS
from provisioner.verify.results import PENDING, Breaker, NodeReport, Report

UNREACHED = "the node could not be probed"


@dataclass(frozen=True, slots=True)
class Decision:
    """What follows from a verdict. `hold`: entries to be written; `drain`: which of them the drain command is run for;
    `release`: nodes that are put back into service."""

    hold: Mapping[str, Entry] = field(default_factory=dict)
    drain: tuple[str, ...] = ()
    release: tuple[str, ...] = ()
    breaker: Breaker | None = None

    @property
    def nothing(self) -> bool:
        return not self.hold and not self.release


def decide(
    store: Book,
    report: Report,
    nodes: Sequence[Node],
    level: Level,
    limits: Quarantine,
    *,
    at: str,
    drains: bool = True,
) -> Decision:
    """What a verdict at that level changes. `nodes` is the whole fleet, the report may be of a part of it; `drains`:
    there is a drain command.

    - A bad node goes into quarantine as ours, unless more would be there than `limits` allow: then none does.
    - A healthy node of ours leaves it, where this verdict looked at least as deep as the one that put it there and what
      condemned it has passed since: a check that was skipped, beside a job, has not. Where the evidence of a fault goes
      with a reboot (ERASED), a node with GPUs has to pass at work. So does one leave whose quarantine was that of a
      former machine, whoever owned that.
    - What a person put there stays as it is.
    """
    machines = {node.name: node for node in nodes}
    entries = store.of(nodes)
    judged = [verdict for verdict in report.nodes if verdict.name in machines]
    release = [v.name for v in judged if v.ok and _leaves(store.nodes.get(v.name), machines[v.name], level, v)]
    bad = {v.name: v for v in judged if not v.ok}
    fresh = {name: verdict for name, verdict in bad.items() if name not in entries} if limits.automatic else {}
    staying = [name for name in entries if name not in release]
    bound = limits.bound(len(nodes))
    if fresh and len(staying) + len(fresh) > bound:
        check, shared = most_shared(fresh.values())
        tripped = Breaker(tuple(fresh), len(staying), bound, len(nodes), check, shared)
        return Decision(release=tuple(release), breaker=tripped)
    hold = {
        name: Entry(machines[name].id, OURS, v.why, at, _checks(v), level, owed=_owed((), v, level))
        for name, v in fresh.items()
    }
    verdicts = {v.name: v for v in judged}
    for name in staying:
        if name in verdicts and entries[name].owner == OURS:
            changed = _changed(entries[name], verdicts[name], level)
            if changed != entries[name] or (name in bad and drains and not changed.drained):
                hold[name] = changed
    return Decision(hold, tuple(n for n, entry in hold.items() if n in bad and not entry.drained), tuple(release))


def _changed(entry: Entry, verdict: NodeReport, level: Level) -> Entry:
    """The entry of a node that stays, with what this verdict says."""
    owed = _owed(entry.owed, verdict, level)
    if not verdict.ok:
        cause, checks = verdict.why, _checks(verdict)
        return replace(entry, reason=cause, checks=checks, level=deeper(entry.level, level), owed=owed)
    if deeper(entry.level, level) != level:
        return entry
    reason = entry.reason.split(PENDING)[0]
    level = deeper(entry.level, "standard")
    hint = f" (`gpuprov verify FILE --level {level}` asks, `gpuprov release FILE NODE` ends it)"
    return replace(entry, reason=f"{reason}{PENDING}{', '.join(owed)}{hint}" if owed else reason, owed=owed)


def _leaves(entry: Entry | None, machine: Node, level: Level, verdict: NodeReport) -> bool:
    if entry is None:
        return False
    if entry.id != machine.id:
        return True
    return entry.owner == OURS and deeper(entry.level, level) == level and not _owed(entry.owed, verdict, level)


def _owed(owed: Iterable[str], verdict: NodeReport, level: Level) -> tuple[str, ...]:
    """What of that has still to pass, and what this verdict adds. A check that a healthy verdict lacks (a file of
    one's own that was taken out) owes nothing."""
    states: dict[str, set[str]] = {}
    for check in verdict.checks:
        states.setdefault(check.id, set()).add(check.status)
    passed = {id for id, statuses in states.items() if statuses == {"pass"}}
    if (level == "stress" and "dcgm.diag" in passed) or _has_no_gpu(verdict):
        passed.add(PROOF)
    pending = [id for id in owed if id not in passed and (id in states or id == PROOF or not verdict.ok)]
    condemned = () if verdict.error else verdict.condemned
    failed = [check.id for check in condemned if check.status == "fail" or check.id.startswith(WORK)]
    is_erased = any(c.id.startswith(ERASED) and c.status == "fail" for c in condemned)
    proof = [PROOF] if is_erased and not _has_no_gpu(verdict) else []
    return tuple(dict.fromkeys([*pending, *failed, *proof]))


def _has_no_gpu(verdict: NodeReport) -> bool:
    """Whether PROOF never applies to the node: nothing can be loaded."""
    return any(check.id == PROOF and check.message == NO_GPUS for check in verdict.checks)


def _checks(verdict: NodeReport) -> tuple[str, ...]:
    return tuple(dict.fromkeys(check.id for check in verdict.condemned))


def most_shared(bad: Iterable[NodeReport]) -> tuple[str, int]:
    """What condemns most of these nodes, and how many of them: the first thing to look at."""
    counted = Counter(
        cause for v in bad for cause in ((UNREACHED,) if v.error else _checks(v) or ("nothing was checked",))
    )
    return counted.most_common(1)[0]
