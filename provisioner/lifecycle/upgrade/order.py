"""The order of an upgrade: rollout.py's, and at the first bad batch stop, bring it back, and say why."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from provisioner.lifecycle import rollout
from provisioner.lifecycle.rollout import Actions
from provisioner.lifecycle.upgrade.journal import Journal


def begin(journal: Journal, to: str, runs: Mapping[str, str], *, first: Sequence[str], batch: int) -> None:
    """Start an upgrade of the nodes `runs` (node → release that it runs), as rollout.start."""
    rollout.start(journal, to, runs, first=first, batch=batch)
    journal.rollback_all = False


def run(journal: Journal, actions: Actions, save: Callable[[], None], *, canaries: int) -> None:
    """Go on until every node had its turn, or a batch was bad and is brought back. Raises Stopped where a node can't be
    put back into service: going on would take one after the other out of it."""

    def fail(drained: Sequence[str], bad: Mapping[str, str]) -> None:
        journal.reason = rollout.summarise_bad(bad)
        journal.phase, journal.failed[journal.to] = "rolling-back", journal.reason
        for name in drained:
            journal.nodes[name].reason = bad.get(name, f"in one batch with {next(iter(bad))}")
            journal.nodes[name].step = "failed"
        actions.report_event("failed", f"the release failed: {journal.reason}; rolling back")

    rollout.advance(journal, actions, save, canaries=canaries, fail=fail)
    while journal.phase == "rolling-back":
        rollout.put_into_service(journal, actions, save, "back", "rolled-back")
        leaving = [n for n in journal.at("moved") if not journal.nodes[n].reason] if journal.rollback_all else []
        if batch := journal.at("failed"):
            _back(journal, actions, save, batch)
        elif batch := journal.at("leaving") or leaving[: journal.batch]:
            rollout.take_out_of_service(journal, actions, save, batch, "leaving", done="failed", refused="moved")
        else:
            journal.phase = "rolled-back"
            save()


def _back(journal: Journal, actions: Actions, save: Callable[[], None], batch: Sequence[str]) -> None:
    """Bring nodes that are out of service back to what they ran."""
    actions.report_event("started", f"rolling back {', '.join(batch)}")
    bad = actions.move({name: journal.nodes[name].source for name in batch})
    for name in batch:
        progress = journal.nodes[name]
        if name in bad:
            progress.step, progress.reason = "stuck", f"could not be rolled back: {bad[name]}"
            actions.keep_out(name, progress.reason)
            actions.report_event("failed", progress.reason, name)
        else:
            actions.record([name], progress.source)
            progress.step = "back"
    save()
