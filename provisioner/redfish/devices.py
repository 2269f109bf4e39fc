"""Processors, GPUs and network cards, found in whichever place a vendor shows them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from provisioner.redfish import vendors
from provisioner.redfish.tree import Resource, Tree, inner, kind, link, rows, text


@dataclass(frozen=True, slots=True)
class Device:
    """One device as a BMC sees it. `health`: OK, Warning, Critical, or None where the BMC does not say."""

    id: str
    model: str | None = None
    serial: str | None = None
    firmware: str | None = None
    health: str | None = None
    uri: str = ""


@dataclass(frozen=True, slots=True)
class Gpus:
    """GPUs that the BMC sees. `where`: the kind of place they were found in; `complete`: that place could be read
    whole; without it there may be more than `read`."""

    read: tuple[Device, ...] = ()
    where: str = ""
    complete: bool = False


def health(resource: Resource) -> str | None:
    """OK, Warning or Critical of a Status, the worse of its own and its parts'; None where it says neither."""
    status = inner(resource, "Status")
    said = [text(status.get(key)) for key in ("Health", "HealthRollup")]
    known = [one.capitalize() if one != "OK" else one for one in said if one]
    return max(known, key=_WORSE.index) if known and all(one in _WORSE for one in known) else None


_WORSE = ("OK", "Warning", "Critical")


def state(resource: Resource) -> str | None:
    return text(inner(resource, "Status").get("State"))


def absent(resource: Resource) -> bool:
    """An empty bay or socket, which some vendors list with a health of its own."""
    return state(resource) == "Absent"


def cpus(tree: Tree, systems: Iterable[Resource], host: Resource) -> int | None:
    """Sockets with a CPU, of the host or, where another system shows them, of that."""
    for system in (host, *systems):
        found = [one for one in tree.members(system.get("Processors")) if text(one.get("ProcessorType")) == "CPU"]
        if found:
            return sum(not absent(one) for one in found)
    said = inner(host, "ProcessorSummary").get("Count")
    return said if isinstance(said, int) and said > 0 else None


def gpus(tree: Tree, systems: Iterable[Resource], all_chassis: Callable[[], Iterable[Resource]]) -> Gpus:
    """The machine's GPUs, in the first of the places where there are any: processors of its systems; the devices of
    HPE's chassis; PCIe devices. Devices that are read are counted, never the number that a collection says."""
    systems = list(systems)
    processors = [one.get("Processors") for one in systems]
    if found := _told_apart(_processors(tree, systems)):
        return Gpus(_devices(tree, found), "processors", _complete(tree, processors))
    chassis = list(all_chassis())
    listed = [place for one in chassis for place in _named(one, "Devices")]
    if found := _told_apart(_hpe(tree, listed)):
        return Gpus(_devices(tree, found), "devices", _complete(tree, listed))
    places = [one.get("PCIeDevices") for one in chassis]
    found = _told_apart(_pcie(tree, systems, chassis))
    if found:
        return Gpus(_devices(tree, found), "PCIe devices", _complete(tree, places))
    return Gpus(complete=_complete(tree, [*processors, *listed, *places]))


def _complete(tree: Tree, places: Iterable[object]) -> bool:
    """Whether there are such collections, and all could be read whole."""
    linked = [place for place in places if link(place)]
    return bool(linked) and all(tree.members(place).complete for place in linked)


def _processors(tree: Tree, systems: list[Resource]) -> Iterator[Resource]:
    for system in systems:
        for one in tree.members(system.get("Processors")):
            sort = text(one.get("ProcessorType"))
            if (sort == "GPU" and not _other(one)) or (sort == "Accelerator" and _named_gpu(one)):
                yield one


def _hpe(tree: Tree, listed: Iterable[object]) -> Iterator[Resource]:
    for place in listed:
        for device in tree.members(place):
            if text(device.get("DeviceType")) == "GPU" and not _other(device):
                yield device


def _pcie(tree: Tree, systems: list[Resource], chassis: list[Resource]) -> Iterator[Resource]:
    shown = [one for place in chassis for one in tree.members(place.get("PCIeDevices"))]
    for system in systems:
        listed = system.get("PCIeDevices")
        shown += [tree.get(one) for one in rows(listed)] if isinstance(listed, list) else list(tree.members(listed))
    for device in shown:
        if device and not _other(device) and _is_gpu(tree, device):
            yield device


def _is_gpu(tree: Tree, device: Resource) -> bool:
    """By its type, its name, or what its functions do."""
    if text(device.get("DeviceType")) == "GPU" or _named_gpu(device):
        return True
    if re.fullmatch(r"(?i)GPU[ _-]?(SXM[ _-]?)?[0-9]+", text(device.get("Id")) or ""):
        return True
    if any("GPU" in kind(one) or ".GPU" in str(one.get("@odata.type")) for one in _objects(inner(device, "Oem"))):
        return True
    return any(
        text(one.get("DeviceClass")) in ("DisplayController", "ProcessingAccelerators")
        and str(one.get("VendorId")).lower() in vendors.gpu_vendor_ids()
        for one in tree.members(device.get("PCIeFunctions"))
    )


def _objects(resource: Resource) -> Iterator[Resource]:
    for one in resource.values():
        if isinstance(one, dict):
            yield one


def _named(resource: Resource, name: str, depth: int = 4) -> Iterator[object]:
    """Links of that name, wherever in a resource."""
    for key, one in resource.items():
        if key == name and link(one):
            yield one
        elif isinstance(one, dict) and depth:
            yield from _named(one, name, depth - 1)


def _words(device: Resource) -> list[str]:
    return [found for key in ("Model", "Name", "Description", "Location") if (found := text(device.get(key)))]


def _other(device: Resource) -> bool:
    return (
        absent(device)
        or any(vendors.pattern("not_a_gpu").search(one) for one in _words(device)[:2])
        or bool(re.search("(?i)baseboard", text(device.get("Location")) or ""))
    )


def _named_gpu(device: Resource) -> bool:
    return any(vendors.pattern("gpu").search(one) for one in _words(device)[:2])


def _told_apart(found: Iterable[Resource]) -> list[Resource]:
    """Without those that are the same device again, seen from another system or chassis.

    A device is told by its UUID; without one by its serial number and which of that number it is in its collection: a
    collection has a device once, and two GPUs of one board share a number (GB200, GB300)."""
    known: dict[object, Resource] = {}
    addresses: set[str] = set()
    counted: Counter[tuple[str, str]] = Counter()
    for number, one in enumerate(found):
        uri = link(one)
        if uri and uri in addresses:
            continue
        addresses.add(uri)
        uuid, serial = text(one.get("UUID")), text(one.get("SerialNumber"))
        place = (uri.rpartition("/")[0], serial or "")
        known.setdefault(uuid.casefold() if uuid else (serial, counted[place]) if serial else number, one)
        counted[place] += 1
    return list(known.values())


def _devices(tree: Tree, found: Iterable[Resource]) -> tuple[Device, ...]:
    return tuple(_device(tree, one) for one in found)


def _device(tree: Tree, one: Resource) -> Device:
    related = tree.get(inner(one, "Links").get("PCIeDevice"))
    return Device(
        id=text(one.get("Id")) or link(one).rpartition("/")[2],
        model=_model(one, related),
        serial=text(one.get("SerialNumber")) or text(related.get("SerialNumber")),
        firmware=firmware_version(one),
        health=health(one) or health(related),
        uri=link(one),
    )


def _model(*seen: Resource) -> str | None:
    """What people call it: a product's name before a part number; None where only the place is named."""
    said = [name for one in seen for key in ("Model", "Name") if (name := text(one.get(key)))]
    products = [name for name in said if vendors.pattern("gpu").search(name)]
    if products:
        return products[0]
    models = [name for one in seen if (name := text(one.get("Model")))]
    return next((name for name in models if not re.match(r"[0-9]{3}-", name)), None)


def firmware_version(resource: Resource) -> str | None:
    """As text, also where HPE gives an object."""
    said = resource.get("FirmwareVersion")
    if isinstance(said, dict):
        said = inner(said, "Current").get("VersionString")
    return text(said)


@dataclass(frozen=True, slots=True)
class Nic:
    """A network card or port. `mac`: lower case with colons; empty where none is shown."""

    id: str
    model: str | None = None
    mac: str = ""
    health: str | None = None


def nics(tree: Tree, host: Resource, chassis: Iterable[Resource]) -> tuple[Nic, ...]:
    """Ports of the host, and cards of its chassis; MAC addresses that only boot options name, too."""
    found: dict[str, Nic] = {}
    for port in tree.members(host.get("EthernetInterfaces")):
        address = _mac(text(port.get("PermanentMACAddress")) or text(port.get("MACAddress")) or "")
        name = text(port.get("Id")) or link(port)
        found[address or name] = Nic(name, text(port.get("Name")), address, health(port))
    for option in tree.members(inner(host, "Boot").get("BootOptions")):
        for seen in re.findall(r"MAC\(([0-9A-Fa-f]{12})[,)]", text(option.get("UefiDevicePath")) or ""):
            found.setdefault(_mac(seen), Nic(text(option.get("Alias")) or "boot option", None, _mac(seen)))
    for one in chassis:
        for card in tree.members(one.get("NetworkAdapters")):
            name = text(card.get("Id")) or link(card)
            found.setdefault(link(card), Nic(name, text(card.get("Model")) or text(card.get("Name")), "", health(card)))
    return tuple(found.values())


def _mac(said: str) -> str:
    digits = re.sub(r"[^0-9a-f]", "", said.lower())
    return ":".join(re.findall("..", digits)) if len(digits) == 12 and digits.strip("0") else ""
