"""Quotas of GPU cards in one region: which one counts a machine, and whether what is still to be made fits in."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from provisioner.common import yaml_text
from provisioner.common.preflight import Finding
from provisioner.machines.providers.alicloud.client import Region
from provisioner.machines.providers.alicloud.findings import unknown
from provisioner.machines.providers.trouble import Trouble
from provisioner.plan.models import PlannedGroup

PAGE = "https://quotas.console.aliyun.com/products/ecs-spec/quotas"
SUFFIX = {"spot": "spot_g"}
"""Behind a quota's prefix, by how a machine is bought."""


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


def of_machine(machine: str, kind: str) -> str | None:
    """The id of the quota that a machine counts towards; None where quotas.yaml does not know its family."""
    machine_family = family(machine)
    prefix = next((key for key, families in _document()["families"].items() if machine_family in families), None)
    return f"{prefix}_{SUFFIX.get(kind, 'postpay_g')}" if prefix else None


@dataclass(frozen=True, slots=True)
class Seen:
    """A quota in cards. `used`: None where Quota Center does not say."""

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
    needed_cards: dict[str, int] = {}
    only: set[str] = set()
    for group in groups:
        missing = sum(name not in existing_nodes for name in group.node_names())
        kinds = dict.fromkeys((group.spec.capacity.kind, *group.spec.capacity.fallback))
        codes = {kind: of_machine(group.machine.name, kind) for kind in kinds}
        if None in codes.values():
            message = f"which quota {group.machine.name} counts towards is not known"
            yield Finding("unknown", f"group {group.name}", message, f"compare by hand: {PAGE}")
        for code in dict.fromkeys(code for code in codes.values() if code):
            needed_cards[code] = needed_cards.get(code, 0) + missing * group.machine.gpu_count
        if len(kinds) == 1:
            only |= {code for code in codes.values() if code}
    for code, cards in needed_cards.items():
        yield _finding(region, code, cards, blocks=code in only)


def _finding(region: Region, code: str, cards: int, *, blocks: bool) -> Finding:
    subject = f"quota {code}"
    try:
        usage = look(region, code)
    except Trouble as error:
        return unknown(subject, error, "quotas:ListProductQuotas")
    if usage is None:
        return Finding("unknown", subject, "Quota Center has no such quota of this account", f"compare by hand: {PAGE}")
    used = "an unknown number" if usage.used is None else f"{usage.used:g}"
    message = f"{usage.total:g} GPUs, {used} in use, {cards} wanted"
    if cards and (usage.used or 0) + cards > usage.total:
        ask = f"ask for {(usage.used or 0) + cards:g} GPUs: {PAGE}"
        return Finding("blocks" if blocks else "warning", subject, message, ask, no_capacity=True)
    if usage.used is None:
        return Finding("unknown", subject, message, f"compare by hand: {PAGE}")
    return Finding("ok", subject, message)
