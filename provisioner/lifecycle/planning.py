"""`gpuprov plan`: what `up` would make and change, and what preflight found. Makes nothing."""

from __future__ import annotations

from typing import Any

from provisioner.lifecycle import locking, machines
from provisioner.session import Cluster
from provisioner.workspace.binary import Binary


def plan(cluster: Cluster, binary: Binary) -> dict[str, Any]:
    """What `up` would do: {"cluster", "sandbox", "nodes": [{"name", "group", "site", "machine"}], "changes": {site:
    {"add", "change", "destroy"}}, "stack": {group: {"driver", "cuda", "nccl"}}, "findings": [{"status", "subject",
    "message", "action"}]}."""
    for site in cluster.spec.sites:
        machines.provider_of(cluster, site)  # refuses before anything is written
    existed = cluster.paths.exists()
    with cluster.exclusively("plan") as run_dir:
        wanted = cluster.plan(locking.current(cluster, cluster.events))
        findings = machines.preflight(cluster, wanted, cluster.events)
        prepared = [
            machines.prepare(cluster, wanted, site, binary, cluster.events, run_dir) for site in machines.sites(wanted)
        ]
        document = {
            "cluster": cluster.spec.name,
            "sandbox": cluster.sandbox,
            "nodes": [
                {"name": name, "group": group.name, "site": group.site, "machine": group.machine.name}
                for name, group in wanted.nodes()
            ],
            "changes": {
                p.site: {"add": p.changes.add, "change": p.changes.change, "destroy": p.changes.destroy}
                for p in prepared
            },
            "stack": {
                group.name: {"driver": group.stack.driver, "cuda": group.stack.cuda_toolkit, "nccl": group.stack.nccl}
                for group in wanted.groups
            },
            "findings": [
                {"status": f.status, "subject": f.subject, "message": f.message, "action": f.action} for f in findings
            ],
        }
        if not existed and cluster.sandbox:  # a rehearsal that was only looked at leaves nothing behind
            for looked_at in prepared:
                looked_at.provider.clean(looked_at.workspace.path, cluster.events)
            cluster.forget()
    return document


def text(document: dict[str, Any]) -> str:
    """The plan for a person."""
    lines = [f"{document['cluster']}{' (rehearsal: simulated hardware)' if document['sandbox'] else ''}"]
    for group, stack in document["stack"].items():
        names = [node["name"] for node in document["nodes"] if node["group"] == group]
        machine = next(node["machine"] for node in document["nodes"] if node["group"] == group)
        versions = {"driver": stack["driver"], "CUDA": stack["cuda"], "NCCL": stack["nccl"]}
        known = "".join(f", {what} {version}" for what, version in versions.items() if version)
        lines.append(f"  {group}: {len(names)} × {machine}{known}")
    for site, changes in document["changes"].items():
        lines.append(
            f"  {site}: {changes['add']} to make, {changes['change']} to change, {changes['destroy']} to remove"
        )
    for finding in document["findings"]:
        action = f" ({finding['action']})" if finding["action"] else ""
        lines.append(f"  {finding['status']}: {finding['subject']}: {finding['message']}{action}")
    return "\n".join(lines)
