"""`gpuprov up`: from cluster.yaml to a proven fleet. Safe to run again, goes on where it stopped."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from provisioner import fleet
from provisioner.errors import Exit, ProviderError
from provisioner.events import Stage
from provisioner.lifecycle import locking, machines
from provisioner.plan import Plan
from provisioner.session import Cluster
from provisioner.workspace.binary import Binary

if TYPE_CHECKING:
    from provisioner.verify.results import Report

Confirm = Callable[[Plan, int], bool]
"""Asks a person whether that many Terraform changes may be made. Called only where there are any."""


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

    @property
    def changes(self) -> int:
        return self.resources + self.configured

    @property
    def exit(self) -> Exit:
        return Exit.OK if self.healthy else Exit.CHECK_FAILED

    @contextlib.contextmanager
    def stage(self, name: Stage) -> Iterator[None]:
        """Time a stage."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = round(self.seconds.get(name, 0.0) + time.monotonic() - began, 2)


def up(cluster: Cluster, binary: Binary, *, confirm: Confirm) -> Run:
    """Make, configure and verify the fleet of `cluster`. The caller holds no lock; this takes it.

    Raises GpuprovError of the stage that failed; what was made until then stays, and the next `up` goes on.
    """
    for site in cluster.spec.sites:
        machines.provider_of(cluster, site)  # refuses before anything is written
    with cluster.exclusively("up") as run_dir:
        run, events = Run(run_dir), cluster.events
        with run.stage("stack"):
            plan = cluster.plan(locking.current(cluster, events))
            machines.refuse_abandoned(cluster, plan)
        with run.stage("preflight"):
            refuse_blocked(machines.preflight(cluster, plan, events))
        with run.stage("terraform"):
            machines.write_intent(cluster, plan)
            prepared = [machines.prepare(cluster, plan, site, binary, events, run_dir) for site in machines.sites(plan)]
            run.resources = sum(site.changes.total for site in prepared)
        if run.resources and not confirm(plan, run.resources):
            return run
        with run.stage("terraform"):
            cluster.note(nodes={name: {"stage": "making", "ok": None} for name, _ in plan.nodes()})
            nodes = machines.make(cluster, plan, prepared, events)
        _note_stage(cluster, nodes, "made")
        with run.stage("configure"):
            run.configured = configure(cluster, plan, nodes, run_dir)
        _note_stage(cluster, nodes, "configured")
        with run.stage("verify"):
            verify(cluster, run)
        return run


def refuse_blocked(findings: list[Any]) -> None:
    """Raise ProviderError where preflight found what makes the run pointless."""
    blocking = [f for f in findings if f.status == "blocks"]
    if blocking:
        raise ProviderError(
            "\n  ".join(f"{f.subject}: {f.message}" for f in blocking),
            where="preflight",
            hint="; ".join(f.action for f in blocking if f.action),
        )


def configure(cluster: Cluster, plan: Plan, nodes: list[fleet.Node], run_dir: Path) -> int:
    """Run the roles on the nodes that differ from the lock. Returns how many those were."""
    from provisioner.configure import drift
    from provisioner.configure.run import configure as run_roles

    events = cluster.events
    variables: dict[str, Any] = {}
    for site in machines.sites(plan):
        variables |= machines.provider_of(cluster, site).role_variables()
    events("configure", "started", "comparing the nodes with the lock", total=len(nodes))
    reasons = drift.find(cluster.paths, nodes, plan, variables)
    behind = [node for node in nodes if reasons[node.name]]
    for node in behind:
        events("configure", "log", "; ".join(reasons[node.name][:4]), node=node.name, data={"all": reasons[node.name]})
    if behind:
        inventory = fleet.write_inventory(cluster.paths, nodes, plan, variables, drift.stamps(plan, variables))
        run_roles(cluster.paths, behind, inventory, run_dir, events)
    events("configure", "done", f"{len(behind)} nodes configured, {len(nodes) - len(behind)} were as locked")
    return len(behind)


def verify(cluster: Cluster, run: Run) -> None:
    """Prove every node and write the report into the run directory."""
    from provisioner.verify import report as reports
    from provisioner.verify.run import verify as prove

    checks = [cluster.file.absolute().parent / folder for folder in cluster.spec.verify.checks]
    report = prove(cluster.subjects(), checks=checks, events=cluster.events, workdir=run.run_dir)
    run.report = report
    run.page = reports.write(report, run.run_dir, title=cluster.spec.name)
    run.healthy = report.enough(cluster.spec.verify.min_healthy)
    cluster.note_verdicts(report, run.page)


def _note_stage(cluster: Cluster, nodes: list[fleet.Node], stage: str) -> None:
    cluster.note(nodes={node.name: {"stage": stage, "ok": None} for node in nodes})
