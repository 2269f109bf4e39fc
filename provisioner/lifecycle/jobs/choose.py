"""The nodes of a job: proven, in service, of one group, and nobody's at the moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from provisioner.common.errors import GpuprovError
from provisioner.common.text import counted, few
from provisioner.lifecycle import second_boot
from provisioner.lifecycle.in_service import out_of_service
from provisioner.lifecycle.jobs.on_nodes import jobs_by_node
from provisioner.rundir.fleet import Node

if TYPE_CHECKING:
    from provisioner.lifecycle.session import Cluster


def group_of(cluster: Cluster, group: str | None, names: Sequence[str]) -> str:
    """The group on which a job runs: the named one, that of the named nodes, or the only one with GPUs. Raises
    GpuprovError."""
    if group is None and names:
        return cluster.node(names[0]).group
    groups = cluster.spec.groups
    if group is not None:
        if group not in groups:
            raise GpuprovError(
                f"there is no group {group}", where=str(cluster.file), hint=f"groups: {', '.join(groups)}"
            )
        return group
    with_gpus = [name for name, row in groups.items() if _has_gpus(cluster, row.machine_types)]
    if len(with_gpus) != 1:
        hint = f"pass --group: {', '.join(with_gpus or groups)}"
        raise GpuprovError(f"{len(with_gpus)} groups have GPUs", where=str(cluster.file), hint=hint)
    return with_gpus[0]


def _has_gpus(cluster: Cluster, machines: Sequence[str]) -> bool:
    return any(cluster.spec.catalog.machine(name).gpu_count > 0 for name in machines)


def of_group(cluster: Cluster, group: str, count: int | None, names: Sequence[str]) -> list[Node]:
    """The nodes of which Slurm gives some to a job: those that are named, else all of the group. Raises GpuprovError
    where there are too few."""
    nodes = _nodes(cluster, group, names)
    if count is not None and count > len(nodes):
        message = f"{group} has {counted(len(nodes), 'node')}, and {count} are requested"
        raise GpuprovError(message, where=cluster.spec.name)
    return nodes


def choose(cluster: Cluster, group: str, count: int | None, names: Sequence[str]) -> list[Node]:
    """The nodes of a job, in the order of their names: those that are named, else `count` of the group, else all of it.
    Raises GpuprovError where one of them cannot have a job, or there are too few that can."""
    nodes = _nodes(cluster, group, names)
    unusable = _unusable(cluster, nodes)
    usable = [node for node in nodes if node.name not in unusable]
    if count is None and unusable:
        hint = f"pass --nodes {len(usable)} to run on the others" if usable and not names else ""
        raise GpuprovError(f"not all nodes can have a job: {_listed(unusable)}", where=cluster.spec.name, hint=hint)
    required = len(nodes) if count is None else count
    if len(usable) < required:
        listed = f": {_listed(unusable)}" if unusable else ""
        raise GpuprovError(
            f"{counted(len(usable), 'node')} of {group} can have a job, and {required} are requested{listed}",
            where=cluster.spec.name,
        )
    return usable[:required]


def _nodes(cluster: Cluster, group: str, names: Sequence[str]) -> list[Node]:
    """The nodes that are named, else all of the group. Raises GpuprovError for those of another one."""
    nodes = [cluster.node(name) for name in dict.fromkeys(names)] or [
        node for node in cluster.nodes() if node.group == group
    ]
    if not nodes:
        raise GpuprovError(
            "there is no fleet yet", where=str(cluster.file), hint=f"run `gpuprov up {cluster.typed_file}` first"
        )
    if foreign := [node.name for node in nodes if node.group != group]:
        raise GpuprovError(f"{', '.join(foreign)}: not in group {group}", hint="all nodes of a job are of one group")
    return nodes


def _unusable(cluster: Cluster, nodes: Sequence[Node]) -> dict[str, str]:
    """Node → why it cannot have a job."""
    reasons = out_of_service(cluster, nodes)
    present = [node for node in nodes if node.name not in reasons]
    rows, silent = jobs_by_node(cluster, present)
    reasons |= {name: f"does not answer: {reason}" for name, reason in silent.items()}
    for name, jobs in rows.items():
        for job in jobs:
            if job.state == "running":
                reasons[name] = f"job {job.id} of {job.owner} runs on it"
    idle = [node for node in present if node.name not in reasons]
    return reasons | second_boot.gpu_holders(cluster, idle)


def _listed(reasons: Mapping[str, str]) -> str:
    return few([f"{name}: {reason}" for name, reason in reasons.items()], 5)
