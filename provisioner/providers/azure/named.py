"""What cluster.yaml names of the subscription is there, in the right region, and has room."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from ipaddress import ip_network

from provisioner.plan import PlannedGroup
from provisioner.preflight import Finding
from provisioner.providers.azure.client import Subscription, parts
from provisioner.providers.azure.findings import unknown
from provisioner.providers.azure.sold import Size
from provisioner.providers.trouble import Trouble

RESERVED = 5
"""Addresses of each subnet that are Azure's own.
https://learn.microsoft.com/azure/virtual-network/virtual-networks-faq"""
BY_DEFAULT = "TrustedLaunchByDefaultPreview"
"""Feature with which every client's new machines of the second generation get Trusted Launch; the same name since it is
generally available (learn.microsoft.com/azure/virtual-machines/trusted-launch, 2026-07)."""
FEATURE = "/providers/Microsoft.Features/providers/Microsoft.Compute/features/{name}"


def findings(subscription: Subscription, groups: Sequence[PlannedGroup], there: Collection[str]) -> Iterator[Finding]:
    """`there`: names of nodes that stand."""
    site = subscription.site
    if site.resource_group:
        yield from _resource_group(subscription, site.resource_group)
    if site.subnet:
        missing = sum(name not in there for group in groups for name in group.node_names())
        yield from _subnet(subscription, site.subnet, missing)
    if site.encryption_at_host:
        yield from _encryption(subscription)
    if site.disk_encryption_set:
        yield from _by_id(subscription, "disk encryption set", site.disk_encryption_set, "2024-03-02")
    for one in site.identities:
        yield from _by_id(subscription, "identity", one, "2023-01-31")
    for group in groups:
        if group.spec.capacity.kind == "reservation" and group.spec.capacity.id:
            yield from _reservation(subscription, group, group.spec.capacity.id, there)


def _resource_group(subscription: Subscription, name: str) -> Iterator[Finding]:
    subject, client = f"resource group {name}", subscription.client("resources")
    try:
        subscription.ask(lambda: client.resource_groups.get(name))
    except Trouble as trouble:
        if trouble.kind == "absent":
            yield Finding("blocks", subject, "there is no such resource group", "make it, or leave resource_group out")
        else:
            yield unknown(subject, trouble, "Microsoft.Resources/subscriptions/resourceGroups/read")
        return
    yield Finding("ok", subject, "is there")


def _subnet(subscription: Subscription, number: str, wanted: int) -> Iterator[Finding]:
    names = parts(number)
    subject = f"subnet {names['subnets']}"
    if names["subscriptions"] != subscription.id:
        said = f"it is in subscription {names['subscriptions']}: whether it has room was not looked at"
        yield Finding("unknown", subject, said, "look at its free addresses")
        return
    client, group, network = subscription.client("network"), names["resourcegroups"], names["virtualnetworks"]
    try:
        where = str(subscription.ask(lambda: client.virtual_networks.get(group, network)).location)
        row = subscription.ask(lambda: client.subnets.get(group, network, names["subnets"]))
    except Trouble as trouble:
        if trouble.kind == "absent":
            yield Finding("blocks", subject, "there is no such subnet", "correct sites.*.subnet")
        else:
            yield unknown(subject, trouble, "Microsoft.Network/virtualNetworks/subnets/read")
        return
    if where.lower() != subscription.region:
        said = f"it is in {where}, and machines in {subscription.region} can't be in it"
        yield Finding("blocks", subject, said, "a subnet of that region")
        return
    services = [str(one.service) for one in row.service_endpoints or ()]
    if subscription.site.storage.files and "Microsoft.Storage" not in services:
        said = "it has no service endpoint Microsoft.Storage, by which nodes would reach the file share"
        wanted_services = " ".join(("Microsoft.Storage", *services))
        hint = f"`az network vnet subnet update --ids {number} --service-endpoints {wanted_services}`"
        yield Finding("blocks", subject, said, hint)
    prefixes = row.address_prefixes or [row.address_prefix]
    most = sum(ip_network(prefix).num_addresses - RESERVED for prefix in prefixes if prefix and ":" not in prefix)
    free = most - len(row.ip_configurations or ())
    if free < wanted:
        said = f"{free} addresses are free, {wanted} are wanted"
        yield Finding("blocks", subject, said, "a larger subnet, or one of gpuprov's own (leave subnet out)")
    else:
        yield Finding("ok", subject, f"{free} addresses are free, {wanted} are wanted")


def feature(subscription: Subscription, name: str) -> str:
    """The state of a feature of Microsoft.Compute: Registered, NotRegistered, Pending … Raises Trouble."""
    row = subscription.get(f"{subscription.scope}{FEATURE.format(name=name)}", "2021-07-01")
    return str(row.get("properties", {}).get("state"))


def trusted_launch(
    subscription: Subscription, groups: Sequence[PlannedGroup], there: Collection[str], found: Mapping[str, Size] | None
) -> Iterator[Finding]:
    """Whether machines that are to be made would get Secure Boot unasked: DKMS's modules do not load then. azurerm
    can't say that a machine is to have none (hashicorp/terraform-provider-azurerm#30782).
    https://learn.microsoft.com/azure/virtual-machines/trusted-launch (Trusted Launch as default)"""
    subject = "Trusted Launch"
    known = {name.lower(): size for name, size in (found or {}).items()}
    sizes = {group.machine.name for group in groups if any(name not in there for name in group.node_names())}
    able = sorted(
        name for name in sizes if not ((size := known.get(name.lower())) and size.can("TrustedLaunchDisabled"))
    )
    if not able:
        return
    try:
        state = feature(subscription, BY_DEFAULT)
    except Trouble as trouble:
        if trouble.kind != "absent":
            yield unknown(subject, trouble, "Microsoft.Features/providers/features/read")
        return
    if state != "Registered":
        yield Finding("ok", subject, "machines get no Secure Boot that nobody asked for")
        return
    kept_out = f"the driver would not load on {', '.join(able)}"
    said = f"this subscription's new machines get Secure Boot ({BY_DEFAULT}): {kept_out}"
    hint = f"`az feature unregister --namespace Microsoft.Compute --name {BY_DEFAULT}`, or a subscription without it"
    yield Finding("blocks", subject, said, hint)


def _encryption(subscription: Subscription) -> Iterator[Finding]:
    """https://learn.microsoft.com/azure/virtual-machines/linux/disks-enable-host-based-encryption-cli"""
    subject = "encryption at host"
    try:
        state = feature(subscription, "EncryptionAtHost")
    except Trouble as trouble:
        yield unknown(subject, trouble, "Microsoft.Features/providers/features/read")
        return
    if state != "Registered":
        said = f"the subscription's feature EncryptionAtHost is {state}"
        hint = "`az feature register --namespace Microsoft.Compute --name EncryptionAtHost`, then wait some minutes"
        yield Finding("blocks", subject, said, hint)
    else:
        yield Finding("ok", subject, "the subscription has the feature")


def _by_id(subscription: Subscription, what: str, number: str, version: str) -> Iterator[Finding]:
    name = number.rpartition("/")[2]
    try:
        row = subscription.get(number, version)
    except Trouble as trouble:
        if trouble.kind == "absent":
            yield Finding("blocks", f"{what} {name}", "is not there", "correct its id in cluster.yaml")
        else:
            yield unknown(f"{what} {name}", trouble, "reading it")
        return
    where = str(row.get("location", "")).replace(" ", "").lower()
    if what == "disk encryption set" and where != subscription.region:
        said = f"it is in {where}, and encrypts no disks in {subscription.region}"
        yield Finding("blocks", f"{what} {name}", said, "one of that region")
    else:
        yield Finding("ok", f"{what} {name}", "is there")


def _reservation(
    subscription: Subscription, group: PlannedGroup, number: str, there: Collection[str]
) -> Iterator[Finding]:
    """A group of reservations has one for this size, with room for what is still to be made."""
    names, subject = parts(number), f"group {group.name}"
    client = subscription.client("compute").capacity_reservations
    name = names["capacityreservationgroups"]
    try:
        rows = subscription.all(lambda: client.list_by_capacity_reservation_group(names["resourcegroups"], name))
        mine = [row for row in rows if str(row.sku.name).lower() == group.machine.name.lower()]
        zones = subscription.site.zones
        mine = [row for row in mine if not row.zones or not zones or set(row.zones) & set(zones)]
        used = sum(_associated(subscription, names["resourcegroups"], name, str(row.name)) for row in mine)
    except Trouble as trouble:
        if trouble.kind == "absent":
            said = f"there is no capacity reservation group {name}"
            yield Finding("blocks", subject, said, "correct groups.*.capacity.id")
        else:
            yield unknown(subject, trouble, "Microsoft.Compute/capacityReservationGroups/capacityReservations/read")
        return
    if not mine:
        said = f"{name} has no reservation for {group.machine.name}" + (f" in {', '.join(zones)}" if zones else "")
        yield Finding("blocks", subject, said, "reserve it there, or name another group of reservations")
        return
    total = sum(int(row.sku.capacity or 0) for row in mine)
    wanted = sum(one not in there for one in group.node_names())
    said = f"{name} has {total} × {group.machine.name}, {used} in use, {wanted} wanted"
    if used + wanted > total:
        hint = "a larger reservation: machines beyond it are bought on demand, without its guarantee"
        yield Finding("warning", subject, said, hint)
    else:
        yield Finding("ok", subject, said)


def _associated(subscription: Subscription, group: str, reservations: str, name: str) -> int:
    """How many machines take from a reservation. Raises Trouble."""
    client = subscription.client("compute").capacity_reservations
    row = subscription.ask(lambda: client.get(group, reservations, name, expand="instanceView"))
    return len(row.virtual_machines_associated or ())
