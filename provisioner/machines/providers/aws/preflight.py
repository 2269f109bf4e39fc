"""What would keep `up` from working in an AWS region, found before anything is spent.

Every finding says what was seen, what to do, and the console's page where a person does it. A question that was denied,
throttled or not answered is `unknown`: said, and never taken for a yes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from provisioner.common.preflight import Finding
from provisioner.machines.providers.aws import quotas, reservations
from provisioner.machines.providers.aws.client import Region
from provisioner.machines.providers.aws.findings import credentials, unknown
from provisioner.machines.providers.trouble import Trouble, signed_in
from provisioner.plan.models import PlannedGroup


def preflight(
    region: Region,
    groups: Sequence[PlannedGroup],
    zones: Sequence[str],
    *,
    own_vpc: bool,
    internet: str = "none",
    existing_nodes: Collection[str] = (),
) -> list[Finding]:
    """Everything about these groups of one region. `existing_nodes`: names of their nodes that exist, so
    that an `up` of a running fleet does not ask for room twice. `internet`: as in cluster.yaml."""
    findings = [caller_identity(region)]
    if findings[0].status == "blocks":
        return findings
    findings += _zones(region, zones)
    machines = {group.machine.name: group for group in groups}
    described, more = _described(region, machines)
    findings += more
    findings += [finding for group in groups for finding in _offered(region, group, zones)]
    findings += [finding for group in groups for finding in _efa(group, described.get(group.machine.name))]
    findings += [finding for group in groups for finding in reservations.findings(region, group, zones)]
    findings += quotas.room(region, groups, described, existing_nodes)
    if own_vpc and not existing_nodes:
        findings += _vpcs(region)
    findings += _addresses(
        region, groups, described, existing_nodes, nat=internet == "nat" and own_vpc, public=internet == "public"
    )
    return findings


def caller_identity(region: Region) -> Finding:
    """Who asks; a finding that blocks where that is nobody."""
    return signed_in(lambda: region.ask("sts", "get_caller_identity"), "Account", credentials)


def _zones(region: Region, zones: Sequence[str]) -> list[Finding]:
    """The zones that cluster.yaml names are there, and this account may use them."""
    try:
        rows = region.all("ec2", "describe_availability_zones", "AvailabilityZones")
    except Trouble as error:
        return [unknown("zones", error, "ec2:DescribeAvailabilityZones")]
    usable = sorted(row["ZoneName"] for row in rows if row.get("State") == "available")
    if wrong := sorted(set(zones) - set(usable)):
        usable_text = f"{region.name} has {', '.join(usable)}"
        return [Finding("blocks", "zones", f"{', '.join(wrong)} cannot be used; {usable_text}", "change sites.*.zones")]
    return []


def _described(region: Region, machines: dict[str, PlannedGroup]) -> tuple[dict[str, dict[str, Any]], list[Finding]]:
    """Machine type → what the region says of it."""
    try:
        rows = region.all("ec2", "describe_instance_types", "InstanceTypes", InstanceTypes=sorted(machines))
    except Trouble as error:
        if error.code == "InvalidInstanceType":
            return {}, []  # the offerings say which one, and where it is
        return {}, [unknown("instance types", error, "ec2:DescribeInstanceTypes")]
    return {row["InstanceType"]: row for row in rows}, []


def zones_selling(region: Region, machine: str) -> list[str]:
    """The zones of a region that sell a machine type, sorted. Raises Trouble."""
    rows = region.all(
        "ec2", "describe_instance_type_offerings", "InstanceTypeOfferings", LocationType="availability-zone",
        Filters=[{"Name": "instance-type", "Values": [machine]}],
    )  # fmt: skip
    return sorted(row["Location"] for row in rows)


def _offered(region: Region, group: PlannedGroup, zones: Sequence[str]) -> Iterator[Finding]:
    """The machine type is sold in the zones that are wanted."""
    name = group.machine.name
    try:
        sold = zones_selling(region, name)
    except Trouble as error:
        yield unknown(f"group {group.name}", error, "ec2:DescribeInstanceTypeOfferings")
        return
    if not sold:
        hint = f"another region; `aws ec2 describe-instance-type-offerings --filters Name=instance-type,Values={name}`"
        yield Finding("blocks", f"group {group.name}", f"{name} is not sold in {region.name}", hint)
    elif zones and not set(zones) & set(sold):
        message = f"{name} is sold in {', '.join(sold)}, not in {', '.join(zones)}"
        yield Finding("blocks", f"group {group.name}", message, f"sites.*.zones: [{', '.join(sold)}]")
    else:
        selling_zones = [zone for zone in zones or sold if zone in sold]
        yield Finding("ok", f"group {group.name}", f"{name} is sold in {', '.join(selling_zones)}")


def _efa(group: PlannedGroup, described: dict[str, Any] | None) -> Iterator[Finding]:
    """The region agrees with the catalogue on the network cards, where EFA is to be had of them."""
    if not group.machine.uses_efa(group.spec.network.rdma) or described is None:
        return
    network = described.get("NetworkInfo", {})
    maximum = network.get("EfaInfo", {}).get("MaximumEfaInterfaces")
    if network.get("EfaSupported") is False:
        yield Finding("blocks", f"group {group.name}", f"{group.machine.name} has no EFA here", "network.rdma: false")
    elif maximum is not None and maximum < group.machine.network.ports:
        message = (
            f"{group.machine.name} has {maximum} EFA interfaces here, the catalogue says {group.machine.network.ports}"
        )
        yield Finding(
            "blocks", f"group {group.name}", message, "tell gpuprov's maintainers; network.rdma: false goes on"
        )


def _vpcs(region: Region) -> Iterator[Finding]:
    """There is room for one more VPC."""
    quota = quotas.quota("vpcs")
    try:
        vpc_count = len(region.all("ec2", "describe_vpcs", "Vpcs"))
        maximum = quotas.allowed(region, quota)
    except Trouble as error:
        yield unknown("VPCs", error, "ec2:DescribeVpcs and servicequotas:GetServiceQuota")
        return
    if vpc_count >= maximum:
        hint = f"remove one, name an existing one, or {quotas.page(region.name, quota)}"
        yield Finding("blocks", "VPCs", f"{vpc_count} of {maximum:g} are there", hint)


def _addresses(
    region: Region, groups: Sequence[PlannedGroup], described: dict[str, dict[str, Any]],
    existing_nodes: Collection[str], *, nat: bool, public: bool,
) -> Iterator[Finding]:  # fmt: skip
    """There is room for the elastic IP addresses that are still to be made: one for each public node with several
    interfaces, which gets no other, and one for the NAT gateway."""
    needed_count = int(nat and not existing_nodes)
    for group in groups if public else ():
        cards = described.get(group.machine.name, {}).get("NetworkInfo", {}).get("MaximumNetworkCards", 1)
        if cards > 1 and group.machine.uses_efa(group.spec.network.rdma):
            needed_count += sum(name not in existing_nodes for name in group.node_names())
    if not needed_count:
        return
    quota = quotas.quota("addresses")
    try:
        used = len(region.ask("ec2", "describe_addresses")["Addresses"])
        maximum = quotas.allowed(region, quota)
    except Trouble as error:
        yield unknown("elastic IP addresses", error, "ec2:DescribeAddresses and servicequotas:GetServiceQuota")
        return
    message = f"limit {maximum:g}, {used} in use, {needed_count} required"
    if used + needed_count > maximum:
        other = "sites.*.internet: nat, where gpuprov runs inside the network; or " if public else ""
        hint = f"{other}ask for more: {quotas.page(region.name, quota)}"
        yield Finding("blocks", "elastic IP addresses", message, hint)
    else:
        yield Finding("ok", "elastic IP addresses", message)
