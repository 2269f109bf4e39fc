"""Which sizes a region sells to this subscription, where, and what they can (Resource SKUs).

https://learn.microsoft.com/rest/api/compute/resource-skus/list
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from provisioner.common.preflight import Finding
from provisioner.machines.providers.azure.client import Subscription, enum_text
from provisioner.machines.providers.azure.findings import unknown
from provisioner.machines.providers.trouble import Trouble
from provisioner.plan.models import PlannedGroup

ACCESS = "ask for access to the size: https://aka.ms/azureskunotavailable"


@dataclass(frozen=True, slots=True)
class Size:
    """A VM size in a region. `zones`: where this subscription may have it; `closed`: why it may have none at all."""

    name: str
    family: str
    zones: tuple[str, ...]
    capabilities: Mapping[str, str]
    closed: str = ""
    closed_zones: tuple[str, ...] = ()

    def can(self, capability: str) -> bool | None:
        """None where Azure does not say."""
        value = self.capabilities.get(capability)
        return None if value is None else value.lower() == "true"

    @property
    def vcpus(self) -> int | None:
        value = self.capabilities.get("vCPUs", "")
        return int(value) if value.isdigit() else None


def sizes(subscription: Subscription) -> tuple[dict[str, Size] | None, list[Finding]]:
    """Every size of the region by name; None where that could not be asked."""
    try:
        return listed(subscription), []
    except Trouble as error:
        return None, [unknown("VM sizes", error, "Microsoft.Compute/skus/read")]


def listed(subscription: Subscription, region: str = "") -> dict[str, Size]:
    """Every size of a region by name. Raises Trouble."""
    client, location = subscription.client("compute"), region or subscription.region
    rows = subscription.all(lambda: client.resource_skus.list(filter=f"location eq '{location}'"))
    return {str(row.name): _size(row) for row in rows if str(row.resource_type).lower() == "virtualmachines"}


def _size(row: Any) -> Size:
    offered = sorted({str(zone) for info in row.location_info or () for zone in info.zones or ()})
    closed, closed_zones = "", set[str]()
    for restriction in row.restrictions or ():
        if enum_text(restriction.type).lower() == "zone":
            closed_zones |= {str(zone) for zone in getattr(restriction.restriction_info, "zones", None) or ()}
        else:
            closed = enum_text(restriction.reason_code) or "restricted"
    capabilities = {str(capability.name): str(capability.value) for capability in row.capabilities or ()}
    open_zones = tuple(zone for zone in offered if zone not in closed_zones)
    return Size(str(row.name), str(row.family or ""), open_zones, capabilities, closed, tuple(sorted(closed_zones)))


def findings(subscription: Subscription, group: PlannedGroup, sizes: Mapping[str, Size] | None) -> Iterator[Finding]:
    """A group's size is sold here, in the zones that are named, and can what cluster.yaml asks of it."""
    if sizes is None:
        return
    name, subject, site = group.machine.name, f"group {group.name}", subscription.site
    size = {key.lower(): size for key, size in sizes.items()}.get(name.lower())
    if size is None:
        message = f"{name} is not sold in {subscription.region}"
        hint = f"choose another region: `az vm list-skus --size {name} --all` lists those that sell it"
        yield Finding("blocks", subject, message, hint)
        return
    if size.closed:
        message = f"this subscription may not have {name} in {subscription.region} ({size.closed})"
        yield Finding("blocks", subject, message, ACCESS)
        return
    wrong = [zone for zone in site.zones if zone not in size.zones]
    if site.zones and len(wrong) == len(site.zones):
        sold = f"in {', '.join(size.zones)}" if size.zones else "in no zone"
        message = f"{name} is sold to this subscription {sold}, not in {', '.join(site.zones)}"
        hint = f"sites.*.zones: [{', '.join(size.zones)}]" if size.zones else "leave sites.*.zones out"
        yield Finding("blocks", subject, message, hint)
    else:
        selling_zones = [zone for zone in site.zones if zone in size.zones]
        yield Finding("ok", subject, f"{name} is sold in {', '.join(selling_zones) or subscription.region}")
        if wrong:
            message = f"{name} is not sold to this subscription in {', '.join(wrong)}"
            yield Finding("warning", subject, message, "leave them out of sites.*.zones")
    yield from _able(subject, group, size, encrypt=site.encryption_at_host)


def _able(subject: str, group: PlannedGroup, size: Size, *, encrypt: bool) -> Iterator[Finding]:
    capacity, name = group.spec.capacity, group.machine.name
    if encrypt and size.can("EncryptionAtHostSupported") is False:
        yield Finding("blocks", subject, f"{name} has no encryption at host", "sites.*.encryption_at_host: false")
    if group.machine.network.kind == "infiniband" and size.can("RdmaEnabled") is False:
        message = f"{name} has no InfiniBand here, the catalogue says it has"
        yield Finding("blocks", subject, message, "tell gpuprov's maintainers")
    if capacity.interruptible and size.can("LowPriorityCapable") is False:
        status = "blocks" if capacity.kind == "spot" and not capacity.fallback else "warning"
        yield Finding(status, subject, f"{name} is not sold as spot", "capacity.kind: on-demand")  # type: ignore[arg-type]
    if capacity.kind == "reservation" and size.can("CapacityReservationSupported") is False:
        yield Finding("blocks", subject, f"{name} cannot be reserved", "capacity.kind: on-demand")
    if "V2" not in size.capabilities.get("HyperVGenerations", "V2"):
        message = f"{name} takes no second-generation image, which Ubuntu's and Debian's here are"
        yield Finding("blocks", subject, message, "another machine")
