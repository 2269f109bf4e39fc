"""`gpuprov netboot`: machines of cluster.yaml that have no operating system, installed over the network.

What is written down of each machine (netboot.json in its site's folder) decides what it is answered; see
netboot/ipxe.py."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Interface
from pathlib import Path
from typing import NamedTuple

from provisioner.common import ownership
from provisioner.common.errors import GpuprovError, ProviderError
from provisioner.common.paths import private_dir, write_whole
from provisioner.common.suggest import did_you_mean
from provisioner.common.text import counted
from provisioner.lifecycle.session import Cluster
from provisioner.machines.came_up import came_up
from provisioner.machines.installer import disk_image, ramdisk, source
from provisioner.machines.installer.disk_image import DiskImage
from provisioner.machines.installer.seed import Address, Target
from provisioner.machines.journal import Installation as Journaled
from provisioner.machines.journal import Journal
from provisioner.machines.netboot import dnsmasq, media, network, serve
from provisioner.machines.netboot.ipxe import Asked
from provisioner.machines.netboot.media import Media
from provisioner.machines.providers.base import Netboot
from provisioner.machines.providers.hosts import Host
from provisioner.transport import ssh_keys, ssh_pins

LOOK_S = 5.0
"""Seconds between two looks at who answers by ssh."""
REFUSED = ("starts from its own disk", "is not installed", "was not installed")
"""How what is told of a machine begins (netboot/serve.py) that is not to be, or was not, installed."""
PORT = 8077
"""Of the web server, where install.serve has none."""


@dataclass(frozen=True, slots=True)
class Ready:
    """A site that can be answered. `here`: this computer's address on the interface; `port`: of the web server."""

    cluster: Cluster
    site: str
    how: Netboot
    hosts: tuple[Host, ...]
    here: IPv4Interface
    port: int
    journal: Journal
    folder: Path
    key: str = field(repr=False)
    disk: DiskImage | None = None

    def overwritten(self) -> list[Host]:
        """Those on whose disks an installation may overwrite data."""
        known = {name: entry.serial for name, entry in self.journal.load().items()}
        return [host for host in self.hosts if self.may_overwrite(host.serial or known.get(host.name, ""))]

    def may_overwrite(self, serial: str) -> bool:
        return serial.casefold() in {allowed.casefold() for allowed in self.how.installation.reinstall}

    def config(self, url: str) -> str:
        """dnsmasq.conf for the web server at `url`."""
        machines = [dnsmasq.Machine(host.mac, host.address) for host in self.hosts]
        how = self.how
        return dnsmasq.config(
            how.interface, self.here, machines, f"{url}/boot.ipxe", proxy=how.proxy, gateway=how.gateway, dns=how.dns
        )

    def make(self, host: Host, record: Journaled, request: Asked, url: str) -> Media:
        """The installer of one machine, made when it asks for it."""
        installation, fixed = self.how.installation, None
        if not self.how.proxy:
            address = IPv4Interface(f"{host.address}/{self.here.network.prefixlen}")
            fixed = Address(address, self.how.gateway, self.how.dns)
        target = Target(
            name=host.name.lower(), user=host.user or self.cluster.spec.user(self.site),
            ssh_key=" ".join(self.key.split()[:2]), serials=tuple(dict.fromkeys((record.serial, *request.names))),
            token=record.token, disk=installation.disk, reinstall=self.may_overwrite(record.serial),
            mirror=installation.mirror, mac=host.mac, fixed=fixed, report=url,
        )  # fmt: skip
        if self.disk is not None:
            system = ramdisk.make(installation.mirror)
            return media.of_disk_image(system, self.disk, target, self.folder / record.token)
        return media.make(installation.os or "", installation.source, target, self.folder / record.token)


def ready(cluster: Cluster, site: str | None) -> Ready:
    """The site, where all that answering its machines needs is there. Changes nothing but to make the cluster's key.
    Raises GpuprovError for what is missing."""
    name, how, hosts = _site(cluster, site)
    if lacks := dnsmasq.missing():
        raise GpuprovError(f"{', '.join(lacks)} is not installed on this computer", hint=network.NEEDS)
    _verify(how)
    address, colon, port = how.installation.serve.rpartition(":")
    serve_address = address if colon else port
    listener = network.address(how.interface, serve_address, f"site {name}")
    if not how.proxy:
        network.refuse_unusable(hosts, listener, how.gateway, how.interface, f"site {name}")
    folder = cluster.paths.site(name)
    private_dir(folder)
    key = ssh_keys.ensure_key(cluster.paths, cluster.spec.access.ssh_key)
    return Ready(
        cluster, name, how, tuple(hosts), listener, int(port) if colon else PORT, Journal(folder / "netboot.json"),
        private_dir(folder / "netboot"), key,
    )  # fmt: skip


def write(site: Ready) -> Path:
    """dnsmasq's configuration, as `run` would start it; nothing is started."""
    file = site.folder / "dnsmasq.conf"
    write_whole(file, site.config(f"http://{site.here.ip}:{site.port}"))
    return file


def refuse_without_root(file: Path) -> None:
    """Raises GpuprovError for whoever may not answer DHCP."""
    if os.geteuid() != 0:
        raise GpuprovError("answering DHCP needs root", hint=f"sudo {ownership.program()} netboot {file} --run")


class Ended(NamedTuple):
    """How far one machine is at the end of a run; `why`: what kept it from being installed, and what to do."""

    step: str
    why: str = ""


def run(site: Ready, *, pause_s: float = LOOK_S) -> dict[str, Ended]:
    """Answer the site's machines until each is installed, has failed, or has not come up in time (timeouts.machine_s).

    Gives host → how far it is. Raises GpuprovError where nobody can be answered. The caller holds the cluster's
    lock."""
    refuse_without_root(site.cluster.file)
    for host in site.hosts:  # one that failed, and is to be overwritten, begins anew; by this run, and once
        earlier = site.journal.load().get(host.name)
        if earlier is not None and earlier.step == "failed" and site.may_overwrite(earlier.serial):
            site.journal.note(Journaled(host.name, earlier.serial), "chosen")
    events, stop, sentences = site.cluster.events, threading.Event(), dict[str, str]()

    for name, step in steps(site).items():
        if step == "failed":
            sentences[name] = "was not installed by an earlier run"

    def report(host: Host, sentence: str) -> None:
        sentences[host.name] = sentence
        events("fleet", "log", sentence, node=host.name)

    site = _prepared(site)
    answers = serve.Answers({host.mac: host for host in site.hosts}, site.journal, site.make, report)
    with serve.serving(str(site.here.ip), site.port, answers):
        file = site.folder / "dnsmasq.conf"
        write_whole(file, site.config(answers.url))
        with dnsmasq.running(file, lambda line: events("fleet", "log", line)) as daemon:
            events(
                "fleet",
                "log",
                f"answering {counted(len(site.hosts), 'machine')} on {site.how.interface}; switch them on",
            )
            _follow(site, daemon, stop, pause_s)
    return {
        host: Ended(step, _failure_reason(site, host, step, sentences.get(host, "")))
        for host, step in steps(site).items()
    }


def _prepared(site: Ready) -> Ready:
    """With the disk image as it is served, and the system that writes it: minutes, once."""
    how = site.how.installation
    if not how.disk_image:
        return site
    if ramdisk.ready(how.mirror) is None:
        site.cluster.events("fleet", "log", "making the system that writes the disk image; kept for the next time")
    ramdisk.make(how.mirror)
    site.cluster.events("fleet", "log", f"compressing and comparing {how.source.name}, once")
    return replace(site, disk=disk_image.prepare(how.source, how.sha256, site.folder))


def _failure_reason(site: Ready, name: str, step: str, sentence: str) -> str:
    """`said`: the last that was told of the machine, "" where it asked nothing in this run."""
    within = f"within {site.cluster.spec.timeouts.machine_s} s (timeouts.machine_s)"
    if step == "installed":
        return ""
    if step == "failed":
        serial = site.journal.load()[name].serial
        late = f"it did not answer by ssh {within} of having its installer"
        reason = sentence if sentence.startswith(REFUSED) else late
        allow = "" if site.may_overwrite(serial) else f", add {serial} to install.reinstall,"
        return f"{reason}; look at its console{allow} and run this again"
    if sentence.startswith(REFUSED):
        return sentence
    if step == "offered" and sentence:
        return f"it asked for its installer and did not take all of it {within}; run this again, and restart it"
    mac = next(host.mac for host in site.hosts if host.name == name)
    return f"it did not ask for its installer {within}; is it on, and does it start from the network with {mac}?"


def _follow(site: Ready, daemon: subprocess.Popen[str], stop: threading.Event, pause_s: float) -> None:
    wait_s, since = float(site.cluster.spec.timeouts.machine_s), {host.name: time.monotonic() for host in site.hosts}
    noted_steps: dict[str, str] = {}
    while True:
        waiting = False
        for host in site.hosts:
            entry = site.journal.load().get(host.name)
            step = entry.step if entry is not None else ""
            if noted_steps.get(host.name) != step:
                noted_steps[host.name], since[host.name] = step, time.monotonic()
            if entry is not None and step == "started" and _answers(site, host, entry):
                site.journal.note(entry, "installed")
                if entry.host_key:
                    ssh_pins.pin(site.cluster.paths, host.name, entry.host_key)
                else:
                    ssh_pins.unpin(site.cluster.paths, host.name)
                site.cluster.events("fleet", "progress", "installed: it answers by ssh", node=host.name, unit="machine")
            elif step not in ("installed", "failed"):
                late = time.monotonic() - since[host.name] > wait_s
                if late and entry is not None and step == "started":
                    site.journal.note(entry, "failed")
                waiting = waiting or not late
        if not waiting:
            return
        if daemon.poll() is not None:
            raise ProviderError(f"dnsmasq ended by itself ({daemon.returncode})", where=f"site {site.site}")
        stop.wait(pause_s)


def _answers(site: Ready, host: Host, entry: Journaled) -> bool:
    access = site.cluster.providers.at(site.site).access
    carried = access.proxy(host.name) if access is not None else None
    return came_up(
        site.cluster.paths, host, host.user or site.cluster.spec.user(site.site), carried, entry.token, entry.host_key
    )


def steps(site: Ready) -> dict[str, str]:
    """Host → how far its installation is, "" for one that never asked."""
    journal: Mapping[str, Journaled] = site.journal.load()
    return {host.name: journal[host.name].step if host.name in journal else "" for host in site.hosts}


def _site(cluster: Cluster, wanted_site: str | None) -> tuple[str, Netboot, list[Host]]:
    providers = {name: cluster.providers.at(name) for name in cluster.spec.sites}
    if wanted_site is not None and wanted_site not in providers:
        hint = did_you_mean(wanted_site, list(providers)) or f"known here: {', '.join(providers)}"
        raise GpuprovError(f"there is no site {wanted_site}", where=str(cluster.file), hint=hint)
    sites = {
        name: provider_of_site
        for name, provider_of_site in providers.items()
        if provider_of_site.netboot is not None and wanted_site in (None, name)
    }
    if len(sites) != 1:
        message = f"{counted(len(sites), 'site')} have method: pxe" if sites else "no site has method: pxe"
        message = f"site {wanted_site} does not have method: pxe" if wanted_site else message
        hint = f"--site {' or '.join(sites)}" if sites else "method: pxe, with pxe: { interface: … } and install: {…}"
        raise GpuprovError(message, where=str(cluster.file), hint=hint)
    ((name, provider),) = sites.items()
    groups = [group for group in cluster.spec.groups if cluster.spec.site_of(group) == name]
    if provider.netboot is None or provider.hosts is None or not (hosts := provider.hosts.listed(groups)):
        raise GpuprovError("the site lists no hosts", where=f"site {name}", hint="sites.*.hosts, each with its mac")
    return name, provider.netboot, hosts


def _verify(how: Netboot) -> None:
    file = how.installation.source
    if not file.exists():
        raise GpuprovError("is not there", where=str(file), hint=source.KINDS)
    if how.installation.disk_image:
        source.refuse_unfit_disk(file)
        return
    source.refuse_unfit(how.installation.os, file, network=True)
    source.refuse_other(file, how.installation.sha256)
