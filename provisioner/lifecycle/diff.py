"""Which machines cluster.yaml wants, beside those that are there: a verdict on a fleet is one on what is wanted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from provisioner.lifecycle.session import Cluster
from provisioner.machines.providers import capacity
from provisioner.rundir.fleet import Node

if TYPE_CHECKING:
    from provisioner.verify.results import NodeReport

ABSENT = "missing: in cluster.yaml, but no machine exists; `gpuprov up` creates it"


@dataclass(frozen=True, slots=True)
class Diff:
    """`present`: machines that are there and wanted. `absent`: node → group of those that are wanted and not there, but
    for what an `up` was allowed to do without (capacity.min). `unwanted`: names of machines that `up` would remove."""

    present: tuple[Node, ...]
    absent: dict[str, str]
    unwanted: tuple[str, ...]


def desired(cluster: Cluster) -> dict[str, str]:
    """Node → group of all that cluster.yaml names, but those that the last `up` was allowed to do without."""
    used = sorted({cluster.spec.site_of(name) for name in cluster.spec.groups})
    spared = {name for site in used for name in capacity.without(cluster.paths.site(site))}
    return {name: group for name, group in cluster.spec.node_groups().items() if name not in spared}


def compare(cluster: Cluster) -> Diff:
    """Compare the file with what the last run made. Nobody is asked."""
    nodes = {node.name: node for node in cluster.nodes()}
    groups = cluster.spec.node_groups()
    return Diff(
        tuple(node for name, node in nodes.items() if name in groups),
        {name: group for name, group in desired(cluster).items() if name not in nodes},
        tuple(name for name in nodes if name not in groups),
    )


def absent_reports(cluster: Cluster, diff: Diff) -> tuple[NodeReport, ...]:
    """What a verdict says of the machines that are not there."""
    from provisioner.verify.results import NodeReport

    groups, sites = cluster.spec.groups, cluster.spec.group_sites()
    return tuple(
        NodeReport(
            name, group, sites[group], groups[group].machine_type(sites[group]), cluster.sandbox, (),
            error=ABSENT, absent=True,
        )
        for name, group in diff.absent.items()
    )  # fmt: skip
