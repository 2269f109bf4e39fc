"""One machine behind its BMC: what may be changed, and only after it has proven to be the machine that is meant."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from provisioner.machines.redfish import boot as booting
from provisioner.machines.redfish import inventory
from provisioner.machines.redfish.client import Bmc
from provisioner.machines.redfish.errors import BmcError
from provisioner.machines.redfish.inventory import Host
from provisioner.machines.redfish.tree import Tree, inner, text

POLL_S = 2.0
POWER_S = 120.0
"""Seconds that a machine may take to be off or on after it was told."""
MEDIA_S = 90.0
"""Seconds that an image may take until the BMC says that it is attached; accepting the request proves nothing."""
HOST_MEDIA_S = 240.0
"""Seconds that an attached image may take to the host; about 60 were seen (vendors.yaml, Dell)."""
_OFFERED = ("TransferProtocolType", "TransferMethod", "UserName", "Password", "MediaType", "Inserted", "WriteProtected")


@dataclass(slots=True)
class Controlled:
    """A machine whose power, boot and media may be changed. `serial`: the serial number that it must have; every change
    reads it again first. `pause`: sleeps in place of the connection's own way, which `stop` ends."""

    bmc: Bmc
    serial: str
    pause: Callable[[float], object] | None = None
    _tree: Tree = field(init=False)

    def __post_init__(self) -> None:
        if not self.serial.strip():
            raise BmcError(
                "has no serial number to be known by", where=self.bmc.machine, kind="identity",
                hint="give `serial` for this host in cluster.yaml; `gpuprov bmc FILE status` shows what the BMC says",
            )  # fmt: skip
        self._tree = self.bmc.tree()

    def confirm(self) -> Host:
        """The machine as it is now. Raises BmcError where it is another one than is meant: nothing was changed."""
        host = self._host()
        identity = inventory.identity(host)
        if not identity.is_called(self.serial):
            raise BmcError(
                f"its BMC is that of the machine {identity.best or 'without a serial number'}, not of {self.serial}. "
                "Nothing was changed",
                where=self.bmc.machine, kind="identity",
                hint="check `bmc` and `serial` of this host in cluster.yaml, and the cabling of the BMC network",
            )  # fmt: skip
        return host

    def power(self) -> str | None:
        """On, Off, PoweringOn …; None where the BMC does not say."""
        return text(self._host().system.get("PowerState"))

    def reset(self, *kinds: str) -> None:
        """The first of these kinds of reset that the machine has. Raises BmcError where it has none."""
        host = self.confirm()
        action = inner(host.system, "Actions", "#ComputerSystem.Reset").get("target")
        offered = booting.resets(self._tree, host.system)
        kind = next((name for name in kinds if offered is None or name in offered), None)
        if kind is None or not isinstance(action, str):
            raise BmcError(
                f"its BMC does not support {' or '.join(kinds)}", where=self.bmc.machine, kind="unsupported",
                hint=f"it offers {', '.join(offered or ()) or 'no reset'}",
            )  # fmt: skip
        with _unanswered():
            self.bmc.post(action, {"ResetType": kind})

    def power_off(self) -> None:
        """Off, at once, and seen to be off."""
        if self.power() != "Off":
            self.reset("ForceOff")
            self._until("off", lambda: self.power() == "Off", POWER_S)

    def power_on(self) -> None:
        if self.power() != "On":
            self.reset("On", "ForceOn")
            self._until("on", lambda: self.power() == "On", POWER_S)

    def boot_once(self, target: str) -> None:
        """Boot from somewhere else the next time; read back. The mode is left alone.

        A BMC that makes Continuous of Once is refused, and the override taken back: the machine would start the
        installer again each time. Emulators do (sushy-tools, kubevirtbmc#165); no server that was looked at does."""
        previous_boot = self.boot()
        if target == booting.OWN:
            self._set_attributes(dict(self._host().vendor.once))
        else:
            self._override({"BootSourceOverrideEnabled": "Once", "BootSourceOverrideTarget": target})
        current_boot = self.boot()
        if current_boot.target != target or current_boot.enabled != "Once":
            self._take_back(previous_boot, target)
            raise BmcError(
                f"took the boot override and shows {current_boot.enabled} {current_boot.target}, not Once {target}",
                where=self.bmc.machine, kind="unsupported",
                hint="update the BMC's firmware; or install the machine over the network, then method: ssh",
            )  # fmt: skip

    def _take_back(self, previous_boot: booting.Boot, target: str) -> None:
        """End an override that was not taken as it was meant: Disabled, and where that changes nothing the target that
        was there before."""
        if target == booting.OWN:
            with contextlib.suppress(BmcError):
                self._set_attributes(dict(self._host().vendor.as_ever))
            return
        old = {"BootSourceOverrideEnabled": previous_boot.enabled, "BootSourceOverrideTarget": previous_boot.target}
        for override in ({"BootSourceOverrideEnabled": "Disabled"}, {k: v for k, v in old.items() if v}):
            with contextlib.suppress(BmcError):
                if (current_boot := self.boot()).target != target or not current_boot.overridden:
                    return
                self._override(override)

    def boot_as_ever(self) -> None:
        """End an override for the next boot; one that somebody made for good stays. HPE refuses the target None."""
        current_boot = self.boot()
        if current_boot.overridden and current_boot.enabled == "Once":
            if current_boot.target == booting.OWN:
                self._set_attributes(dict(self._host().vendor.as_ever))
            else:
                self._override({"BootSourceOverrideEnabled": "Disabled"})

    def boot(self) -> booting.Boot:
        host = self._host()
        return booting.boot(self._tree, host.system, host.managers, host.vendor)

    def _host(self) -> Host:
        self._tree.forget()
        return inventory.find_host(self._tree)

    def _override(self, override: Mapping[str, str]) -> None:
        host = self.confirm()
        current_boot = booting.boot(self._tree, host.system, host.managers, host.vendor)
        with _unanswered():
            self.bmc.patch(current_boot.uri, {"Boot": dict(override)})

    def _set_attributes(self, attributes: Mapping[str, str]) -> None:
        """Write attributes of the vendor's own."""
        host = self.confirm()
        current_boot = booting.boot(self._tree, host.system, host.managers, host.vendor)
        try:
            with _unanswered():
                self.bmc.patch(current_boot.attributes, {"Attributes": dict(attributes)})
        except BmcError as error:
            if not error.kind.startswith("parameter-"):
                raise
            settings_text = ", ".join(f"{name} = {value}" for name, value in attributes.items())
            raise BmcError(
                f"does not take {settings_text}: {error.message}", where=self.bmc.machine, kind="unsupported",
                hint="update the BMC's firmware; or install the machine over the network, then method: ssh",
            ) from None  # fmt: skip

    def media(self) -> booting.Media:
        host = self._host()
        return booting.media(self._tree, host.system, host.managers, host.vendor)

    def attach(self, url: str) -> booting.Slot:
        """Put an image into a free virtual drive, and wait until the BMC says that it is there."""
        host = self.confirm()
        media = booting.media(self._tree, host.system, host.managers, host.vendor)
        if not media.slots and media.enable:
            self.bmc.post(media.enable, {"RMediaState": "Enable"})
            self._until("showing virtual drives", lambda: bool(self.media().slots), MEDIA_S)
            media = self.media()
        slot = media.choose(url)
        if slot is None:
            raise BmcError(
                media.why
                or "every virtual drive is taken: " + ", ".join(drive.image or drive.id for drive in media.slots),
                where=self.bmc.machine, kind="media",
                hint="eject what is attached in the BMC's web interface" if media.slots and not media.why
                else "install this machine over the network (PXE), or by hand and take it over with method: ssh",
            )  # fmt: skip
        other_images = [
            drive.image or drive.id
            for drive in media.slots
            if drive.uri != slot.uri and drive.cd and drive.free is False
        ]
        if other_images and host.vendor.once:  # the next start is from a virtual drive, and it does not say which
            raise BmcError(
                f"another virtual drive has an image, which the machine might start from: {', '.join(other_images)}",
                where=self.bmc.machine, kind="media", hint="eject it in the BMC's web interface",
            )  # fmt: skip
        if slot.free is not False:  # else our own image is there already
            self._insert(slot, url)
            self._until(
                "showing the image as attached",
                lambda: any(drive.uri == slot.uri and drive.free is False for drive in self.media().slots), MEDIA_S,
                hint="the BMC accepted the image and does not attach it: it must reach this computer "
                "(install.serve), and may want a certificate that it knows",
            )  # fmt: skip
        self._until(
            "giving the image to the machine", lambda: self._at_the_host(slot), HOST_MEDIA_S,
            hint="the BMC has attached the image and does not show it to the machine. Detach all virtual media in its "
            "web interface, and run the command again",
        )  # fmt: skip
        return slot

    def _at_the_host(self, slot: booting.Slot) -> bool:
        """Whether the machine has what is attached, where the BMC tells that apart: a start before is from its disk."""
        host = self._host()
        number = slot.id if slot.id.isdigit() else "1"
        expected = {name.format(slot=number): value for name, value in host.vendor.attached.items()}
        at, values = booting.own_attributes(self._tree, host.managers, expected)
        return not at or all(values[name] == value for name, value in expected.items())

    def _insert(self, slot: booting.Slot, url: str) -> None:
        """Ask with the image alone; add what the BMC says is missing, leave out what it refuses."""
        body: dict[str, Any] = {"Image": url} | ({"Inserted": True} if slot.patch else {})
        known = {
            "TransferProtocolType": url.partition(":")[0].upper(), "TransferMethod": "Stream", "UserName": "none",
            "Password": "none", "MediaType": "CD", "Inserted": True, "WriteProtected": True,
        }  # fmt: skip
        for _ in range(len(known) + 1):
            try:
                with _unanswered():
                    if slot.patch:
                        self.bmc.patch(slot.uri, body)
                    else:
                        self.bmc.post(slot.insert, body)
                return
            except BmcError as error:
                named_keys = [key for key in _OFFERED if key in error.message]
                if error.kind == "parameter-missing" and any(key not in body for key in named_keys):
                    body |= {key: known[key] for key in named_keys if key not in body}
                elif error.kind == "parameter-refused" and any(key in body for key in named_keys):
                    body = {key: value for key, value in body.items() if key not in named_keys}
                else:
                    raise
        raise AssertionError

    def detach(self, url: str, drive: str = "") -> bool:
        """Take an image out of the drive that has it; nobody else's. `drive`: where it was attached, for BMCs that do
        not show the whole URL. Gives whether there was one."""
        host = self.confirm()
        slots = booting.media(self._tree, host.system, host.managers, host.vendor).slots
        name = url.rpartition("/")[2]
        ours = [
            candidate
            for candidate in slots
            if candidate.free is not True
            and (candidate.image == url or (candidate.uri == drive and candidate.image in ("", name)))
        ]
        for slot in ours:
            with _unanswered():
                if slot.patch:
                    self.bmc.patch(slot.uri, {"Image": None, "Inserted": False})
                else:
                    # Supermicro shows the action only while something is inserted
                    self.bmc.post(slot.eject or slot.uri + "/Actions/VirtualMedia.EjectMedia", {})
            self._until(
                "showing the image as ejected",
                lambda slot=slot: not any(  # type: ignore[misc]
                    candidate.uri == slot.uri and candidate.free is False for candidate in self.media().slots
                ),
                MEDIA_S,
            )  # fmt: skip
        return bool(ours)

    def _until(self, state: str, is_reached: Callable[[], bool], seconds: float, hint: str = "") -> None:
        end = time.monotonic() + seconds
        while not is_reached():
            if time.monotonic() > end:
                raise BmcError(
                    f"its BMC is not {state} after {seconds:.0f} s", where=self.bmc.machine, kind="stuck",
                    hint=hint or "look at the machine's console; reset the BMC if it stays",
                )  # fmt: skip
            (self.pause or self.bmc.stop.wait)(POLL_S)


@contextlib.contextmanager
def _unanswered() -> Iterator[None]:
    """A change whose answer was lost may have been made: what follows reads whether it was."""
    try:
        yield
    except BmcError as error:
        if error.kind != "dropped":
            raise
