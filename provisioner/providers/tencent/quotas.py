"""Quotas of an account in one region: machines by zone and kind, elastic addresses and VPCs.

https://cloud.tencent.com/document/product/213/2664; DescribeAccountQuota is of CVM's API
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from provisioner.plan import PlannedGroup
from provisioner.preflight import Finding
from provisioner.providers.tencent.client import Region
from provisioner.providers.tencent.errors import QUOTAS
from provisioner.providers.tencent.findings import console, unknown
from provisioner.providers.trouble import Trouble
from provisioner.text import counted

SETS: Mapping[str, str] = {"on-demand": "PostPaidQuotaSet", "spot": "SpotPaidQuotaSet"}
SPREAD: Mapping[str, str] = {
    "host": "CvmInHostGroupQuota", "switch": "CvmInSwitchGroupQuota", "rack": "CvmInRackGroupQuota",
}  # fmt: skip
"""`spread` → key of DescribeDisasterRecoverGroupQuota. https://cloud.tencent.com/document/api/213/17811"""


def machines(
    region: Region, groups: Sequence[PlannedGroup], zones: Sequence[str], there: Collection[str]
) -> Iterator[Finding]:
    """Whether the account may have the machines that are still to be made, in the first way and in each fallback. Spot
    is counted in vCPUs; of machines on demand Tencent Cloud's documentation does not say whether in machines or in
    vCPUs, so that only what is certain in both counts."""
    ways = {group.name: (group.spec.capacity.kind, *group.spec.capacity.fallback) for group in groups}
    try:
        answer = region.ask("cvm", "DescribeAccountQuota")
    except Trouble as trouble:
        yield unknown("quota", trouble, "cvm:DescribeAccountQuota")
        return
    quota = (answer.get("AccountQuotaOverview") or {}).get("AccountQuota") or {}
    for kind in dict.fromkeys(kind for allowed in ways.values() for kind in allowed):
        asking = [group for group in groups if kind in ways[group.name]]
        missing = {group.name: sum(name not in there for name in group.node_names()) for group in asking}
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
    left = {str(row.get("Zone")): int(row["RemainingQuota"]) for row in rows if row.get("RemainingQuota") is not None}
    if not left:
        return Finding("unknown", subject, "Tencent Cloud tells no quota for these zones", f"compare by hand: {QUOTAS}")
    zone, most = max(left.items(), key=lambda one: one[1])
    said = f"{most} left in {zone}, {counted(number, 'machine')} with {vcpus} vCPUs are wanted"
    ask = f"ask for more by ticket: {console(region)}/workorder; {QUOTAS}"
    if most >= vcpus:
        return Finding("ok", subject, said)
    if most < (vcpus if kind == "spot" else number):
        return Finding("warning" if another else "blocks", subject, said, ask, no_capacity=True)
    return Finding("unknown", subject, f"{said}; whether machines or vCPUs are counted is not documented", ask)


def addresses(region: Region) -> Iterator[Finding]:
    """There is room for the NAT gateway's elastic address."""
    try:
        rows = region.ask("vpc", "DescribeAddressQuota").get("QuotaSet") or []
    except Trouble as trouble:
        yield unknown("elastic IP addresses", trouble, "cvm:DescribeAddressQuota")
        return
    for row in rows:
        if row.get("QuotaId") in ("TOTAL_EIP_QUOTA", "DAILY_EIP_APPLY") and row.get("QuotaLimit") is not None:
            used, most = int(row.get("QuotaCurrent") or 0), int(row["QuotaLimit"])
            if used >= most:
                what = "may be had" if row["QuotaId"] == "TOTAL_EIP_QUOTA" else "may be asked for a day"
                hint = f"release one, sites.*.internet: public, or ask for more by ticket: {console(region)}/workorder"
                yield Finding("blocks", "elastic IP addresses", f"{most} {what}, and {used} are there", hint)


def vpcs(region: Region) -> Iterator[Finding]:
    """There is room for one more VPC. https://cloud.tencent.com/document/api/215/42942 (appid-max-vpcs)"""
    try:
        there = len(region.all("vpc", "DescribeVpcs", "VpcSet", number=str))
        rows = region.ask("vpc", "DescribeVpcLimits", LimitTypes=["appid-max-vpcs"]).get("VpcLimitSet") or []
    except Trouble as trouble:
        yield unknown("VPCs", trouble, "vpc:DescribeVpcs and vpc:DescribeVpcLimits")
        return
    most = next((int(row["LimitValue"]) for row in rows if row.get("LimitType") == "appid-max-vpcs"), None)
    if most is None:
        yield Finding(
            "unknown", "VPCs", "Tencent Cloud does not tell how many there may be", f"compare by hand: {QUOTAS}"
        )
    elif there >= most:
        hint = "remove one, or name one of yours: sites.*.vpc"
        yield Finding("blocks", "VPCs", f"{there} of {most} are there", hint)


def spread(region: Region, how: str, groups: Sequence[PlannedGroup]) -> Iterator[Finding]:
    """A placement group holds every group that is kept apart."""
    try:
        answer = region.ask("cvm", "DescribeDisasterRecoverGroupQuota")
    except Trouble as trouble:
        yield unknown("placement groups", trouble, "cvm:DescribeDisasterRecoverGroupQuota")
        return
    most = answer.get(SPREAD[how])
    for group in groups:
        if most is not None and group.spec.count > int(most):
            said = f"a placement group by {how} holds {counted(most, 'machine')}, {group.spec.count} are wanted"
            yield Finding("blocks", f"group {group.name}", said, "smaller groups, or leave out sites.*.spread")
    total, used = answer.get("GroupQuota"), answer.get("CurrentNum")
    if total is not None and used is not None and int(used) + len(groups) > int(total):
        said = f"{used} of {total} placement groups are there, {len(groups)} are wanted"
        yield Finding("warning", "placement groups", said, "remove what is not used")
