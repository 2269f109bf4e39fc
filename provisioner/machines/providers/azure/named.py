"""What cluster.yaml names of the subscription is there, in the right region, and has room."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from ipaddress import ip_network

from provisioner.common.preflight import Finding
from provisioner.machines.providers.azure.client import Subscription, parts
from provisioner.machines.providers.azure.findings import unknown
from provisioner.machines.providers.azure.sold import Size
from provisioner.machines.providers.trouble import Trouble
from provisioner.plan.models import PlannedGroup

RESERVED = 5
"""Addresses of each subnet that are Azure's own.
https://learn.microsoft.com/azure/virtual-network/virtual-networks-faq"""
BY_DEFAULT = "TrustedLaunchByDefaultPreview"
"""Feature with which every client's new machines of the second generation get Trusted Launch; the same name since it is
generally available (learn.microsoft.com/azure/virtual-machines/trusted-launch, 2026-07)."""
FEATURE = "/providers/Microsoft.Features/providers/Microsoft.Compute/features/{name}"


def findings(
    subscription: Subscription, groups: Sequence[PlannedGroup], existing_nodes: Collection[str]
) -> Iterator[Finding]:
    """`existing_nodes`: names of nodes that stand."""
    site = subscription.site
    if site.resource_group:
        yield from _resource_group(subscription, site.resource_group)
    if site.subnet:
        missing = sum(name not in existing_nodes for group in groups for name in group.node_names())
        yield from _subnet(subscription, site.subnet, missing)
    if site.encryption_at_host:
        yield from _encryption(subscription)
    if site.disk_encryption_set:
        yield from _by_id(subscription, "disk encryption set", site.disk_encryption_set, "2024-03-02")
    for identity in site.identities:
        yield from _by_id(subscription, "identity", identity, "2023-01-31")
    for group in groups:
        if group.spec.capacity.kind == "reservation" and group.spec.capacity.id:
            yield from _reservation(subscription, group, group.spec.capacity.id, existing_nodes)


def _resource_group(subscription: Subscription, name: str) -> Iterator[Finding]:
    subject, client = f"resource group {name}", subscription.client("resources")
    try:
        subscription.ask(lambda: client.resource_groups.get(name))
    except Trouble as error:
        if error.kind == "absent":
            yield Finding("blocks", subject, "there is no such resource group", "make it, or leave resource_group out")
        else:
            yield unknown(subject, error, "Microsoft.Resources/subscriptions/resourceGroups/read")
        return
    yield Finding("ok", subject, "is there")


def _subnet(subscription: Subscription, number: str, needed_count: int) -> Iterator[Finding]:
    names = parts(number)
    subject = f"subnet {names['subnets']}"
    if names["subscriptions"] != subscription.id:
        message = f"it is in subscription {names['subscriptions']}: whether it has room was not looked at"
        yield Finding("unknown", subject, message, "look at its free addresses")
        return
    client, group, network = subscription.client("network"), names["resourcegroups"], names["virtualnetworks"]
    try:
        location = str(subscription.ask(lambda: client.virtual_networks.get(group, network)).location)
        row = subscription.ask(lambda: client.subnets.get(group, network, names["subnets"]))
    except Trouble as error:
        if error.kind == "absent":
            yield Finding("blocks", subject, "there is no such subnet", "correct sites.*.subnet")
        else:
            yield unknown(subject, error, "Microsoft.Network/virtualNetworks/subnets/read")
        return
    if location.lower() != subscription.region:
        message = f"it is in {location}; machines in {subscription.region} cannot use it"
        yield Finding("blocks", subject, message, "a subnet of that region")
        return
    services = [str(endpoint.service) for endpoint in row.service_endpoints or ()]
    if subscription.site.storage.files and "Microsoft.Storage" not in services:
        message = "it has no service endpoint Microsoft.Storage, by which nodes would reach the file share"
        service_names = " ".join(("Microsoft.Storage", *services))
        hint = f"`az network vnet subnet update --ids {number} --service-endpoints {service_names}`"
        yield Finding("blocks", subject, message, hint)
    prefixes = row.address_prefixes or [row.address_prefix]
    capacity = sum(ip_network(prefix).num_addresses - RESERVED for prefix in prefixes if prefix and ":" not in prefix)
    free = capacity - len(row.ip_configurations or ())
    if free < needed_count:
        message = f"{free} addresses are free, {needed_count} required"
        yield Finding("blocks", subject, message, "use a larger subnet, or remove subnet: gpuprov then creates one")
    else:
        yield Finding("ok", subject, f"{free} addresses are free, {needed_count} required")


def feature(subscription: Subscription, name: str) -> str:
    """The state of a feature of Microsoft.Compute: Registered, NotRegistered, Pending … Raises Trouble."""
    row = subscription.get(f"{subscription.scope}{FEATURE.format(name=name)}", "2021-07-01")
    return str(row.get("properties", {}).get("state"))


def trusted_launch(
    subscription: Subscription,
    groups: Sequence[PlannedGroup],
    existing_nodes: Collection[str],
    offered_sizes: Mapping[str, Size] | None,
) -> Iterator[Finding]:
    """Whether machines with GPUs that are to be made would get Secure Boot unasked: DKMS's modules do not load then.
    azurerm can't say that a machine is to have none (hashicorp/terraform-provider-azurerm#30782).
    https://learn.microsoft.com/azure/virtual-machines/trusted-launch (Trusted Launch as default)"""
    subject = "Trusted Launch"
    known = {name.lower(): size for name, size in (offered_sizes or {}).items()}
    sizes = {
        group.machine.name
        for group in groups
        if group.machine.gpu_count and any(name not in existing_nodes for name in group.node_names())
    }
    able = sorted(
        name for name in sizes if not ((size := known.get(name.lower())) and size.can("TrustedLaunchDisabled"))
    )
    if not able:
        return
    try:
        state = feature(subscription, BY_DEFAULT)
    except Trouble as error:
        if error.kind != "absent":
            yield unknown(subject, error, "Microsoft.Features/providers/features/read")
        return
    if state != "Registered":
        yield Finding("ok", subject, "machines get Secure Boot only if cluster.yaml asks for it")
        return
    kept_out = f"the driver would not load on {', '.join(able)}"
    message = f"this subscription's new machines get Secure Boot ({BY_DEFAULT}): {kept_out}"
    hint = f"`az feature unregister --namespace Microsoft.Compute --name {BY_DEFAULT}`, or a subscription without it"
    yield Finding("blocks", subject, message, hint)


def _encryption(subscription: Subscription) -> Iterator[Finding]:
    """https://learn.microsoft.com/azure/virtual-machines/linux/disks-enable-host-based-encryption-cli"""
    subject = "encryption at host"
    try:
        state = feature(subscription, "EncryptionAtHost")
    except Trouble as error:
        yield unknown(subject, error, "Microsoft.Features/providers/features/read")
        return
    if state != "Registered":
        message = f"the subscription's feature EncryptionAtHost is {state}"
        hint = "`az feature register --namespace Microsoft.Compute --name EncryptionAtHost`, then wait some minutes"
        yield Finding("blocks", subject, message, hint)
    else:
        yield Finding("ok", subject, "the subscription has the feature")


def _by_id(subscription: Subscription, kind: str, number: str, version: str) -> Iterator[Finding]:
    name = number.rpartition("/")[2]
    try:
        row = subscription.get(number, version)
    except Trouble as error:
        if error.kind == "absent":
            yield Finding("blocks", f"{kind} {name}", "is not there", "correct its id in cluster.yaml")
        else:
            yield unknown(f"{kind} {name}", error, "reading it")
        return
    location = str(row.get("location", "")).replace(" ", "").lower()
    if kind == "disk encryption set" and location != subscription.region:
        message = f"it is in {location}, and encrypts no disks in {subscription.region}"
        yield Finding("blocks", f"{kind} {name}", message, "one of that region")
    else:
        yield Finding("ok", f"{kind} {name}", "is there")


def _reservation(
    subscription: Subscription, group: PlannedGroup, number: str, existing_nodes: Collection[str]
) -> Iterator[Finding]:
    """A group of reservations has one for this size, with room for what is still to be made."""
    names, subject = parts(number), f"group {group.name}"
    client = subscription.client("compute").capacity_reservations
    name = names["capacityreservationgroups"]
    try:
        rows = subscription.all(lambda: client.list_by_capacity_reservation_group(names["resourcegroups"], name))
        reservations = [row for row in rows if str(row.sku.name).lower() == group.machine.name.lower()]
        zones = subscription.site.zones
        reservations = [row for row in reservations if not row.zones or not zones or set(row.zones) & set(zones)]
        used = sum(_associated(subscription, names["resourcegroups"], name, str(row.name)) for row in reservations)
    except Trouble as error:
        if error.kind == "absent":
            message = f"there is not the ID of a capacity reservation group {name}"
            yield Finding("blocks", subject, message, "correct groups.*.capacity.id")
        else:
            yield unknown(subject, error, "Microsoft.Compute/capacityReservationGroups/capacityReservations/read")
        return
    if not reservations:
        message = f"{name} has no reservation for {group.machine.name}" + (f" in {', '.join(zones)}" if zones else "")
        yield Finding("blocks", subject, message, "reserve it there, or name another group of reservations")
        return
    total = sum(int(row.sku.capacity or 0) for row in reservations)
    needed_count = sum(node not in existing_nodes for node in group.node_names())
    message = f"{name} has {total} × {group.machine.name}, {used} in use, {needed_count} wanted"
    if used + needed_count > total:
        hint = "a larger reservation: machines beyond it are bought on demand, without its guarantee"
        yield Finding("warning", subject, message, hint)
    else:
        yield Finding("ok", subject, message)


def _associated(subscription: Subscription, group: str, reservations: str, name: str) -> int:
    """How many machines take from a reservation. Raises Trouble."""
    client = subscription.client("compute").capacity_reservations
    row = subscription.ask(lambda: client.get(group, reservations, name, expand="instanceView"))
    return len(row.virtual_machines_associated or ())
