"""The order of an upgrade: canaries, then batches; each node drained, moved, proven and put back into service; at the
first bad batch stop, bring it back, and say why.

Only the order is here. What is done to nodes is `Actions`: upgrade.py has the real ones, the tests have others. Every
step is in the journal before it begins and after it has ended; whatever is killed goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from provisioner.common.events import Kind
from provisioner.lifecycle.upgrade.journal import Journal, Place, Step

NOT_DRAINED = "could not be drained: "
NOT_RESUMED = "proven, but not put back into service: "


class Actions(Protocol):
    """What is done to nodes. What comes back is why it did not work, by node; a node that it worked on is not in it."""

    def drain(self, nodes: Sequence[str], begun: Collection[str] = ()) -> dict[str, str]:
        """Take nodes out of service, all at once. Called again for a node whose draining was cut off. `begun`: those
        that may be half moved; they are not put back where it does not work."""

    def resume(self, nodes: Sequence[str]) -> dict[str, str]:
        """Put nodes back into service. Called again where that was cut off."""

    def move(self, targets: Mapping[str, str]) -> dict[str, str]:
        """Configure nodes (node → release) and verify them."""

    def record(self, nodes: Sequence[str], release: str) -> None:
        """These nodes run that release from now on."""

    def keep_out(self, name: str, reason: str) -> None:
        """This node stays out of service until a verdict finds it healthy."""

    def report_event(self, kind: Kind, message: str, node: str | None = None) -> None:
        """A line for people."""


class Stopped(Exception):
    """The upgrade can't go on by itself; what was done stays, and the next call goes on."""


def begin(journal: Journal, to: str, runs: Mapping[str, str], *, first: Sequence[str], batch: int) -> None:
    """Start an upgrade of the nodes `runs` (node → release that it runs). `first` are the canaries. Nodes that an
    unfinished upgrade left out of service come before them, and are drained again: a hook may have been cut off, or a
    person may have put them back."""
    out = [name for name in journal.out_of_service() if name in runs]
    turn = dict.fromkeys([*out, *first, *runs])
    begun = {name for name in out if journal.nodes[name].step != "draining" or journal.nodes[name].begun}
    journal.nodes = {
        name: Place(runs[name], "draining" if name in out else "waiting", begun=name in begun) for name in turn
    }
    journal.to, journal.phase, journal.reason = to, "moving", ""
    journal.batch, journal.rollback_all = max(1, batch), False


def run(journal: Journal, actions: Actions, save: Callable[[], None], *, canaries: int) -> None:
    """Go on until every node had its turn, or a batch was bad and is brought back. Raises Stopped where a node can't be
    put back into service: going on would take one after the other out of it."""
    while journal.phase == "moving":
        _into_service(journal, actions, save, "proven", "moved")
        waiting = journal.at("waiting")
        size = journal.batch if journal.at("moved") else canaries
        batch = journal.at("draining", "drained") or waiting[:size]
        if batch:
            _forward(journal, actions, save, batch)
        else:
            journal.phase = "done"
            save()
    while journal.phase == "rolling-back":
        _into_service(journal, actions, save, "back", "rolled-back")
        leaving = [n for n in journal.at("moved") if not journal.nodes[n].reason] if journal.rollback_all else []
        if batch := journal.at("failed"):
            _back(journal, actions, save, batch)
        elif batch := journal.at("leaving") or leaving[: journal.batch]:
            _out_of_service(journal, actions, save, batch, "leaving", done="failed", refused="moved")
        else:
            journal.phase = "rolled-back"
            save()


def _forward(journal: Journal, actions: Actions, save: Callable[[], None], batch: Sequence[str]) -> None:
    kind = "batch" if journal.at("moved") else "canary"
    actions.report_event("started", f"{kind}: {', '.join(batch)}")
    undrained = [name for name in batch if journal.nodes[name].step != "drained"]
    _out_of_service(journal, actions, save, undrained, "draining", done="drained", refused="left")
    drained = [name for name in batch if journal.nodes[name].step == "drained"]
    bad = actions.move(dict.fromkeys(drained, journal.to)) if drained else {}
    if not bad:
        actions.record(drained, journal.to)
        _set(journal, save, drained, "proven")
        return
    first = next(iter(bad))
    journal.reason = f"{first}: {bad[first]}" + (f" (and {len(bad) - 1} more)" if len(bad) > 1 else "")
    journal.phase, journal.failed[journal.to] = "rolling-back", journal.reason
    for name in drained:
        journal.nodes[name].reason = bad.get(name, f"in one batch with {first}")
    _set(journal, save, drained, "failed")
    actions.report_event("failed", f"the release failed: {journal.reason}; rolling back")


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


def _out_of_service(
    journal: Journal, actions: Actions, save: Callable[[], None], batch: Sequence[str], during: Step, *,
    done: Step, refused: Step,
) -> None:  # fmt: skip
    if not batch:
        return
    _set(journal, save, batch, during)
    bad = actions.drain(batch, [name for name in batch if journal.nodes[name].begun])
    for name in batch:
        progress = journal.nodes[name]
        progress.step = refused if name in bad else done
        if name in bad:
            progress.reason = NOT_DRAINED + bad[name]
            actions.report_event("warning", f"skipped: {progress.reason}", name)
    save()


def _into_service(journal: Journal, actions: Actions, save: Callable[[], None], at: Step, then: Step) -> None:
    names = journal.at(at)
    if not names:
        return
    bad = actions.resume(names)
    for name in names:
        progress = journal.nodes[name]
        progress.reason = "" if progress.reason.startswith(NOT_RESUMED) else progress.reason
        if name in bad:
            progress.reason = NOT_RESUMED + bad[name]
        else:
            progress.step = then
            actions.report_event("progress", f"in service, {then}", name)
    save()
    if bad:
        raise Stopped("; ".join(f"{name}: {NOT_RESUMED}{reason}" for name, reason in bad.items()))


def _set(journal: Journal, save: Callable[[], None], names: Sequence[str], step: Step) -> None:
    for name in names:
        journal.nodes[name].step = step
    save()
