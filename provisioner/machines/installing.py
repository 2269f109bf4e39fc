"""One machine from power-off to ssh, through its BMC: identity, licence, image, boot override, power, and all put back.

Each step is written down before it begins (journal.py). A machine is switched on for its installation once: whoever
finds that written down waits for it, and never starts it again.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from provisioner import process
from provisioner.installer import report
from provisioner.installer.serve import Images
from provisioner.machines.journal import STARTED, Installation, Journal
from provisioner.providers.hosts import Host
from provisioner.redfish import inventory
from provisioner.redfish.client import Bmc
from provisioner.redfish.errors import BmcError
from provisioner.redfish.inventory import Inventory
from provisioner.redfish.machine import Controlled

SSH_PAUSE_S = 5.0
SETTLE_S = 60.0
"""Seconds at the start of an installation in which a machine that is off is only not on yet."""


@dataclass(slots=True)
class Installer:
    """Installs one machine. `connect`: a new connection to its BMC; `image`: makes the machine's image for a token and
    the serial numbers that it must have; `told`: what a person should know; `answers`: whether the machine that was
    installed does by ssh; with None, whether anything does. `wait_s`: from power-on to ssh."""

    host: Host
    journal: Journal
    images: Images
    connect: Callable[[], Bmc]
    image: Callable[[Installation, tuple[str, ...], bool], object]
    told: Callable[[str], object]
    reinstall: bool
    wait_s: float
    answers: Callable[[Installation | None], bool]
    unsigned: bool = False
    """Whether what it starts from bears no signature that firmware knows: a disk image and what writes it."""
    stop: threading.Event = field(default_factory=threading.Event)
    pause: Callable[[float], object] | None = None

    def run(self) -> bool:
        """Whether it was installed, and not before. Raises BmcError, naming the machine, where it does not come to
        be."""
        now = self.journal.load().get(self.host.name)
        if now is not None and now.step in ("installed", "failed", "chosen") and not now.is_of(self.host.serial):
            now = self._renamed(now)
        if now is not None and now.step == "installed":
            return False
        if now is not None and now.step == "failed":
            now = self._again(now)
        if now is None or now.step not in STARTED:
            now = self._started(now)
        elif now.step == "starting":
            now = self._continued(now)
        if now.step == "installing":
            now = self._wait(now)
            now = self.journal.note(now, "cleaning")
        self._cleaned(now)
        self.journal.note(now, "installed")
        self.told("installed: ssh answers, the image is ejected, and the boot order is as it was")
        return True

    def _renamed(self, now: Installation) -> Installation | None:
        """cluster.yaml has another serial number than was installed: the same machine by another of its names, or
        another machine in its place, of which nothing was done yet."""
        with self.connect() as bmc:
            shown = inventory.identity(inventory.find_host(bmc.tree()))
        if shown.is_called(now.serial) and shown.is_called(self.host.serial):
            return self.journal.note(replace(now, serial=self.host.serial), now.step)
        self.told(f"another machine than the one that was installed under this name ({now.serial})")
        return None

    def _again(self, now: Installation) -> Installation | None:
        """After an installation that did not come up: it may have since; else only who says so overwrites its disks."""
        if self.answers(now):
            return self.journal.note(now, "cleaning")
        if not self.reinstall:
            raise BmcError(
                f"its last installation did not come up, and its disks may be half written ({now.serial})",
                where=self.host.name, kind="never-up",
                hint=f"look at its console; to install it once more add {now.serial} to install.reinstall of its site",
            )  # fmt: skip
        return self.journal.note(Installation(self.host.name, now.serial), "chosen", url=now.url, drive=now.drive)

    def _started(self, before: Installation | None) -> Installation:
        """Everything up to power-on."""
        with self.connect() as bmc:
            found = inventory.read(bmc.tree())
            now = self._allowed(found, before)
            machine = Controlled(bmc, now.serial, self.pause)
            target = found.boot.cd
            if target is None:
                raise BmcError(
                    found.boot.why or "its BMC lists no boot target for virtual media",
                    where=self.host.name, kind="unsupported",
                    hint="update its firmware, or install it over the network and use method: ssh",
                )  # fmt: skip
            identity = found.identity
            serials = tuple(dict.fromkeys(filter(None, (identity.serial, identity.chassis, identity.uuid, now.serial))))
            self.image(now, serials, self.reinstall)
            now = self.journal.note(now, "attaching", url=self.images.url(now.token), order=found.boot.order)
            if before is not None and before.url and before.url != now.url:
                machine.detach(before.url, before.drive)  # the run before served it elsewhere
            process.refuse_stopped()  # another run may have the lease by now
            machine.power_off()
            if self.answers(None):
                raise BmcError(
                    f"something answers by ssh on {self.host.address} while the machine is off: the address is another "
                    "machine's", where=self.host.name, kind="identity",
                    hint="check `address` of this host, and what its name resolves to",
                )  # fmt: skip
            try:
                now = self.journal.note(now, "attaching", drive=machine.attach(now.url).uri)
                machine.boot_once(target)
            except BmcError:  # whoever switches it on next starts no installer
                with contextlib.suppress(BmcError):
                    machine.detach(now.url, now.drive)
                raise
            now = self.journal.note(now, "starting")
            machine.power_on()
            self.told(f"{found.model or 'machine'} {now.serial}: started from the installer's image")
            return self.journal.note(now, "installing")

    def _allowed(self, found: Inventory, before: Installation | None) -> Installation:
        """The machine's installation. Raises BmcError where it may not be installed."""
        shown = found.identity.best
        wanted = self.host.serial or (before.serial if before else "") or shown
        if not wanted or not found.identity.is_called(wanted):
            raise BmcError(
                f"its BMC is that of the machine {shown or 'without a serial number'}, not of {wanted or 'any'}. "
                "Nothing was changed", where=self.host.name, kind="identity",
                hint="check `bmc` and `serial` of this host in cluster.yaml, and the cabling of the BMC network",
            )  # fmt: skip
        if found.licences.media is False:
            raise BmcError(
                f"its BMC lacks the licence for virtual media ({found.licences.needed}); it has "
                f"{', '.join(found.licences.names) or 'none'}", where=self.host.name, kind="licence",
                hint="install that licence, or install the machine over the network and use method: ssh",
            )  # fmt: skip
        if self.unsigned and found.boot.secure:
            raise BmcError(
                "Secure Boot is on, and neither what writes its disk nor the disk's bootloader is signed. Nothing "
                "was changed", where=self.host.name, kind="unsupported",
                hint="switch Secure Boot off in its firmware (SecureBootEnable of its BMC), then run the command again",
            )  # fmt: skip
        if found.power != "Off" and not self.reinstall and before is None:
            raise BmcError(
                f"the machine {wanted} is {found.power or 'in an unknown power state'}: what runs on it would be lost. "
                "Nothing was changed", where=self.host.name, kind="in-use",
                hint=f"take it over as it is with method: ssh; or switch it off; or, to overwrite its disks, add "
                f"{wanted} to install.reinstall of its site",
            )  # fmt: skip
        if before is not None:
            return before if found.power == "Off" or self.reinstall else self._running(before)
        return self.journal.note(Installation(self.host.name, wanted), "chosen")

    def _running(self, before: Installation) -> Installation:
        raise BmcError(
            f"the machine {before.serial} was switched on by somebody while its installation was prepared",
            where=self.host.name, kind="in-use",
            hint="switch it off and run the command again, or take it over as it is with method: ssh",
        )  # fmt: skip

    def _continued(self, now: Installation) -> Installation:
        """A run ended between writing down that the machine is switched on and knowing that it is. With the boot
        override still set and the machine off it was not."""
        with self.connect() as bmc:
            machine = Controlled(bmc, now.serial, self.pause)
            machine.confirm()
            if machine.power() == "Off" and machine.boot().overridden:
                machine.detach(now.url, now.drive)
                machine.boot_as_ever()
                return self._started(replace(now, step="attaching"))
        return self.journal.note(now, "installing")

    def _wait(self, now: Installation) -> Installation:
        end, begun = time.monotonic() + self.wait_s, time.monotonic()
        looked = begun
        self.told(f"waiting for ssh on {self.host.address}, at most {self.wait_s / 60:.0f} min (timeouts.machine_s)")
        while not self.answers(now := self._heard(now)):
            if time.monotonic() > end:
                fetched = self.images.fetched.get(now.token, 0)
                self._gave_up(now)
                raise BmcError(
                    f"the machine did not come up: no ssh on {self.host.address} after {self.wait_s / 60:.0f} min; its "
                    f"BMC fetched {fetched // 2**20} MiB of the image", where=self.host.name, kind="never-up",
                    hint="look at its console (`gpuprov bmc FILE status`); it is not installed again until its serial "
                    f"number {now.serial} is in install.reinstall",
                )  # fmt: skip
            if time.monotonic() - looked > SETTLE_S:
                looked = time.monotonic()
                if (sent := self.images.sent.get(now.token, 0)) and not now.host_key:
                    self.told(f"{sent // 2**20} MiB of the disk image fetched")
                if self._is_off(now):
                    self._gave_up(now)
                    raise BmcError(
                        "the installer switched the machine off: its disks hold data, or it is not the machine that it "
                        "was made for", where=self.host.name, kind="refused",
                        hint=f"its console says which. To overwrite its disks add {now.serial} to install.reinstall",
                    )  # fmt: skip
            (self.pause or self.stop.wait)(SSH_PAUSE_S)
            if self.stop.is_set():
                raise BmcError("was interrupted", where=self.host.name, hint="run the same command again: it goes on")
        return now

    def _heard(self, now: Installation) -> Installation:
        """What the installer has reported is written down. Raises BmcError where it has refused."""
        said = self.images.reports.get(now.token)
        if said is not None and said.refused:
            self._gave_up(now)
            raise BmcError(
                f"the installer switched the machine off: {report.WHY[said.refused]}", where=self.host.name,
                kind="refused",
                hint=f"its console says more. To overwrite its disks add {now.serial} to install.reinstall",
            )  # fmt: skip
        if said is not None and said.host_key and said.host_key != now.host_key:
            self.told("the installer reports its end, and the host key that the machine has made itself")
            return self.journal.note(now, now.step, host_key=said.host_key)
        return now

    def _is_off(self, now: Installation) -> bool:
        with contextlib.suppress(BmcError), self.connect() as bmc:
            return Controlled(bmc, now.serial, self.pause).power() == "Off"
        return False

    def _gave_up(self, now: Installation) -> None:
        """Take out the image, whatever becomes of the machine: its next start is from its own disk."""
        self.journal.note(now, "failed")
        with contextlib.suppress(BmcError):
            self._cleaned(now)

    def _cleaned(self, now: Installation) -> None:
        with self.connect() as bmc:
            machine = Controlled(bmc, now.serial, self.pause)
            machine.detach(now.url, now.drive)
            machine.boot_as_ever()
            order = machine.boot().order
            if now.order and order and set(order) == set(now.order) and order != now.order:
                self.told(f"its boot order is {', '.join(order)} now; it was {', '.join(now.order)}")
