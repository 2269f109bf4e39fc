"""What a machine is, as its BMC has it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from provisioner.machines.redfish import boot as booting
from provisioner.machines.redfish import devices, logs, sensors, vendors
from provisioner.machines.redfish.errors import BmcError
from provisioner.machines.redfish.tree import ROOT, Health, Resource, Tree, inner, kind, link, number, rows, text


@dataclass(frozen=True, slots=True)
class Firmware:
    """A part and the version on it; None where the BMC has the part and no version of it."""

    name: str
    version: str | None


@dataclass(frozen=True, slots=True)
class Licences:
    """`media`: whether they allow virtual media by URL; None where no licence was shown, or none is known to be
    needed."""

    names: tuple[str, ...] = ()
    media: bool | None = None
    needed: str = ""


@dataclass(frozen=True, slots=True)
class Identity:
    """What tells a machine from every other one. None of the fields is always there."""

    serial: str | None = None
    uuid: str | None = None
    tag: str | None = None
    """Service tag or SKU: Dell's is on the machine's front, others' names the product."""
    chassis: str | None = None
    """Serial number of the chassis that it is in."""

    @property
    def best(self) -> str | None:
        """What a person confirms: the serial number, else that of its chassis, else the UUID."""
        return self.serial or self.chassis or self.uuid

    def is_called(self, name: str) -> bool:
        """Whether a person may mean this machine by that serial number."""
        folded_name = name.strip().casefold()
        return bool(folded_name) and folded_name in {
            serial.casefold() for serial in (self.serial, self.chassis, self.uuid) if serial
        }


@dataclass(frozen=True, slots=True)
class Host:
    """The system that boots, of those that a BMC shows, and what belongs to it."""

    system: Resource
    systems: tuple[Resource, ...]
    managers: tuple[Resource, ...]
    """Its own first."""
    chassis: tuple[Resource, ...]
    """Those that it is linked to; all, where it is linked to none."""
    vendor: vendors.Vendor

    @property
    def uri(self) -> str:
        return link(self.system)


@dataclass(frozen=True, slots=True)
class Inventory:
    """One machine. A field is None, or its `known` or `complete` False, where the BMC does not say: never a guess."""

    vendor: str
    system: str
    systems: tuple[str, ...]
    model: str | None
    manufacturer: str | None
    identity: Identity
    power: str | None
    health: Health | None
    state: str | None
    progress: str | None
    """BootProgress.LastState: OSRunning …"""
    cpus: int | None
    memory_gib: float | None
    bios: str | None
    bmc: str | None
    """The BMC's own firmware version."""
    redfish: str | None
    gpus: devices.Gpus
    nics: tuple[devices.Nic, ...]
    fans: sensors.Parts
    supplies: sensors.Parts
    temperatures: sensors.Parts
    leaks: sensors.Parts
    drawn: sensors.Power
    firmware: tuple[Firmware, ...] | None
    boot: booting.Boot
    media: booting.Media
    resets: tuple[str, ...] | None
    licences: Licences
    conditions: logs.Conditions
    session_s: int | None
    """Seconds until a session ends that nobody uses."""

    @property
    def running(self) -> bool:
        return self.power == "On"


def find_host(tree: Tree) -> Host:
    """The system that boots. Raises BmcError where there is none, or it can't be told from another one."""
    systems = list(tree.members(tree.root.get("Systems") or f"{ROOT}/Systems"))
    chosen = _host(systems)
    if chosen is None:
        names = ", ".join(text(system.get("Id")) or "?" for system in systems)
        message = f"cannot tell which of the systems {names} boots the machine" if names else "shows no computer system"
        raise BmcError(
            message, kind="no-system",
            hint="look at /redfish/v1/Systems; a BMC that has just started may need some minutes until they are listed",
        )  # fmt: skip
    links = inner(chosen, "Links")
    managed = [resource for row in rows(links.get("ManagedBy")) if (resource := tree.get(row))]
    everyone = list(tree.members(tree.root.get("Managers") or f"{ROOT}/Managers"))
    managers = tuple(
        {link(manager) or str(number): manager for number, manager in enumerate([*managed, *everyone])}.values()
    )
    host_chassis = tuple(resource for row in rows(links.get("Chassis")) if (resource := tree.get(row)))
    chassis = host_chassis or all_chassis(tree)
    return Host(chosen, tuple(systems), managers, chassis, vendors.detect(tree.root, chosen))


def _host(systems: list[Resource]) -> Resource | None:
    """Of several, the one that can be reset and has a boot override; a DPU and a GPU baseboard are systems, too."""
    fit = [system for system in systems if text(system.get("SystemType")) in (None, "Physical")] or systems
    if len(fit) == 1:
        return fit[0]
    for rule in (_resets, _boots, _not_a_board):
        narrowed = [system for system in fit if rule(system)]
        if len(narrowed) == 1:
            return narrowed[0]
        fit = narrowed or fit
    return None


def _resets(system: Resource) -> bool:
    return "#ComputerSystem.Reset" in inner(system, "Actions")


def _boots(system: Resource) -> bool:
    return bool(inner(system, "Boot"))


def _not_a_board(system: Resource) -> bool:
    label = f"{text(system.get('Id')) or ''} {text(system.get('Name')) or ''}"
    return not re.search(r"(?i)HGX|baseboard|bluefield|\bDPU", label)


def all_chassis(tree: Tree) -> tuple[Resource, ...]:
    """A DGX H100 has 47, a request each: asked for only where a machine's own do not show what is looked for."""
    return tuple(tree.members(tree.root.get("Chassis") or f"{ROOT}/Chassis"))


def _parts(tree: Tree, host: Host, look: Callable[[Tree, Iterable[Resource]], sensors.Parts]) -> sensors.Parts:
    host_parts = look(tree, host.chassis)
    parts = host_parts if host_parts.known else look(tree, all_chassis(tree))
    # an empty list of a chassis that should have them is no answer
    return parts if parts.read or _served(host) else replace(parts, known=False)


_SERVED = frozenset({"Blade", "Card", "Cartridge", "Component", "Drawer", "Module", "Sled"})
"""Chassis types (DSP0268, Chassis ChassisType) that air and power come to from around them."""


def _served(host: Host) -> bool:
    """Whether the machine sits in an enclosure that has its fans and power supplies."""
    kinds = {text(resource.get("ChassisType")) for resource in host.chassis}
    return bool(kinds) and kinds <= _SERVED


def read(tree: Tree) -> Inventory:
    """Everything. Raises BmcError where the service can't be asked, or has no machine."""
    host = find_host(tree)
    system = host.system
    installed = firmware(tree)
    return Inventory(
        vendor=host.vendor.name,
        system=text(system.get("Id")) or host.uri.rpartition("/")[2],
        systems=tuple(text(resource.get("Id")) or link(resource).rpartition("/")[2] for resource in host.systems),
        model=text(system.get("Model")),
        manufacturer=text(system.get("Manufacturer")),
        identity=identity(host),
        power=text(system.get("PowerState")),
        health=devices.health(system),
        state=devices.state(system),
        progress=_progress(system),
        cpus=devices.cpus(tree, host.systems, system),
        memory_gib=number(inner(system, "MemorySummary").get("TotalSystemMemoryGiB")) or None,
        bios=text(system.get("BiosVersion")) or _bios(installed),
        bmc=next(
            (devices.firmware_version(manager) for manager in host.managers if devices.firmware_version(manager)), None
        ),
        redfish=text(tree.root.get("RedfishVersion")),
        gpus=_complete_if_on(
            devices.gpus(tree, host.systems, lambda: all_chassis(tree)), text(system.get("PowerState"))
        ),
        nics=devices.nics(tree, system, host.chassis),
        fans=_parts(tree, host, sensors.fans),
        supplies=_parts(tree, host, sensors.supplies),
        temperatures=_parts(tree, host, sensors.temperatures),
        leaks=sensors.leaks(tree, host.chassis),
        drawn=sensors.power(tree, host.chassis),
        firmware=installed,
        boot=booting.boot(tree, system, host.managers, host.vendor),
        media=booting.media(tree, system, host.managers, host.vendor),
        resets=booting.resets(tree, system),
        licences=licences(tree, host),
        conditions=logs.conditions(tree, host.systems, host.chassis),
        session_s=_seconds(tree.get(tree.root.get("SessionService")).get("SessionTimeout")),
    )


def _complete_if_on(gpus: devices.Gpus, power: str | None) -> devices.Gpus:
    """A machine that is off may show none of its devices."""
    return gpus if power == "On" else replace(gpus, complete=False)


def identity(host: Host) -> Identity:
    system = host.system
    uuid = text(system.get("UUID"))
    digits = re.sub(r"[^0-9a-f]", "", (uuid or "").lower())
    return Identity(
        serial=text(system.get("SerialNumber")),
        uuid=uuid if len(set(digits)) > 2 else None,
        tag=text(system.get("SKU")),
        chassis=next((serial for resource in host.chassis[:1] if (serial := text(resource.get("SerialNumber")))), None),
    )


def _progress(system: Resource) -> str | None:
    state = inner(system, "BootProgress").get("LastState")
    return state if isinstance(state, str) else None


def _seconds(value: object) -> int | None:
    seconds = number(value)
    return int(seconds) if seconds else None


def firmware(tree: Tree) -> tuple[Firmware, ...] | None:
    """What is installed now; None where the BMC lists nothing. Dell lists a part twice, and what it had before."""
    service = tree.get(tree.root.get("UpdateService"))
    members = tree.members(service.get("FirmwareInventory"))
    if not members.read:
        return None
    known: dict[tuple[str, str | None], Firmware] = {}
    for member in members:
        name, version = text(member.get("Id")) or "", text(member.get("Version"))
        if name.startswith("Previous-") or re.fullmatch(r"-?\*?", version or "x"):
            continue
        label = text(member.get("Name"))
        called = (
            label if label and label.lower() != "software inventory" and not re.fullmatch(r"[0-9]+", label) else name
        )
        known.setdefault((called, version), Firmware(called, version))
    return tuple(known.values())


def _bios(installed: tuple[Firmware, ...] | None) -> str | None:
    """Where the system leaves it out (GB300), as the firmware inventory has it; None where that is not one version."""
    versions = {
        part.version for part in installed or () if re.fullmatch(r"(?i)(host)?bios(_[0-9]+)?|system rom", part.name)
    }
    return next(iter(versions)) if len(versions) == 1 else None


def licences(tree: Tree, host: Host) -> Licences:
    """What the BMC is licensed for; keys are not read."""
    names = list(dict.fromkeys(name for resource in (tree.root, *host.managers) for name in _licences(tree, resource)))
    pattern = host.vendor.licence
    media = any(re.search(pattern, name) for name in names) if pattern and names else None
    return Licences(tuple(name for name in names if not name.startswith("feature ")), media, host.vendor.licence_name)


def _licences(tree: Tree, resource: Resource) -> Iterator[str]:
    for uri in dict.fromkeys(_called_licence(resource)):
        first = tree.get(uri)
        resources = [first, *tree.members(uri)]
        for deeper in dict.fromkeys(_called_licence(first)):
            resources += [tree.get(deeper), *tree.members(deeper)]
        for licence in resources:
            for key in ("License", "LicenseDescription", "LicenseName"):
                value = licence.get(key)
                yield from (name for each in (value if isinstance(value, list) else [value]) if (name := text(each)))
            if kind(licence) == "License" and (name := text(licence.get("Id"))):
                yield name
            features = inner(licence, "LicenseFeatures")
            yield from (f"feature {name}" for name, on in features.items() if on is True)
            for packed in licence.get("Licenses") or () if isinstance(licence.get("Licenses"), list) else ():
                if isinstance(packed, str):
                    yield from re.findall(r'"LicenseName"\s*:\s*"([^"]+)"', packed)


def _called_licence(value: object, depth: int = 5) -> Iterator[str]:
    """Links that are called a licence, wherever in a resource."""
    if not isinstance(value, dict) or not depth:
        return
    for key, child in value.items():
        if re.search(r"(?i)licen[sc]es?(service|manager|collection)?$|^QueryLicense$|^FoD$|^Keys$", key) and link(
            child
        ):
            yield link(child)
        else:
            yield from _called_licence(child, depth - 1)
