"""`gpuprov replace`: a new machine for a bad one, under the same name; nothing else is touched.

Looked at before anything is done: how many are out of service at once, whether the node is bad at all, and what
Terraform would do. Then drained, made anew, configured, verified, put back into service. Killed anywhere, the same
command goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from provisioner.common.errors import GpuprovError, ProviderError
from provisioner.common.paths import private_dir
from provisioner.common.text import counted
from provisioner.lifecycle import configuring, hooks, locking, machines, preflight, verifying
from provisioner.lifecycle import up as lifecycle
from provisioner.lifecycle.quarantine import actions as quarantine
from provisioner.lifecycle.replace import journal as replace_journal
from provisioner.lifecycle.replace.journal import Journal
from provisioner.lifecycle.run_snapshot import RunSnapshot
from provisioner.lifecycle.session import Cluster
from provisioner.lifecycle.sites import together
from provisioner.lifecycle.up import Run
from provisioner.lifecycle.upgrade import journal as upgrade_journal
from provisioner.machines.base import Machines, Planned
from provisioner.machines.terraform.binary import Binary
from provisioner.plan.models import Plan, build_plan
from provisioner.rundir import node_state
from provisioner.rundir.fleet import Node
from provisioner.rundir.release import Ledger, Release
from provisioner.stack.models import Lock

Confirm = Callable[[int], bool]
"""Asks a person whether that many changes may be made."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line insists on: `force_budget` lifts `quarantine.share` but never `quarantine.most`,
    `even_if_healthy` takes nodes that the last verdict found healthy."""

    force_budget: bool = False
    even_if_healthy: bool = False


def replace(cluster: Cluster, binary: Binary, names: Sequence[str], options: Options, *, confirm: Confirm) -> Run:
    """Replace these nodes' machines; the caller holds no lock. Raises GpuprovError for what can't be begun and of the
    stage that failed. `Run.report` is of these nodes alone, and None where a person declined."""
    names = list(dict.fromkeys(names))
    _refuse_unknown(cluster, names)
    with cluster.exclusively("replace") as run_dir:
        run, events = Run(run_dir), cluster.events
        journal = replace_journal.load(cluster)
        refuse(cluster, [cluster.node(name) for name in names], journal, options)
        machines.refuse_damaged_pins(cluster)
        if cluster.sharing:
            cluster.sharing.refuse_damaged()
        with run.stage("stack"):
            whole_lock = locking.current(cluster, events, write=False)
            lock, plan = _placed(cluster, whole_lock)
        with run.stage("preflight"):
            _refuse_blocked(cluster, plan)
        work = _Machines(cluster, plan, binary, run_dir)
        with run.stage("terraform"):
            unsure = [name for name in names if name in journal.nodes and journal.nodes[name].step == "making"]
            if unsure:
                _keep(cluster, whole_lock)
                run.resources += work.settle(unsure, journal)
            old = [
                n for n in map(cluster.node, names) if n.name not in journal.nodes or journal.nodes[n.name].id == n.id
            ]
            snapshot = RunSnapshot.of(cluster.paths)
            prepared = work.prepare(names, recreate={node.name for node in old})
            changes = sum(planned.total for _, planned in prepared)
        if changes and not snapshot.confirmed(cluster.paths, lambda: confirm(changes)):
            return run
        _keep(cluster, whole_lock)
        _drain(cluster, journal, old)
        with run.stage("terraform"):
            machines.keep_consoles(cluster, old, run_dir)
            journal.set(cluster.paths, old, "making")
            node_state.note_stage(cluster.paths, "making", [node.name for node in old])
            work.apply(prepared)
            run.resources += changes
            new = _new_machines(cluster, names, journal)
            journal.set(cluster.paths, new, "proving")
            silent = machines.contact(cluster, cluster.nodes(), events, waiting=names, only=names, run_dir=run_dir)
            if silent:
                raise _unreachable(cluster, silent)
            node_state.note_stage(cluster.paths, "made", names)
        with run.stage("configure"):
            assigned = upgrade_journal.assign(cluster, cluster.nodes(), lock)
            releases = {name: assigned[name] for name in names}
            reconciled = lifecycle.configure(cluster, run, new, releases, new={node.name for node in old})
            if failed := lifecycle.failed_roles(run, new, reconciled):
                raise together(failed)
            _update_heads(cluster, new, assigned, run_dir)  # before Slurm is to give the new machines jobs
        with run.stage("verify"):
            run.conclude(verifying.verify_configured(cluster, reconciled, new, releases, run_dir, partly=True))
            journal.end(cluster.paths, names)
        return run


def _update_heads(cluster: Cluster, new: Sequence[Node], assigned: Mapping[str, Release], run_dir: Path) -> None:
    """Prometheus and Slurm of head nodes learn new machines' addresses. A head node that was replaced knows them."""
    names = {node.name for node in new}
    heads = {
        node.name: assigned[node.name]
        for node in cluster.nodes()
        if node.group in cluster.spec.heads and node.name not in names
    }
    try:
        failed = configuring.update_heads(cluster, new, heads, run_dir)
    except GpuprovError as error:  # the machines are replaced, whatever becomes of this
        failed = dict.fromkeys(heads, error.message)
    for name, reason in failed.items():
        message = f"it does not know the address of the new machine yet: {reason}; `gpuprov up` tells it"
        cluster.events("configure", "warning", message, node=name)


def _refuse_blocked(cluster: Cluster, plan: Plan) -> None:
    """Raise GpuprovError for what preflight finds in the way."""
    if blocked := preflight.blocked(preflight.look(cluster, plan, cluster.events)):
        raise together(blocked)


def _placed(cluster: Cluster, whole_lock: Lock) -> tuple[Lock, Plan]:
    """The lock as the groups have it at their sites, and the plan of the cluster. Raises GpuprovError while an upgrade
    is under way, where a site was abandoned, and where the roles could not run later because a kept lock is damaged."""
    lock = cluster.place_lock(whole_lock)
    Ledger(cluster.paths).refuse_damaged_locks(lock)
    upgrade_journal.assign(cluster, cluster.nodes(), lock)
    plan = build_plan(cluster.spec, lock, beside=upgrade_journal.other_locks(cluster, lock))
    machines.refuse_abandoned(cluster, plan)
    return lock, plan


def _keep(cluster: Cluster, whole_lock: Lock) -> None:
    """Write the lock, and keep it: whatever of it comes to be on a node, the next lock knows of it."""
    locking.write(cluster, whole_lock)
    Ledger(cluster.paths).keep(cluster.place_lock(whole_lock))


def _refuse_unknown(cluster: Cluster, names: Sequence[str]) -> None:
    """Raise GpuprovError for a name that no node has, a site that cluster.yaml describes wrongly, and hosts that a
    `down` has undone."""
    machines.refuse_undone(cluster)
    for name in names:
        cluster.node(name)
    for site in cluster.spec.sites:
        cluster.providers.at(site)


def refuse(cluster: Cluster, chosen: Sequence[Node], journal: Journal, options: Options) -> None:
    """Raise GpuprovError where more would be out of service at once than `quarantine` allows, or a node is healthy. A
    replacement that goes on has been allowed before, but for the absolute bound."""
    quarantined, state = quarantine.quarantined_nodes(cluster), node_state.load(cluster.paths)
    limits = cluster.spec.quarantine
    names = {node.name for node in chosen}
    begun = names <= set(journal.nodes)
    taken = names - set(quarantined) - set(journal.nodes)
    at_once = len(names | set(quarantined) | set(journal.nodes)) if taken else len(names)
    bound = limits.bound(len(cluster.nodes()))
    if at_once > limits.most or (at_once > bound and not begun and not options.force_budget):
        also = f" (with {at_once - len(names)} out of service already)" if at_once > len(names) else ""
        hard = at_once > limits.most
        limit = limits.most if hard else bound
        raise GpuprovError(
            f"that would take {counted(at_once, 'node')} out of service at once{also}; the limit is {limit}",
            where=cluster.spec.name,
            hint="replace fewer at a time; look for a common cause first"
            + ("" if hard else f". --force-budget raises the limit to quarantine.most ({limits.most})"),
        )
    for node in chosen:
        proven = state.of(node.name).ok is True
        if proven and node.name in taken and not options.even_if_healthy:
            raise GpuprovError(
                "the node was healthy in the last verdict",
                where=node.name,
                hint=f"verify it again with `gpuprov verify {cluster.typed_file} --node {node.name}`, quarantine it "
                "with a reason, or pass --even-if-healthy",
            )


def _drain(cluster: Cluster, journal: Journal, nodes: list[Node]) -> None:
    """Out of service, all of them, or none is replaced."""
    if not nodes:
        return
    journal.set(cluster.paths, nodes, "draining")
    reasons = {node.name: "to be replaced" for node in nodes}
    if bad := quarantine.hold(cluster, nodes, reasons, "replace"):
        hint = "nothing was replaced; run it again, or put the nodes back with `gpuprov release`"
        raise hooks.refusal(bad, hint)


def _new_machines(cluster: Cluster, names: Collection[str], journal: Journal) -> list[Node]:
    """The machines that these nodes have now. Raises ProviderError where one has none, or the old one."""
    new = [node for node in cluster.nodes() if node.name in names]
    if missing := sorted({*names} - {node.name for node in new}):
        raise ProviderError(
            "the old machine is gone, and there was no capacity for a new one (capacity.min allows that)",
            where=", ".join(missing), hint=f"`gpuprov up {cluster.typed_file}` asks for it again",
        )  # fmt: skip
    for node in new:
        if node.id == journal.nodes[node.name].id:
            raise ProviderError("Terraform created no new machine", where=node.name, hint="run it again")
    return new


def _unreachable(cluster: Cluster, silent: Mapping[str, ProviderError]) -> ProviderError:
    """The error of new machines that answer no ssh, with the way to yet another one."""
    name, error = next(iter(silent.items()))
    file = cluster.typed_file
    another = f"`gpuprov quarantine {file} {name} --reason TEXT`, then `gpuprov replace {file} {name}`"
    return ProviderError(error.message, where=error.where, hint=f"{error.hint}; for yet another machine {another}")


class _Machines:
    """Terraform on the sites of the nodes that are replaced."""

    def __init__(self, cluster: Cluster, plan: Plan, binary: Binary, run_dir: Path) -> None:
        self.cluster, self.plan, self.binary, self.run_dir = cluster, plan, binary, run_dir

    def prepare(self, names: Sequence[str], *, recreate: Collection[str] = ()) -> list[tuple[Machines, Planned]]:
        """Plans that make `recreate` again, what is missing of `names`, and nothing else. Raises ProviderError
        where a plan would do more, and says what."""
        by_site: dict[str, list[str]] = {}
        for name in names:
            by_site.setdefault(self.cluster.node(name).site, []).append(name)
        prepared = []
        for site, site_names in by_site.items():
            recreated = [name for name in site_names if name in recreate]
            site_machines = machines.of_site(self.cluster, site, self.binary, self.run_dir, record=False)
            planned = site_machines.plan(self.plan, replace=recreated)
            planned.refuse_more(site_names, recreated)
            prepared.append((site_machines, planned))
        if failed := machines.occupied(self.cluster, {site.site: planned for site, planned in prepared}):
            raise together(failed)
        return prepared

    def settle(self, names: Sequence[str], journal: Journal) -> int:
        """Bring an apply that was killed to its end, so that it is known which machines are new already. Gives the
        number of its changes."""
        prepared = self.prepare(names)
        self.apply(prepared)
        created = [node for node in map(self.cluster.node, names) if node.id != journal.nodes[node.name].id]
        journal.set(self.cluster.paths, created, "proving")
        return sum(planned.total for _, planned in prepared)

    def apply(self, prepared: Sequence[tuple[Machines, Planned]]) -> None:
        """Do it; the nodes are known from then on, those of other sites as they were."""
        for site, planned in prepared:
            private_dir(self.cluster.paths.site(site.site))
            self.cluster.providers.record(site.site)
            with machines.applying(self.cluster, [planned]):
                nodes = site.apply(self.plan, planned, always=True)
            other_nodes = [node for node in self.cluster.nodes() if node.site != site.site]
            machines.record(self.cluster, [*other_nodes, *nodes])
