"""The Alertmanagers of a cluster: the one that cluster.yaml names, and those of its head nodes, which are reached
through ssh. Which nodes have a firing alert."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, NamedTuple

from provisioner.common.errors import GpuprovError
from provisioner.monitoring import alertmanager
from provisioner.monitoring.fleet import cluster_label
from provisioner.plan.roles.prometheus import ALERTMANAGER_PORT
from provisioner.rundir import node_state

if TYPE_CHECKING:
    from provisioner.lifecycle.session import Cluster

SEVERITY = "page"
"""Of alerts for which a node is verified."""


class Alerting(NamedTuple):
    """`nodes`: node of the cluster → its firing alerts; `failed`: Alertmanager → why it gave no answer."""

    nodes: dict[str, list[str]]
    failed: dict[str, GpuprovError]


def of(cluster: Cluster, *, heads: bool = True) -> dict[str, AbstractContextManager[str]]:
    """URL, or head node → what gives a URL for requests from this computer. `heads`: whether head nodes are still
    there. One that was never proven may still be in the making."""
    monitoring = cluster.spec.monitoring
    urls: dict[str, AbstractContextManager[str]] = {}
    if monitoring.alertmanager is not None:
        urls[monitoring.alertmanager] = contextlib.nullcontext(monitoring.alertmanager)
    for node in cluster.nodes() if heads and monitoring.heads else ():
        was_proven = node_state.load(cluster.paths).of(node.name).ok is not None
        if node.group in monitoring.heads and was_proven:
            urls[node.name] = _through_ssh(cluster, node.name)
    return urls


@contextlib.contextmanager
def _through_ssh(cluster: Cluster, node: str) -> Iterator[str]:
    from provisioner.transport.tunnel import LOOPBACK, tunnel

    with tunnel(cluster.paths, node, [ALERTMANAGER_PORT]) as (port,):
        yield f"http://{LOOPBACK}:{port}"


def alerting(cluster: Cluster) -> Alerting:
    """The nodes of the cluster with a firing alert of severity page, by all of its Alertmanagers. Raises GpuprovError
    where it has none."""
    urls = of(cluster)
    if not urls:
        raise GpuprovError(
            "no Alertmanager of this cluster is known", where=str(cluster.paths.spec),
            hint="`gpuprov up` makes the head node" if cluster.spec.monitoring.heads
            else "monitoring: {prometheus: {at: GROUP}} or monitoring: {alertmanager: URL} in cluster.yaml",
        )  # fmt: skip
    label = cluster_label(cluster.spec.name, simulated=cluster.sandbox)
    names = {node.name for node in cluster.nodes()}
    result = Alerting({}, {})
    for name, opened in urls.items():
        try:
            with opened as url:
                for node, alerts in alertmanager.alerting(url, label, SEVERITY).items():
                    if node in names:
                        result.nodes[node] = sorted({*result.nodes.get(node, ()), *alerts})
        except GpuprovError as error:
            result.failed[name] = error
    return result
