"""Quotas of a subscription in one region: which one counts what, how much is allowed, and whether what is still to be
made fits in. Azure says the family of each size itself (Resource SKUs), so that no table of them is here.

https://learn.microsoft.com/azure/quotas/per-vm-quota-requests, https://learn.microsoft.com/azure/quotas/spot-quota
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from provisioner.common.preflight import Finding
from provisioner.machines.providers.azure.client import Subscription
from provisioner.machines.providers.azure.findings import unknown
from provisioner.machines.providers.azure.sold import Size
from provisioner.machines.providers.trouble import Trouble
from provisioner.plan.models import PlannedGroup

REGIONAL, SPOT = "cores", "lowprioritycores"
"""The quotas of all families together, and of spot machines of any family."""
ADDRESSES = ("standardskupublicipaddresses", "publicipaddresses")
PERMISSION = "Microsoft.Compute/locations/usages/read"


@dataclass(frozen=True, slots=True)
class Quota:
    """`name`: Azure's own, for people."""

    name: str
    used: int
    limit: int

    def short(self, needed_count: int) -> bool:
        return needed_count > 0 and self.used + needed_count > self.limit


def folded(name: str) -> str:
    """Azure writes names of families with and without blanks, in any case."""
    return "".join(name.split()).lower()


def page(subscription: Subscription) -> str:
    """Where a person asks for more."""
    return f"{subscription.cloud.portal}/#view/Microsoft_Azure_Capacity/QuotaMenuBlade/~/myQuotas"


def room(
    subscription: Subscription,
    groups: Sequence[PlannedGroup],
    sizes: Mapping[str, Size] | None,
    existing_nodes: Collection[str],
) -> Iterator[Finding]:
    """Whether the quotas of vCPUs have room for the machines that are still to be made, in the first way and in each
    fallback. A quota blocks where a group has no other way. `existing_nodes`: names of nodes that stand. What is
    reserved has its quota already."""
    try:
        client = subscription.client("compute")
        rows = subscription.all(lambda: client.usage.list(subscription.region))
    except Trouble as error:
        yield unknown("quota", error, PERMISSION)
        return
    known = {folded(str(row.name.value)): _quota(row) for row in rows}
    needed_vcpus: dict[str, int] = {}
    quota_names_by_group: dict[str, list[list[str]]] = {}
    for group in groups:
        size = (sizes or {}).get(group.machine.name)
        missing = sum(name not in existing_nodes for name in group.node_names())
        each = size.vcpus if size and size.vcpus else group.machine.vcpus
        kinds = [kind for kind in (group.spec.capacity.kind, *group.spec.capacity.fallback) if kind != "reservation"]
        quota_names_by_group[group.name] = [[SPOT] if kind == "spot" else _families(size) for kind in kinds]
        for name in dict.fromkeys(name for quota_names in quota_names_by_group[group.name] for name in quota_names):
            needed_vcpus[name] = needed_vcpus.get(name, 0) + missing * each
        if sizes is not None and size is None:
            continue  # not sold here, which is said already
        if any(kind != "spot" for kind in kinds) and len(_families(size)) < 2:
            message = f"which quota {group.machine.name} counts towards is not known"
            yield Finding("unknown", f"group {group.name}", message, page(subscription))
    for name, vcpus in needed_vcpus.items():
        stuck = any(
            all(
                any(_short(known, quota_name, needed_vcpus) for quota_name in quota_names)
                for quota_names in quota_names_by_group[group.name]
            )
            and any(name in quota_names for quota_names in quota_names_by_group[group.name])
            for group in groups
        )
        yield _finding(subscription, known.get(name), name, vcpus, blocks=stuck)


def _families(size: Size | None) -> list[str]:
    return [REGIONAL, folded(size.family)] if size is not None and size.family else [REGIONAL]


def _short(known: Mapping[str, Quota], name: str, needed_vcpus: Mapping[str, int]) -> bool:
    return name in known and known[name].short(needed_vcpus.get(name, 0))


def _quota(row: object) -> Quota:
    name = row.name  # type: ignore[attr-defined]
    quota_name = str(name.localized_value or name.value)
    return Quota(quota_name, int(row.current_value), int(row.limit))  # type: ignore[attr-defined]


def _finding(subscription: Subscription, quota: Quota | None, name: str, vcpus: int, *, blocks: bool) -> Finding:
    if quota is None:
        message = f"Azure lists no quota {name} in {subscription.region}"
        return Finding("unknown", f"quota {name}", message, page(subscription))
    message = f"{quota.limit} vCPUs in {subscription.region}, {quota.used} in use, {vcpus} wanted"
    if not quota.short(vcpus):
        return Finding("ok", f"quota {quota.name}", message)
    ask = f"ask for {quota.used + vcpus} vCPUs: {page(subscription)}"
    if not blocks:
        return Finding("warning", f"quota {quota.name}", f"{message}: another kind of capacity may have room", ask)
    return Finding("blocks", f"quota {quota.name}", message, ask, no_capacity=True)


def network(
    subscription: Subscription, groups: Sequence[PlannedGroup], existing_nodes: Collection[str]
) -> Iterator[Finding]:
    """There is room for the public addresses that are still to be made: one for each public node, one for the NAT
    gateway."""
    site = subscription.site
    missing = sum(name not in existing_nodes for group in groups for name in group.node_names())
    nat = int(site.internet == "nat" and site.subnet is None and not existing_nodes)
    needed_count = missing if site.internet == "public" else nat
    if not needed_count:
        return
    try:
        client = subscription.client("network")
        rows = subscription.all(lambda: client.usages.list(subscription.region))
    except Trouble as error:
        yield unknown("public IP addresses", error, "Microsoft.Network/locations/usages/read")
        return
    known = {folded(str(row.name.value)): _quota(row) for row in rows}
    for quota in (known[name] for name in ADDRESSES if name in known):
        message = f"limit {quota.limit}, {quota.used} in use, {needed_count} required"
        if quota.short(needed_count):
            hint = (
                f"ask for more: {page(subscription)}; or sites.*.internet: nat, where gpuprov runs inside the network"
            )
            yield Finding("blocks", f"quota {quota.name}", message, hint)
        else:
            yield Finding("ok", f"quota {quota.name}", message)
