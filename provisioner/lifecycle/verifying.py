"""Prove nodes and act on the verdict: what `verify`, `up`, `replace` and `upgrade` have in common.

`prove` runs the checks; `settle` writes down what they measured, puts nodes into and out of quarantine, and notes each
node's verdict for `status`. The rest is what a command makes of it: the report's page, and when a fleet is healthy.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from provisioner.common.errors import GpuprovError, LockedError
from provisioner.common.paths import private_dir
from provisioner.common.text import counted
from provisioner.lifecycle import acknowledgements, baselines, diff, looks, neighbours, second_boot, slurm
from provisioner.lifecycle.configuring import ReconcileResult
from provisioner.lifecycle.quarantine import actions as quarantine
from provisioner.lifecycle.replace import journal as replace_journal
from provisioner.lifecycle.session import Cluster
from provisioner.lifecycle.subjects import subjects_of
from provisioner.lifecycle.upgrade import journal as upgrade_journal
from provisioner.rundir import node_state, placement
from provisioner.rundir.fleet import Node
from provisioner.rundir.release import Ledger, Release
from provisioner.stack import lockfile

if TYPE_CHECKING:
    from provisioner.common.levels import Level
    from provisioner.verify.bundle import Output
    from provisioner.verify.results import Report
    from provisioner.verify.subject import Subject


@dataclass(slots=True)
class Verdict:
    """What came of verifying nodes. `page` is the report for a browser, `previous` the one before it, `saved` what
    --save-baseline did, `rebooted` who was proven over a reboot, `unsaved` why something could not be written down."""

    report: Report
    healthy: bool = False
    page: Path | None = None
    previous: str | None = None
    saved: baselines.Saved | None = None
    rebooted: tuple[str, ...] = ()
    unsaved: list[str] = field(default_factory=list)


def prove(
    cluster: Cluster,
    subjects: Iterable[Subject],
    nodes: Sequence[Node],
    *,
    baseline_required: bool = False,
    workdir: Path | None = None,
    borrowing: bool = True,
) -> Report:
    """Run every check on the subjects, which are of these machines, and compare them with the fleet's baseline. A
    damaged baseline raises GpuprovError where it is required, and is a warning elsewhere. `borrowing`: a node that has
    no other one of its group in the run may use a proven, idle one as its partner."""
    from provisioner.lifecycle import bmc_facts
    from provisioner.verify.run import verify

    checks = [cluster.file.absolute().parent / folder for folder in cluster.spec.verify.checks]
    subjects = list(baselines.with_baselines(cluster, subjects, nodes, required=baseline_required))
    deep = {subject.name for subject in subjects if subject.expected.level != "quick"}
    with bmc_facts.collecting(cluster, [node for node in nodes if node.name in deep]) as (managed, files):
        subjects = [
            replace(subject, expected=replace(subject.expected, bmc=managed[subject.name]))
            if subject.name in managed
            else subject
            for subject in subjects
        ]
        earlier = looks.last_look_files(cluster, nodes)

        def more() -> dict[str, dict[str, Output]]:
            managed_files = files()
            names = managed_files.keys() | earlier.keys()
            return {name: {**earlier.get(name, {}), **managed_files.get(name, {})} for name in names}

        find = neighbours.finder(cluster, subjects) if borrowing else None
        report = verify(
            subjects, checks=checks, events=cluster.events, workdir=workdir, extra_files=more, neighbours=find
        )
        looks.keep(cluster, report, nodes)
        return report


def settle(
    cluster: Cluster,
    verdict: Verdict,
    nodes: Sequence[Node],
    level: Level,
    *,
    holding: bool = True,
    save_baseline: bool = False,
    quarantining: bool = True,
    unrecorded: Collection[str] = (),
) -> None:
    """Act on the verdict and write it down, in place: what fails half way leaves what was done in `verdict`. `holding`:
    the caller holds the cluster's lock. `unrecorded`: new machines that are not recorded as proven, because another run
    is at work: none of them is noted as healthy."""
    from provisioner.lifecycle import bmc_facts

    choices = tuple(placement.rows(cluster.spec, cluster.paths))
    verdict.report = replace(baselines.note(cluster, verdict.report, nodes, level), site_choices=choices)
    verdict.report = acknowledgements.mark(cluster, verdict.report, nodes)
    if save_baseline:
        verdict.saved = baselines.save(cluster, verdict.report, nodes, level)
    if quarantining:
        verdict.report = quarantine.after_verdict(cluster, verdict.report, nodes, level, holding=holding)
        slurm.settle(cluster, verdict.report, nodes, level, holding=holding)
    present, judged = ({node.name: node.id for node in rows} for rows in (cluster.nodes(), nodes))
    same = {row.name: row.ok for row in verdict.report.nodes if judged.get(row.name) == present.get(row.name)}
    same = {name: ok for name, ok in same.items() if not (ok and name in unrecorded)}
    node_state.note_verdicts(cluster.paths, same, verdict.report.level)
    bmc_facts.count_as_seen(cluster)


def verify_fleet(
    cluster: Cluster,
    compared: diff.Diff,
    *,
    only: Collection[str] = (),
    level: Level | None = None,
    save_baseline: bool = False,
) -> Verdict:
    """`gpuprov verify FILE`: prove the machines that are there, or those of `only`, at cluster.yaml's level or `level`.
    A node that is missing is unhealthy. The caller holds no lock. Raises GpuprovError for a name that no machine has.
    """
    from provisioner.common.levels import LEVELS
    from provisioner.verify import report as reports

    deep = level or cluster.spec.verify.level
    if save_baseline and deep == "quick":
        raise GpuprovError(
            "level quick measures nothing, so there is no baseline to save", hint="pass --level standard or stress"
        )
    nodes = [node for node in compared.present if not only or node.name in only]
    for name in only:
        if name not in {node.name for node in nodes}:
            cluster.node(name)  # raises with the nearest names
            raise GpuprovError(f"node {name} is not in cluster.yaml any more", where=str(cluster.file))
    quarantine.refuse_damaged(cluster)  # before the checks run, for minutes or hours: the verdict needs the records
    subjects = [replace(s, expected=replace(s.expected, level=deep)) for s in subjects_of(cluster, nodes)]
    verdict = Verdict(prove(cluster, subjects, nodes, baseline_required=True))
    _tell_half_made(cluster, verdict.report)
    with keeping(verdict.unsaved), cluster.noted("verify") as holding:
        unrecorded: set[str] = set()
        if LEVELS.index(deep) >= LEVELS.index(cluster.spec.verify.level):
            # Before any node is put into service: what is in service and not recorded would be loaded by the next `up`.
            unrecorded = _record_proven(cluster, verdict.report, nodes, holding=holding)
        settle(cluster, verdict, nodes, deep, holding=holding, save_baseline=save_baseline, unrecorded=unrecorded)
    verdict.previous = node_state.load(cluster.paths).report
    if not only:
        absent = diff.absent_reports(cluster, compared)
        verdict.report = replace(verdict.report, nodes=(*verdict.report.nodes, *absent))
    if nodes and not only:
        with keeping(verdict.unsaved):
            name = cluster.spec.name
            verdict.page = reports.write(verdict.report, cluster.run_dir(), title=name, previous=verdict.previous)
            node_state.note_report(cluster.paths, verdict.page)
    verdict.healthy = verdict.report.enough("100%" if only else cluster.spec.verify.min_healthy)
    return verdict


def _tell_half_made(cluster: Cluster, report: Report) -> None:
    """Name unhealthy nodes whose machines an interrupted `replace` has made and not proven. After this verdict `up`
    goes on, because quarantine has them."""
    unproven = {name for name, entry in replace_journal.load(cluster).nodes.items() if entry.step == "proving"}
    for node in report.nodes:
        if node.name in unproven and not node.ok:
            message = (
                "an interrupted `replace` had not verified its new machine, and this verdict ends the replacement. "
                f"`gpuprov up {cluster.typed_file}` goes on with this machine; `replace` would create another one"
            )
            cluster.events("quarantine", "warning", message, node=node.name)


def _record_proven(cluster: Cluster, report: Report, nodes: Sequence[Node], *, holding: bool) -> set[str]:
    """Machines that no run could prove, and that are healthy and as locked now, run the current lock from here on, as
    after `up`. Nothing is recorded while another run is at work, nor of nodes that an upgrade has out of service.
    Returns the names of those that another run's lock kept from being recorded."""
    from provisioner.lifecycle.status import drifted

    healthy, ledger = {node.name for node in report.nodes if node.ok}, Ledger(cluster.paths)
    journal = upgrade_journal.load(cluster.paths)
    moving = journal.out_of_service() if journal.busy else []
    todo = [n for n in nodes if n.name in healthy and n.name not in moving and ledger.of(n) is None]
    if not todo or (lock := lockfile.read(cluster.paths.lock_file)) is None:
        return set()
    alone = contextlib.nullcontext() if holding else cluster.alone_here("verify")
    kept_out = {node.name for node in todo}
    with contextlib.suppress(LockedError), alone:
        kept_out = set()
        releases = upgrade_journal.assigned(cluster, todo, cluster.place_lock(lock))
        differences = drifted(cluster, todo, releases)
        present = {node.name: node.id for node in cluster.nodes()}  # another run may have replaced some meanwhile
        as_locked = [n for n in todo if differences.get(n.name) == () and present.get(n.name) == n.id]
        _record(Ledger(cluster.paths), as_locked, releases)
    return kept_out


def _record(ledger: Ledger, proven: Sequence[Node], releases: Mapping[str, Release]) -> None:
    """These machines were proven, each with its release."""
    for release in {release.id: release for release in releases.values()}.values():
        ledger.record([node for node in proven if releases[node.name].id == release.id], release.lock)


def verify_configured(
    cluster: Cluster,
    result: ReconcileResult,
    nodes: Sequence[Node],
    releases: Mapping[str, Release],
    run_dir: Path,
    *,
    partly: bool = False,
) -> Verdict:
    """`up` and `replace`: judge nodes that were configured a moment ago, write the report into the run directory, and
    remember which release each proven machine runs. `partly`: they are not the whole fleet, and all of them must be
    healthy. The caller holds the lock."""
    from provisioner.verify import report as reports

    verdict = Verdict(prove(cluster, result.subjects, nodes, workdir=run_dir))
    _prove_again(cluster, verdict, result, nodes, run_dir)
    healthy, ledger = {node.name for node in verdict.report.nodes if node.ok}, Ledger(cluster.paths)
    # Before any node is put into service: what is in service and not recorded would be loaded by the next run.
    _record(ledger, [node for node in nodes if node.name in healthy and result.clean(node.name)], releases)
    settle(cluster, verdict, nodes, cluster.spec.verify.level)
    verdict.previous = node_state.load(cluster.paths).report
    with keeping(verdict.unsaved):
        verdict.page = reports.write(verdict.report, run_dir, title=cluster.spec.name, previous=verdict.previous)
        node_state.note_report(cluster.paths, verdict.page, [node.name for node in nodes] if partly else ())
    verdict.healthy = verdict.report.enough("100%" if partly else cluster.spec.verify.min_healthy)
    return verdict


def _prove_again(
    cluster: Cluster, verdict: Verdict, result: ReconcileResult, nodes: Sequence[Node], run_dir: Path
) -> None:
    """Add to the verdict, in place, what comes of machines that boot again (`verify.reboot`)."""
    new = second_boot.chosen(cluster, verdict.report, [node for node in nodes if result.clean(node.name)])
    restarted = second_boot.free(cluster, new)
    if not restarted:
        return
    names = {node.name for node in restarted}
    failed = second_boot.reboot_all(cluster, restarted)
    subjects = [
        replace(one, source=one.transport or one.source, reach=None) for one in result.subjects if one.name in names
    ]
    # What was reached with others before the reboot counts (second_boot.merged).
    second = prove(cluster, subjects, restarted, workdir=private_dir(run_dir / "second-boot"), borrowing=False)
    verdict.report = report = second_boot.merged(verdict.report, second, failed)
    verdict.rebooted = tuple(node.name for node in restarted)
    healthy = f"{len(report.healthy_nodes)} of {counted(len(report.nodes), 'node')} healthy"
    counts = f"{healthy}; {len(restarted)} proven over a reboot"
    cluster.events("verify", "done" if report.ok else "failed", counts)


@contextlib.contextmanager
def keeping(unsaved: list[str]) -> Iterator[None]:
    """A verdict that took minutes is given also where a full disk keeps it from being written; the list says why."""
    try:
        yield
    except OSError as error:
        unsaved.append(str(error))
