"""Work on a running fleet in batches: each node drained, worked on, proven and put back into service, canaries first.

Only the order is here. What is done to nodes is `Actions`; `upgrade` and `maintain` have theirs, the tests have others.
Every step is in a record before it begins and after it has ended; whatever is killed goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field
from typing import Literal, Protocol

from pydantic.dataclasses import dataclass

from provisioner.common.events import Kind
from provisioner.rundir import records
from provisioner.rundir.fleet import Node

Step = Literal[
    "waiting", "draining", "drained", "proven", "moved", "leaving", "failed", "back", "rolled-back", "left", "stuck"
]  # fmt: skip
"""waiting for its turn; draining: the hook is running; drained: out of service, being worked on; proven: healthy after
the work, not yet in service; moved: in service after it; left: not touched; stuck: it could not be proven, it stays out
of service. Of an upgrade that is rolled back: leaving: being drained for the way back; failed: out of service, to be
brought back; back: healthy with the old lock, not yet in service; rolled-back: in service with the old lock."""

AT_REST: tuple[Step, ...] = ("waiting", "moved", "rolled-back", "left")
"""Steps of a node that is in service."""

DRAINED: tuple[Step, ...] = ("drained", "failed")
"""Steps of a node that is drained: the drain command worked, and no resume command was run since. At the other steps it
may be in service, because a command was cut off."""

Phase = Literal["moving", "rolling-back", "done", "rolled-back"]
BUSY = ("moving", "rolling-back")

NOT_DRAINED = "could not be drained: "
NOT_RESUMED = "proven, but not put back into service: "


@dataclass(config=records.STRICT, slots=True)
class Place:
    """Where one node is. `source` is the release that it came from; `reason` says why where something went wrong.
    `begun`: a run before had begun to work on it, so that what it runs may not be what the ledger says."""

    source: str
    step: Step = "waiting"
    reason: str = ""
    begun: bool = False


@dataclass(config=records.STRICT, slots=True)
class Rollout:
    """How far the nodes are. `to` names what they get: of an upgrade the id of a release; `reason` says why it ended
    early."""

    to: str = ""
    phase: Phase = "done"
    batch: int = 1
    reason: str = ""
    nodes: dict[str, Place] = field(default_factory=dict)

    @property
    def busy(self) -> bool:
        return self.phase in BUSY

    def at(self, *steps: Step) -> list[str]:
        """Nodes at one of these steps, in the order of their turn."""
        return [name for name, position in self.nodes.items() if position.step in steps]

    def out_of_service(self) -> list[str]:
        """Nodes that are drained, or may be."""
        return [name for name, position in self.nodes.items() if position.step not in AT_REST]

    def forget(self, nodes: Collection[Node]) -> None:
        """Leave nodes out that have no machine any more."""
        names = {node.name for node in nodes}
        self.nodes = {name: position for name, position in self.nodes.items() if name in names}


class Actions(Protocol):
    """What is done to nodes. What comes back is why it did not work, by node; a node that it worked on is not in it."""

    def drain(self, nodes: Sequence[str], begun: Collection[str] = ()) -> dict[str, str]:
        """Take nodes out of service, all at once. Called again for a node whose draining was cut off. `begun`: those
        that may be half moved; they are not put back where it does not work."""

    def resume(self, nodes: Sequence[str]) -> dict[str, str]:
        """Put nodes back into service. Called again where that was cut off."""

    def move(self, targets: Mapping[str, str]) -> dict[str, str]:
        """Work on nodes (node → what it gets) and verify them."""

    def record(self, nodes: Sequence[str], release: str) -> None:
        """These nodes have that from now on."""

    def keep_out(self, name: str, reason: str) -> None:
        """This node stays out of service until a verdict finds it healthy."""

    def report_event(self, kind: Kind, message: str, node: str | None = None) -> None:
        """A line for people."""


class Stopped(Exception):
    """The work can't go on by itself; what was done stays, and the next call goes on."""


Failed = Callable[[Sequence[str], Mapping[str, str]], None]
"""Given a batch of drained nodes and why some of them are bad: sets their steps, and ends the phase "moving" or lets no
further batch begin. It saves nothing."""


def start(journal: Rollout, to: str, runs: Mapping[str, str], *, first: Sequence[str], batch: int) -> None:
    """Start work on the nodes `runs` (node → release that it runs). `first` are the canaries. Nodes that an unfinished
    run left out of service come before them, and are drained again: a hook may have been cut off, or a person may have
    put them back."""
    out = [name for name in journal.out_of_service() if name in runs]
    turn = dict.fromkeys([*out, *first, *runs])
    begun = {name for name in out if journal.nodes[name].step != "draining" or journal.nodes[name].begun}
    journal.nodes = {
        name: Place(runs[name], "draining" if name in out else "waiting", begun=name in begun) for name in turn
    }
    journal.to, journal.phase, journal.reason = to, "moving", ""
    journal.batch = max(1, batch)


def advance(
    journal: Rollout, actions: Actions, save: Callable[[], None], *, canaries: int, fail: Failed,
    may_begin: Callable[[], bool] = lambda: True,
) -> None:  # fmt: skip
    """Go on until every node had its turn, or a batch was bad (`fail`). `may_begin` is asked before each new batch; a
    batch that a run before had begun goes on all the same. Raises Stopped where a node can't be put back into service:
    going on would take one after the other out of it."""
    while journal.phase == "moving":
        put_into_service(journal, actions, save, "proven", "moved")
        batch = journal.at("draining", "drained")
        if not batch and may_begin():
            batch = journal.at("waiting")[: journal.batch if journal.at("moved") else canaries]
        if batch:
            _work_on(journal, actions, save, batch, fail)
        else:
            journal.phase = "done"
            save()


def _work_on(journal: Rollout, actions: Actions, save: Callable[[], None], batch: Sequence[str], fail: Failed) -> None:
    kind = "batch" if journal.at("moved") else "canary"
    actions.report_event("started", f"{kind}: {', '.join(batch)}")
    undrained = [name for name in batch if journal.nodes[name].step != "drained"]
    take_out_of_service(journal, actions, save, undrained, "draining", done="drained", refused="left")
    drained = [name for name in batch if journal.nodes[name].step == "drained"]
    bad = actions.move(dict.fromkeys(drained, journal.to)) if drained else {}
    if bad:
        fail(drained, bad)
        save()
    else:
        actions.record(drained, journal.to)
        _set(journal, save, drained, "proven")


def take_out_of_service(
    journal: Rollout, actions: Actions, save: Callable[[], None], batch: Sequence[str], during: Step, *,
    done: Step, refused: Step,
) -> None:  # fmt: skip
    """Drain nodes; those that it does not work for are at step `refused` with the reason."""
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


def put_into_service(journal: Rollout, actions: Actions, save: Callable[[], None], at: Step, then: Step) -> None:
    """Resume the nodes of a step. Raises Stopped where that does not work for one."""
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


def summarise_bad(bad: Mapping[str, str]) -> str:
    """Why a batch was bad: the first node with its reason, and how many more."""
    first = next(iter(bad))
    return f"{first}: {bad[first]}" + (f" (and {len(bad) - 1} more)" if len(bad) > 1 else "")


def _set(journal: Rollout, save: Callable[[], None], names: Sequence[str], step: Step) -> None:
    for name in names:
        journal.nodes[name].step = step
    save()
