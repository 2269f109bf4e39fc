"""What would keep `up` from working in a region of Alibaba Cloud, found before anything is spent.

Every finding says what was seen and what to do. A question that was denied, throttled or not answered is `unknown`:
said, and never taken for a yes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Literal

from provisioner.common.errors import Diagnostic
from provisioner.common.preflight import Finding
from provisioner.machines.providers.alicloud import errors, quotas
from provisioner.machines.providers.alicloud.client import Region
from provisioner.machines.providers.alicloud.findings import credentials, unknown
from provisioner.machines.providers.alicloud.site import AlicloudSite
from provisioner.machines.providers.alicloud.stock import IN_STOCK, stock
from provisioner.machines.providers.trouble import Trouble, signed_in
from provisioner.plan.models import PlannedGroup

WOULD = "DryRunOperation"
"""ECS's word for: it would have been done.
https://www.alibabacloud.com/help/en/ecs/developer-reference/api-ecs-2014-05-26-runinstances"""
LATER = "later, other zones, another region, or groups.*.capacity.fallback"
ADDRESSES = 20
"""Elastic IP addresses of an account in a region, until it has asked for more.
https://www.alibabacloud.com/help/en/eip/product-overview/limits"""


def preflight(
    region: Region, site: AlicloudSite, groups: Sequence[PlannedGroup], zones: Sequence[str],
    images: Mapping[str, str | None], existing_nodes: Collection[str],
) -> list[Finding]:  # fmt: skip
    """Everything about these groups of one region. `zones`: those that cluster.yaml names; `images`: group → id;
    `existing_nodes`: names of their nodes that stand already, so that an `up` of a running fleet does not ask for room
    twice."""
    findings = [caller_identity(region)]
    if findings[0].status == "blocks":
        return findings
    findings += _zones(region, zones)
    findings += _vswitches(region, site)
    for group in groups:
        findings += _network(group)
        findings += _sold(region, group, zones)
        findings += _placed(region, group)
    findings += quotas.room(region, groups, existing_nodes)
    findings += _addresses(region, site, groups, existing_nodes)
    findings += _tried(region, site, groups, zones, images)
    return findings


def caller_identity(region: Region) -> Finding:
    """Who asks; a finding that blocks where that is nobody."""
    return signed_in(lambda: region.ask("sts", "GetCallerIdentity"), "AccountId", credentials)


def _zones(region: Region, zones: Sequence[str]) -> list[Finding]:
    """The zones that cluster.yaml names are there."""
    if not zones:
        return []
    try:
        answer = region.ask("ecs", "DescribeZones")
    except Trouble as error:
        return [unknown("zones", error, "ecs:DescribeZones")]
    known = sorted(str(row["ZoneId"]) for row in (answer.get("Zones") or {}).get("Zone") or ())
    if wrong := sorted(set(zones) - set(known)):
        message = f"{', '.join(wrong)} cannot be used; {region.name} has {', '.join(known)}"
        return [Finding("blocks", "zones", message, "change sites.*.zones")]
    return []


def _vswitches(region: Region, site: AlicloudSite) -> Iterator[Finding]:
    """The vSwitches that cluster.yaml names are in its VPC and in the zones that it says, with room."""
    for zone, number in site.vpc.vswitches.items() if site.vpc else ():
        assert site.vpc is not None
        subject = f"vSwitch {number}"
        try:
            rows = region.all("vpc", "DescribeVSwitches", "VSwitches", "VSwitch", VSwitchId=number)
        except Trouble as error:
            yield unknown(subject, error, "vpc:DescribeVSwitches")
            continue
        row = next((row for row in rows if row.get("VSwitchId") == number), None)
        if row is None or row.get("VpcId") != site.vpc.id:
            location = "is not there" if row is None else f"is in {row.get('VpcId')}, not in {site.vpc.id}"
            yield Finding("blocks", subject, f"it {location}", "change sites.*.vpc")
        elif row.get("ZoneId") != zone:
            yield Finding(
                "blocks", subject, f"it is in {row.get('ZoneId')}, not in {zone}", "change sites.*.vpc.vswitches"
            )
        elif not int(row.get("AvailableIpAddressCount") or 0):
            yield Finding("blocks", subject, "it has no free addresses", "a larger vSwitch, or another zone")
        else:
            yield Finding("ok", subject, f"in {zone}, {row['AvailableIpAddressCount']} free addresses")


def _network(group: PlannedGroup) -> Iterator[Finding]:
    """What is bought and not used: nodes of several jobs talk over Ethernet where RDMA could be had."""
    if group.machine.network.erdma and group.spec.network.rdma is not False:
        message = (
            f"{group.machine.name} can have elastic RDMA interfaces, which gpuprov does not set up: Ethernet is used"
        )
        yield Finding("warning", f"group {group.name}", message, "network.rdma: false, if that is what you want")


def _sold(region: Region, group: PlannedGroup, zones: Sequence[str]) -> Iterator[Finding]:
    """The machine type is sold in the zones that are wanted, and what is said of its stock."""
    name, kind = group.machine.name, group.spec.capacity.kind
    subject = f"group {group.name}"
    try:
        stock_by_zone = stock(region, name, kind)
    except Trouble as error:
        yield unknown(subject, error, "ecs:DescribeAvailableResource")
        return
    other = bool(group.spec.capacity.fallback)
    blocks: Literal["warning", "blocks"] = "warning" if other else "blocks"
    bought = " as spot" if kind == "spot" else ""
    usable_stock = {zone: level for zone, level in stock_by_zone.items() if not zones or zone in zones}
    if not stock_by_zone:
        call = f"aliyun ecs DescribeAvailableResource --DestinationResource InstanceType --InstanceType {name}"
        hint = f"another region; `{call}`"
        yield Finding(blocks, subject, f"{name} is not sold{bought} in {region.name}", hint)
    elif not usable_stock:
        message = f"{name} is sold{bought} in {', '.join(sorted(stock_by_zone))}, not in {', '.join(zones)}"
        yield Finding(blocks, subject, message, f"sites.*.zones: [{', '.join(sorted(stock_by_zone))}]")
    elif not any(level in IN_STOCK for level in usable_stock.values()):
        message = f"{name} is out of stock{bought} now in {', '.join(sorted(usable_stock))}"
        yield Finding("warning", subject, message, LATER)
    else:
        stock_text = ", ".join(f"{zone} ({usable_stock[zone]})" for zone in sorted(usable_stock))
        yield Finding("ok", subject, f"{name} is sold{bought} in {stock_text}")


def _placed(region: Region, group: PlannedGroup) -> Iterator[Finding]:
    """A deployment set takes the machine's family."""
    if group.spec.placement != "cluster":
        return
    subject = f"group {group.name}"
    try:
        answer = region.ask("ecs", "DescribeDeploymentSetSupportedInstanceTypeFamily", Strategy="LowLatency")
    except Trouble as error:
        yield unknown(subject, error, "ecs:DescribeDeploymentSetSupportedInstanceTypeFamily")
        return
    families = [name.strip() for name in str(answer.get("InstanceTypeFamilies") or "").split(",") if name.strip()]
    family = group.machine.name.rpartition(".")[0].partition("-")[0]
    if family not in families and quotas.family(group.machine.name) not in families:
        message = f"no deployment set of strategy LowLatency takes {group.machine.name} here"
        yield Finding("blocks", subject, message, "leave out groups.*.placement")
    if group.spec.capacity.interruptible:
        message = "that a deployment set takes spot machines Alibaba Cloud's documentation does not say"
        yield Finding("warning", subject, message, "remove groups.*.placement if it is refused")


def _addresses(
    region: Region, site: AlicloudSite, groups: Sequence[PlannedGroup], existing_nodes: Collection[str]
) -> Iterator[Finding]:
    """There is room for the elastic IP addresses that are still to be made."""
    needed_count = int(site.internet == "nat" and site.vpc is None and not existing_nodes)
    if site.internet == "public":
        needed_count = sum(name not in existing_nodes for group in groups for name in group.node_names())
    if not needed_count:
        return
    try:
        rows = region.all("vpc", "DescribeEipAddresses", "EipAddresses", "EipAddress")
    except Trouble as error:
        yield unknown("elastic IP addresses", error, "vpc:DescribeEipAddresses")
        return
    message = f"{len(rows)} in use, {needed_count} required"
    if len(rows) + needed_count > ADDRESSES:
        warning = f"{message}: more than the {ADDRESSES} that an account has in a region until it asks for more"
        yield Finding(
            "warning", "elastic IP addresses", warning, "https://quotas.console.aliyun.com/products/eip/quotas"
        )
    else:
        yield Finding("ok", "elastic IP addresses", message)


def _tried(
    region: Region, site: AlicloudSite, groups: Sequence[PlannedGroup], zones: Sequence[str],
    images: Mapping[str, str | None],
) -> Iterator[Finding]:  # fmt: skip
    """ECS's dry run of one machine of each group: the only answer on real-name rules, balance and permissions."""
    for group in groups:
        image = images.get(group.name)
        if image is None:
            continue
        zone = next(iter(zones), None)
        vswitch = site.vpc.vswitches.get(zone or next(iter(site.vpc.vswitches))) if site.vpc else None
        spot = "SpotAsPriceGo" if group.spec.capacity.kind == "spot" else "NoSpot"
        try:
            region.ask(
                "ecs", "RunInstances", DryRun=True, Amount=1, ImageId=image, InstanceType=group.machine.name,
                InstanceChargeType="PostPaid", SpotStrategy=spot, ZoneId=zone, VSwitchId=vswitch,
                SystemDisk={"Category": "cloud_essd", "Size": group.spec.storage.root_gb},
            )  # fmt: skip
        except Trouble as error:
            yield _dry_run_finding(group, image, error)
        else:
            message = f"ECS answered a dry run without {WOULD}"
            yield Finding("blocks", f"group {group.name}", message, "look in the console whether it started a machine")


def _dry_run_finding(group: PlannedGroup, image: str, api_error: Trouble) -> Finding:
    """What a dry run has answered, by the class of its error (errors.yaml)."""
    subject = f"group {group.name}"
    if api_error.code == WOULD:
        return Finding("ok", subject, "ECS would start a machine (dry run)")
    if api_error.kind in ("throttled", "silent"):
        return unknown(subject, api_error, "ecs:RunInstances")
    error = errors.read(
        Diagnostic(f"Code: {api_error.code}, Message: {api_error.message}" if api_error.code else api_error.message)
    )
    if error.kind == "image":
        return Finding("blocks", subject, f"ECS does not start {image}: {error.text}", error.hint)
    if error.kind in ("denied", "terms", "credentials"):
        return Finding("blocks", subject, f"ECS would start no machine: {error.text}", error.hint)
    if error.kind in ("spot-refused", "quota", "shortage", "unsupported"):
        blocks = error.kind in ("spot-refused", "quota") and not group.spec.capacity.fallback
        message = f"ECS would start no {group.spec.capacity.kind} machine: {error.text}"
        return Finding("blocks" if blocks else "warning", subject, message, error.hint or LATER)
    return unknown(subject, api_error, "ecs:RunInstances")
