"""How a machine is made to boot something else, once: boot override, virtual media, power."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from provisioner.machines.redfish.tree import MISSING, Resource, Tree, inner, link, rows, text, texts
from provisioner.machines.redfish.vendors import Vendor

OWN = "virtual CD"
"""Boot target of a vendor whose own attributes choose the virtual drive."""


@dataclass(frozen=True, slots=True)
class Boot:
    """The boot override. `uri`: the resource that takes a change: the system's, or its settings object where the system
    shows no allowable values; `targets`, `enables`, `modes`: allowable values, None where the BMC does not list them.
    `cd`: the target that boots virtual media, None where it can't be told, and `why`. `attributes`: the vendor's own
    attributes that are written in place of the override, "" where the standard's is used."""

    uri: str = ""
    enabled: str | None = None
    target: str | None = None
    mode: str | None = None
    targets: tuple[str, ...] | None = None
    enables: tuple[str, ...] | None = None
    modes: tuple[str, ...] | None = None
    cd: str | None = None
    why: str = ""
    attributes: str = ""
    order: tuple[str, ...] = ()
    secure: bool | None = None
    """Whether UEFI Secure Boot takes effect at the next boot; None where the BMC does not say."""

    @property
    def overridden(self) -> bool:
        """Whether the next boot goes elsewhere. Both fields count: some keep Once with target None, others a target
        while Disabled."""
        return self.enabled not in (None, "Disabled") and self.target not in (None, "None")


@dataclass(frozen=True, slots=True)
class Slot:
    """A virtual drive. `insert`, `eject`: addresses of its actions; without `insert` and with `patch` it is changed by
    PATCH. `free`: nothing is connected, None where it is not said."""

    uri: str
    id: str
    cd: bool
    insert: str
    eject: str
    patch: bool
    free: bool | None
    image: str
    usable: bool
    protocols: tuple[str, ...] | None = None
    methods: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Media:
    """Virtual media. `why`: why no image can be attached by URL, where none can. `enable`: the action that turns the
    slots on (AMI); `collection`: where they are listed."""

    slots: tuple[Slot, ...] = ()
    why: str = ""
    enable: str = ""
    collection: str = ""

    def choose(self, image: str = "") -> Slot | None:
        """The slot to be used: the one that has this image already, else the first that can be a CD, takes a URL and is
        free."""
        fit = sorted((slot for slot in self.slots if slot.usable), key=lambda slot: (len(slot.id), slot.id))
        holding = [slot for slot in fit if image and slot.free is False and slot.image == image]
        return next(iter(holding or [slot for slot in fit if slot.free is not False]), None)


def boot(tree: Tree, host: Resource, managers: Iterable[Resource], vendor: Vendor) -> Boot:
    host_boot, uri = inner(host, "Boot"), link(host)
    settings = tree.get(inner(host, "@Redfish.Settings").get("SettingsObject"))
    settings_boot = inner(settings, "Boot")
    writable = settings_boot if "BootSourceOverrideTarget" in settings_boot else host_boot
    if writable is settings_boot:
        uri = link(settings)

    def allowed(name: str) -> tuple[str, ...] | None:
        key = f"{name}@Redfish.AllowableValues"
        return texts(host_boot.get(key)) or texts(settings_boot.get(key))

    targets = allowed("BootSourceOverrideTarget")
    managers = list(managers)
    at, values = own_attributes(tree, managers, vendor.once)
    set_by_them = bool(at) and all(values.get(name) == value for name, value in vendor.once.items())
    listed = next((target for target in vendor.cd if targets and target in targets), None)
    reason = "" if at or listed is None else _unread(tree, managers, vendor) or _physical(managers, vendor)
    return Boot(
        uri=uri,
        enabled="Once" if set_by_them else text(host_boot.get("BootSourceOverrideEnabled")),
        target=OWN if set_by_them else _target_text(host_boot.get("BootSourceOverrideTarget")),
        mode=text(host_boot.get("BootSourceOverrideMode")),
        targets=targets,
        enables=allowed("BootSourceOverrideEnabled"),
        modes=allowed("BootSourceOverrideMode"),
        cd=OWN if at else None if reason else listed,
        why=reason,
        attributes=at,
        order=texts(host_boot.get("BootOrder")) or (),
        secure=_secure(tree.get(host.get("SecureBoot"))),
    )


def own_attributes(tree: Tree, managers: Iterable[Resource], names: Iterable[str]) -> tuple[str, Mapping[str, object]]:
    """The vendor's attributes with all of these names: where they are and what they say; "" where there are none. Newer
    firmware links to them, older has them below the manager (Lenovo/pyghmi redfish/oem/dell)."""
    names = list(names)
    for manager in managers if names else ():
        linked = rows(inner(manager, "Links", "Oem", "Dell").get("DellAttributes"))
        for uri in (*map(link, linked), f"{link(manager)}/Attributes"):
            values = inner(tree.get(uri), "Attributes") if uri.startswith("/redfish/") else {}
            if all(name in values for name in names):
                return uri, values
    return "", {}


def _unread(tree: Tree, managers: Iterable[Resource], vendor: Vendor) -> str:
    """Why it is not known whether the BMC has the vendor's own attributes; "" where it is."""
    for manager in managers if vendor.once else ():
        for uri in map(link, rows(inner(manager, "Links", "Oem", "Dell").get("DellAttributes"))):
            if (reason := tree.unread.get(uri, MISSING)) != MISSING:
                return f"its own attributes ({uri}) cannot be read: {reason}"
    return ""


def _physical(managers: Iterable[Resource], vendor: Vendor) -> str:
    """Why the standard's target would start a physical drive on this BMC; "" where it is the virtual one."""
    if not vendor.cd_since:
        return ""
    model, version = next(
        ((text(manager.get("Model")), text(manager.get("FirmwareVersion"))) for manager in managers), (None, None)
    )
    since = next((first for known, first in vendor.cd_since.items() if re.fullmatch(known, model or "")), None)
    needed = f"it needs firmware {since} or newer" if since else "no firmware of it is known to"
    if since and _numbers(version or "") >= _numbers(since):
        return ""
    bmc = f"{model or 'unknown model'}, firmware {version or 'unknown'}"
    return f"its BMC ({bmc}) can't start the virtual drive once: {needed}"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(digits) for digits in re.findall(r"\d+", version))


def _secure(resource: Resource) -> bool | None:
    """Resource SecureBoot (DSP2046): without a platform key (SetupMode) nothing is enforced, whatever is asked for."""
    enabled = resource.get("SecureBootEnable")
    return enabled and resource.get("SecureBootMode") != "SetupMode" if isinstance(enabled, bool) else None


def _target_text(value: object) -> str | None:
    """As `text`, but that "None" is a value."""
    return value.strip() or None if isinstance(value, str) else None


def media(tree: Tree, host: Resource, managers: Iterable[Resource], vendor: Vendor) -> Media:
    """The virtual drives: the system's where it has any, else its managers'; both are the same drives."""
    managers = list(managers)
    collections = [link(owner.get("VirtualMedia")) for owner in (host, *managers) if link(owner.get("VirtualMedia"))]
    for collection in collections:
        slots = tuple(_slot(resource, vendor) for resource in tree.members(collection))
        if slots:
            usable = any(slot.usable for slot in slots)
            return Media(slots, "" if usable else "no virtual drive takes a CD image by URL", "", collection)
    enable = next(filter(None, (_action(manager, "EnableRMedia") for manager in managers)), "")
    collection = next(iter(collections), "")
    if enable:
        return Media((), "media redirection is off", enable, collection)
    shared = any("VirtualMediaConfig" in inner(tree.get(uri), "Oem", "Supermicro") for uri in collections)
    if shared:
        return Media((), "its virtual media takes Windows shares only (IsoConfig.Mount), no URL", "", collection)
    return Media((), "the BMC shows no virtual media", "", collection)


def _action(resource: Resource, name: str) -> str:
    """The address of an action, the vendor's own included."""
    actions = inner(resource, "Actions")
    for action_group in (actions, inner(actions, "Oem")):
        for key, action in action_group.items():
            if key.rpartition(".")[2] == name and isinstance(action, Mapping) and isinstance(action.get("target"), str):
                return str(action["target"])
    return ""


def _slot(resource: Resource, vendor: Vendor) -> Slot:
    kinds = texts(resource.get("MediaTypes"))
    inserted, connected = resource.get("Inserted"), text(resource.get("ConnectedVia"))
    free = _free(connected, inserted, text(resource.get("Image")))
    insert, eject = _action(resource, "InsertMedia"), _action(resource, "EjectMedia")
    patch = not insert and not eject and "Actions" not in resource
    name = text(resource.get("Id")) or link(resource).rpartition("/")[2]
    cd = kinds is None or bool({"CD", "DVD"} & set(kinds))
    fits = not vendor.media_slot or bool(re.fullmatch(vendor.media_slot, name))
    offered = inner(resource, "Actions", "#VirtualMedia.InsertMedia")
    return Slot(
        uri=link(resource),
        id=name,
        cd=cd,
        insert=insert,
        eject=eject,
        patch=patch,
        free=free,
        image=text(resource.get("Image")) or "",
        usable=cd and fits and bool(insert or patch),
        protocols=texts(offered.get("TransferProtocolType@Redfish.AllowableValues")),
        methods=texts(offered.get("TransferMethod@Redfish.AllowableValues")),
    )


def _free(connected: str | None, inserted: object, image: str | None) -> bool | None:
    """Supermicro keeps Image after an eject, sushy-tools' emulator ConnectedVia: nothing is there where either says so
    and the other fields do not speak against it."""
    if connected == "NotConnected" or (inserted is False and image is None):
        return True
    if connected is not None or inserted is True:
        return False
    return None if inserted is None else True


def resets(tree: Tree, host: Resource) -> tuple[str, ...] | None:
    """The kinds of reset that the system takes: of the action itself, or its ActionInfo; None where it lists none."""
    action = inner(host, "Actions", "#ComputerSystem.Reset")
    if inline := texts(action.get("ResetType@Redfish.AllowableValues")):
        return inline
    for parameter in rows(tree.get(link(action.get("@Redfish.ActionInfo"))).get("Parameters")):
        if parameter.get("Name") == "ResetType":
            return texts(parameter.get("AllowableValues"))
    return None
