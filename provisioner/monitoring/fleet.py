"""What is watched: the groups of cluster.yaml with what the catalogue says of their machines."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from provisioner.catalog.models import Gpu, Machine
from provisioner.rundir.fleet import Node
from provisioner.spec.models import ClusterSpec

_EVERY = re.compile(r"^([0-9]+)([mh])$")
HOURS_A_DAY = 24


@dataclass(frozen=True, slots=True)
class WatchedGroup:
    """One group. `price_hour`: list price on demand of one machine; None where it is unknown, or nothing is bought.
    `block`: its machines are of a capacity block, which ends; `golden`: they
    start from a golden image; `efa`: they have EFA."""

    name: str
    site: str
    count: int
    machine: Machine
    gpu: Gpu
    mig: bool
    ecc: bool
    rdma: bool
    block: bool = False
    golden: bool = False
    efa: bool = False
    price_hour: float | None = None
    currency: str = ""

    @property
    def has_dcgm(self) -> bool:
        return self.gpu.vendor == "nvidia"


@dataclass(frozen=True, slots=True)
class WatchedFleet:
    """One cluster. `cluster` is its label: a sandbox has another than the real cluster of that name. `health_minutes`:
    how often the nodes run gpuprov's checks; None where the timer is off. `image_days`: age from which a golden image
    is old; None: no age is."""

    cluster: str
    groups: tuple[WatchedGroup, ...]
    simulated: bool
    health_minutes: int | None
    exports_dcgm: bool
    image_days: int | None = None

    @property
    def dcgm_groups(self) -> tuple[WatchedGroup, ...]:
        """Those whose nodes export DCGM's metrics."""
        return tuple(group for group in self.groups if group.has_dcgm) if self.exports_dcgm else ()

    def labels(self, group: WatchedGroup, node: str) -> dict[str, str]:
        """The labels that every target of a node has."""
        return {
            "cluster": self.cluster,
            "site": group.site,
            "group": group.name,
            "node": node,
            "machine": group.machine.name,
            "gpu_model": group.gpu.model,
            "simulated": str(self.simulated).lower(),
        }


def cluster_label(name: str, *, simulated: bool) -> str:
    """The label `cluster` of all series of a cluster."""
    return f"{name}.sandbox" if simulated else name


def watched_fleet(spec: ClusterSpec, nodes: Sequence[Node] | None = None, *, simulated: bool) -> WatchedFleet:
    """What cluster.yaml and the catalogue say of the groups that have nodes; without `nodes` all that the file wants.
    Groups with several sites are at the chosen one."""
    health = spec.health_timer
    groups = []
    for name, group in spec.groups.items():
        count = group.count if nodes is None else sum(node.group == name for node in nodes)
        if not count:
            continue
        machine, site = spec.machine(name), spec.site_of(name)
        price = spec.catalog.price(machine, getattr(spec.sites.get(site), "region", ""))
        gpu = spec.catalog.gpu(machine.gpu_model)
        groups.append(
            WatchedGroup(
                name, site, count, machine, gpu,
                mig=group.gpu.mig is not None,
                ecc=gpu.ecc and group.gpu.ecc,
                rdma=machine.network.kind in ("infiniband", "roce") and group.network.rdma is not False,
                block=group.capacity.kind == "block",
                golden=group.image is not None,
                efa=machine.uses_efa(group.network.rdma),
                price_hour=price.price if price else None,
                currency=price.currency if price else "",
            )
        )  # fmt: skip
    return WatchedFleet(
        cluster_label(spec.name, simulated=simulated),
        tuple(groups),
        simulated,
        None if health is None else minutes(health.every),
        spec.monitoring.dcgm_exporter,
        spec.monitoring.image_days,
    )


def minutes(every: str) -> int:
    """Of a time such as 10m or 1h (HealthCheck.every)."""
    match = _EVERY.match(every)
    assert match is not None, every  # the model has the same shape
    return int(match[1]) * (60 if match[2] == "h" else 1)
