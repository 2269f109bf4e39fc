"""Machines that have nothing but a BMC: installed once, and from then on machines that exist."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from provisioner.common.errors import ProviderError
from provisioner.common.events import Events
from provisioner.common.paths import private_dir
from provisioner.common.text import counted
from provisioner.machines.base import Action, PartlyMadeError, Planned
from provisioner.machines.came_up import came_up
from provisioner.machines.existing import Way
from provisioner.machines.hosts import HostMachines
from provisioner.machines.installer import disk_image, iso, ramdisk, serve, source
from provisioner.machines.installer.disk_image import DiskImage
from provisioner.machines.installer.report import Report
from provisioner.machines.installer.seed import Target
from provisioner.machines.installing import Installer
from provisioner.machines.journal import Installation as Journaled
from provisioner.machines.journal import Journal
from provisioner.machines.providers import first_boot
from provisioner.machines.providers.base import Hosts, Installation, Management
from provisioner.machines.providers.hosts import Host
from provisioner.machines.redfish import accounts
from provisioner.machines.redfish.client import Bmc
from provisioner.machines.redfish.errors import BmcError
from provisioner.machines.redfish.side_by_side import each
from provisioner.machines.redfish.trust import Pins
from provisioner.plan.models import Plan
from provisioner.rundir.fleet import Node
from provisioner.transport import ssh_pins

BMC_S = 600.0
"""Seconds that one conversation with a BMC may take; each request has its own, shorter ones."""


class RedfishMachines(HostMachines):
    """See machines/base.py for the contract. `wait_s`: from power-on to ssh (timeouts.machine_s);
    `folder`: of cluster.yaml; `user`: the site's account; `proxy`: host → the command that carries ssh to it."""

    def __init__(
        self, site: str, hosts: Hosts, management: Management, installation: Installation, known: Sequence[Node],
        access: Way, events: Events, wait_s: float, folder: Path, user: str, proxy: Callable[[str], str | None],
        share: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        super().__init__(site, hosts, known, access, events, share)
        self._user, self._proxy = user, proxy
        self._management, self._installation, self._wait_s, self._base = management, installation, wait_s, folder
        self._journal = Journal(self._folder / "bmc.json")
        self._pins = Pins(access.paths.root / "bmc_pins.json")

    def plan(self, plan: Plan, *, replace: Collection[str] = (), repair: bool = True) -> Planned:
        planned = super().plan(plan, replace=replace, repair=repair)
        to_install = self._to_install(plan)
        fresh = [node.name for node, _ in to_install]
        planned_already = {action.node for action in planned.actions}
        actions = [
            action._replace(name=self._installs(plan, action.node))
            if action.node in fresh and action.what != "delete"
            else action
            for action in planned.actions
        ]
        # a machine of the last run, in whose place there may be another one: nothing is installed unasked
        more = [name for name in fresh if name not in planned_already]
        reasons = {node.name: self._reason(host) for node, host in to_install}
        actions += [Action("replace", self._installs(plan, name), name, reason=reasons[name]) for name in more]
        return dataclasses.replace(planned, add=planned.add + len(more), actions=tuple(actions))

    def _reason(self, host: Host) -> str:
        """Which key of the hardware is another one than when the machine was installed; empty where it never was."""
        entry = self._journal.load().get(host.name)
        if entry is None or entry.is_of(host.serial):
            return ""
        return f"serial of {host.name} in cluster.yaml: {entry.serial} → {host.serial}"

    def _installs(self, plan: Plan, node: str) -> str:
        system = self._installation.os or plan.group(node.rpartition("-")[0]).stack.os
        system = self._installation.source.name if self._installation.disk_image else system
        return f"{node}: install {system} through its BMC"

    def _irreplaceable(self, name: str, host: str) -> ProviderError:
        known = self._journal.load().get(host)
        serial = known.serial if known is not None else "its serial number"
        return ProviderError(
            f"{host} is installed, and under this name gpuprov would take any machine for the one that it replaces",
            where=name,
            hint=f"For a repaired machine: `gpuprov verify FILE`, then `gpuprov release FILE {name}`. For another "
            f"machine in its place: write its `serial` at {host}, `gpuprov up FILE`, then "
            f"`gpuprov release FILE {name}`. To install the same machine again: give the host another name in "
            f"cluster.yaml, with its `address`, add {serial} to install.reinstall, and repeat the command",
        )

    def apply(self, plan: Plan, planned: Planned, *, always: bool = False) -> list[Node]:
        todo = self._to_install(plan)
        failed = self._install(plan, todo) if todo else {}
        if failed and len(failed) == len(self._nodes(plan)):
            raise _together(self.site, failed, len(todo))
        nodes = super().apply(plan, planned, always=always)
        if failed:
            known_ids = {node.id for node in self._known}
            raise PartlyMadeError(
                _together(self.site, failed, len(todo)), [node for node in nodes if node.id not in failed],
                [node for node in nodes if node.id in failed and node.id in known_ids],
            )  # fmt: skip
        return nodes

    def destroy(self, plan: Plan | None = None) -> int:
        """As for machines that exist: they are left as they are, and running. What an installation that was cut short
        has left in a BMC is taken out."""
        listed = {host.name: host for host in self._hosts.listed(())}
        for name, entry in self._journal.load().items():
            if entry.step in ("chosen", "installed") or name not in listed:
                continue
            installer = self._installer(listed[name], plan, None, lambda *_: None)
            try:
                installer._cleaned(entry)
            except BmcError as error:
                self._events(
                    "down", "warning", f"its BMC may still have our image attached: {error.message}", node=name
                )
        return super().destroy(plan)

    def _to_install(self, plan: Plan) -> list[tuple[Node, Host]]:
        """Machines that are not installed, by the journal: never by whether something answers at their address. One
        whose serial number in cluster.yaml is another one now may be another machine: its BMC says."""
        journal = self._journal.load()
        hosts = {host.name: host for host in self._hosts.listed([group.name for group in plan.groups])}
        todo = []
        for node in self._nodes(plan).values():
            entry = journal.get(node.id)
            host = hosts[node.id]
            if entry is None or entry.step != "installed" or not entry.is_of(host.serial):
                todo.append((node, host))
        return todo

    def _install(self, plan: Plan, todo: list[tuple[Node, Host]]) -> dict[str, Exception]:
        """Give each machine that did not come to be, and why; the others are served. Raises ProviderError where none
        can be, because of the image."""
        private_dir(self._folder)
        disk = self._prepared()
        names = {host.name: node.name for node, host in todo}
        hosts = {host.name: host for _, host in todo}
        stop = threading.Event()
        with self._serving(todo[0][1]) as images:
            images.disk = disk.file if disk is not None else None
            installers = {
                host.name: self._installer(host, plan, images, self._image(plan, node, host, images, disk), stop)
                for node, host in todo
            }

            def install(name: str) -> bool:
                return installers[name].run()

            failed: dict[str, Exception] = {}
            for outcome in each(list(hosts), install, self._wait_s + 2 * BMC_S, stop):
                if outcome.error is not None:
                    failed[outcome.machine] = outcome.error
                    message = getattr(outcome.error, "message", str(outcome.error))
                    self._events("fleet", "warning", message, node=names[outcome.machine], unit="machine")
                else:
                    token = self._journal.load()[outcome.machine].token
                    (self._folder / "images" / f"{token}.iso").unlink(missing_ok=True)
                    if outcome.value:
                        if key := self._journal.load()[outcome.machine].host_key:
                            ssh_pins.pin(self._access.paths, outcome.machine, key)
                        else:
                            ssh_pins.unpin(self._access.paths, outcome.machine)
                    self._events("fleet", "progress", "installed", node=names[outcome.machine], unit="machine")
        return failed

    def _prepared(self) -> DiskImage | None:
        """The disk image as it is served; None where a distribution's installer is, which is only compared."""
        file, sha256 = self._installation.source, self._installation.sha256
        if not file.exists():
            raise ProviderError("is not there", where=str(file), hint=source.KINDS)
        if not self._installation.disk_image:
            source.refuse_other(file, sha256, ProviderError)
            return None
        if ramdisk.ready(self._installation.mirror) is None:
            self._events("fleet", "log", "making the system that writes the disk image; kept for the next time")
        ramdisk.make(self._installation.mirror)
        self._events("fleet", "log", f"compressing and comparing {file.name}, once")
        return disk_image.prepare(file, sha256, self._folder / "images")

    @contextlib.contextmanager
    def _serving(self, host: Host) -> Iterator[serve.Images]:
        address, colon, port = self._installation.serve.rpartition(":")
        if not colon:
            address, port = port, "0"
        served = [
            entry for entry in self._journal.load().values() if entry.url and entry.step not in ("installed", "failed")
        ]
        if port == "0" and served:  # where the run before served: a machine may be reading there
            port = str(urlsplit(served[0].url).port or 0)
        with serve.serving(address or _facing(*host.management), int(port), self._folder) as images:
            for begun in served:
                if (file := self._folder / "images" / f"{begun.token}.iso").exists():
                    images.files[begun.token] = file
                if begun.host_key:
                    images.reports[begun.token] = Report(host_key=begun.host_key)
            yield images

    def _image(
        self, plan: Plan, node: Node, host: Host, images: serve.Images, disk: DiskImage | None
    ) -> Callable[[Journaled, tuple[str, ...], bool], object]:
        group = plan.group(node.group)

        def make(entry: Journaled, serials: tuple[str, ...], reinstall: bool) -> None:
            file = private_dir(self._folder / "images") / f"{entry.token}.iso"
            target = Target(
                name=host.name.lower(), user=host.user or self._user, ssh_key=" ".join(self._access.key().split()[:2]),
                serials=tuple(serial.replace(" ", "") for serial in serials), token=entry.token,
                disk=self._installation.disk, reinstall=reinstall, mirror=self._installation.mirror,
                report=images.base(entry.token) if disk else "",
            )  # fmt: skip
            if disk is not None:
                config = first_boot.cloud_config(target.user, target.ssh_key)
                system = ramdisk.make(self._installation.mirror)
                appended = iso.in_memory(disk_image.files(target, disk, images.certificate, config))
                iso.of_kernel(system.linux, system.initrd, appended, disk_image.kernel_command_line(target), file)
            else:
                iso.make(self._installation.os or group.stack.os, self._installation.source, target, file)
            images.files[entry.token] = file

        return make

    def _installer(
        self, host: Host, plan: Plan | None, images: serve.Images | None,
        image: Callable[[Journaled, tuple[str, ...], bool], object], stop: threading.Event | None = None,
    ) -> Installer:  # fmt: skip
        names = {node.id: node.name for node in (self._nodes(plan).values() if plan is not None else self._known)}

        ending = stop or threading.Event()

        def log_sentence(sentence: str) -> None:
            self._events("fleet", "log", sentence, node=names.get(host.name, host.name))

        def connect() -> Bmc:
            return bmc_of(host, self._management, self._pins, self._base, BMC_S, log_sentence, ending)

        entry = self._journal.load().get(host.name)
        serials = {serial.casefold() for serial in self._installation.reinstall}
        known = {serial.casefold() for serial in (host.serial, entry.serial if entry else "") if serial}
        return Installer(
            host, self._journal, images or serve.Images(""), connect, image, log_sentence,
            reinstall=bool(known & serials), wait_s=self._wait_s,
            answers=lambda installation: self._came_up(host, installation), stop=ending,
            unsigned=self._installation.disk_image,
        )  # fmt: skip

    def _came_up(self, host: Host, entry: Journaled | None) -> bool:
        user, carried = host.user or self._user, self._proxy(host.name)
        token, key = (entry.token, entry.host_key) if entry is not None else ("", "")
        return came_up(self._access.paths, host, user, carried, token, key)


def bmc_of(
    host: Host,
    management: Management,
    pins: Pins,
    base: Path,
    seconds: float,
    report: Callable[[str], object],
    stop: threading.Event | None = None,
) -> Bmc:
    """A connection to a host's BMC, which is not open yet. Raises BmcError where nobody knows its account."""
    address, port = host.management
    account = accounts.find(management.credentials, host.name, host.bmc, base)
    return Bmc(host.name, address, account, pins, time.monotonic() + seconds, port, report, stop or threading.Event())


def _facing(host: str, port: int) -> str:
    """The address of this computer from which a BMC is reached. Raises BmcError where there is no way to it."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:  # sends nothing
            probe.connect((host, port))
            return str(probe.getsockname()[0])
    except OSError as error:
        raise BmcError(
            f"there is no route to the BMC {host}: {error.strerror}", where="install.serve",
            hint="install.serve: the address of this computer that BMCs reach",
        ) from error  # fmt: skip


def _together(site: str, failed: dict[str, Exception], of: int) -> ProviderError:
    lines = "\n  ".join(f"{name}: {getattr(error, 'message', error)}" for name, error in sorted(failed.items()))
    hints = "; ".join(dict.fromkeys(hint for error in failed.values() if (hint := getattr(error, "hint", ""))))
    return ProviderError(
        f"{len(failed)} of {counted(of, 'machine')} could not be installed:\n  {lines}",
        where=f"site {site}",
        hint=hints,
    )
