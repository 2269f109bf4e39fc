"""Processors, GPUs and network cards, found in whichever place a vendor shows them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from provisioner.machines.redfish import vendors
from provisioner.machines.redfish.tree import HEALTH, Health, Resource, Tree, inner, kind, link, rows, text


@dataclass(frozen=True, slots=True)
class Device:
    """One device as a BMC sees it. `health`: OK, Warning, Critical, or None where the BMC does not say."""

    id: str
    model: str | None = None
    serial: str | None = None
    firmware: str | None = None
    health: Health | None = None
    uri: str = ""


@dataclass(frozen=True, slots=True)
class Gpus:
    """GPUs that the BMC sees. `where`: the kind of place they were found in; `complete`: that place could be read
    whole; without it there may be more than `read`."""

    read: tuple[Device, ...] = ()
    where: str = ""
    complete: bool = False


def health(resource: Resource) -> Health | None:
    """OK, Warning or Critical of a Status, the worse of its own and its parts'; None where it says neither."""
    status = inner(resource, "Status")
    values = [text(status.get(key)) for key in ("Health", "HealthRollup")]
    known = [value.capitalize() if value != "OK" else value for value in values if value]
    worst = next((step for step in reversed(HEALTH) if step in known), None)
    return worst if all(value in HEALTH for value in known) else None


def state(resource: Resource) -> str | None:
    return text(inner(resource, "Status").get("State"))


def absent(resource: Resource) -> bool:
    """An empty bay or socket, which some vendors list with a health of its own."""
    return state(resource) == "Absent"


def cpus(tree: Tree, systems: Iterable[Resource], host: Resource) -> int | None:
    """Sockets with a CPU, of the host or, where another system shows them, of that."""
    for system in (host, *systems):
        sockets = [
            processor
            for processor in tree.members(system.get("Processors"))
            if text(processor.get("ProcessorType")) == "CPU"
        ]
        if sockets:
            return sum(not absent(processor) for processor in sockets)
    count = inner(host, "ProcessorSummary").get("Count")
    return count if isinstance(count, int) and count > 0 else None


def gpus(tree: Tree, systems: Iterable[Resource], all_chassis: Callable[[], Iterable[Resource]]) -> Gpus:
    """The machine's GPUs, in the first of the places where there are any: processors of its systems; the devices of
    HPE's chassis; PCIe devices. Devices that are read are counted, never the number that a collection says."""
    systems = list(systems)
    processors = [system.get("Processors") for system in systems]
    if gpu_resources := _distinct(_processors(tree, systems)):
        return Gpus(_devices(tree, gpu_resources), "processors", _complete(tree, processors))
    chassis = list(all_chassis())
    listed = [collection for resource in chassis for collection in _links_named(resource, "Devices")]
    if gpu_resources := _distinct(_hpe(tree, listed)):
        return Gpus(_devices(tree, gpu_resources), "devices", _complete(tree, listed))
    collections = [resource.get("PCIeDevices") for resource in chassis]
    gpu_resources = _distinct(_pcie(tree, systems, chassis))
    if gpu_resources:
        return Gpus(_devices(tree, gpu_resources), "PCIe devices", _complete(tree, collections))
    return Gpus(complete=_complete(tree, [*processors, *listed, *collections]))


def _complete(tree: Tree, collections: Iterable[object]) -> bool:
    """Whether there are such collections, and all could be read whole."""
    linked = [collection for collection in collections if link(collection)]
    return bool(linked) and all(tree.members(collection).complete for collection in linked)


def _processors(tree: Tree, systems: list[Resource]) -> Iterator[Resource]:
    for system in systems:
        for processor in tree.members(system.get("Processors")):
            sort = text(processor.get("ProcessorType"))
            if (sort == "GPU" and not _other(processor)) or (sort == "Accelerator" and _named_gpu(processor)):
                yield processor


def _hpe(tree: Tree, listed: Iterable[object]) -> Iterator[Resource]:
    for collection in listed:
        for device in tree.members(collection):
            if text(device.get("DeviceType")) == "GPU" and not _other(device):
                yield device


def _pcie(tree: Tree, systems: list[Resource], chassis: list[Resource]) -> Iterator[Resource]:
    pcie_devices = [
        member for chassis_resource in chassis for member in tree.members(chassis_resource.get("PCIeDevices"))
    ]
    for system in systems:
        listed = system.get("PCIeDevices")
        pcie_devices += (
            [tree.get(member) for member in rows(listed)] if isinstance(listed, list) else list(tree.members(listed))
        )
    for device in pcie_devices:
        if device and not _other(device) and _is_gpu(tree, device):
            yield device


def _is_gpu(tree: Tree, device: Resource) -> bool:
    """By its type, its name, or what its functions do."""
    if text(device.get("DeviceType")) == "GPU" or _named_gpu(device):
        return True
    if re.fullmatch(r"(?i)GPU[ _-]?(SXM[ _-]?)?[0-9]+", text(device.get("Id")) or ""):
        return True
    if any("GPU" in kind(part) or ".GPU" in str(part.get("@odata.type")) for part in _objects(inner(device, "Oem"))):
        return True
    return any(
        text(function.get("DeviceClass")) in ("DisplayController", "ProcessingAccelerators")
        and str(function.get("VendorId")).lower() in vendors.gpu_vendor_ids()
        for function in tree.members(device.get("PCIeFunctions"))
    )


def _objects(resource: Resource) -> Iterator[Resource]:
    for value in resource.values():
        if isinstance(value, dict):
            yield value


def _links_named(resource: Resource, name: str, depth: int = 4) -> Iterator[object]:
    """Links of that name, wherever in a resource."""
    for key, value in resource.items():
        if key == name and link(value):
            yield value
        elif isinstance(value, dict) and depth:
            yield from _links_named(value, name, depth - 1)


def _labels(device: Resource) -> list[str]:
    return [label for key in ("Model", "Name", "Description", "Location") if (label := text(device.get(key)))]


def _other(device: Resource) -> bool:
    return (
        absent(device)
        or any(vendors.pattern("not_a_gpu").search(label) for label in _labels(device)[:2])
        or bool(re.search("(?i)baseboard", text(device.get("Location")) or ""))
    )


def _named_gpu(device: Resource) -> bool:
    return any(vendors.pattern("gpu").search(label) for label in _labels(device)[:2])


def _distinct(candidates: Iterable[Resource]) -> list[Resource]:
    """Without those that are the same device again, seen from another system or chassis.

    A device is told by its UUID; without one by its serial number and which of that number it is in its collection: a
    collection has a device once, and two GPUs of one board share a number (GB200, GB300)."""
    known: dict[object, Resource] = {}
    addresses: set[str] = set()
    counted: Counter[tuple[str, str]] = Counter()
    for number, device in enumerate(candidates):
        uri = link(device)
        if uri and uri in addresses:
            continue
        addresses.add(uri)
        uuid, serial = text(device.get("UUID")), text(device.get("SerialNumber"))
        position = (uri.rpartition("/")[0], serial or "")
        known.setdefault(uuid.casefold() if uuid else (serial, counted[position]) if serial else number, device)
        counted[position] += 1
    return list(known.values())


def _devices(tree: Tree, resources: Iterable[Resource]) -> tuple[Device, ...]:
    return tuple(_device(tree, resource) for resource in resources)


def _device(tree: Tree, resource: Resource) -> Device:
    related = tree.get(inner(resource, "Links").get("PCIeDevice"))
    return Device(
        id=text(resource.get("Id")) or link(resource).rpartition("/")[2],
        model=_model(resource, related),
        serial=text(resource.get("SerialNumber")) or text(related.get("SerialNumber")),
        firmware=firmware_version(resource),
        health=health(resource) or health(related),
        uri=link(resource),
    )


def _model(*resources: Resource) -> str | None:
    """What people call it: a product's name before a part number; None where only the place is named."""
    names = [name for resource in resources for key in ("Model", "Name") if (name := text(resource.get(key)))]
    products = [name for name in names if vendors.pattern("gpu").search(name)]
    if products:
        return products[0]
    models = [name for resource in resources if (name := text(resource.get("Model")))]
    return next((name for name in models if not re.match(r"[0-9]{3}-", name)), None)


def firmware_version(resource: Resource) -> str | None:
    """As text, also where HPE gives an object."""
    version = resource.get("FirmwareVersion")
    if isinstance(version, dict):
        version = inner(version, "Current").get("VersionString")
    return text(version)


@dataclass(frozen=True, slots=True)
class Nic:
    """A network card or port. `mac`: lower case with colons; empty where none is shown."""

    id: str
    model: str | None = None
    mac: str = ""
    health: str | None = None


def nics(tree: Tree, host: Resource, chassis: Iterable[Resource]) -> tuple[Nic, ...]:
    """Ports of the host, and cards of its chassis; MAC addresses that only boot options name, too."""
    nics_by_name: dict[str, Nic] = {}
    for port in tree.members(host.get("EthernetInterfaces")):
        address = _mac(text(port.get("PermanentMACAddress")) or text(port.get("MACAddress")) or "")
        name = text(port.get("Id")) or link(port)
        nics_by_name[address or name] = Nic(name, text(port.get("Name")), address, health(port))
    for option in tree.members(inner(host, "Boot").get("BootOptions")):
        for mac_text in re.findall(r"MAC\(([0-9A-Fa-f]{12})[,)]", text(option.get("UefiDevicePath")) or ""):
            nics_by_name.setdefault(
                _mac(mac_text), Nic(text(option.get("Alias")) or "boot option", None, _mac(mac_text))
            )
    for chassis_resource in chassis:
        for card in tree.members(chassis_resource.get("NetworkAdapters")):
            name = text(card.get("Id")) or link(card)
            nics_by_name.setdefault(
                link(card), Nic(name, text(card.get("Model")) or text(card.get("Name")), "", health(card))
            )
    return tuple(nics_by_name.values())


def _mac(address_text: str) -> str:
    digits = re.sub(r"[^0-9a-f]", "", address_text.lower())
    return ":".join(re.findall("..", digits)) if len(digits) == 12 and digits.strip("0") else ""
