"""`gpuprov up`: from cluster.yaml to a proven fleet. Safe to run again, goes on where it stopped."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from provisioner import catalog, node_state
from provisioner.errors import Exit, ProviderError
from provisioner.events import Stage
from provisioner.fleet import Node
from provisioner.lifecycle import configuring, locking, machines, verifying
from provisioner.lifecycle.upgrade import journal as upgrade_journal
from provisioner.plan import Plan, build_plan
from provisioner.release import Ledger, Release, changes, same
from provisioner.session import Cluster
from provisioner.stack.models import Lock
from provisioner.text import counted
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
    waiting: dict[str, list[str]] = field(default_factory=dict)
    """Nodes that run an older lock and were left on it, each with what would change: `gpuprov upgrade` moves them."""

    @property
    def changes(self) -> int:
        return self.resources + self.configured

    @property
    def exit(self) -> Exit:
        if not self.healthy:
            return Exit.CHECK_FAILED
        return Exit.BAD_INPUT if self.waiting else Exit.OK

    def conclude(self, verdict: verifying.Verdict) -> None:
        """The run ends with this verdict."""
        self.report, self.page, self.healthy = verdict.report, verdict.page, verdict.healthy

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

    A machine that was proven with another lock than cluster.yaml wants now is kept on that one (`Run.waiting`): a
    running fleet is moved by `gpuprov upgrade`, never by the way. Raises GpuprovError of the stage that failed; what
    was made until then stays, and the next `up` goes on.
    """
    for site in cluster.spec.sites:
        cluster.providers.at(site)  # refuses before anything is written
    with cluster.exclusively("up") as run_dir:
        run, events = Run(run_dir), cluster.events
        with run.stage("stack"):
            lock = locking.current(cluster, events)
            plan = build_plan(cluster.spec, lock, catalog.load(), beside=upgrade_journal.others(cluster, lock))
            machines.refuse_abandoned(cluster, plan)
        with run.stage("preflight"):
            refuse_blocked(machines.preflight(cluster, plan, events))
            refuse_blocked(machines.probe(cluster, plan, events))
        with run.stage("terraform"):
            node_state.note(cluster.paths, ends=[[name, when] for name, when in machines.ends(cluster, plan).items()])
            machines.write_intent(cluster, plan)
            machines.ask_again(cluster, plan)
            mine = [machines.of_site(cluster, site, binary, run_dir) for site in machines.sites(plan)]
            prepared = [(one, one.plan(plan)) for one in mine]
            run.resources = sum(planned.total for _, planned in prepared)
        if run.resources and not confirm(plan, run.resources):
            return run
        with run.stage("terraform"):
            before = {node.id for node in machines.settled(cluster)}
            if run.resources:
                there = {node.name for node in cluster.nodes()}
                node_state.note_stage(cluster.paths, "making", [name for name, _ in plan.nodes() if name not in there])
            nodes = machines.make(cluster, plan, prepared, events, run_dir)
            missing = {name for name, _ in plan.nodes()} - {node.name for node in nodes}
            node_state.note_stage(cluster.paths, "missing", missing, ok=False)
            node_state.note_stage(cluster.paths, "made", [node.name for node in nodes if node.id not in before])
        with run.stage("configure"):
            Ledger(cluster.paths).keep(lock)  # whatever of it comes to be on a node, the next lock knows of it
            releases = upgrade_journal.assign(cluster, nodes, lock)
            run.waiting = waiting(nodes, releases, lock)
            for name, what in run.waiting.items():
                events("configure", "log", f"keeps its lock; the new one would change {', '.join(what)}", node=name)
            new = {node.name for node in nodes if node.id not in before}
            brought = configure(cluster, run, nodes, releases, new=new)
        with run.stage("verify"):
            run.conclude(verifying.verify_configured(cluster, brought, nodes, releases, run_dir))
        return run


def waiting(nodes: Sequence[Node], releases: Mapping[str, Release], lock: Lock) -> dict[str, list[str]]:
    """Node → what the wanted lock would change on it, for those that are held to another one."""
    found = {}
    for node in nodes:
        mine = releases[node.name].stack(node.group)
        if node.group in lock.groups and not same(releases[node.name].lock, lock, node.group):
            found[node.name] = changes(mine, lock.groups[node.group])
    return found


def refuse_blocked(findings: list[Any]) -> None:
    """Raise ProviderError where preflight found what makes the run pointless."""
    blocking = [f for f in findings if f.status == "blocks"]
    if blocking:
        raise ProviderError(
            "\n  ".join(f"{f.subject}: {f.message}" for f in blocking),
            where="preflight",
            hint="; ".join(f.action for f in blocking if f.action),
        )


def configure(
    cluster: Cluster, run: Run, nodes: list[Node], releases: Mapping[str, Release], *, new: Collection[str]
) -> configuring.Brought:
    """Run the roles on the nodes that differ from their lock. Raises ConfigureError naming those that it failed on."""
    from provisioner.configure.run import refuse_failures

    brought = configuring.bring(cluster, nodes, releases, run.run_dir, new=new)
    run.configured = len(brought.configured)
    ready = [name for name in brought.configured if name not in brought.failed]
    node_state.note_stage(cluster.paths, "configured", ready)
    refuse_failures(brought.outcomes, run.run_dir)
    as_locked = len(nodes) - run.configured
    cluster.events("configure", "done", f"{counted(run.configured, 'node')} configured, {as_locked} as locked")
    return brought
