"""Scrape targets of the nodes that exist, as Prometheus' file_sd reads them."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Any

from provisioner.common.text import bracketed
from provisioner.monitoring.fleet import WatchedFleet
from provisioner.monitoring.models import DCGM_JOB, NODE_JOB
from provisioner.rundir.fleet import Node

NODE_EXPORTER_PORT, DCGM_EXPORTER_PORT = 9100, 9400
"""Defaults of prometheus-node-exporter and of dcgm-exporter (role dcgm_exporter)."""


def targets(fleet: WatchedFleet, nodes: Iterable[Node]) -> dict[str, list[dict[str, Any]]]:
    """Scrape job → its targets, one for each node, by name. Nodes are reached by their private address: exporters are
    not to be open to the world."""
    groups = {group.name: group for group in fleet.groups}
    jobs: dict[str, list[dict[str, Any]]] = {NODE_JOB: [], DCGM_JOB: []}
    for node in sorted(nodes, key=lambda node: (node.group, len(node.name), node.name)):
        group = groups.get(node.group)
        if group is None or is_loopback(node):  # `up` removes the machines of a group that cluster.yaml has no more
            continue
        labels = {**fleet.labels(group, node.name), "site": node.site}
        jobs[NODE_JOB].append(_target(node, NODE_EXPORTER_PORT, labels))
        if group in fleet.dcgm_groups:
            jobs[DCGM_JOB].append(_target(node, DCGM_EXPORTER_PORT, labels))
    return {job: rows for job, rows in jobs.items() if rows}


def address(node: Node) -> str:
    """The address that Prometheus scrapes."""
    return node.private_address or node.address


def is_loopback(node: Node) -> bool:
    """Whether the address is the computer's that gpuprov runs on: to a Prometheus elsewhere it would be its own."""
    host = address(node)
    return host == "localhost" or (is_ip(host) and ipaddress.ip_address(host).is_loopback)


def is_ip(host: str) -> bool:
    """Whether a host is an IP address, and no name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _target(node: Node, port: int, labels: dict[str, str]) -> dict[str, Any]:
    return {"targets": [f"{bracketed(address(node))}:{port}"], "labels": labels}
