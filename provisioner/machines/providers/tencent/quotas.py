"""Quotas of an account in one region: machines by zone and kind, elastic addresses and VPCs.

https://cloud.tencent.com/document/product/213/2664; DescribeAccountQuota is of CVM's API
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from provisioner.common.preflight import Finding
from provisioner.common.text import counted
from provisioner.machines.providers.tencent.client import Region
from provisioner.machines.providers.tencent.errors import QUOTAS
from provisioner.machines.providers.tencent.findings import console, unknown
from provisioner.machines.providers.trouble import Trouble
from provisioner.plan.models import PlannedGroup

SETS: Mapping[str, str] = {"on-demand": "PostPaidQuotaSet", "spot": "SpotPaidQuotaSet"}
SPREAD: Mapping[str, str] = {
    "host": "CvmInHostGroupQuota", "switch": "CvmInSwitchGroupQuota", "rack": "CvmInRackGroupQuota",
}  # fmt: skip
"""`spread` → key of DescribeDisasterRecoverGroupQuota. https://cloud.tencent.com/document/api/213/17811"""


def machines(
    region: Region, groups: Sequence[PlannedGroup], zones: Sequence[str], existing_nodes: Collection[str]
) -> Iterator[Finding]:
    """Whether the account may have the machines that are still to be made, in the first way and in each fallback. Spot
    is counted in vCPUs; of machines on demand Tencent Cloud's documentation does not say whether in machines or in
    vCPUs, so that only what is certain in both counts."""
    kinds_by_group = {group.name: (group.spec.capacity.kind, *group.spec.capacity.fallback) for group in groups}
    try:
        answer = region.ask("cvm", "DescribeAccountQuota")
    except Trouble as error:
        yield unknown("quota", error, "cvm:DescribeAccountQuota")
        return
    quota = (answer.get("AccountQuotaOverview") or {}).get("AccountQuota") or {}
    for kind in dict.fromkeys(kind for allowed in kinds_by_group.values() for kind in allowed):
        asking = [group for group in groups if kind in kinds_by_group[group.name]]
        missing = {group.name: sum(name not in existing_nodes for name in group.node_names()) for group in asking}
        number = sum(missing.values())
        vcpus = sum(missing[group.name] * group.machine.vcpus for group in asking)
        if not number:
            continue
        last = any(group.spec.capacity.fallback for group in asking)
        rows = [row for row in quota.get(SETS[kind]) or () if not zones or row.get("Zone") in zones]
        yield _finding(region, kind, rows, number, vcpus, another=last)


def _finding(
    region: Region, kind: str, rows: Sequence[Mapping[str, Any]], number: int, vcpus: int, *, another: bool
) -> Finding:
    subject = f"quota of {kind} machines"
    remaining = {
        str(row.get("Zone")): int(row["RemainingQuota"]) for row in rows if row.get("RemainingQuota") is not None
    }
    if not remaining:
        return Finding("unknown", subject, "Tencent Cloud tells no quota for these zones", f"compare by hand: {QUOTAS}")
    zone, maximum = max(remaining.items(), key=lambda item: item[1])
    message = f"{maximum} left in {zone}, {counted(number, 'machine')} with {vcpus} vCPUs required"
    ask = f"ask for more by ticket: {console(region)}/workorder; {QUOTAS}"
    if maximum >= vcpus:
        return Finding("ok", subject, message)
    if maximum < (vcpus if kind == "spot" else number):
        return Finding("warning" if another else "blocks", subject, message, ask, no_capacity=True)
    return Finding("unknown", subject, f"{message}; whether machines or vCPUs are counted is not documented", ask)


def addresses(region: Region) -> Iterator[Finding]:
    """There is room for the NAT gateway's elastic address."""
    try:
        rows = region.ask("vpc", "DescribeAddressQuota").get("QuotaSet") or []
    except Trouble as error:
        yield unknown("elastic IP addresses", error, "cvm:DescribeAddressQuota")
        return
    for row in rows:
        if row.get("QuotaId") in ("TOTAL_EIP_QUOTA", "DAILY_EIP_APPLY") and row.get("QuotaLimit") is not None:
            used, maximum = int(row.get("QuotaCurrent") or 0), int(row["QuotaLimit"])
            if used >= maximum:
                period = "" if row["QuotaId"] == "TOTAL_EIP_QUOTA" else " a day"
                hint = f"release one, sites.*.internet: public, or ask for more by ticket: {console(region)}/workorder"
                yield Finding("blocks", "elastic IP addresses", f"limit {maximum}{period}, {used} in use", hint)


def vpcs(region: Region) -> Iterator[Finding]:
    """There is room for one more VPC. https://cloud.tencent.com/document/api/215/42942 (appid-max-vpcs)"""
    try:
        vpc_count = len(region.all("vpc", "DescribeVpcs", "VpcSet", number=str))
        rows = region.ask("vpc", "DescribeVpcLimits", LimitTypes=["appid-max-vpcs"]).get("VpcLimitSet") or []
    except Trouble as error:
        yield unknown("VPCs", error, "vpc:DescribeVpcs and vpc:DescribeVpcLimits")
        return
    maximum = next((int(row["LimitValue"]) for row in rows if row.get("LimitType") == "appid-max-vpcs"), None)
    if maximum is None:
        yield Finding(
            "unknown", "VPCs", "Tencent Cloud does not tell how many there may be", f"compare by hand: {QUOTAS}"
        )
    elif vpc_count >= maximum:
        hint = "remove one, or name an existing one: sites.*.vpc"
        yield Finding("blocks", "VPCs", f"{vpc_count} of {maximum} are there", hint)


def spread(region: Region, how: str, groups: Sequence[PlannedGroup]) -> Iterator[Finding]:
    """A placement group holds every group that is kept apart."""
    try:
        answer = region.ask("cvm", "DescribeDisasterRecoverGroupQuota")
    except Trouble as error:
        yield unknown("placement groups", error, "cvm:DescribeDisasterRecoverGroupQuota")
        return
    maximum = answer.get(SPREAD[how])
    for group in groups:
        if maximum is not None and group.spec.count > int(maximum):
            message = f"a placement group by {how} holds {counted(maximum, 'machine')}, {group.spec.count} required"
            yield Finding("blocks", f"group {group.name}", message, "smaller groups, or leave out sites.*.spread")
    total, used = answer.get("GroupQuota"), answer.get("CurrentNum")
    if total is not None and used is not None and int(used) + len(groups) > int(total):
        message = f"{used} of {total} placement groups in use, {len(groups)} required"
        yield Finding("warning", "placement groups", message, "remove what is not used")
