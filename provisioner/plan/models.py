"""ClusterSpec + lock + catalogue → Plan: every node that is wanted, with what it must turn out to be."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from provisioner.catalog.models import Gpu, Machine
from provisioner.common.errors import GpuprovError
from provisioner.spec.groups import Group
from provisioner.spec.models import ClusterSpec
from provisioner.stack.models import BaseImage, GoldenImage, Lock, Stack


@dataclass(frozen=True, slots=True)
class PlannedGroup:
    """One group: `count` machines of one type at one site, and what will be installed on them."""

    name: str
    site: str
    spec: Group
    machine: Machine
    gpu: Gpu
    stack: Stack

    def node_names(self) -> tuple[str, ...]:
        return self.spec.node_names(self.name)

    @property
    def boots(self) -> str:
        """What its machines boot, in words: the distribution, or the cloud's own GPU image."""
        return self.stack.vendor.name if self.stack.vendor else self.stack.os

    @property
    def efa_devices(self) -> int:
        """EFA devices of one machine; 0 where it has none or cluster.yaml does not want them."""
        return self.machine.network.ports if self.machine.uses_efa(self.spec.network.rdma) else 0


@dataclass(frozen=True, slots=True)
class Plan:
    """The whole fleet as it is wanted."""

    spec: ClusterSpec
    groups: tuple[PlannedGroup, ...]
    simulated: bool
    """Whether the hardware is; what is expected of it is then what a sandbox can show."""
    bases: Mapping[str, Mapping[str, BaseImage]] = field(default_factory=dict)
    """Site → distribution → what its machines boot, of the lock."""
    images: Mapping[str, GoldenImage] = field(default_factory=dict)
    """Group → the golden image that its machines start from, of the lock."""
    beside: tuple[Stack, ...] = ()
    """Stacks of other locks that machines still run, or may be brought back to: their packages must stay to be had."""

    def group(self, name: str) -> PlannedGroup:
        """Raises GpuprovError where cluster.yaml has it no more: machines of it may still be there."""
        found = next((group for group in self.groups if group.name == name), None)
        if found is None:
            raise GpuprovError(f"cluster.yaml has no group {name} any more", hint="`gpuprov up` removes its machines")
        return found

    def base(self, group: PlannedGroup) -> BaseImage | None:
        """What machines of a group boot: its golden image, the cloud's own GPU image, or the provider's image of its
        distribution. None where the lock names none."""
        golden = self.images.get(group.name)
        if golden is not None:
            return BaseImage(id=golden.id, why=f"{golden.name}, build {golden.build}")
        if group.stack.vendor is not None:
            return group.stack.vendor.base
        return self.bases.get(group.site, {}).get(group.stack.os)

    def sites(self) -> list[str]:
        """The sites that groups are at, in the order of cluster.yaml."""
        used = {group.site for group in self.groups}
        return [site for site in self.spec.sites if site in used]

    def at(self, sites: Collection[str]) -> Plan:
        """The groups at these sites alone."""
        return replace(self, groups=tuple(group for group in self.groups if group.site in sites))

    def nodes(self) -> tuple[tuple[str, PlannedGroup], ...]:
        return tuple((name, group) for group in self.groups for name in group.node_names())


def build_plan(spec: ClusterSpec, lock: Lock, *, beside: Sequence[Lock] = (), partly: bool = False) -> Plan:
    """The plan of cluster.yaml by a lock. `beside`: other locks that machines still run. `partly`: leave out the groups
    that the lock does not have, as one does that is older than they are; without it they raise GpuprovError."""
    groups, catalog = [], spec.catalog
    lock = lock.at(spec.group_sites())
    for name, group in spec.groups.items():
        if name not in lock.groups:
            if partly:
                continue
            raise GpuprovError(
                f"cluster.lock has no group {name}", where=spec.name, hint="run `gpuprov lock` with this cluster.yaml"
            )
        machine, site = spec.machine(name), spec.site_of(name)
        groups.append(
            PlannedGroup(
                name=name,
                site=site,
                spec=group.at(site),
                machine=machine,
                gpu=catalog.gpu(machine.gpu_model),
                stack=lock.groups[name],
            )
        )
    others = tuple(stack for other in beside for stack in other.groups.values())
    return Plan(
        spec=spec, groups=tuple(groups), simulated=lock.simulated, bases=lock.bases, images=lock.images, beside=others
    )
