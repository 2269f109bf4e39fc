"""`gpuprov up`: from cluster.yaml to a proven fleet. Safe to run again, goes on where it stopped."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from provisioner.common.errors import ConfigureError, Exit, GpuprovError
from provisioner.common.events import Stage
from provisioner.common.text import counted
from provisioner.lifecycle import block_ends, configuring, hooks, locking, machines, preflight, verifying
from provisioner.lifecycle.node_changes import NodeChanges, node_changes
from provisioner.lifecycle.quarantine import actions as quarantine
from provisioner.lifecycle.quarantine import book as quarantine_book
from provisioner.lifecycle.run_snapshot import RunSnapshot
from provisioner.lifecycle.session import Cluster
from provisioner.lifecycle.site_choice import SiteChoices
from provisioner.lifecycle.sites import Remaining, candidates, chosen, each, refuse_recipe, refuse_unready
from provisioner.lifecycle.upgrade import journal as upgrade_journal
from provisioner.machines.base import Machines, Planned
from provisioner.machines.terraform.binary import Binary
from provisioner.plan.models import Plan, build_plan
from provisioner.rundir import fleet, node_state
from provisioner.rundir.fleet import Node
from provisioner.rundir.release import Ledger, Release, changes, identity, same
from provisioner.stack.models import Lock

if TYPE_CHECKING:
    from provisioner.verify.results import Report

Confirm = Callable[[Plan, NodeChanges], bool]
"""Asks a person whether these changes may be made. Called only where there are any."""


@dataclass(slots=True)
class Run:
    """What one `up` did. `seconds` per stage; `changes` counts resources made, changed or destroyed and nodes
    configured; `report` is None where the run was declined."""

    run_dir: Path
    seconds: dict[str, float] = field(default_factory=dict)
    resources: int = 0
    configured: int = 0
    report: Report | None = None
    page: Path | None = None
    """The report for a browser; report.json and report.xml (JUnit) lie beside it."""
    healthy: bool = False
    waiting: dict[str, list[str]] = field(default_factory=dict)
    """Nodes that run an older lock and were left on it, each with what would change: `gpuprov upgrade` moves them."""
    rolled_back: str = ""
    """Why the lock that they wait for was rolled back here; "" where it was not."""
    rebooted: tuple[str, ...] = ()
    """New machines that were proven over a reboot (`verify.reboot`)."""
    failed: dict[str, GpuprovError] = field(default_factory=dict)
    """Sites that were left out, each with what it failed with, in the order in which they did."""
    absent: tuple[str, ...] = ()
    """Nodes of cluster.yaml at the sites of this run that are not in its report."""
    declined: bool = False
    """A person said no: nothing was created, and every file is as it was."""
    partly: dict[str, GpuprovError] = field(default_factory=dict)
    """Sites some machines of which did not come to be, each with why; the run went on with the others."""

    @property
    def changes(self) -> int:
        return self.resources + self.configured

    @property
    def exit(self) -> Exit:
        for error in (*self.failed.values(), *self.partly.values()):
            return error.exit_code
        if not self.healthy:
            return Exit.CHECK_FAILED
        return Exit.BAD_INPUT if self.waiting else Exit.OK

    def conclude(self, verdict: verifying.Verdict) -> None:
        """The run ends with this verdict."""
        self.report, self.page, self.healthy = verdict.report, verdict.page, verdict.healthy
        self.rebooted = verdict.rebooted

    @contextlib.contextmanager
    def stage(self, name: Stage) -> Iterator[None]:
        """Time a stage."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = round(self.seconds.get(name, 0.0) + time.monotonic() - began, 2)


def up(cluster: Cluster, binary: Binary, *, confirm: Confirm, only: Collection[str] = ()) -> Run:
    """Make, configure and verify the fleet of `cluster`, at the sites `only` or at all. The caller holds no lock; this
    takes it.

    A machine that was proven with another lock than cluster.yaml wants now is kept on that one (`Run.waiting`): a
    running fleet is moved by `gpuprov upgrade`, never by the way. A site that fails is left out (`Run.failed`), and the
    others go on. Raises GpuprovError of the stage that failed where none is left; what was made until then stays, and
    the next `up` goes on.
    """
    refuse_recipe(cluster)
    requested, untouched = candidates(cluster, only), cluster.paths.untouched()
    refuse_unready(cluster, requested)  # before anything is written, or anybody asked
    with cluster.exclusively("up") as run_dir, _noted(cluster, Run(run_dir), requested) as run:
        events = cluster.events
        upgrade_journal.refuse_resized(cluster, chosen(cluster, only))
        _refuse_damaged_records(cluster)
        with run.stage("stack"):
            whole_lock = locking.current(cluster, events, write=False)
            Ledger(cluster.paths).refuse_damaged_locks(cluster.place_lock(whole_lock))  # before machines are paid
        created = _create(cluster, binary, run, whole_lock, confirm=confirm, only=only, untouched=untouched)
        if created is None:
            run.declined = True
            if untouched:  # the question was about the first machines: nothing of the cluster is left
                cluster.only_looked()
            return run
        fleet_plan, remaining, sites, nodes, fresh = created
        lock = cluster.place_lock(whole_lock)
        with run.stage("configure"):
            Ledger(cluster.paths).keep(lock)  # whatever of it comes to be on a node, the next lock knows of it
            releases = upgrade_journal.assign(cluster, nodes, lock)
            _leave_waiting(cluster, run, nodes, releases, lock)
            configured = configure(cluster, run, nodes, releases, new=fresh)
            remaining.leave(failed_roles(run, nodes, configured), "configure")
            nodes = [node for node in nodes if node.site not in remaining.failed]
            configured.subjects = [subject for subject in configured.subjects if subject.site not in remaining.failed]
        with run.stage("verify"):
            run.conclude(verifying.verify_configured(cluster, configured, nodes, releases, run_dir))
            run.absent = _missing(fleet_plan.at(sites), nodes)
        if not run.failed and set(sites) == set(fleet_plan.sites()):  # else machines of other sites may not be recorded
            Ledger(cluster.paths).prune(cluster.nodes(), upgrade_journal.needs(cluster))
        return run


def _refuse_damaged_records(cluster: Cluster) -> None:
    """Raise GpuprovError for a damaged record, before anything is written."""
    machines.refuse_damaged_pins(cluster)
    quarantine.quarantined_nodes(cluster)


def _missing(plan: Plan, nodes: Sequence[Node]) -> tuple[str, ...]:
    """Names of the plan's nodes that are none of these."""
    names = {node.name for node in nodes}
    return tuple(name for name, _ in plan.nodes() if name not in names)


class Created(NamedTuple):
    """What `up` goes on with once machines are there. `whole`: the plan of all sites; `sites`: those of this run;
    `nodes`: those that are reachable; `fresh`: names of those whose machine is new."""

    whole: Plan
    remaining: Remaining
    sites: list[str]
    nodes: list[Node]
    fresh: set[str]


def _create(
    cluster: Cluster, binary: Binary, run: Run, whole_lock: Lock, *, confirm: Confirm, only: Collection[str],
    untouched: bool,
) -> Created | None:  # fmt: skip
    """Create what is missing; None where a person said no. `untouched`: nothing of the cluster was there before.
    Where a site has no capacity for groups that may be at another one, all is planned again with these groups there."""
    choices = SiteChoices(cluster, binary, run.run_dir, only)
    failed: dict[str, GpuprovError] = {}
    new_ids: set[str] = set()
    approved: NodeChanges | None = None
    finished = 0
    while True:
        sites = chosen(cluster, only)
        with run.stage("stack"):
            lock = cluster.place_lock(whole_lock)
            fleet_plan = build_plan(cluster.spec, lock, beside=upgrade_journal.other_locks(cluster, lock))
            machines.refuse_abandoned(cluster, fleet_plan)
            remaining = Remaining(fleet_plan.at(sites), cluster.events)
            run.failed = remaining.failed
            remaining.leave({site: error for site, error in failed.items() if site in sites}, "terraform")
        with run.stage("preflight"):
            findings = preflight.look(cluster, remaining.plan, cluster.events)
            if choices.leave_blocked(findings, fleet_plan):
                continue
            remaining.leave(preflight.blocked(findings), "preflight")
            findings = preflight.probe(cluster, remaining.plan, cluster.events)
            if choices.leave_blocked(findings, fleet_plan):
                continue
            remaining.leave(preflight.blocked(findings), "preflight")
        with run.stage("terraform"):
            if choices.find_existing(remaining.plan):
                continue
            snapshot = RunSnapshot.of(cluster.paths) if approved is None else None
            prepared = _prepare(cluster, binary, run, fleet_plan, remaining)
            upgrade_journal.refuse_resized(cluster, sites)
            upgrade_journal.refuse_other_hosts(cluster, [planned for _, planned in prepared])
            intended = node_changes(cluster.nodes(), remaining.plan, [planned for _, planned in prepared])
            run.resources = finished + intended.total
        is_approved = approved is not None and intended.is_within(approved)
        if intended.total and not is_approved and not _ask(cluster, confirm, remaining.plan, intended, snapshot):
            for site in [site for site, _ in prepared if cluster.sandbox and untouched]:
                site.forget()
            return None
        if approved is None:
            locking.write(cluster, whole_lock)
        approved = intended
        _record(cluster, fleet_plan, remaining.plan)
        _drain(cluster, intended)
        with run.stage("terraform"):
            outcome = _make(cluster, run, remaining, prepared, intended, new_ids, choices, fleet_plan)
        if not isinstance(outcome, Moved):
            return Created(fleet_plan, remaining, sites, *outcome)
        failed = remaining.failed | outcome.failed
        finished += sum(planned.total for site, planned in prepared if site.site not in outcome.unfinished)


def _prepare(
    cluster: Cluster, binary: Binary, run: Run, all_sites: Plan, remaining: Remaining
) -> list[tuple[Machines, Planned]]:
    """The machines of each site, planned, and what stands is recorded. What `down` goes by is written where it is
    missing; what is there is rewritten by `_record`, once a person has said yes."""
    machines_of, moved = each(
        remaining.plan.sites(), lambda site: machines.of_site(cluster, site, binary, run.run_dir, renew=False)
    )
    remaining.leave(moved, "terraform")
    if not cluster.paths.intent.exists():
        machines.write_intent(cluster, all_sites)
    machines.ask_again(cluster, remaining.plan)
    planned, failed = each(list(machines_of), lambda site: machines_of[site].plan(remaining.plan))
    remaining.leave(failed, "terraform")
    remaining.leave(machines.occupied(cluster, planned), "terraform")
    planned = {site: changes for site, changes in planned.items() if site not in remaining.failed}
    prepared = [(machines_of[site], changes) for site, changes in planned.items()]
    machines.record_standing(cluster, prepared, remaining.plan)
    return prepared


def _ask(cluster: Cluster, confirm: Confirm, plan: Plan, intended: NodeChanges, snapshot: RunSnapshot | None) -> bool:
    """Whether a person says yes. Where not, what planning has written is taken back; None: machines were made before in
    this run, and what is written stays."""
    if snapshot is None:
        return confirm(plan, intended)
    return snapshot.confirmed(cluster.paths, lambda: confirm(plan, intended))


def _record(cluster: Cluster, all_sites: Plan, plan: Plan) -> None:
    """Write down what is about to be made, and where, before it is."""
    block_ends.note(cluster, plan)
    for site in plan.sites():
        cluster.providers.record(site)
    machines.write_intent(cluster, all_sites)


def _drain(cluster: Cluster, intended: NodeChanges) -> None:
    """Take nodes that do work out of service before their machines are removed; those in quarantine are. Raises
    GpuprovError where one can't be: then none is removed, and all that were in service are put back. Those that end
    stay in quarantine until a machine of their name was proven, whichever that is. A host whose node nodes.json has
    lost may be in service as it."""
    ledger, nodes = Ledger(cluster.paths), cluster.nodes()
    recorded = {node.name for node in nodes}
    nodes += [fleet.departed(name, id) for name, id in ledger.machines().items() if name not in recorded]
    quarantined = quarantine_book.load(cluster.paths).of(nodes)
    drained = {name for name, entry in quarantined.items() if entry.drained}
    ending = [node for node in nodes if node.name in intended.ends and node.name not in drained]
    reasons = dict.fromkeys(intended.remove, "removed by gpuprov up")
    reasons |= dict.fromkeys(intended.recreate, "its machine is recreated by gpuprov up")
    proven = [node for node in ending if ledger.of(node) is not None]
    if bad := quarantine.hold(cluster, proven, reasons, "up"):
        # One whose drain command failed may be drained all the same.
        quarantine.put_back(cluster, [node for node in proven if node.name not in quarantined], "up")
        by_hand = f"`gpuprov quarantine {cluster.typed_file} NODE --reason TEXT`"
        hint = f"no machine was removed; run it again, or take the nodes out of service yourself: {by_hand}"
        raise hooks.refusal(bad, hint)


class Moved(NamedTuple):
    """Groups go to another site for want of capacity. `failed`: sites that are left out from now on; `unfinished`: all
    whose apply failed."""

    failed: dict[str, GpuprovError]
    unfinished: frozenset[str]


def _make(
    cluster: Cluster, run: Run, remaining: Remaining, prepared: Sequence[tuple[Machines, Planned]],
    intended: NodeChanges, new_ids: set[str], choices: SiteChoices, all_sites: Plan,
) -> tuple[list[Node], set[str]] | Moved:  # fmt: skip
    """Apply what was planned: the nodes that are reachable, and the names of those whose machine is new; or what was
    left for another site. A machine that was proven is no new one, whatever else is known of it. `new_ids`: machines
    that this run has made before; it is added to."""
    former_ids, earlier = {node.id for node in machines.settled(cluster)}, {node.name for node in cluster.nodes()}
    former_ids -= new_ids
    if intended.total:  # what was noted of a former machine of the name is not true of the new one
        node_state.note_stage(cluster.paths, "making", [*intended.create, *intended.recreate])
    nodes, failed, run.partly = machines.make(cluster, remaining.plan, prepared, cluster.events, run.run_dir)
    new_ids |= {node.id for node in nodes} - former_ids
    unfinished = frozenset(failed)
    if sites := choices.leave(failed, all_sites):
        return Moved({site: error for site, error in failed.items() if site not in sites}, unfinished)
    remaining.leave(failed, "terraform")
    missing = {name for name, _ in remaining.plan.nodes()} - {node.name for node in nodes}
    node_state.note_absent(cluster.paths, missing, earlier)
    node_state.note_stage(cluster.paths, "made", [node.name for node in nodes if node.id not in former_ids])
    ledger = Ledger(cluster.paths)
    return nodes, {node.name for node in nodes if node.id not in former_ids and ledger.of(node) is None}


@contextlib.contextmanager
def _noted(cluster: Cluster, run: Run, sites: Collection[str]) -> Iterator[Run]:
    """The run; however it ends, what sites failed with is written down for `status`."""
    try:
        yield run
    finally:
        if not run.declined:
            failed = {site: str(error) for site, error in (run.partly | run.failed).items() if site}
            node_state.note_failed(cluster.paths, sites, failed)


def _leave_waiting(
    cluster: Cluster, run: Run, nodes: Sequence[Node], releases: Mapping[str, Release], lock: Lock
) -> None:
    run.waiting = waiting(nodes, releases, lock)
    run.rolled_back = upgrade_journal.load(cluster.paths).failed.get(identity(lock), "")
    for name, changed_parts in run.waiting.items():
        message = f"keeps its lock; the new one would change {', '.join(changed_parts)}"
        cluster.events("configure", "log", message, node=name)


def waiting(nodes: Sequence[Node], releases: Mapping[str, Release], lock: Lock) -> dict[str, list[str]]:
    """Node → what the wanted lock would change on it, for those that are held to another one."""
    kinds = {(releases[node.name].id, node.group): releases[node.name] for node in nodes if node.group in lock.groups}
    differing = {
        (id, group): changes(release.stack(group), lock.groups[group])
        for (id, group), release in kinds.items()
        if not same(release.lock, lock, group)
    }
    return {node.name: differing[kind] for node in nodes if (kind := (releases[node.name].id, node.group)) in differing}


def configure(
    cluster: Cluster, run: Run, nodes: list[Node], releases: Mapping[str, Release], *, new: Collection[str]
) -> configuring.ReconcileResult:
    """Run the roles on the nodes that differ from their lock; `failed_roles` tells those that it failed on."""
    result = configuring.reconcile(cluster, nodes, releases, run.run_dir, new=new)
    run.configured = len(result.configured)
    ready = [name for name in result.configured if name not in result.failed]
    node_state.note_stage(cluster.paths, "configured", ready)
    as_locked = len(nodes) - run.configured
    cluster.events("configure", "done", f"{counted(run.configured, 'node')} configured, {as_locked} as locked")
    return result


def failed_roles(run: Run, nodes: Sequence[Node], result: configuring.ReconcileResult) -> dict[str, GpuprovError]:
    """Site → the error that names its nodes on which the roles failed."""
    from provisioner.configure.run import refuse_failures

    errors: dict[str, GpuprovError] = {}
    for site in dict.fromkeys(node.site for node in nodes):
        names = {node.name for node in nodes if node.site == site}
        outcomes = {name: outcome for name, outcome in result.outcomes.items() if name in names}
        try:
            refuse_failures(outcomes, run.run_dir)
        except ConfigureError as error:
            errors[site] = error
    return errors
