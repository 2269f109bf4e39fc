"""What keeps machines from being made, asked before anything is."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from ipaddress import ip_address, ip_network

from provisioner.common.errors import GpuprovError, ProviderError
from provisioner.common.events import Events, Kind
from provisioner.common.paths import private_dir
from provisioner.common.preflight import Finding
from provisioner.lifecycle import local_resources
from provisioner.lifecycle.session import Cluster
from provisioner.plan.models import Plan
from provisioner.spec.site import JumpHost

PRIVATE = [ip_network(text) for text in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7")]
"""Networks of one's own (RFC 1918, 4193, 6598)."""


def look(cluster: Cluster, plan: Plan, events: Events) -> dict[str, list[Finding]]:
    """Site → what keeps, or may keep, its machines from being made; "" has what concerns the whole fleet. Nothing is
    spent."""
    fleet_findings = [*(cluster.sharing.findings if cluster.sharing else ()), *local_resources.findings(cluster, plan)]
    findings = {"": [*fleet_findings, *_packages(cluster, plan)]}
    for site in plan.sites():
        node_names = [node.name for node in cluster.nodes() if node.site == site]
        try:
            findings[site] = [*cluster.providers.at(site).preflight(plan, node_names), *_jump_host(cluster, site)]
        except GpuprovError as error:
            if len(plan.sites()) == 1:
                raise
            findings[site] = [Finding("blocks", f"site {site}", error.message, error.hint)]
    for site, site_findings in findings.items():
        prefix = f"{site}: " if site and len(plan.sites()) > 1 else ""
        for finding in site_findings:
            if finding.status != "ok":
                text = f"{finding.subject}: {finding.message}" + (f" ({finding.action})" if finding.action else "")
                events("preflight", "warning", f"{prefix}{text}", data={"status": finding.status})
    return findings


def _jump_host(cluster: Cluster, site: str) -> list[Finding]:
    """Whether ssh from a site's jump host is let in to machines that are made there: it comes from that host, and not
    from this computer."""
    settings, allowed = cluster.spec.sites[site], cluster.spec.access.allow
    if cluster.sandbox or settings.jump is None or cluster.providers.at(site).hosts is not None:
        return []
    host = JumpHost.parse(settings.jump).name
    try:
        addresses = {ip_address(str(row[4][0])) for row in socket.getaddrinfo(host, None)}
    except (OSError, ValueError):
        addresses = set()
    inside = any(
        network.overlaps(other) for network in allowed for other in PRIVATE if network.version == other.version
    )  # the nodes may see the host's private address
    if inside or any(address in network for address in addresses for network in allowed):
        return []
    known = ", ".join(map(str, allowed)) or "empty"
    return [
        Finding(
            "warning", f"site {site}, jump", f"ssh comes to the nodes from {host}, and access.allow ({known}) has not "
            "its address", "add the address of the jump host as the nodes see it, such as 203.0.113.9/32",
        )
    ]  # fmt: skip


def blocked(findings: Mapping[str, Sequence[Finding]]) -> dict[str, ProviderError]:
    """Site (or "") → what preflight found that makes the run pointless there."""
    errors = {}
    for site, site_findings in findings.items():
        if blocking := [finding for finding in site_findings if finding.status == "blocks"]:
            errors[site] = ProviderError(
                "\n  ".join(f"{finding.subject}: {finding.message}" for finding in blocking),
                where="preflight",
                hint="; ".join(finding.action for finding in blocking if finding.action),
            )
    return errors


def _packages(cluster: Cluster, plan: Plan) -> list[Finding]:
    """Whether the repositories still have what is locked for the groups that machines are to be made for."""
    if plan.simulated:
        return []
    from provisioner.stack import still_there  # it brings an HTTP client along

    counts = Counter(node.group for node in cluster.nodes())
    growing = {group.name: group.stack for group in plan.groups if counts[group.name] < group.spec.count}
    return still_there.look(growing, str(cluster.file)) if growing else []


def probe(cluster: Cluster, plan: Plan, events: Events) -> dict[str, list[Finding]]:
    """Ask each site for the capacity of the groups that want that (`capacity.probe`), before anything is made."""
    findings = {}
    for site in plan.sites():
        knows = cluster.providers.at(site).capacity
        if knows and any(group.site == site and group.spec.capacity.probe for group in plan.groups):
            private_dir(cluster.paths.site(site))
            try:
                findings[site] = knows.probe(plan, {node.name for node in cluster.nodes()})
            except GpuprovError as error:
                findings[site] = [Finding("blocks", f"site {site}", error.message, error.hint)]
    for finding in (finding_of_site for site_findings in findings.values() for finding_of_site in site_findings):
        kind: Kind = "log" if finding.status == "ok" else "warning"
        events("preflight", kind, f"{finding.subject}: {finding.message}", data={"status": finding.status})
    return findings
