"""Quotas of an account in one region: which one counts what, how much is allowed, and whether what is still to be made
fits in."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from provisioner import yaml_text
from provisioner.plan import PlannedGroup
from provisioner.preflight import Finding
from provisioner.providers.aws.client import Region
from provisioner.providers.aws.findings import CONSOLE, unknown
from provisioner.providers.trouble import Trouble


@dataclass(frozen=True, slots=True)
class Quota:
    """A row of quotas.yaml."""

    code: str
    service: str
    name: str
    kind: str = ""
    families: tuple[str, ...] = ()
    key: str = ""


@cache
def quotas() -> tuple[Quota, ...]:
    document = yaml_text.load(files("provisioner.providers.aws").joinpath("quotas.yaml").read_text(encoding="utf-8"))
    return tuple(Quota(**{**row, "families": tuple(row.get("families", ()))}) for row in document["quotas"])


def quota(key: str) -> Quota:
    """The quota of that key; KeyError where there is none."""
    return {one.key: one for one in quotas() if one.key}[key]


def of_machine(machine: str, kind: str) -> Quota | None:
    """The quota that a machine type counts towards; None where quotas.yaml does not know its family."""
    family = machine.partition(".")[0]
    bought = "spot" if kind == "spot" else "on-demand"
    return next((one for one in quotas() if one.kind == bought and family in one.families), None)


def page(region: str, one: Quota) -> str:
    """Where a person asks for more."""
    return f"{CONSOLE.format(region=region)}/servicequotas/home/services/{one.service}/quotas/{one.code}"


def allowed(region: Region, one: Quota) -> float:
    """A quota's value. Raises Trouble."""
    answer = region.ask("service-quotas", "get_service_quota", ServiceCode=one.service, QuotaCode=one.code)
    return float(answer["Quota"]["Value"])


def room(
    region: Region, groups: Sequence[PlannedGroup], described: Mapping[str, Mapping[str, Any]], there: Collection[str]
) -> Iterator[Finding]:
    """Whether the quotas have room for the machines that are still to be made, in the first way and in each fallback.
    A quota blocks where a group has no other way. `described`: machine type → what EC2 says of it; `there`: names of
    nodes that stand."""
    wanted: dict[Quota, int] = {}
    kinds: dict[Quota, str] = {}
    ways: dict[str, dict[str, Quota]] = {}
    for group in groups:
        capacity, machine = group.spec.capacity, group.machine.name
        found = {kind: of_machine(machine, kind) for kind in (capacity.kind, *capacity.fallback)}
        if None in found.values():
            said = f"which quota {machine} counts towards is not known"
            yield Finding("unknown", f"group {group.name}", said, "compare Service Quotas by hand")
        ways[group.name] = {kind: one for kind, one in found.items() if one is not None}
        missing = sum(name not in there for name in group.node_names())
        for one in dict.fromkeys(ways[group.name].values()):  # all groups together: any of them may fall back to it
            wanted[one] = wanted.get(one, 0) + missing * _each(described, group)
        for kind, one in ways[group.name].items():
            kinds.setdefault(one, kind)
    seen = {one: _look(region, one) for one in wanted}
    short = {one for one in wanted if _short(seen[one], wanted[one])}
    stuck = {
        one
        for group in groups
        if "block" not in ways[group.name] and set(ways[group.name].values()) <= short
        and len(ways[group.name]) == len({group.spec.capacity.kind, *group.spec.capacity.fallback})
        for one in ways[group.name].values()
    }  # fmt: skip
    for one, vcpus in wanted.items():
        yield _finding(region, one, seen[one], vcpus, kind=kinds[one], blocks=one in stuck)
    yield from _compared(region, wanted)


def _each(described: Mapping[str, Mapping[str, Any]], group: PlannedGroup) -> int:
    return int(described.get(group.machine.name, {}).get("VCpuInfo", {}).get("DefaultVCpus", group.machine.vcpus))


Seen = tuple[float, int | Trouble] | Trouble
"""A quota's value and the vCPUs in use, or why one of them is not known."""


def _look(region: Region, one: Quota) -> Seen:
    try:
        value = allowed(region, one)
    except Trouble as trouble:
        return trouble
    try:
        return value, _used(region, one)
    except Trouble as trouble:
        return value, trouble


def _short(seen: Seen, vcpus: int) -> bool:
    """Whether there is certainly no room."""
    if isinstance(seen, Trouble):
        return False
    value, used = seen
    return vcpus > 0 and (0 if isinstance(used, Trouble) else used) + vcpus > value


def _finding(region: Region, one: Quota, seen: Seen, vcpus: int, *, kind: str, blocks: bool) -> Finding:
    subject = f"quota {one.name}"
    if isinstance(seen, Trouble):
        return unknown(subject, seen, "servicequotas:GetServiceQuota")
    value, used = seen
    if not _short(seen, vcpus):
        if isinstance(used, Trouble):
            return unknown(subject, used, "ec2:DescribeInstances")
        return Finding("ok", subject, f"{value:g} vCPUs, {used} in use, {vcpus} wanted")
    known = 0 if isinstance(used, Trouble) else used
    said = f"{value:g} vCPUs, {'an unknown number' if isinstance(used, Trouble) else used} in use, {vcpus} wanted"
    ask = f"ask for {known + vcpus} vCPUs: {page(region.name, one)}"
    if kind == "block":
        why = "; whether a capacity block counts towards it AWS's documentation does not say"
        return Finding("warning", subject, said + why, ask)
    if not blocks:
        return Finding("warning", subject, f"{said}: not all can be had as {kind}; another kind may", ask)
    return Finding("blocks", subject, said, ask, no_capacity=True)


def _used(region: Region, one: Quota) -> int:
    """vCPUs of the machines that run and count towards a quota. Raises Trouble."""
    states = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]
    there = [
        machine
        for r in region.all("ec2", "describe_instances", "Reservations", Filters=states)
        for machine in r["Instances"]
    ]
    mine = [
        machine["InstanceType"]
        for machine in there
        if (machine.get("InstanceLifecycle") == "spot") == (one.kind == "spot")
        and machine["InstanceType"].partition(".")[0] in one.families
    ]
    if not mine:
        return 0
    rows = region.all("ec2", "describe_instance_types", "InstanceTypes", InstanceTypes=sorted(set(mine)))
    each = {row["InstanceType"]: int(row["VCpuInfo"]["DefaultVCpus"]) for row in rows}
    return sum(each[name] for name in mine)


def _compared(region: Region, used: Collection[Quota]) -> Iterator[Finding]:
    """Where the account's own list of quotas may be asked for: the codes that were asked are what we take them for."""
    for service in sorted({one.service for one in used}):
        try:
            rows = region.all("service-quotas", "list_service_quotas", "Quotas", ServiceCode=service)
        except Trouble:
            continue  # each quota was asked for by its code, which says what it could not
        names = {row["QuotaCode"]: row["QuotaName"] for row in rows}
        for one in used:
            if one.service == service and names and names.get(one.code) != one.name:
                there = (
                    f"the account calls it {names[one.code]}" if one.code in names else "the account has no such one"
                )
                said = f"{one.code} should be {one.name}; {there}: what is said of it may be of something else"
                yield Finding("warning", f"quota {one.name}", said, "compare Service Quotas by hand")
