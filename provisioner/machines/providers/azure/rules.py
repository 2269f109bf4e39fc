"""Refusals of an Azure site: what its keys and the purchase of its machines can be. The module's preconditions say the
same where they can."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from provisioner import catalog
from provisioner.common.errors import GpuprovError
from provisioner.machines.providers.azure.settings import AzureSettings, Environment
from provisioner.spec.groups import Group
from provisioner.spec.source_map import Finding, Loc, shown

MOST_IN_SET = 200
"""Machines of an availability set. https://learn.microsoft.com/azure/virtual-machines/setup-infiniband"""
RESERVATION = re.compile(r"(?i)/subscriptions/[^/]+/resourceGroups/[^/]+/providers/Microsoft\.Compute/"
                         r"capacityReservationGroups/[^/]+")  # fmt: skip
TAG = re.compile(r"[^<>%&\\?/]{1,512}")
OWN_TAGS = ("azure", "microsoft", "windows")
"""Beginnings of tags that are Azure's own.
https://learn.microsoft.com/azure/azure-resource-manager/management/tag-resources#limitations"""
REGIONS: Mapping[str, Environment] = {"china": "china", "usgov": "usgovernment", "usdod": "usgovernment"}
"""Beginnings of regions that are in another Azure than the public one.
https://learn.microsoft.com/azure/azure-government/documentation-government-get-started-connect-with-cli,
https://learn.microsoft.com/azure/china/overview-datacenter"""


def environment_of(region: str) -> Environment:
    """Which Azure a region is in, by its name."""
    return next((of for begin, of in REGIONS.items() if region.startswith(begin)), "public")


def infiniband(machine: str) -> bool:
    """Whether machines of a type have InfiniBand; False for one that the catalogue does not know."""
    try:
        return catalog.load().machine(machine).network.kind == "infiniband"
    except GpuprovError:
        return False


def account(at: Loc, site: AzureSettings) -> Iterator[Finding]:
    """Of what holds for everything at the site, which stands at `at`."""
    for key in site.tags:
        if not TAG.fullmatch(key) or key.lower().startswith(OWN_TAGS):
            message = f"{shown(key)} is not a valid tag name in Azure"
            hint = "without any of <>%&\\?/, and not beginning with azure, microsoft or windows"
            yield Finding((*at, "tags", key), message, hint, at_key=True)
    belongs = environment_of(site.region)
    if belongs != site.environment:
        message = f"{site.region} is a region of environment {belongs}, not {site.environment}"
        yield Finding((*at, "region"), message, f"environment: {belongs}")


def bought(at: Loc, site: AzureSettings, groups: Mapping[str, Group]) -> Iterator[Finding]:
    """Of how the machines at a site are bought. Machines with InfiniBand are in an availability set, which is in no
    zone and takes no spot and no reserved machines.
    https://learn.microsoft.com/azure/virtual-machine-scale-sets/virtual-machine-scale-sets-orchestration-modes"""
    for name, group in groups.items():
        capacity, key_path = group.capacity, ("groups", name)
        if capacity.interruptible and site.environment == "china":
            message = "Azure operated by 21Vianet sells no spot machines"
            yield Finding((*key_path, "capacity"), message, "kind: on-demand, and no spot in fallback", at_key=True)
        if capacity.kind == "reservation" and capacity.id and not RESERVATION.fullmatch(capacity.id):
            message = f"{shown(capacity.id)} is not the ID of a capacity reservation group"
            hint = "its id, /subscriptions/…/providers/Microsoft.Compute/capacityReservationGroups/…"
            yield Finding((*key_path, "capacity", "id"), message, hint)
        if capacity.kind == "reservation" and group.placement == "cluster":
            message = "reserved machines can be in no proximity placement group"
            yield Finding((*key_path, "placement"), message, "leave it out")
        if infiniband(group.machine_type()):
            yield from _infiniband(at, site, key_path, group)


def _infiniband(at: Loc, site: AzureSettings, key_path: Loc, group: Group) -> Iterator[Finding]:
    capacity, machine = group.capacity, group.machine_type()
    if site.zones:
        message = f"{machine} can be in no zone: its InfiniBand needs an availability set, which is in none"
        yield Finding(
            (*at, "zones"), message, "leave zones out, or give groups with zones a site of their own", at_key=True
        )
    if capacity.interruptible and group.count > 1:
        message = (
            f"spot machines can be in no availability set: the InfiniBand of {group.count} {machine} would not connect "
            "them"
        )
        yield Finding(
            (*key_path, "capacity"), message, "kind: on-demand and no spot in fallback, or count: 1", at_key=True
        )
    if capacity.kind == "reservation":
        message = (
            f"{machine} cannot be reserved: Azure has no capacity reservations for machines in an availability set"
        )
        yield Finding((*key_path, "capacity", "kind"), message, "kind: on-demand")
    if group.count > MOST_IN_SET:
        message = f"an availability set has at most {MOST_IN_SET} machines, and InfiniBand connects no others"
        yield Finding((*key_path, "count"), message, f"at most {MOST_IN_SET}; make a second group")
