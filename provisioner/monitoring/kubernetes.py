"""The same for a cluster with the Prometheus Operator: PrometheusRule, ServiceMonitor with the nodes as Endpoints, and
dashboards as ConfigMaps.

Fields are those of monitoring.coreos.com/v1 (prometheus-operator, Documentation/api-reference/api.md).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from provisioner.monitoring import rules
from provisioner.monitoring.fleet import WatchedFleet, WatchedGroup
from provisioner.monitoring.models import DCGM_JOB, NODE_JOB, SCRAPE_S, TARGET_LABELS
from provisioner.monitoring.server_config import DROPPED_LABELS
from provisioner.monitoring.targets import DCGM_EXPORTER_PORT, NODE_EXPORTER_PORT, address, is_ip, is_loopback
from provisioner.rundir.fleet import Node

ENDPOINTS = 1000
"""Addresses of one Endpoints object: Kubernetes cuts off the rest (Services, over-capacity endpoints)."""
PORT = "metrics"
JOB_LABEL = "app.kubernetes.io/name"
SERVICE_LABELS = tuple(label for label in TARGET_LABELS if label != "node")
"""Of the Service; the label `node` is the address's hostname."""


def objects(
    fleet: WatchedFleet, nodes: Iterable[Node], dashboards: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """All objects, in an order in which `kubectl apply` takes them. The namespace is the user's (`kubectl -n`)."""
    groups = {group.name: group for group in fleet.groups}
    by_group: dict[tuple[str, str], list[Node]] = {}
    for node in nodes:
        if node.group in groups and is_scraped(node):
            by_group.setdefault((node.group, node.site), []).append(node)
    result = [_rule(fleet)]
    for job, port in ((NODE_JOB, NODE_EXPORTER_PORT), (DCGM_JOB, DCGM_EXPORTER_PORT)):
        for (name, site), members in sorted(by_group.items()):
            if job == NODE_JOB or groups[name] in fleet.dcgm_groups:
                result += _services(fleet, groups[name], site, job, port, members)
        result.append(_monitor(fleet, job))
    result += (_dashboard(fleet, name, board) for name, board in dashboards.items())
    return result


def is_scraped(node: Node) -> bool:
    """Whether an Endpoints object can have the node: it takes IP addresses, and none of the loopback network."""
    return is_ip(address(node)) and not is_loopback(node)


def _metadata(fleet: WatchedFleet, name: str, **labels: str) -> dict[str, Any]:
    common = {"app.kubernetes.io/managed-by": "gpuprov", "gpuprov-cluster": fleet.cluster}
    return {"name": f"gpuprov-{fleet.cluster}-{name}", "labels": {**common, **labels}}


def _service_name(fleet: WatchedFleet, *parts: str) -> str:
    """A DNS label of at most 63 characters; the digest tells groups and sites apart whose names would join alike."""
    digest = hashlib.sha256("\n".join((fleet.cluster, *parts)).encode()).hexdigest()[:10]
    return f"gpuprov-{fleet.cluster[:30].replace('.', '-').rstrip('-')}-{digest}"


def _label(text: str) -> str:
    """As Kubernetes takes the value of a label."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", text)[:63].strip("-_.")


def _rule(fleet: WatchedFleet) -> dict[str, Any]:
    groups = [group for rule_group in rules.rule_groups(fleet) for group in rules.document(rule_group)["groups"]]
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": _metadata(fleet, "rules"),
        "spec": {"groups": groups},
    }


def _services(
    fleet: WatchedFleet, group: WatchedGroup, site: str, job: str, port: int, nodes: Sequence[Node]
) -> list[dict[str, Any]]:
    """A Service without a selector and its Endpoints, for each ENDPOINTS nodes."""
    result: list[dict[str, Any]] = []
    target_labels = {**fleet.labels(group, ""), "site": site}
    labels = {JOB_LABEL: job, **{name: _label(target_labels[name]) for name in SERVICE_LABELS}}
    for part, first in enumerate(range(0, len(nodes), ENDPOINTS)):
        metadata = _metadata(fleet, "", **labels) | {"name": _service_name(fleet, group.name, site, job, str(part))}
        ports = [{"name": PORT, "port": port}]
        addresses = [{"ip": address(node), "hostname": node.name} for node in nodes[first : first + ENDPOINTS]]
        service = {"clusterIP": "None", "ports": ports}
        result.append({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": service})
        subsets = [{"addresses": addresses, "ports": ports}]
        result.append({"apiVersion": "v1", "kind": "Endpoints", "metadata": metadata, "subsets": subsets})
    return result


def _monitor(fleet: WatchedFleet, job: str) -> dict[str, Any]:
    hostnames = ["__meta_kubernetes_endpoint_hostname", "__meta_kubernetes_endpointslice_endpoint_hostname"]
    endpoint: dict[str, Any] = {
        "port": PORT,
        "interval": f"{SCRAPE_S}s",
        "scrapeTimeout": "20s",
        # The operator asks Endpoints or EndpointSlices, by its own setting: one of the two labels is empty.
        "relabelings": [{"sourceLabels": hostnames, "separator": "", "targetLabel": "node"}],
    }
    if job == DCGM_JOB:
        endpoint["metricRelabelings"] = [{"action": "labeldrop", "regex": DROPPED_LABELS}]
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "ServiceMonitor",
        "metadata": _metadata(fleet, job.removeprefix("gpuprov-")),
        "spec": {
            "jobLabel": JOB_LABEL,
            "targetLabels": list(SERVICE_LABELS),
            "selector": {"matchLabels": {"gpuprov-cluster": fleet.cluster, JOB_LABEL: job}},
            "endpoints": [endpoint],
        },
    }


def _dashboard(fleet: WatchedFleet, name: str, board: Mapping[str, Any]) -> dict[str, Any]:
    """For the sidecar of Grafana's chart, which takes ConfigMaps with this label."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(fleet, f"dashboard-{name}", grafana_dashboard="1"),
        "data": {f"gpuprov-{name}.json": json.dumps(board, sort_keys=True)},
    }
