"""What an upgrade does to nodes: hooks, roles, verify, who runs what; and whom it leaves alone before it begins."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from provisioner.common.events import Kind
from provisioner.common.text import counted
from provisioner.lifecycle import baselines, configuring, hooks, machines, verifying
from provisioner.lifecycle.quarantine import actions as quarantine
from provisioner.lifecycle.quarantine import book as quarantine_book
from provisioner.lifecycle.rollout import DRAINED
from provisioner.lifecycle.session import Cluster
from provisioner.lifecycle.subjects import subjects_of
from provisioner.lifecycle.upgrade.journal import Journal
from provisioner.rundir.fleet import Node
from provisioner.rundir.release import Ledger, Release, release_of

if TYPE_CHECKING:
    from provisioner.verify.results import Report
    from provisioner.verify.subject import Subject


class NodeActions:
    """rollout.Actions on real nodes."""

    def __init__(self, cluster: Cluster, nodes: Sequence[Node], run_dir: Path) -> None:
        self.cluster = cluster
        self._nodes = {node.name: node for node in nodes}
        self._run_dir = run_dir
        self._ledger = Ledger(cluster.paths)
        self._known: dict[str, Release] = {}

    def _release(self, release: str) -> Release:
        if release not in self._known:
            self._known[release] = release_of(self.cluster.spec, self._ledger.lock(release))
        return self._known[release]

    def drain(self, nodes: Sequence[str], begun: Collection[str] = ()) -> dict[str, str]:
        """A node whose drain command failed may be drained all the same: it is put back at once. Where that fails, too,
        or where the node may be half moved, it is in quarantine, and the next verdict tries again."""
        failed = self._hook("drain", nodes)
        for name in begun:
            if name in failed:
                self.keep_out(name, f"an upgrade had begun to move it; {failed[name]}", drained=False)
        quarantined = self.quarantined()
        not_resumed = self._hook("resume", [name for name in failed if name not in quarantined])
        if not_resumed:
            store, level = quarantine_book.load(self.cluster.paths), self.cluster.spec.verify.level
            for name, message in not_resumed.items():
                reason = f"{failed[name]}; {message}"
                store.nodes[name] = quarantine_book.Entry(
                    self._nodes[name].id, quarantine_book.OURS, reason, quarantine_book.utc_timestamp(), level=level
                )
            store.save(self.cluster.paths)
        return failed

    def resume(self, nodes: Sequence[str]) -> dict[str, str]:
        """Puts them back, but for those that a person keeps in quarantine; ours were proven a moment ago."""
        quarantined = self.quarantined()
        ours = [name for name in nodes if name in quarantined and quarantined[name].owner == quarantine_book.OURS]
        bad = self._hook("resume", [name for name in nodes if name not in quarantined])
        store = quarantine_book.load(self.cluster.paths)
        return bad | quarantine.resume(self.cluster, store, [self._nodes[name] for name in ours], "upgrade")

    def keep_out(self, name: str, reason: str, *, drained: bool = True) -> None:
        """In quarantine: the next healthy verdict puts it back, whether `up`, `verify` or `upgrade` gives it.
        `drained`: the drain command worked, and no resume command was run since; else the node may be in service."""
        store = quarantine_book.load(self.cluster.paths)
        if not store.holds(self._nodes[name]):
            spec = self.cluster.spec
            store.nodes[name] = quarantine_book.Entry(
                self._nodes[name].id, quarantine_book.OURS, reason, quarantine_book.utc_timestamp(),
                level=spec.verify.level,
                drained=drained and spec.drains,
            )  # fmt: skip
            store.save(self.cluster.paths)

    def quarantined(self) -> dict[str, quarantine_book.Entry]:
        return quarantine_book.load(self.cluster.paths).of(self._nodes.values())

    def _hook(self, step: hooks.HookStep, nodes: Sequence[str]) -> dict[str, str]:
        reasons = dict.fromkeys(nodes, "gpuprov upgrade")
        return hooks.call(self.cluster, step, [self._nodes[name] for name in nodes], "upgrade", reasons)

    def move(self, targets: Mapping[str, str]) -> dict[str, str]:
        self.cluster.share()  # or another operator's `up` would take a node that is being moved for one that drifted
        # A `down` that another operator could not share has perhaps undone a host.
        refused = machines.admitted(self.cluster, [self._nodes[name] for name in targets])
        nodes = [self._nodes[name] for name in targets if name not in refused]
        releases = {node.name: self._release(targets[node.name]) for node in nodes}
        result = configuring.reconcile(self.cluster, nodes, releases, self._run_dir)
        self.cluster.events("configure", "done", f"{counted(len(result.configured), 'node')} configured")
        bad = {name: error.message for name, error in refused.items()} | result.failed
        remaining = [subject for subject in result.subjects if subject.name not in bad]
        bad |= self._judge(self._prove(remaining)) if remaining else {}
        differing = {
            node.name: [d.message for d in result.drift[node.name] if d.mended]
            for node in nodes if not result.clean(node.name)
        }  # fmt: skip
        return {
            name: bad.get(name) or "; ".join(differing[name][:3])
            for name in targets
            if name in bad or name in differing
        }

    def verify(self, targets: Mapping[str, str]) -> dict[str, str]:
        """Node → what is wrong with it, held to the release that is given."""
        nodes = [self._nodes[name] for name in targets]
        releases = {name: self._release(release) for name, release in targets.items()}
        return self._judge(self._prove(subjects_of(self.cluster, nodes, releases)))

    def _prove(self, subjects: Sequence[Subject]) -> Report:
        nodes = [self._nodes[subject.name] for subject in subjects]
        verdict = verifying.Verdict(verifying.prove(self.cluster, subjects, nodes, workdir=self._run_dir))
        verifying.settle(self.cluster, verdict, nodes, self.cluster.spec.verify.level, quarantining=False)
        for node in verdict.report.nodes:
            if slower := baselines.slower(node):
                self.report_event("warning", f"slower than its baseline: {slower}", node.name)
        return verdict.report

    @staticmethod
    def _judge(report: Report) -> dict[str, str]:
        return {node.name: node.why for node in report.nodes if not node.ok}

    def record(self, nodes: Sequence[str], release: str) -> None:
        self._ledger.record([self._nodes[name] for name in nodes], self._ledger.lock(release))

    def report_event(self, kind: Kind, message: str, node: str | None = None) -> None:
        self.cluster.events("upgrade", kind, message, node=node)


def leave_the_quarantined(journal: Journal, actions: NodeActions, requested: str | None) -> None:
    """A node in quarantine is somebody's to look at: it is left out, unless it was named."""
    for name, entry in actions.quarantined().items():
        if name in journal.at("waiting") and name != requested:
            journal.nodes[name].step = "left"
            journal.nodes[name].reason = f"in quarantine by {entry.owner}: {entry.reason}"
            actions.report_event("warning", f"skipped: {journal.nodes[name].reason}", name)
    journal.save(actions.cluster.paths)


def end_without_machines(journal: Journal, actions: NodeActions) -> None:
    """End an upgrade whose machines are gone, by a `down` that was cut short. What it had out of service is in
    quarantine until the machine that has the name now is proven."""
    reason = "the upgrade that had it out of service has ended with its machine"
    _hand_over(journal, actions, journal.out_of_service(), reason)
    journal.nodes, journal.phase = {}, "done"


def keep_unrecorded_out(journal: Journal, actions: NodeActions, unproven: Collection[str]) -> None:
    """Before another upgrade begins: quarantine nodes that this one has out of service and that the ledger does not
    have. The other one has no part for them: `up` proves them."""
    reason = "an upgrade had it out of service, and what it runs is recorded nowhere"
    _hand_over(journal, actions, [name for name in journal.out_of_service() if name in unproven], reason)


def _hand_over(journal: Journal, actions: NodeActions, names: Collection[str], reason: str) -> None:
    """From the journal to the quarantine."""
    drained = journal.at(*DRAINED)
    for name in names:
        actions.keep_out(name, reason, drained=name in drained)


def leave_the_bad(journal: Journal, actions: NodeActions) -> None:
    """A node that is not healthy before it is touched proves nothing about the release: it is named and left alone."""
    waiting = journal.at("waiting")
    if not waiting:
        return
    actions.report_event("started", f"verifying {counted(len(waiting), 'node')} before the upgrade")
    for name, reason in actions.verify({name: journal.nodes[name].source for name in waiting}).items():
        journal.nodes[name].step, journal.nodes[name].reason = "left", f"unhealthy before: {reason}"
        actions.report_event("warning", f"skipped: {journal.nodes[name].reason}", name)
    journal.save(actions.cluster.paths)
