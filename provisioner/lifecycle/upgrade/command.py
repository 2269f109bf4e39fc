"""`gpuprov upgrade`: moves a running fleet to the lock that cluster.yaml now wants. The order is in order.py, what is
done to nodes in actions.py; this chooses the nodes and says how it ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from provisioner.common.errors import Exit, GpuprovError
from provisioner.common.text import counted
from provisioner.lifecycle import diff, locking, machines
from provisioner.lifecycle.rollout import Step, Stopped
from provisioner.lifecycle.run_snapshot import RunSnapshot
from provisioner.lifecycle.session import Cluster
from provisioner.lifecycle.sites import together
from provisioner.lifecycle.upgrade import journal as upgrade_journal
from provisioner.lifecycle.upgrade import order
from provisioner.lifecycle.upgrade.actions import (
    NodeActions,
    end_without_machines,
    keep_unrecorded_out,
    leave_the_bad,
    leave_the_quarantined,
)
from provisioner.lifecycle.upgrade.journal import Journal
from provisioner.machines.terraform.binary import Binary
from provisioner.output.upgrade import UpgradeNode, UpgradeOutput
from provisioner.plan.models import build_plan
from provisioner.rundir.fleet import Node
from provisioner.rundir.release import Ledger, changes, same
from provisioner.stack.models import Lock

Confirm = Callable[[dict[str, list[str]], int, list[str]], bool]
"""Asks a person: node → what changes on it, nodes in a batch, the canaries."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says; None takes cluster.yaml's. `batch` is a number of nodes or a percentage."""

    batch: int | str | None = None
    canary: str | None = None
    rollback_all: bool = False
    again: bool = False


@dataclass(slots=True)
class Upgrade:
    """What one call did. `runs` has the release that each node runs now, `driver` its version."""

    run_dir: Path
    journal: Journal
    runs: dict[str, str | None] = field(default_factory=dict)
    drivers: dict[str, str | None] = field(default_factory=dict)
    declined: bool = False
    nothing: bool = False
    """Every node ran the new lock already."""
    stopped: str = ""
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Every node had its turn and runs the new release."""
        moved = all(progress.step == "moved" for progress in self.journal.nodes.values())
        return self.nothing or (self.journal.phase == "done" and not self.stopped and moved)

    @property
    def exit(self) -> Exit:
        return Exit.OK if self.ok or self.declined else Exit.CHECK_FAILED


def upgrade(cluster: Cluster, binary: Binary, options: Options, *, confirm: Confirm) -> Upgrade:
    """Move the fleet, or go on where a call before this one was stopped. Raises GpuprovError for what can't be begun:
    no fleet, other machines wanted than there are, a release that was rolled back here."""
    nodes, began = cluster.nodes(), time.monotonic()
    names, desired = {node.name for node in nodes}, set(diff.desired(cluster))
    if not names <= desired:
        upgrade_journal.refuse_resized(cluster, cluster.spec.sites)
    begun = upgrade_journal.load(cluster.paths)
    # One that is begun goes on without new nodes; a node of its own that nodes.json has lost is taken in first.
    goes_on = begun.busy and names <= desired and not (desired - names) & begun.nodes.keys()
    if not nodes or not (goes_on or names == desired):
        raise GpuprovError(
            "the machines are not those of cluster.yaml" if nodes else "there is no fleet yet",
            where=str(cluster.file),
            hint=f"run `gpuprov up {cluster.typed_file}` first: it creates machines and "
            "keeps running ones on their lock",
        )
    _refuse_unknown_canary(cluster, options)
    with cluster.exclusively("upgrade") as run_dir:
        machines.refuse_undone(cluster)
        whole_lock = locking.current(cluster, cluster.events, write=False)
        lock = cluster.place_lock(whole_lock)
        journal, ledger = upgrade_journal.load(cluster.paths), Ledger(cluster.paths)
        ledger.refuse_damaged_locks(lock)  # before a node is drained
        journal.forget(nodes)
        done, snapshot = Upgrade(run_dir, journal), RunSnapshot.of(cluster.paths)
        target = ledger.keep(lock)
        _restore_moved(journal, ledger, nodes)
        if journal.phase == "moving" and not any(ledger.of(node) for node in nodes):
            end_without_machines(journal, NodeActions(cluster, nodes, run_dir))
            done.stopped = (
                f"the machines that it was to move are gone; `gpuprov up {cluster.typed_file}` proves the new ones"
            )
        else:
            _choose(NodeActions(cluster, nodes, run_dir), journal, lock, target, nodes, options)
        if done.stopped or not journal.busy:
            locking.write(cluster, whole_lock)
        if done.stopped:
            journal.save(cluster.paths)
        elif journal.busy:
            moving = _moving(journal, ledger, nodes)
            first = journal.at("waiting")[: _canaries(cluster, options)]
            if not snapshot.confirmed(cluster.paths, lambda: confirm(moving, journal.batch, first)):
                done.declined = True
                return done
            locking.write(cluster, whole_lock)
            journal.save(cluster.paths)
            _offer(cluster, lock, nodes, binary, run_dir)
            actions = NodeActions(cluster, nodes, run_dir)
            done.stopped = _move(cluster, journal, actions, options)
        else:
            done.nothing = True
            journal.nodes, journal.phase, journal.to, journal.reason = {}, "done", target, ""
            journal.save(cluster.paths)
        _note_runs(cluster, done, nodes)
        done.seconds = round(time.monotonic() - began, 1)
        cluster.events("upgrade", "done" if done.ok else "failed", summary(done))
    return done


def _move(cluster: Cluster, journal: Journal, actions: NodeActions, options: Options) -> str:
    """Do what the journal has; why it stopped, empty where it did not."""
    if journal.phase == "moving":
        leave_the_quarantined(journal, actions, options.canary)
        leave_the_bad(journal, actions)
    try:
        order.run(journal, actions, lambda: journal.save(cluster.paths), canaries=_canaries(cluster, options))
    except Stopped as error:
        return str(error)
    return ""


def _note_runs(cluster: Cluster, done: Upgrade, nodes: Sequence[Node]) -> None:
    """What each node runs now; locks that no node needs any more are forgotten."""
    ledger = Ledger(cluster.paths)
    ledger.prune(nodes, done.journal.needs())
    for node in nodes:
        runs = done.runs[node.name] = ledger.of(node)
        done.drivers[node.name] = ledger.lock(runs).groups[node.group].driver if runs else None


def _refuse_unknown_canary(cluster: Cluster, options: Options) -> None:
    if options.canary is not None:
        cluster.node(options.canary)  # raises with the nearest names


def _restore_moved(journal: Journal, ledger: Ledger, nodes: Sequence[Node]) -> None:
    """Record nodes that this upgrade has proven where the ledger is older than the journal, as after a backup or the
    shared one was restored: `up` would move them back, unasked."""
    if journal.phase == "moving" and ledger.has(journal.to):
        sources = {name: journal.nodes[name].source for name in journal.at("proven", "moved")}
        outdated = [node for node in nodes if node.name in sources and ledger.of(node) == sources[node.name]]
        ledger.record(outdated, ledger.lock(journal.to))


def summary(done: Upgrade) -> str:
    """The outcome in one line."""
    journal, moved = done.journal, done.journal.at("moved")
    if done.declined:
        return "nothing was moved"
    if done.nothing:
        return "every node runs the current lock"
    if done.stopped:
        return f"stopped: {done.stopped}"
    if journal.phase == "rolled-back":
        outcome = f"rolled back: {journal.reason}"
        verb = "stays" if len(moved) == 1 else "stay"
        return outcome + (f"; {counted(len(moved), 'node')} {verb} on the new lock" if moved else "")
    return f"{len(moved)} of {counted(len(journal.nodes), 'node')} moved"


def document(cluster: Cluster, done: Upgrade) -> UpgradeOutput:
    """The `upgrade` document. A node that had no part in it has step "unchanged"."""
    rows = []
    for node in cluster.nodes():
        progress = done.journal.nodes.get(node.name) if not done.nothing else None
        rows.append(
            UpgradeNode(
                name=node.name,
                step=progress.step if progress else "unchanged",
                reason=progress.reason if progress else "",
                lock=done.runs.get(node.name),
                driver=done.drivers.get(node.name),
            )
        )
    return UpgradeOutput(
        cluster=cluster.spec.name,
        sandbox=cluster.sandbox,
        ok=done.ok,
        to=done.journal.to,
        phase=done.journal.phase,
        message=summary(done),
        nodes=rows,
        seconds=done.seconds,
    )


def _choose(
    actions: NodeActions, journal: Journal, lock: Lock, target: str, nodes: Sequence[Node], options: Options
) -> None:
    """Begin an upgrade in the journal, or leave it as it is where it goes on. Raises GpuprovError where neither is
    possible."""
    cluster = actions.cluster
    if options.rollback_all:
        if not journal.at("moved", "leaving") and not journal.busy:
            raise GpuprovError("nothing to roll back: no node was moved", where=cluster.spec.name)
        journal.rollback_all = True
        if journal.phase != "moving":
            journal.phase, journal.reason = "rolling-back", journal.reason or "rolled back on request"
            journal.failed.setdefault(journal.to, journal.reason)
            for name in journal.at("moved"):
                journal.nodes[name].reason = ""
        return
    if journal.phase == "rolling-back":
        return
    if target in journal.failed:
        if not options.again:
            raise GpuprovError(
                f"this release was rolled back on this cluster: {journal.failed[target]}",
                where=cluster.spec.name,
                hint="change cluster.yaml, or retry with --again",
            )
        del journal.failed[target]
    if journal.phase == "moving" and journal.to == target:
        if options.batch is not None:
            journal.batch = batch_size(options.batch, len(journal.nodes))
        return
    ledger = Ledger(cluster.paths)
    unproven = [node.name for node in nodes if ledger.of(node) is None]
    if len(unproven) == len(nodes):
        raise GpuprovError(
            "no node of this fleet was ever verified: there is nothing to upgrade",
            where=cluster.spec.name,
            hint=f"run `gpuprov up {cluster.typed_file}`: it configures them with the new lock",
        )
    out = set(journal.out_of_service())
    applied = {node: release for node in nodes if (release := ledger.of(node)) is not None}
    kinds = {(release, node.group) for node, release in applied.items()}
    outdated = {kind for kind in kinds if not same(ledger.lock(kind[0]), lock, kind[1])}
    runs = {
        node.name: release for node, release in applied.items() if node.name in out or (release, node.group) in outdated
    }
    for name in unproven:
        cluster.events("upgrade", "warning", "never verified: `gpuprov up` configures it", node=name)
    keep_unrecorded_out(journal, actions, unproven)
    size = batch_size(cluster.spec.upgrade.batch if options.batch is None else options.batch, len(runs))
    if runs:
        order.begin(journal, target, runs, first=_first(cluster, nodes, runs, options), batch=size)
    else:  # the release that it was on the way to was taken back, and no node had left its own
        journal.phase = "done"


def _moving(journal: Journal, ledger: Ledger, nodes: Sequence[Node]) -> dict[str, list[str]]:
    """Node → what the upgrade, or the way back from it, changes on it."""
    back = journal.phase == "rolling-back"
    unmoved: list[Step] = ["rolled-back", "left", "back"]
    if not (back and journal.rollback_all):
        unmoved.append("moved")
    if back and not journal.rollback_all:
        unmoved.append("waiting")
    stay = set(journal.at(*unmoved))

    @cache
    def changed(source: str, group: str) -> list[str]:
        locks = [ledger.lock(release) for release in (source, journal.to)]
        old, new = (lock.groups[group] for lock in (reversed(locks) if back else locks))
        return changes(old, new)

    return {
        node.name: changed(journal.nodes[node.name].source, node.group)
        for node in nodes
        if node.name in journal.nodes and node.name not in stay
    }


def batch_size(batch: int | str, nodes: int) -> int:
    """Nodes in a batch: a number, or a percentage ("25%") of those that are to be moved, rounded down, at least 1."""
    return max(1, nodes * int(batch.rstrip("%")) // 100 if isinstance(batch, str) else batch)


def _first(cluster: Cluster, nodes: Sequence[Node], runs: Mapping[str, str], options: Options) -> list[str]:
    """The canaries: of every group, because each has a stack of its own."""
    if options.canary is not None:
        if options.canary not in runs:
            message = f"{options.canary} runs the new lock already"
            raise GpuprovError(message, where="--canary", hint="pass another node")
        return [options.canary]
    groups: dict[str, list[str]] = {}
    for node in nodes:
        if node.name in runs:
            groups.setdefault(node.group, []).append(node.name)
    return [name for names in groups.values() for name in names[: cluster.spec.upgrade.canary]]


def _canaries(cluster: Cluster, options: Options) -> int:
    groups = {node.group for node in cluster.nodes()}
    return 1 if options.canary is not None else cluster.spec.upgrade.canary * len(groups)


def _offer(cluster: Cluster, lock: Lock, nodes: Sequence[Node], binary: Binary, run_dir: Path) -> None:
    """The sandbox's packages come from a mirror of its own, which must have those of both locks. Real repositories keep
    what they had: nothing is done there, and no cloud is asked."""
    if not cluster.sandbox:
        return
    plan = build_plan(cluster.spec, lock, beside=upgrade_journal.other_locks(cluster, lock))
    site_machines = [machines.of_site(cluster, site, binary, run_dir) for site in plan.sites()]
    prepared = [(machines_of_site, machines_of_site.plan(plan)) for machines_of_site in site_machines]
    if any(planned.add > 1 or planned.change for _, planned in prepared):
        raise GpuprovError(
            "`upgrade` needs every machine as it is, and some are missing or must change",
            where=cluster.spec.name,
            hint=f"run `gpuprov up {cluster.file} --sandbox` first",
        )
    done = machines.make(cluster, plan, prepared, cluster.events)
    if unmade := done.partly | done.failed:
        raise together(unmade)
    machine_ids = {node.name: node.id for node in done.nodes}
    if machine_ids != {node.name: node.id for node in nodes}:
        raise GpuprovError("machines were replaced meanwhile", where=cluster.spec.name, hint="run `gpuprov up` first")
