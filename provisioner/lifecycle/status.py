"""`gpuprov status`: the nodes as the last run left them, and what on each differs from the lock that it runs.

Every node is asked once, all at once, within ASK_S; with `ask` false only files are read. Nothing is changed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from provisioner.common import stored
from provisioner.common.errors import GpuprovError
from provisioner.lifecycle import block_ends, configuring, running_cost
from provisioner.lifecycle.gc import is_run_lock_held as run_lock_held
from provisioner.lifecycle.quarantine import book as quarantine_book
from provisioner.lifecycle.replace import journal as replace_journal
from provisioner.lifecycle.session import Cluster
from provisioner.lifecycle.subjects import subjects_of
from provisioner.lifecycle.upgrade import journal as upgrade_journal
from provisioner.output.drift import DriftOutput
from provisioner.output.status import (
    NodeMaintained,
    NodeReplacement,
    PartialReport,
    StatusBmc,
    StatusNode,
    StatusOutput,
    StatusScheduler,
    StatusUpgrade,
)
from provisioner.rundir import maintained, node_state, placement, run_events
from provisioner.rundir.fleet import Node
from provisioner.rundir.maintained import Maintained
from provisioner.rundir.node_state import NodeProgress
from provisioner.rundir.release import Release, changes, same
from provisioner.stack import lockfile
from provisioner.stack import request as requested_versions

if TYPE_CHECKING:
    from provisioner.configure.drift import Difference

ASK_S = 20.0
"""Seconds for one node, connection and all."""

CONNECT_S = 5
"""Seconds until ssh gives a node up: `status` is to be quick also where nodes are gone."""

ABSENT = ("planned", "making", "interrupted", "missing", "not made")
"""Stages of a node that has no machine."""


def status(cluster: Cluster, *, ask: bool) -> StatusOutput:
    """The `status` document.

    Nodes that are wanted and not there have stage "planned" and no address; nodes that are there and no longer wanted
    have stage "unwanted"; those that a run was making that is no more have stage "interrupted"; nodes that are there
    and of which nothing was noted, and all where nodes.json was lost, have stage "unknown". `drift` is None where the
    node was not asked or did not answer.
    """
    nodes, state = cluster.nodes(), node_state.load(cluster.paths)
    known = {node.name: node for node in nodes}
    last = maintained.load(cluster.paths)
    journal, replacing = upgrade_journal.load(cluster.paths), replace_journal.load(cluster).nodes
    runs, quarantined = _runs(cluster, nodes), quarantine_book.load(cluster.paths).of(nodes)
    with ThreadPoolExecutor(2) as pool:
        managed = pool.submit(_bmcs, cluster) if ask else None
        scheduled = pool.submit(_scheduler, cluster) if ask else None
        known_runs = {name: release for name, (release, _) in runs.items()}
        drift = drifted(cluster, [node for node in nodes if node.name in runs], known_runs) if ask else {}
        bmcs = managed.result() if managed is not None else {}
        scheduler = scheduled.result() if scheduled is not None else {}

    def row(
        name: str, group: str, site: str, machine: str, node: Node | None, stage: str, ok: bool | None
    ) -> StatusNode:
        release, waiting = runs.get(name, (None, []))
        stack = release.lock.groups.get(group) if release else None
        differences = drift.get(name)
        return StatusNode(
            name=name,
            group=group,
            site=site,
            machine=machine,
            address=node.address if node else None,
            stage=stage,
            ok=ok,
            drift=None if differences is None else drift_rows(differences),
            lock=release.id if release and node else None,
            driver=stack.driver if stack and node else None,
            waiting=waiting,
            upgrade=upgrade_journal.upgrade_state(journal, name, release.id if release else None),
            quarantine=quarantined[name].document() if name in quarantined else None,
            replace=NodeReplacement(step=replacing[name].step) if name in replacing else None,
            maintained=_maintained(last.of(node)) if node else None,
            bmc=bmcs.get(name),
            scheduler=scheduler.get(name),
        )

    at_work = run_lock_held(cluster.paths.root)
    rows = []
    for name, group in cluster.spec.node_groups().items():
        node, progress = known.pop(name, None), state.of(name)
        stage = progress.stage or ("unknown" if node else "planned")
        stage = "interrupted" if stage == "making" and not at_work else stage
        if node is None and stage not in ABSENT:  # noted of a machine of that name which is gone
            stage, progress = "planned" if cluster.paths.nodes.exists() else "unknown", NodeProgress()
        site = cluster.spec.site_of(group)
        machine = cluster.spec.groups[group].machine_type(site)
        rows.append(row(name, group, site, machine, node, stage, progress.ok))
    for node in known.values():
        rows.append(row(node.name, node.group, node.site, node.machine, node, "unwanted", None))
    partial = state.partial_report
    return StatusOutput(
        cluster=cluster.spec.name,
        sandbox=cluster.sandbox,
        nodes=rows,
        report=state.report,
        partial_report=PartialReport(report=partial.report, nodes=[*partial.nodes]) if partial else None,
        run=run_events.run_document(run_events.last_run(cluster.paths.root, cluster.paths.runs, at_work=at_work)),
        upgrade=StatusUpgrade(phase=journal.phase, to=journal.to, reason=journal.reason) if journal.to else None,
        cost=running_cost.so_far(cluster),
        ends=block_ends.noted(cluster),
        site_choices=placement.rows(cluster.spec, cluster.paths),
        failed={site: message for site, message in state.failed.items() if site in cluster.spec.sites},
        lock_changes=outdated_lock(cluster),
    )


def _maintained(row: Maintained | None) -> NodeMaintained | None:
    if row is None:
        return None
    return NodeMaintained(
        at=row.at, packages=row.packages, waiting=row.waiting, freed=sum(row.freed.values()), rebooted=row.rebooted,
        due=row.due,
    )  # fmt: skip


def drift_rows(differences: Sequence[Difference]) -> list[DriftOutput]:
    """What differs on a node, as the documents of `status` and `plan` have it."""
    return [
        DriftOutput(kind=row.kind, subject=row.subject, wanted=row.wanted, found=row.found, message=row.message)
        for row in differences
    ]


def outdated_lock(cluster: Cluster) -> list[str]:
    """What cluster.yaml asks for otherwise than when the lock was made, one sentence each; empty where the lock fits,
    or does not exist. The sandbox's own lock counts where cluster.yaml has none beside it."""
    lock = None
    with contextlib.suppress(GpuprovError):  # a damaged lock is reported by whoever needs its versions
        lock = lockfile.read(cluster.paths.user_lock) or lockfile.read(cluster.paths.lock_file)
    return lockfile.differences(lock, requested_versions(cluster.spec)) if lock is not None else []


def _bmcs(cluster: Cluster) -> dict[str, StatusBmc]:
    """What the machines' BMCs say; nobody is asked of a cluster of which nothing is there yet."""
    if cluster.sandbox or not cluster.paths.exists():
        return {}
    from provisioner.lifecycle import out_of_band

    try:
        return out_of_band.glance(cluster, ASK_S)
    except GpuprovError as error:  # what ssh says is shown all the same
        return {node.name: StatusBmc(power=None, health=None, error=str(error)) for node in cluster.nodes()}


def _scheduler(cluster: Cluster) -> dict[str, StatusScheduler]:
    """What Slurm has of the nodes that jobs run on."""
    if cluster.spec.scheduler.slurm is None:
        return {}
    from provisioner.lifecycle import slurm
    from provisioner.scheduler import on_head

    try:
        rows = slurm.states(cluster, ASK_S)
    except GpuprovError as error:
        workers = [node for node in cluster.nodes() if node.group != cluster.spec.scheduler.head]
        return {node.name: StatusScheduler(state=[], error=str(error)) for node in workers}
    return {
        name: StatusScheduler(state=row["state"], reason=row["reason"], user=row["user"], is_ours=on_head.is_ours(row))
        for name, row in rows.items()
    }


def _runs(cluster: Cluster, nodes: Sequence[Node]) -> dict[str, tuple[Release, list[str]]]:
    """Node → the release that it is held to, and what the wanted one would change; nothing where there is no lock yet,
    or the group is no longer there."""
    lock = lockfile.read(cluster.paths.lock_file)
    if lock is None:
        return {}
    lock = cluster.place_lock(lock)
    present = [n for n in nodes if n.group in cluster.spec.groups and n.group in lock.groups]
    rows = {}
    for name, release in upgrade_journal.assigned(cluster, present, lock).items():
        group = next(node.group for node in present if node.name == name)
        moved = not same(release.lock, lock, group)
        rows[name] = (release, changes(release.stack(group), lock.groups[group]) if moved else [])
    return rows


def drifted(
    cluster: Cluster, nodes: Sequence[Node], releases: dict[str, Release], variables: dict[str, Any] | None = None
) -> dict[str, tuple[Difference, ...] | None]:
    """Ask these nodes: node → what differs from its release; None where it did not answer. `variables` are the
    providers' for the roles, by default those of the last run."""
    from provisioner.configure import drift
    from provisioner.verify.collect import collect
    from provisioner.verify.request import drift_request

    subjects = subjects_of(cluster, nodes, releases)
    if not subjects:
        return {}
    locks = configuring.desired_states(nodes, releases, subjects, _last(cluster) if variables is None else variables)
    targets = {s.name: [s.source[0], "-o", f"ConnectTimeout={CONNECT_S}", *s.source[1:]] for s in subjects}  # type: ignore[index]
    requests = {s.name: drift_request(s.expected) for s in subjects}
    bundles = collect(targets, requests, deadline_s=ASK_S, events=cluster.events, stage="plan")
    return {name: None if b.error else drift.differences(b, locks[name]) for name, b in bundles.items()}


def _last(cluster: Cluster) -> dict[str, Any]:
    """The providers' variables for the roles, as the last run wrote them into the inventory."""
    from provisioner.configure import inventory

    try:
        variables = inventory.plain(stored.load(cluster.paths.inventory)["all"]["vars"])
    except (FileNotFoundError, ValueError, LookupError, TypeError):
        return {}
    return variables if isinstance(variables, dict) else {}
