"""Quotas of an account in one region: which one counts what, how much is allowed, and whether what is still to be made
fits in."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from provisioner.common import yaml_text
from provisioner.common.preflight import Finding
from provisioner.machines.providers.aws.client import Region
from provisioner.machines.providers.aws.findings import CONSOLE, unknown
from provisioner.machines.providers.trouble import Trouble
from provisioner.plan.models import PlannedGroup


@dataclass(frozen=True, slots=True)
class Quota:
    """A row of quotas.yaml."""

    code: str
    service: str
    name: str
    kind: str = ""
    families: tuple[str, ...] = ()
    letters: tuple[str, ...] = ()
    key: str = ""

    def counts(self, machine: str) -> bool:
        """Whether a machine type's vCPUs count towards it, bought in its way."""
        family = machine.partition(".")[0]
        return family in self.families or re.split(r"[0-9]", family, maxsplit=1)[0] in self.letters


@cache
def quotas() -> tuple[Quota, ...]:
    document = yaml_text.load(
        files("provisioner.machines.providers.aws").joinpath("quotas.yaml").read_text(encoding="utf-8")
    )
    return tuple(
        Quota(**{**row, "families": tuple(row.get("families", ())), "letters": tuple(row.get("letters", ()))})
        for row in document["quotas"]
    )


def quota(key: str) -> Quota:
    """The quota of that key; KeyError where there is none."""
    return {row.key: row for row in quotas() if row.key}[key]


def of_machine(machine: str, kind: str) -> Quota | None:
    """The quota that a machine type counts towards; None where quotas.yaml does not know its family."""
    bought = "spot" if kind == "spot" else "on-demand"
    return next((row for row in quotas() if row.kind == bought and row.counts(machine)), None)


def page(region: str, quota: Quota) -> str:
    """Where a person asks for more."""
    return f"{CONSOLE.format(region=region)}/servicequotas/home/services/{quota.service}/quotas/{quota.code}"


def allowed(region: Region, quota: Quota) -> float:
    """A quota's value. Raises Trouble."""
    answer = region.ask("service-quotas", "get_service_quota", ServiceCode=quota.service, QuotaCode=quota.code)
    return float(answer["Quota"]["Value"])


def room(
    region: Region,
    groups: Sequence[PlannedGroup],
    described: Mapping[str, Mapping[str, Any]],
    existing_nodes: Collection[str],
) -> Iterator[Finding]:
    """Whether the quotas have room for the machines that are still to be made, in the first way and in each fallback.
    A quota blocks where a group has no other way. `described`: machine type → what EC2 says of it; `existing_nodes`:
    names of nodes that stand."""
    needed_vcpus: dict[Quota, int] = {}
    kinds: dict[Quota, str] = {}
    quotas_by_group: dict[str, dict[str, Quota]] = {}
    for group in groups:
        capacity, machine = group.spec.capacity, group.machine.name
        quota_by_kind = {kind: of_machine(machine, kind) for kind in (capacity.kind, *capacity.fallback)}
        if None in quota_by_kind.values():
            message = f"which quota {machine} counts towards is not known"
            yield Finding("unknown", f"group {group.name}", message, "compare Service Quotas by hand")
        quotas_by_group[group.name] = {kind: quota for kind, quota in quota_by_kind.items() if quota is not None}
        missing = sum(name not in existing_nodes for name in group.node_names())
        for quota in dict.fromkeys(
            quotas_by_group[group.name].values()
        ):  # all groups together: any of them may fall back to it
            needed_vcpus[quota] = needed_vcpus.get(quota, 0) + missing * _each(described, group)
        for kind, quota in quotas_by_group[group.name].items():
            kinds.setdefault(quota, kind)
    usage = {quota: _look(region, quota) for quota in needed_vcpus}
    short = {quota for quota in needed_vcpus if _short(usage[quota], needed_vcpus[quota])}
    stuck = {
        quota
        for group in groups
        if "block" not in quotas_by_group[group.name] and set(quotas_by_group[group.name].values()) <= short
        and len(quotas_by_group[group.name]) == len({group.spec.capacity.kind, *group.spec.capacity.fallback})
        for quota in quotas_by_group[group.name].values()
    }  # fmt: skip
    for quota, vcpus in needed_vcpus.items():
        yield _finding(region, quota, usage[quota], vcpus, kind=kinds[quota], blocks=quota in stuck)
    yield from _compared(region, needed_vcpus)


def _each(described: Mapping[str, Mapping[str, Any]], group: PlannedGroup) -> int:
    return int(described.get(group.machine.name, {}).get("VCpuInfo", {}).get("DefaultVCpus", group.machine.vcpus))


Seen = tuple[float, int | Trouble] | Trouble
"""A quota's value and the vCPUs in use, or why one of them is not known."""


def _look(region: Region, quota: Quota) -> Seen:
    try:
        value = allowed(region, quota)
    except Trouble as error:
        return error
    try:
        return value, _used(region, quota)
    except Trouble as error:
        return value, error


def _short(usage: Seen, vcpus: int) -> bool:
    """Whether there is certainly no room."""
    if isinstance(usage, Trouble):
        return False
    value, used = usage
    return vcpus > 0 and (0 if isinstance(used, Trouble) else used) + vcpus > value


def _finding(region: Region, quota: Quota, usage: Seen, vcpus: int, *, kind: str, blocks: bool) -> Finding:
    subject = f"quota {quota.name}"
    if isinstance(usage, Trouble):
        return unknown(subject, usage, "servicequotas:GetServiceQuota")
    value, used = usage
    if not _short(usage, vcpus):
        if isinstance(used, Trouble):
            return unknown(subject, used, "ec2:DescribeInstances")
        return Finding("ok", subject, f"{value:g} vCPUs, {used} in use, {vcpus} wanted")
    known = 0 if isinstance(used, Trouble) else used
    message = f"{value:g} vCPUs, {'an unknown number' if isinstance(used, Trouble) else used} in use, {vcpus} wanted"
    ask = f"ask for {known + vcpus} vCPUs: {page(region.name, quota)}"
    if kind == "block":
        caveat = "; whether a capacity block counts towards it AWS's documentation does not say"
        return Finding("warning", subject, message + caveat, ask)
    if not blocks:
        return Finding("warning", subject, f"{message}: not enough capacity as {kind}; another kind may", ask)
    return Finding("blocks", subject, message, ask, no_capacity=True)


def _used(region: Region, quota: Quota) -> int:
    """vCPUs of the machines that run and count towards a quota. Raises Trouble."""
    states = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]
    machines = [
        machine
        for r in region.all("ec2", "describe_instances", "Reservations", Filters=states)
        for machine in r["Instances"]
    ]
    machine_types = [
        machine["InstanceType"]
        for machine in machines
        if (machine.get("InstanceLifecycle") == "spot") == (quota.kind == "spot")
        and quota.counts(machine["InstanceType"])
    ]
    if not machine_types:
        return 0
    rows = region.all("ec2", "describe_instance_types", "InstanceTypes", InstanceTypes=sorted(set(machine_types)))
    each = {row["InstanceType"]: int(row["VCpuInfo"]["DefaultVCpus"]) for row in rows}
    return sum(each[name] for name in machine_types)


def _compared(region: Region, used: Collection[Quota]) -> Iterator[Finding]:
    """Where the account's own list of quotas may be asked for: the codes that were asked are what we take them for."""
    for service in sorted({quota.service for quota in used}):
        try:
            rows = region.all("service-quotas", "list_service_quotas", "Quotas", ServiceCode=service)
        except Trouble:
            continue  # each quota was asked for by its code, which says what it could not
        names = {row["QuotaCode"]: row["QuotaName"] for row in rows}
        for quota in used:
            if quota.service == service and names and names.get(quota.code) != quota.name:
                account_text = (
                    f"the account calls it {names[quota.code]}"
                    if quota.code in names
                    else "the account has no such one"
                )
                message = (
                    f"{quota.code} should be {quota.name}; {account_text}: its numbers may belong to another quota"
                )
                yield Finding("warning", f"quota {quota.name}", message, "compare Service Quotas by hand")
