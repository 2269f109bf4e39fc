"""`gpuprov status`: the nodes as the last run left them. Reads files only; asks no node."""

from __future__ import annotations

from typing import Any

from provisioner.session import Cluster


def status(cluster: Cluster) -> dict[str, Any]:
    """The `status` document: {"cluster", "sandbox", "nodes": [{"name", "group", "site", "machine", "address", "stage",
    "ok"}], "report"}. Nodes that are wanted and not there have stage "planned" and no address; nodes that are there and
    no longer wanted have stage "unwanted"; nodes that are there and of which nothing was noted have stage "unknown"."""
    known = {node.name: node for node in cluster.nodes()}
    noted = cluster.state().get("nodes", {})
    rows: list[dict[str, Any]] = []
    row: dict[str, Any]
    for name, group in cluster.spec.groups.items():
        for node_name in (f"{name}-{index}" for index in range(group.count)):
            node = known.pop(node_name, None)
            said = noted.get(node_name, {})
            row = {"name": node_name, "group": name, "site": cluster.spec.site_of(name), "machine": group.machine}
            row |= {"address": node.address if node else None}
            rows.append(row | {"stage": said.get("stage", "unknown" if node else "planned"), "ok": said.get("ok")})
    for node in known.values():
        row = {"name": node.name, "group": node.group, "site": node.site, "machine": node.machine}
        rows.append(row | {"address": node.address, "stage": "unwanted", "ok": None})
    return {
        "cluster": cluster.spec.name,
        "sandbox": cluster.sandbox,
        "nodes": rows,
        "report": cluster.state().get("report") or None,
    }
