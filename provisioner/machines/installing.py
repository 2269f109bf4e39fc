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

from provisioner.machines.installer import report
from provisioner.machines.installer.serve import Images
from provisioner.machines.journal import STARTED, Installation, Journal
from provisioner.machines.providers.hosts import Host
from provisioner.machines.redfish import inventory
from provisioner.machines.redfish.client import Bmc
from provisioner.machines.redfish.errors import BmcError
from provisioner.machines.redfish.inventory import Inventory
from provisioner.machines.redfish.machine import Controlled
from provisioner.transport import process

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
        installation = self.journal.load().get(self.host.name)
        if (
            installation is not None
            and installation.step in ("installed", "failed", "chosen")
            and not installation.is_of(self.host.serial)
        ):
            installation = self._renamed(installation)
        if installation is not None and installation.step == "installed":
            return False
        if installation is not None and installation.step == "failed":
            installation = self._after_failure(installation)
        if installation is None or installation.step not in STARTED:
            installation = self._started(installation)
        elif installation.step == "starting":
            installation = self._continued(installation)
        if installation.step == "installing":
            installation = self._wait(installation)
            installation = self.journal.note(installation, "cleaning")
        self._cleaned(installation)
        self.journal.note(installation, "installed")
        self.told("installed: ssh answers, the image is ejected, and the boot order is as it was")
        return True

    def _renamed(self, installation: Installation) -> Installation | None:
        """cluster.yaml has another serial number than was installed: the same machine by another of its names, or
        another machine in its place, of which nothing was done yet."""
        with self.connect() as bmc:
            identity = inventory.identity(inventory.find_host(bmc.tree()))
        if identity.is_called(installation.serial) and identity.is_called(self.host.serial):
            return self.journal.note(replace(installation, serial=self.host.serial), installation.step)
        serials = f"{installation.serial} → {identity.best or 'none'}"
        self.told(f"another machine than the one that was installed under this name: serial {serials}")
        return None

    def _after_failure(self, installation: Installation) -> Installation | None:
        """After an installation that did not come up: it may have since; else only who says so overwrites its disks."""
        if self.answers(installation):
            return self.journal.note(installation, "cleaning")
        if not self.reinstall:
            raise BmcError(
                f"its last installation did not come up, and its disks may be half written ({installation.serial})",
                where=self.host.name, kind="never-up",
                hint=f"look at its console; to install it again, add {installation.serial} to install.reinstall of "
                "its site",
            )  # fmt: skip
        return self.journal.note(
            Installation(self.host.name, installation.serial), "chosen", url=installation.url, drive=installation.drive
        )

    def _started(self, earlier: Installation | None) -> Installation:
        """Everything up to power-on."""
        with self.connect() as bmc:
            observed = inventory.read(bmc.tree())
            installation = self._allowed(observed, earlier)
            machine = Controlled(bmc, installation.serial, self.pause)
            target = observed.boot.cd
            if target is None:
                raise BmcError(
                    observed.boot.why or "its BMC lists no boot target for virtual media",
                    where=self.host.name, kind="unsupported",
                    hint="update its firmware, or install it over the network and use method: ssh",
                )  # fmt: skip
            identity = observed.identity
            serials = tuple(
                dict.fromkeys(filter(None, (identity.serial, identity.chassis, identity.uuid, installation.serial)))
            )
            self.image(installation, serials, self.reinstall)
            installation = self.journal.note(
                installation, "attaching", url=self.images.url(installation.token), order=observed.boot.order
            )
            if earlier is not None and earlier.url and earlier.url != installation.url:
                machine.detach(earlier.url, earlier.drive)  # the run before served it elsewhere
            process.refuse_stopped()  # another run may have the lease by now
            machine.power_off()
            if self.answers(None):
                raise BmcError(
                    f"something answers by ssh on {self.host.address} while the machine is off: the address is another "
                    "machine's", where=self.host.name, kind="identity",
                    hint="check `address` of this host, and what its name resolves to",
                )  # fmt: skip
            try:
                installation = self.journal.note(installation, "attaching", drive=machine.attach(installation.url).uri)
                machine.boot_once(target)
            except BmcError:  # whoever switches it on next starts no installer
                with contextlib.suppress(BmcError):
                    machine.detach(installation.url, installation.drive)
                raise
            installation = self.journal.note(installation, "starting")
            machine.power_on()
            self.told(f"{observed.model or 'machine'} {installation.serial}: started from the installer's image")
            return self.journal.note(installation, "installing")

    def _allowed(self, observed: Inventory, earlier: Installation | None) -> Installation:
        """The machine's installation. Raises BmcError where it may not be installed."""
        serial = observed.identity.best
        expected_serial = self.host.serial or (earlier.serial if earlier else "") or serial
        if not expected_serial or not observed.identity.is_called(expected_serial):
            raise BmcError(
                f"its BMC is that of the machine {serial or 'without a serial number'}, not of "
                f"{expected_serial or 'any'}. Nothing was changed", where=self.host.name, kind="identity",
                hint="check `bmc` and `serial` of this host in cluster.yaml, and the cabling of the BMC network",
            )  # fmt: skip
        if observed.licences.media is False:
            raise BmcError(
                f"its BMC lacks the licence for virtual media ({observed.licences.needed}); it has "
                f"{', '.join(observed.licences.names) or 'none'}", where=self.host.name, kind="licence",
                hint="install that licence, or install the machine over the network and use method: ssh",
            )  # fmt: skip
        if self.unsigned and observed.boot.secure:
            raise BmcError(
                "Secure Boot is on, and neither what writes its disk nor the disk's bootloader is signed. Nothing "
                "was changed", where=self.host.name, kind="unsupported",
                hint="switch Secure Boot off in its firmware (SecureBootEnable of its BMC), then run the command again",
            )  # fmt: skip
        if observed.power != "Off" and not self.reinstall and earlier is None:
            raise BmcError(
                f"the machine {expected_serial} is {observed.power or 'in an unknown power state'}: what runs on it "
                "would be lost. Nothing was changed", where=self.host.name, kind="in-use",
                hint=f"take it over as it is with method: ssh; or switch it off; or, to overwrite its disks, add "
                f"{expected_serial} to install.reinstall of its site",
            )  # fmt: skip
        if earlier is not None:
            return earlier if observed.power == "Off" or self.reinstall else self._running(earlier)
        return self.journal.note(Installation(self.host.name, expected_serial), "chosen")

    def _running(self, earlier: Installation) -> Installation:
        raise BmcError(
            f"the machine {earlier.serial} was switched on by another person while gpuprov prepared its installation",
            where=self.host.name, kind="in-use",
            hint="switch it off and run the command again, or take it over as it is with method: ssh",
        )  # fmt: skip

    def _continued(self, installation: Installation) -> Installation:
        """A run ended between writing down that the machine is switched on and knowing that it is. With the boot
        override still set and the machine off it was not."""
        with self.connect() as bmc:
            machine = Controlled(bmc, installation.serial, self.pause)
            machine.confirm()
            if machine.power() == "Off" and machine.boot().overridden:
                machine.detach(installation.url, installation.drive)
                machine.boot_as_ever()
                return self._started(replace(installation, step="attaching"))
        return self.journal.note(installation, "installing")

    def _wait(self, installation: Installation) -> Installation:
        end, begun = time.monotonic() + self.wait_s, time.monotonic()
        looked = begun
        self.told(f"waiting for ssh on {self.host.address}, at most {self.wait_s / 60:.0f} min (timeouts.machine_s)")
        while not self.answers(installation := self._heard(installation)):
            if time.monotonic() > end:
                fetched = self.images.fetched.get(installation.token, 0)
                self._gave_up(installation)
                raise BmcError(
                    f"the machine did not come up: no ssh on {self.host.address} after {self.wait_s / 60:.0f} min; its "
                    f"BMC fetched {fetched // 2**20} MiB of the image", where=self.host.name, kind="never-up",
                    hint="look at its console (`gpuprov bmc FILE status`); it is not installed again until its serial "
                    f"number {installation.serial} is in install.reinstall",
                )  # fmt: skip
            if time.monotonic() - looked > SETTLE_S:
                looked = time.monotonic()
                if (sent := self.images.sent.get(installation.token, 0)) and not installation.host_key:
                    self.told(f"{sent // 2**20} MiB of the disk image fetched")
                if self._is_off(installation):
                    self._gave_up(installation)
                    raise BmcError(
                        "the installer switched the machine off: its disks hold data, or it is not the machine that it "
                        "was made for", where=self.host.name, kind="refused",
                        hint=f"its console says which. To overwrite its disks add {installation.serial} to "
                        "install.reinstall",
                    )  # fmt: skip
            (self.pause or self.stop.wait)(SSH_PAUSE_S)
            if self.stop.is_set():
                raise BmcError("was interrupted", where=self.host.name, hint="run the same command again: it goes on")
        return installation

    def _heard(self, installation: Installation) -> Installation:
        """What the installer has reported is written down. Raises BmcError where it has refused."""
        message = self.images.reports.get(installation.token)
        if message is not None and message.refused:
            self._gave_up(installation)
            raise BmcError(
                f"the installer switched the machine off: {report.WHY[message.refused]}", where=self.host.name,
                kind="refused",
                hint=f"its console says more. To overwrite its disks add {installation.serial} to install.reinstall",
            )  # fmt: skip
        if message is not None and message.host_key and message.host_key != installation.host_key:
            self.told("the installer reports its end, and the host key that the machine has made itself")
            return self.journal.note(installation, installation.step, host_key=message.host_key)
        return installation

    def _is_off(self, installation: Installation) -> bool:
        with contextlib.suppress(BmcError), self.connect() as bmc:
            return Controlled(bmc, installation.serial, self.pause).power() == "Off"
        return False

    def _gave_up(self, installation: Installation) -> None:
        """Take out the image, whatever becomes of the machine: its next start is from its own disk."""
        self.journal.note(installation, "failed")
        with contextlib.suppress(BmcError):
            self._cleaned(installation)

    def _cleaned(self, installation: Installation) -> None:
        with self.connect() as bmc:
            machine = Controlled(bmc, installation.serial, self.pause)
            machine.detach(installation.url, installation.drive)
            machine.boot_as_ever()
            order = machine.boot().order
            if installation.order and order and set(order) == set(installation.order) and order != installation.order:
                self.told(f"its boot order is {', '.join(order)} now; it was {', '.join(installation.order)}")
