"""What would keep `up` from working in an AWS region, found before anything is spent.

Every finding says what was seen, what to do, and the console's page where a person does it. A question that was denied,
throttled or not answered is `unknown`: said, and never taken for a yes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from provisioner.plan import PlannedGroup
from provisioner.preflight import Finding
from provisioner.providers.aws.client import Region, Trouble

CONSOLE = "https://{region}.console.aws.amazon.com"
VPC_QUOTA = "L-F678F1CE"
"""VPCs per Region (Service Quotas, service vpc)."""
SETTINGS = "correct AWS's settings on this machine; `aws configure list` shows what is in force"
ADDRESS_QUOTA = "L-0263D0A3"
"""EC2-VPC Elastic IPs (Service Quotas, service ec2; the code unverified)."""


@dataclass(frozen=True, slots=True)
class Quota:
    """A row of quotas.yaml."""

    code: str
    kind: str
    name: str
    families: tuple[str, ...]


@cache
def quotas() -> tuple[Quota, ...]:
    document = yaml.safe_load(files("provisioner.providers.aws").joinpath("quotas.yaml").read_text(encoding="utf-8"))
    return tuple(Quota(r["code"], r["kind"], r["name"], tuple(r["families"])) for r in document["quotas"])


def quota_of(machine: str, kind: str) -> Quota | None:
    """The quota that a machine type counts towards; None where quotas.yaml does not know its family."""
    family = machine.partition(".")[0]
    bought = "spot" if kind == "spot" else "on-demand"
    return next((quota for quota in quotas() if quota.kind == bought and family in quota.families), None)


def preflight(
    region: Region,
    groups: Sequence[PlannedGroup],
    zones: Sequence[str],
    *,
    own_vpc: bool,
    public: bool = False,
    running: int,
) -> list[Finding]:
    """Everything about these groups of one region. `running`: of their machines those that are there already, so that
    an `up` of a running fleet does not ask for room twice. `public`: nodes get addresses of their own."""
    try:
        who = region.ask("sts", "get_caller_identity")
    except Trouble as trouble:
        return [credentials(trouble)]
    found = [Finding("ok", "credentials", f"{who['Arn']}, account {who['Account']}")]
    found += _zones(region, zones)
    machines = {group.machine.name: group for group in groups}
    described, more = _described(region, machines)
    found += more
    found += [finding for group in groups for finding in _offered(region, group, zones)]
    found += [finding for group in groups for finding in _efa(group, described.get(group.machine.name))]
    found += [finding for group in groups for finding in _reserved(region, group, zones)]
    found += _room(region, groups, described, running)
    if own_vpc and not running:
        found += _vpcs(region)
    if public and not running:
        found += _addresses(region, groups, described)
    return found


def unknown(subject: str, trouble: Trouble, permission: str) -> Finding:
    """A question without an answer."""
    if trouble.kind == "denied":
        return Finding("unknown", subject, f"not allowed to look: {trouble.message}", f"allow {permission}")
    if trouble.kind == "settings":
        return Finding("unknown", subject, trouble.message, SETTINGS)
    words = {"throttled": "AWS is asked too often just now", "silent": "no answer in time"}
    said = words.get(trouble.kind, trouble.code or "refused")
    return Finding("unknown", subject, f"{said}: {trouble.message}", "run it again")


def credentials(trouble: Trouble) -> Finding:
    """Nobody knows who is asking."""
    hint = "set AWS_PROFILE or sign in (`aws sso login`, `aws configure`); gpuprov takes the AWS CLI's own credentials"
    if trouble.kind == "credentials":
        expired = "expired" in (trouble.code + trouble.message).lower()
        said = "they have expired" if expired else trouble.message
        return Finding("blocks", "credentials", said, "sign in again (`aws sso login`)" if expired else hint)
    if trouble.kind == "settings":
        return Finding("blocks", "credentials", trouble.message, SETTINGS)
    if trouble.kind == "denied":
        return Finding("blocks", "credentials", trouble.message, "these credentials may do nothing here")
    if trouble.kind == "silent":
        return Finding("blocks", "credentials", f"AWS was not reached: {trouble.message}", "look at network and proxy")
    return replace(unknown("credentials", trouble, "sts:GetCallerIdentity"), status="blocks")


def _zones(region: Region, zones: Sequence[str]) -> list[Finding]:
    """The zones that cluster.yaml names are there, and this account may use them."""
    try:
        rows = region.all("ec2", "describe_availability_zones", "AvailabilityZones")
    except Trouble as trouble:
        return [unknown("zones", trouble, "ec2:DescribeAvailabilityZones")]
    usable = sorted(row["ZoneName"] for row in rows if row.get("State") == "available")
    if wrong := sorted(set(zones) - set(usable)):
        there = f"{region.name} has {', '.join(usable)}"
        return [Finding("blocks", "zones", f"{', '.join(wrong)} cannot be used; {there}", "change sites.*.zones")]
    return []


def _described(region: Region, machines: dict[str, PlannedGroup]) -> tuple[dict[str, dict[str, Any]], list[Finding]]:
    """Machine type → what the region says of it."""
    try:
        rows = region.all("ec2", "describe_instance_types", "InstanceTypes", InstanceTypes=sorted(machines))
    except Trouble as trouble:
        if trouble.code == "InvalidInstanceType":
            return {}, []  # the offerings say which one, and where it is
        return {}, [unknown("instance types", trouble, "ec2:DescribeInstanceTypes")]
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
    except Trouble as trouble:
        yield unknown(f"group {group.name}", trouble, "ec2:DescribeInstanceTypeOfferings")
        return
    if not sold:
        hint = f"another region; `aws ec2 describe-instance-type-offerings --filters Name=instance-type,Values={name}`"
        yield Finding("blocks", f"group {group.name}", f"{name} is not sold in {region.name}", hint)
    elif zones and not set(zones) & set(sold):
        said = f"{name} is sold in {', '.join(sold)}, not in {', '.join(zones)}"
        yield Finding("blocks", f"group {group.name}", said, f"sites.*.zones: [{', '.join(sold)}]")
    else:
        wanted = [zone for zone in zones or sold if zone in sold]
        yield Finding("ok", f"group {group.name}", f"{name} is sold in {', '.join(wanted)}")


def _efa(group: PlannedGroup, described: dict[str, Any] | None) -> Iterator[Finding]:
    """The region agrees with the catalogue on the network cards, where EFA is to be had of them."""
    if not group.machine.uses_efa(group.spec.network.wanted) or described is None:
        return
    network = described.get("NetworkInfo", {})
    most = network.get("EfaInfo", {}).get("MaximumEfaInterfaces")
    if network.get("EfaSupported") is False:
        yield Finding("blocks", f"group {group.name}", f"{group.machine.name} has no EFA here", "network.rdma: false")
    elif most is not None and most < group.machine.network.ports:
        said = f"{group.machine.name} has {most} EFA interfaces here, the catalogue says {group.machine.network.ports}"
        yield Finding("blocks", f"group {group.name}", said, "tell gpuprov's maintainers; network.rdma: false goes on")


def _reserved(region: Region, group: PlannedGroup, zones: Sequence[str]) -> Iterator[Finding]:
    """A reservation or capacity block is there, active, of this type, in these zones, with room."""
    capacity = group.spec.capacity
    if capacity.kind not in ("reservation", "block") or capacity.id is None:
        return
    subject = f"group {group.name}"
    page = f"{CONSOLE.format(region=region.name)}/ec2/home?region={region.name}#CapacityReservations:"
    try:
        rows = region.all(
            "ec2", "describe_capacity_reservations", "CapacityReservations", CapacityReservationIds=[capacity.id]
        )
    except Trouble as trouble:
        if trouble.kind == "absent" or trouble.code.startswith("InvalidCapacityReservationId"):
            said = f"there is no {capacity.kind} {capacity.id} in {region.name}"
            yield Finding("blocks", subject, said, page)
        else:
            yield unknown(subject, trouble, "ec2:DescribeCapacityReservations")
        return
    row = rows[0] if rows else {}
    block = row.get("ReservationType") == "capacity-block"
    wrong = []
    if row.get("State") != "active":
        when = f", it begins {row['StartDate']:%Y-%m-%d %H:%M} UTC" if row.get("StartDate") else ""
        wrong.append(f"is {row.get('State', 'gone')}{when}")
    if row.get("InstanceType") not in (None, group.machine.name):
        wrong.append(f"is for {row['InstanceType']}, not {group.machine.name}")
    if zones and row.get("AvailabilityZone") not in (None, *zones):
        wrong.append(f"is in {row['AvailabilityZone']}, not in {', '.join(zones)}")
    if block != (capacity.kind == "block") and row:
        wrong.append(f"is a capacity {'block' if block else 'reservation'}: capacity.kind has to say so")
    free, total = row.get("AvailableInstanceCount"), row.get("TotalInstanceCount")
    if total is not None and total < group.spec.count:
        wrong.append(f"is for {total} machines, {group.spec.count} are wanted")
    if wrong:
        yield Finding("blocks", subject, f"{capacity.id} {'; '.join(wrong)}", page)
    else:
        yield Finding("ok", subject, f"{capacity.id} is active, {free} of {total} machines free")


def _room(
    region: Region, groups: Sequence[PlannedGroup], described: dict[str, dict[str, Any]], running: int
) -> Iterator[Finding]:
    """The quotas have room for the machines that are still to be made. Reservations and blocks count towards the
    on-demand quota like everything that runs."""
    wanted: dict[str, int] = {}
    kinds: dict[str, Quota] = {}
    for group in groups:
        quota = quota_of(group.machine.name, group.spec.capacity.kind)
        if quota is None:
            said = f"which quota {group.machine.name} counts towards is not known"
            yield Finding("unknown", f"group {group.name}", said, "compare Service Quotas by hand")
            continue
        each = described.get(group.machine.name, {}).get("VCpuInfo", {}).get("DefaultVCpus", group.machine.vcpus)
        wanted[quota.code] = wanted.get(quota.code, 0) + each * group.spec.count
        kinds[quota.code] = quota
    for code, vcpus in wanted.items():
        yield _one_quota(region, kinds[code], vcpus, running)


def _allowed(region: Region, service: str, code: str) -> float:
    """A quota's value. Raises Trouble."""
    return float(
        region.ask("service-quotas", "get_service_quota", ServiceCode=service, QuotaCode=code)["Quota"]["Value"]
    )


def _quota_page(region: Region, service: str, code: str) -> str:
    """Where a person asks for more."""
    return f"{CONSOLE.format(region=region.name)}/servicequotas/home/services/{service}/quotas/{code}"


def _one_quota(region: Region, quota: Quota, vcpus: int, running: int) -> Finding:
    subject = f"quota {quota.name}"
    page = _quota_page(region, "ec2", quota.code)
    try:
        value = _allowed(region, "ec2", quota.code)
    except Trouble as trouble:
        return unknown(subject, trouble, "servicequotas:GetServiceQuota")
    try:
        used = _used(region, quota)
    except Trouble as trouble:
        if value < vcpus:
            return Finding("blocks", subject, f"{value:g} vCPUs, {vcpus} are wanted", f"ask for more: {page}")
        return unknown(subject, trouble, "ec2:DescribeInstances")
    if used + (0 if running else vcpus) > value:
        said = f"{value:g} vCPUs, {used} are in use and {vcpus} are wanted"
        return Finding("blocks", subject, said, f"ask for {used + vcpus} vCPUs: {page}")
    return Finding("ok", subject, f"{value:g} vCPUs, {used} in use, {vcpus} wanted")


def _used(region: Region, quota: Quota) -> int:
    """vCPUs of the machines that run and count towards a quota."""
    states = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]
    there = [
        one for r in region.all("ec2", "describe_instances", "Reservations", Filters=states) for one in r["Instances"]
    ]
    mine = [
        one["InstanceType"]
        for one in there
        if (one.get("InstanceLifecycle") == "spot") == (quota.kind == "spot")
        and one["InstanceType"].partition(".")[0] in quota.families
    ]
    if not mine:
        return 0
    rows = region.all("ec2", "describe_instance_types", "InstanceTypes", InstanceTypes=sorted(set(mine)))
    each = {row["InstanceType"]: int(row["VCpuInfo"]["DefaultVCpus"]) for row in rows}
    return sum(each[name] for name in mine)


def _vpcs(region: Region) -> Iterator[Finding]:
    """There is room for one more VPC."""
    page = _quota_page(region, "vpc", VPC_QUOTA)
    try:
        there = len(region.all("ec2", "describe_vpcs", "Vpcs"))
        most = _allowed(region, "vpc", VPC_QUOTA)
    except Trouble as trouble:
        yield unknown("VPCs", trouble, "ec2:DescribeVpcs and servicequotas:GetServiceQuota")
        return
    if there >= most:
        yield Finding("blocks", "VPCs", f"{there} of {most:g} are there", f"remove one, use one of yours, or {page}")


def _addresses(
    region: Region, groups: Sequence[PlannedGroup], described: dict[str, dict[str, Any]]
) -> Iterator[Finding]:
    """There is room for an elastic IP address for each public node with several interfaces, which gets no other."""
    wanted = 0
    for group in groups:
        cards = described.get(group.machine.name, {}).get("NetworkInfo", {}).get("MaximumNetworkCards", 1)
        wanted += group.spec.count if cards > 1 and group.machine.uses_efa(group.spec.network.wanted) else 0
    if not wanted:
        return
    page = _quota_page(region, "ec2", ADDRESS_QUOTA)
    try:
        there = len(region.ask("ec2", "describe_addresses")["Addresses"])
        most = _allowed(region, "ec2", ADDRESS_QUOTA)
    except Trouble as trouble:
        yield unknown("elastic IP addresses", trouble, "ec2:DescribeAddresses and servicequotas:GetServiceQuota")
        return
    said = f"{most:g} may be had, {there} are there and {wanted} are wanted"
    if there + wanted > most:
        hint = f"sites.*.internet: nat, where gpuprov runs inside the network; or ask for more: {page}"
        yield Finding("blocks", "elastic IP addresses", said, hint)
    else:
        yield Finding("ok", "elastic IP addresses", said)
