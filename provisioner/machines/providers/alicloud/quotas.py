"""Quotas of GPU cards and vCPUs in one region: which one counts a machine, and whether what is still to be made fits
in."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from provisioner.common import yaml_text
from provisioner.common.preflight import Finding
from provisioner.machines.providers.alicloud.client import Region
from provisioner.machines.providers.alicloud.findings import unknown
from provisioner.machines.providers.trouble import Trouble
from provisioner.plan.models import PlannedGroup

PAGE = "https://quotas.console.aliyun.com/products/ecs-spec/quotas"


@dataclass(frozen=True, slots=True)
class Quota:
    """`code`: Quota Center's id; `unit`: what is counted."""

    code: str
    unit: Literal["GPUs", "vCPUs"]


@cache
def _document() -> Mapping[str, Any]:
    text = files("provisioner.machines.providers.alicloud").joinpath("quotas.yaml").read_text(encoding="utf-8")
    document: dict[str, Any] = yaml_text.load(text)
    return document


def family(machine: str) -> str:
    """ecs.gn7-c13g1.26xlarge → gn7; ecs.gn8v-tee.4xlarge → gn8v-tee."""
    family_name = machine.removeprefix("ecs.").partition(".")[0]
    known = [name for families in _document()["families"].values() for name in families]
    return family_name if family_name in known else family_name.partition("-")[0]


def of_machine(machine: str, kind: str) -> Quota | None:
    """The quota that a machine counts towards; None where quotas.yaml does not know its family."""
    bought, machine_family = "spot" if kind == "spot" else "postpay", family(machine)
    for prefix, families in _document()["families"].items():
        if machine_family in families:
            return Quota(f"{prefix}_{bought}_g", "GPUs")
    letters = re.split(r"[0-9]", machine_family, maxsplit=1)[0]
    for prefix, known in _document()["letters"].items():
        if letters in known:
            return Quota(f"{prefix}_{bought}_c", "vCPUs")
    return None


@dataclass(frozen=True, slots=True)
class Seen:
    """A quota's numbers. `used`: None where Quota Center does not say."""

    total: float
    used: float | None


def look(region: Region, code: str) -> Seen | None:
    """A quota; None where the account has none of that id. Raises Trouble."""
    answer = region.ask(
        "quotas", "ListProductQuotas", ProductCode=_document()["product"], QuotaActionCode=code, MaxResults=100,
        Dimensions=[{"Key": "regionId", "Value": region.name}],
    )  # fmt: skip
    for row in answer.get("Quotas") or ():
        if row.get("QuotaActionCode") == code and row.get("TotalQuota") is not None:
            used = row.get("TotalUsage")
            return Seen(float(row["TotalQuota"]), None if used is None else float(used))
    return None


def room(region: Region, groups: Sequence[PlannedGroup], existing_nodes: Collection[str]) -> Iterator[Finding]:
    """Whether the quotas have room for the machines that are still to be made, in the first way and in each fallback.
    A quota blocks where a group has no other way. `existing_nodes`: names of nodes that stand."""
    needed: dict[Quota, int] = {}
    only: set[Quota] = set()
    for group in groups:
        missing = sum(name not in existing_nodes for name in group.node_names())
        kinds = dict.fromkeys((group.spec.capacity.kind, *group.spec.capacity.fallback))
        quotas = [of_machine(group.machine.name, kind) for kind in kinds]
        if None in quotas:
            message = f"which quota {group.machine.name} counts towards is not known"
            yield Finding("unknown", f"group {group.name}", message, f"compare by hand: {PAGE}")
        known_quotas = dict.fromkeys(quota for quota in quotas if quota)
        for quota in known_quotas:
            each = group.machine.gpu_count if quota.unit == "GPUs" else group.machine.vcpus
            needed[quota] = needed.get(quota, 0) + missing * each
        if len(kinds) == 1:
            only.update(known_quotas)
    for quota, count in needed.items():
        yield _finding(region, quota, count, blocks=quota in only)


def _finding(region: Region, quota: Quota, needed_count: int, *, blocks: bool) -> Finding:
    subject = f"quota {quota.code}"
    try:
        usage = look(region, quota.code)
    except Trouble as error:
        return unknown(subject, error, "quotas:ListProductQuotas")
    if usage is None:
        return Finding("unknown", subject, "Quota Center has no such quota of this account", f"compare by hand: {PAGE}")
    used = "an unknown number" if usage.used is None else f"{usage.used:g}"
    message = f"{usage.total:g} {quota.unit}, {used} in use, {needed_count} wanted"
    if needed_count and (usage.used or 0) + needed_count > usage.total:
        ask = f"ask for {(usage.used or 0) + needed_count:g} {quota.unit}: {PAGE}"
        return Finding("blocks" if blocks else "warning", subject, message, ask, no_capacity=True)
    if usage.used is None:
        return Finding("unknown", subject, message, f"compare by hand: {PAGE}")
    return Finding("ok", subject, message)
