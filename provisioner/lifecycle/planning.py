"""`gpuprov plan`: what `up` would make and change, and what preflight found. Changes nothing: no machine, no state, no
lock."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from provisioner.common.text import few
from provisioner.lifecycle import block_ends, configuring, locking, machines, preflight, status
from provisioner.lifecycle.cost import summary
from provisioner.lifecycle.node_changes import by_reason, node_changes
from provisioner.lifecycle.run_snapshot import RunSnapshot
from provisioner.lifecycle.session import Cluster
from provisioner.lifecycle.sites import chosen, each, refuse_recipe, refuse_unready, together
from provisioner.lifecycle.upgrade import journal as upgrade_journal
from provisioner.machines.terraform.binary import Binary
from provisioner.output.plan import (
    FindingOutput,
    PlannedNode,
    PlannedStack,
    PlanOutput,
    SharedChange,
    SiteChanges,
)
from provisioner.output.status import StatusNode
from provisioner.plan.models import PlannedGroup, build_plan
from provisioner.rundir import placement
from provisioner.rundir.release import changes, same
from provisioner.stack.models import Lock

if TYPE_CHECKING:
    from provisioner.configure.drift import Difference


def plan(cluster: Cluster, binary: Binary, *, only: Collection[str] = ()) -> PlanOutput:
    """What `up` would do, at the sites `only` or at all (output/plan.py). `cost` is what all that is
    wanted there costs by list prices, None for a sandbox."""
    refuse_recipe(cluster)
    sites = chosen(cluster, only)
    refuse_unready(cluster, sites)  # before anything is written, or anybody asked
    untouched = cluster.paths.untouched()
    with cluster.exclusively("plan", look=True) as run_dir:
        new_lock = not cluster.paths.locked()
        lock = cluster.place_lock(locking.current(cluster, cluster.events, write=False))
        fleet_plan = build_plan(cluster.spec, lock, beside=upgrade_journal.other_locks(cluster, lock))
        machines.refuse_abandoned(cluster, fleet_plan)
        desired = fleet_plan.at(sites)
        findings = [
            finding
            for site_findings in preflight.look(cluster, desired, cluster.events).values()
            for finding in site_findings
        ]
        snapshot = RunSnapshot.of(cluster.paths)
        try:
            site_machines = {
                site: machines.of_site(cluster, site, binary, run_dir, record=False) for site in desired.sites()
            }
            prepared, failed = each(list(site_machines), lambda site: site_machines[site].plan(desired, repair=False))
            if failed := failed | machines.occupied(cluster, prepared):
                raise together(failed)
        finally:
            if not untouched:
                snapshot.restore(RunSnapshot.of(cluster.paths))
        observed = _node_states(cluster, lock) if not untouched else {}
        intended = node_changes(cluster.nodes(), desired, prepared.values())
        document = PlanOutput(
            cluster=cluster.spec.name,
            sandbox=cluster.sandbox,
            nodes=[_planned_node(name, group, observed.get(name)) for name, group in desired.nodes()],
            machines=intended.document(),
            reasons={**intended.reasons},
            changes={p.site: SiteChanges(add=p.add, change=p.change, destroy=p.destroy) for p in prepared.values()},
            shared={
                p.site: [SharedChange(action=row.what, resource=row.name) for row in p.actions if not row.node]
                for p in prepared.values()
            },
            images={name: f"{golden.name} {golden.build}" for name, golden in lock.images.items()},
            stack={
                group.name: PlannedStack(
                    driver=group.stack.driver, cuda=group.stack.cuda_toolkit, nccl=group.stack.nccl
                )
                for group in desired.groups
            },
            new_lock=new_lock,
            lock_file=str(cluster.paths.lock_file),
            ends=block_ends.queried_ends(cluster, desired),
            findings=[
                FindingOutput(status=f.status, subject=f.subject, message=f.message, action=f.action) for f in findings
            ],
            site_choices=placement.rows(cluster.spec, cluster.paths),
            cost=None if cluster.sandbox else summary.planned(cluster.spec, sites),
        )
        if untouched:  # what was only looked at leaves nothing behind
            for machines_of_site in site_machines.values() if cluster.sandbox else ():
                machines_of_site.forget()
            cluster.only_looked()
    return document


@dataclass(frozen=True, slots=True)
class _Observed:
    """A machine that is there, as it was asked: what differs on it (None: it did not answer), and what only `upgrade`
    would change."""

    drift: tuple[Difference, ...] | None
    waiting: list[str]


def _planned_node(name: str, group: PlannedGroup, observed: _Observed | None) -> PlannedNode:
    drift = observed.drift if observed is not None else None
    return PlannedNode(
        name=name,
        group=group.name,
        site=group.site,
        machine=group.machine.name,
        drift=None if drift is None else status.drift_rows(drift),
        reboot=None if drift is None else any(difference.reboots for difference in drift),
        waiting=observed.waiting if observed is not None else [],
    )


def _node_states(cluster: Cluster, lock: Lock) -> dict[str, _Observed]:
    """Each machine that is there, asked for it."""
    nodes = [node for node in cluster.nodes() if node.group in lock.groups and node.group in cluster.spec.groups]
    releases = upgrade_journal.assigned(cluster, nodes, lock)
    drift_by_node = status.drifted(cluster, nodes, releases, configuring.role_variables(cluster, releases))
    rows = {}
    for node in nodes:
        release = releases[node.name]
        moved = not same(release.lock, lock, node.group)
        waiting = changes(release.stack(node.group), lock.groups[node.group]) if moved else []
        rows[node.name] = _Observed(drift_by_node[node.name], waiting)
    return rows


def text(document: PlanOutput, file: str = "FILE") -> str:
    """The plan for a person. `file`: cluster.yaml as typed_file has it."""
    lines = [f"{document.cluster}{' (sandbox: simulated hardware)' if document.sandbox else ''}"]
    for group, stack in document.stack.items():
        names = [node.name for node in document.nodes if node.group == group]
        machine = next(node.machine for node in document.nodes if node.group == group)
        versions = {"driver": stack.driver, "CUDA": stack.cuda, "NCCL": stack.nccl}
        known = "".join(f", {component} {version}" for component, version in versions.items() if version)
        image = f", from image {document.images[group]}" if group in document.images else ""
        lines.append(f"  {group}: {len(names)} × {machine}{known}{image}")
    if document.new_lock:
        lock_file = document.lock_file or "cluster.lock"
        commands = f"`gpuprov lock {file}` or `gpuprov up {file}`"
        lines.append(f"  {lock_file} does not exist yet; {commands} writes it with these versions")
    changes, reasons = document.machines, document.reasons
    for verb in VERBS:
        for reason, names in by_reason(getattr(changes, verb), reasons if verb == "recreate" else {}).items():
            lines.append(f"  {verb} {few(names, MOST_NAMES, ',')}{f' ({reason})' if reason else ''}")
    for site, counts in document.changes.items():
        lines.append(f"  {site}: {_resources(counts, document.shared.get(site, []))}")
    lines += [f"  {line}" for line in placement.lines(document.site_choices)]
    lines += [f"  {line}" for line in block_ends.ending(document.ends)]
    lines += [f"  {line}" for line in summary.lines(document.cost)] if document.cost else []
    if document.sandbox:
        lines.append(f"  `gpuprov cost {file.removesuffix(' --sandbox')}` says what these machines cost in the cloud")
    for node in document.nodes:
        lines += [f"  {node.name}: {line}" for line in node_lines(node, file)]
    for finding in document.findings:
        action = f" ({finding.action})" if finding.action else ""
        lines.append(f"  {finding.status}: {finding.subject}: {finding.message}{action}")
    return "\n".join(lines)


VERBS = ("create", "recreate", "change", "remove")
MOST_NAMES = 20
"""Of nodes or resources, in a line."""
MODULE = "module.site."
DONE = {"create": "add", "update": "change", "replace": "destroy and add anew", "delete": "destroy"}
"""What Terraform calls it → what a person is told."""
MIRROR = "terraform_data.mirror"
"""The sandbox's own: packages and container images for its nodes."""


def _resources(counts: SiteChanges, shared: Sequence[SharedChange]) -> str:
    """What Terraform would do at a site: how many resources, and by name those that are of no machine."""
    numbers = {"add": counts.add, "change": counts.change, "destroy": counts.destroy}
    if not any(numbers.values()):
        return "nothing to add, change or destroy"
    done = ", ".join(f"{number} to {verb}" for verb, number in numbers.items() if number)
    names = [
        f"{DONE.get(change.action, change.action)} {_label(change.resource.removeprefix(MODULE))}" for change in shared
    ]
    apart = f"; not of a machine: {few(names, MOST_NAMES, ',')}" if names else ""
    return f"{done} (Terraform resources){apart}"


def _label(resource: str) -> str:
    return f"{resource} (the sandbox's package mirror)" if resource == MIRROR else resource


MOST_LINES = 8
"""Differences of one node that are told one by one."""


def node_lines(node: PlannedNode | StatusNode, file: str = "FILE") -> list[str]:
    """What is worth a line of one node of `plan` or `status`: its drift, a reboot, what an upgrade would change."""
    drift = [difference.message for difference in node.drift or ()]
    lines = drift[:MOST_LINES] + ([f"and {len(drift) - MOST_LINES} more"] if len(drift) > MOST_LINES else [])
    if isinstance(node, PlannedNode) and node.reboot:
        lines.append("reboot required")
    if node.waiting:
        lines.append(f"runs an older lock; `gpuprov upgrade {file}` would change {', '.join(node.waiting)}")
    return lines
