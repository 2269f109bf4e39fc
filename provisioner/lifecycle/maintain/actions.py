"""What maintenance does to nodes: hooks and quarantine, on_node.py, reboots, verify, and the record of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from provisioner.common.events import Kind
from provisioner.lifecycle import second_boot, verifying
from provisioner.lifecycle.maintain import node_work
from provisioner.lifecycle.maintain.journal import Journal
from provisioner.lifecycle.maintain.node_work import Look, Work
from provisioner.lifecycle.quarantine import actions as quarantine
from provisioner.lifecycle.quarantine import book as quarantine_book
from provisioner.lifecycle.session import Cluster
from provisioner.lifecycle.subjects import subjects_of
from provisioner.rundir import maintained
from provisioner.rundir.fleet import Node
from provisioner.rundir.maintained import Maintained
from provisioner.transport import ssh_config

if TYPE_CHECKING:
    from provisioner.rundir.release import Release
    from provisioner.stack.models import Stack

REASON = "gpuprov maintain"
"""Why a node is out of service, in quarantine.json and for the hooks."""
NOT_REBOOTED = "not rebooted: "
LOCAL = "gpuprov runs on this machine: reboot it yourself, then run `gpuprov verify`"


class MaintenanceActions:
    """rollout.Actions on real nodes. `looks`: node → what it needs; `results`: node → what was done on it, by this
    run."""

    def __init__(
        self, cluster: Cluster, nodes: Sequence[Node], releases: Mapping[str, Release], journal: Journal, run_dir: Path
    ) -> None:
        self.cluster, self.journal = cluster, journal
        self.looks: dict[str, Look] = {}
        self.results: dict[str, Maintained] = {}
        self._nodes = {node.name: node for node in nodes}
        self._releases, self._run_dir = releases, run_dir

    def look(self, names: Sequence[str], *, private: bool) -> dict[str, str]:
        """Ask nodes what they need, into `looks`; gives node → why nobody can tell."""
        settings = self.cluster.spec.maintenance
        nodes = [self._nodes[name] for name in names]
        requests = {n.name: node_work.request("look", settings, self._stack(n), private=private) for n in nodes}
        answers = node_work.look(self.cluster, requests, nodes)
        self.looks |= {name: answer for name, answer in answers.items() if isinstance(answer, Look)}
        return {name: answer for name, answer in answers.items() if isinstance(answer, str)}

    def _stack(self, node: Node) -> Stack:
        return self._releases[node.name].stack(node.group)

    def drain(self, nodes: Sequence[str], begun: Collection[str] = ()) -> dict[str, str]:
        """A node whose drain command failed may be drained all the same: it is put back at once. Where that fails, too,
        it stays in quarantine, and the next healthy verdict tries again. So is a node on which a job runs although the
        drain command ended well: it may not wait for jobs, or there is none."""
        del begun  # nothing is half installed: dpkg ends what it has begun
        failed = quarantine.hold(
            self.cluster, [self._nodes[name] for name in nodes], dict.fromkeys(nodes, REASON), "maintain"
        )
        drained = [self._nodes[name] for name in nodes if name not in failed]
        with_gpus = [node for node in drained if quarantine.has_gpus(self.cluster, node)]
        failed |= second_boot.gpu_holders(self.cluster, with_gpus)
        self.resume([*failed])
        return failed

    def resume(self, nodes: Sequence[str]) -> dict[str, str]:
        """Put back those that are out of service for this alone: a person's stay, and those that a verdict has
        condemned meanwhile."""
        store = quarantine_book.load(self.cluster.paths)
        entries = store.of([self._nodes[name] for name in nodes])
        ours = [self._nodes[name] for name, entry in entries.items() if entry.drained_alone]
        return quarantine.resume(self.cluster, store, ours, "maintain")

    def is_drained(self, name: str) -> bool:
        """Whether a node that an interrupted run had drained is drained still: a verdict may have put it back."""
        entry = quarantine_book.load(self.cluster.paths).of([self._nodes[name]]).get(name)
        return entry is not None and (entry.drained or not self.cluster.spec.drains)

    def keep_out(self, name: str, reason: str) -> None:
        """It is in quarantine already; from now on with that reason."""
        store = quarantine_book.load(self.cluster.paths)
        entry = store.nodes.get(name)
        if entry is not None and entry.drained_alone:
            store.nodes[name] = replace(entry, reason=f"{REASON}: {reason}")
            store.save(self.cluster.paths)

    def move(self, targets: Mapping[str, str]) -> dict[str, str]:
        nodes = [self._nodes[name] for name in targets]
        missing = [name for name in targets if name not in self.looks]  # an interrupted run had looked at them
        bad = self.look(missing, private=False) if missing else {}
        nodes = [node for node in nodes if node.name not in bad]
        answers = self._work(nodes)
        bad |= {name: answer for name, answer in answers.items() if isinstance(answer, str)}
        done = {name: answer for name, answer in answers.items() if isinstance(answer, Work)}
        bad |= self._reboot({name: answer for name, answer in done.items() if name not in bad})
        proven = [node for node in nodes if node.name not in bad]
        return bad | (self._prove(proven) if proven else {})

    def _work(self, nodes: Sequence[Node]) -> dict[str, Work | str]:
        """Patch and clean; the first node of a group decides which versions the group gets."""
        settings, sets = self.cluster.spec.maintenance, self.journal.sets
        canaries = {node.group: node.name for node in reversed(nodes) if node.group not in sets}
        for group, name in canaries.items():  # before anything is installed: an interrupted run goes on with this set
            sets[group] = self.looks[name].packages
        self.journal.save(self.cluster.paths)
        requests = {
            node.name: node_work.request("work", settings, self._stack(node), packages=sets[node.group])
            for node in nodes
        }
        answers = node_work.work(self.cluster, requests, nodes)
        for node in nodes:
            answer = answers[node.name]
            if isinstance(answer, str):
                self.report_event("failed", answer, node.name)
                continue
            self._note(node, answer, sets[node.group])
            if canaries.get(node.group) == node.name:
                sets[node.group] = {name: answer.present.get(name, v) for name, v in sets[node.group].items()}
                self.journal.save(self.cluster.paths)
        return answers

    def _note(self, node: Node, answer: Work, packages: Mapping[str, str]) -> None:
        look = self.looks[node.name]
        waiting = dict(look.waiting)
        for name in answer.missing:
            waiting[name] = f"{packages[name]} is not in the archive any more"
        for name in look.packages.keys() - packages.keys():
            waiting[name] = "not in the set of its group's first node"
        due = "; ".join(answer.reboot.reasons)
        due = f"{due} ({NOT_REBOOTED}{answer.reboot.blocked})" if due and answer.reboot.blocked else due
        earlier = maintained.load(self.cluster.paths).of(node)
        self.results[node.name] = Maintained(
            id=node.id,
            at=quarantine_book.utc_timestamp(),
            packages={**(earlier.packages if earlier else {}), **answer.present},
            waiting=waiting,
            freed={category: size for category, size in answer.freed.items() if size},
            due=due,
        )
        freed = sum(answer.freed.values())
        self.report_event("progress", f"{len(answer.installed)} packages, {freed // 2**20} MiB freed", node.name)

    def _reboot(self, done: Mapping[str, Work]) -> dict[str, str]:
        """Reboot nodes that need it; gives node → why it was not seen to come back."""
        if "reboot" not in self.cluster.spec.maintenance.work:
            return {}
        blocked = {name: answer.reboot.blocked for name, answer in done.items() if answer.reboot.reasons}
        blocked |= dict.fromkeys(blocked.keys() & ssh_config.local(self.cluster.paths), LOCAL)
        for name, reason in blocked.items():
            if reason:
                self.report_event("warning", NOT_REBOOTED + reason, name)
        due = [name for name, reason in blocked.items() if not reason]
        if not due:
            return {}
        failed = second_boot.reboot_all(self.cluster, [self._nodes[name] for name in due], "maintain", "node")
        for name in due:
            if name not in failed:
                row = self.results[name]
                self.results[name] = replace(row, rebooted=row.due, due="")
        return failed

    def _prove(self, nodes: Sequence[Node]) -> dict[str, str]:
        subjects = subjects_of(self.cluster, nodes, {node.name: self._releases[node.name] for node in nodes})
        verdict = verifying.Verdict(verifying.prove(self.cluster, subjects, nodes, workdir=self._run_dir))
        verifying.settle(self.cluster, verdict, nodes, self.cluster.spec.verify.level, quarantining=False)
        return {node.name: node.why for node in verdict.report.nodes if not node.ok}

    def record(self, nodes: Sequence[str], release: str) -> None:
        del release
        store = maintained.load(self.cluster.paths)
        store.forget(self.cluster.nodes())
        store.nodes |= {name: self.results[name] for name in nodes if name in self.results}
        store.save(self.cluster.paths)

    def report_event(self, kind: Kind, message: str, node: str | None = None) -> None:
        self.cluster.events("maintain", kind, message, node=node)
