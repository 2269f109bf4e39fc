"""Refusals of `scheduler`: no head node, nodes that cannot reach it, and what Slurm is not set up for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from provisioner.catalog.models import Machine
from provisioner.common.suggest import did_you_mean
from provisioner.spec.groups import Group
from provisioner.spec.models import Hooks
from provisioner.spec.scheduler import Scheduler
from provisioner.spec.source_map import Finding, Loc, shown

AT: Loc = ("scheduler", "slurm")
RESERVED = "default"
"""PartitionName=DEFAULT has the defaults of the partitions that follow, in any case (slurm.conf(5))."""
NEEDED = ("vcpus", "memory_gib")
"""Facts of a machine type that slurm.conf has."""


def scheduler_findings(
    scheduler: Scheduler, groups: Mapping[str, Group], sites_of: Mapping[str, tuple[str, ...]],
    machines: Mapping[str, Machine | None], hooks: Hooks | None, small_machine: str, *, complete: bool,
) -> Iterator[Finding]:  # fmt: skip
    """`groups`: those that could be read; `sites_of`: the sites that one may be at; `machines`: group → its type, None
    where it is not known; `small_machine`: a type that a head node may have; `complete`: there are no other groups."""
    if scheduler.slurm is None:
        return
    for name in ("drain", "resume"):
        if hooks is not None and getattr(hooks, name) is not None:
            message = f"hooks.{name} is set, and gpuprov takes nodes out of service by scheduler.slurm"
            yield Finding(("hooks", name), message, "leave one of the two out", at_key=True)
    head_name = scheduler.slurm.head
    head = groups.get(head_name)
    if head is None:
        if complete:
            hint = did_you_mean(head_name, list(groups))
            add = f"add a group of one machine: {head_name}: {{machine: {small_machine}}}"
            yield Finding(_at(scheduler), f"there is no group {shown(head_name)}", f"{hint}; {add}" if hint else add)
        return
    if head.count != 1:
        message = f"group {head_name} runs slurmctld, and has {head.count} machines"
        yield Finding(("groups", head_name, "count"), message, "count: 1")
    if complete and len(groups) == 1:
        message = f"{head_name} is the only group, and no job runs on a head node"
        yield Finding(_at(scheduler), message, "add a group of machines for jobs")
    head_sites = sites_of[head_name]
    if len(head_sites) > 1:
        message = f"group {head_name} runs slurmctld, and may be at several sites"
        yield Finding(("groups", head_name, "site"), message, "name one site")
    for name, group in groups.items():
        if name != head_name:
            yield from _node_group(name, group, sites_of[name], head_sites, machines.get(name))


def _node_group(
    name: str, group: Group, sites: tuple[str, ...], head_sites: tuple[str, ...], machine: Machine | None
) -> Iterator[Finding]:
    loc: Loc = ("groups", name)
    if name == RESERVED:
        message = f"Slurm gives the name {name} a meaning of its own, and each group is a partition"
        yield Finding(loc, message, "call the group by another name", at_key=True)
    elsewhere = [site for site in sites if site not in head_sites]
    if elsewhere and len(head_sites) == 1:
        message = f"group {name} is at site {elsewhere[0]}, and slurmctld at {head_sites[0]}"
        hint = "nodes reach slurmctld by private addresses: one cluster.yaml for each site"
        yield Finding((*loc, "site"), message, hint)
    if group.gpu.mig is not None:
        message = "MIG is not available yet in a group of a Slurm cluster"
        yield Finding((*loc, "gpu", "mig"), message, "leave gpu.mig out, or leave scheduler.slurm out")
    if machine is None:
        return
    if machine.gpu_arch.startswith("cdna"):
        message = f"{machine.name} has AMD GPUs, and Slurm is set up for NVIDIA GPUs alone so far"
        yield Finding((*loc, "machine"), message, "leave scheduler.slurm out")
    for key in NEEDED:
        if machine.basis.is_left_out(key):
            message = f"{machine.name} does not say its {key}, which slurm.conf needs"
            yield Finding((*loc, "machine"), message, f"add {key} to machines.{machine.name}")


def _at(scheduler: Scheduler) -> Loc:
    assert scheduler.slurm is not None
    return (*AT, "head") if "head" in scheduler.slurm.model_fields_set else AT
