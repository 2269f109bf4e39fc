"""See providers/base.py for the contract."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path

from provisioner.catalog import distributions
from provisioner.common.errors import GpuprovError
from provisioner.common.events import Events
from provisioner.common.preflight import Finding
from provisioner.common.text import counted
from provisioner.machines.installer import ramdisk, source
from provisioner.machines.providers.baremetal import maas
from provisioner.machines.providers.baremetal.known_hosts import key_of
from provisioner.machines.providers.baremetal.maas import MaasApi, MaasModule
from provisioner.machines.providers.baremetal.site import BareMetalSite
from provisioner.machines.providers.base import Installation, Netboot, Place, Provider
from provisioner.machines.providers.hosts import Host
from provisioner.machines.providers.images import DisksAlone
from provisioner.machines.redfish import accounts
from provisioner.plan.models import Plan
from provisioner.stack.models import BaseImage
from provisioner.transport import ssh_config

ANSWER_S = 4.0


class BareMetalHosts:
    """The machines that a site names, and ssh's way to them."""

    def __init__(self, settings: BareMetalSite) -> None:
        self._settings = settings

    def listed(self, groups: Collection[str]) -> list[Host]:
        return self._settings.machines(groups)

    @cached_property
    def _by_name(self) -> dict[str, Host]:
        return {host.name: host for host in self._settings.machines(())}

    def host_key(self, machine: str) -> str | None:
        host = self._by_name.get(machine)
        return key_of(self._settings, host) if host is not None else None

    def proxy(self, machine: str) -> str | None:
        host = self._by_name.get(machine)
        jump = (host.jump or self._settings.jump) if host is not None else None
        return ssh_config.jump(jump, host.address, host.port) if host is not None and jump else None

    def console(self, machine: str) -> str | None:  # noqa: ARG002 (nobody records it)
        return None


class BareMetalManagement:
    """The BMCs of a site."""

    def __init__(self, settings: BareMetalSite) -> None:
        self.credentials = settings.credentials or "env:BMC"
        self.firmware: Mapping[str, Mapping[str, str]] = settings.firmware
        self.power_budget_w = settings.power_budget_w
        self.installation = _installation(settings) if settings.method == "redfish" else None


def _installation(settings: BareMetalSite) -> Installation | None:
    install = settings.install
    file = install.image or install.iso if install is not None else None
    if install is None or file is None:
        return None
    return Installation(
        install.os, install.disk, Path(file), install.sha256 or "", install.serve or "", install.mirror,
        install.reinstall, install.image is not None,
    )  # fmt: skip


class BareMetal(Provider):
    """Machines of one's own."""

    name = "baremetal"

    def __init__(self, site_context: Place) -> None:
        super().__init__(site_context)
        settings = site_context.settings
        if not isinstance(settings, BareMetalSite):
            raise GpuprovError("this site is not bare metal", where=f"site {site_context.site}")
        self.images = DisksAlone()
        self._hosts = BareMetalHosts(settings)
        if settings.maas is not None:
            self.module = MaasModule(site_context, settings.maas)
            self._maas = MaasApi(settings.maas.url)
        else:
            self.hosts = self.access = self._hosts
            self.management = BareMetalManagement(settings)
            installation, pxe = _installation(settings), settings.pxe
            if settings.method == "pxe" and pxe is not None and installation is not None:
                proxy, gateway = pxe.dhcp == "proxy", pxe.gateway or ""
                self.netboot = Netboot(installation, pxe.interface, proxy, gateway, pxe.dns)

    def base_image(self, system: str) -> BaseImage:
        if self.module is not None:
            row = distributions.row(system)
            if row["family"] != "ubuntu":
                raise GpuprovError(f"MAAS has no image of {system} by itself", hint="stack.os: ubuntu-24.04")
            return BaseImage(id=row["codename"], why="its series in MAAS")
        return BaseImage(id="installed", why=f"what runs there has to be {system}")

    def refuse_missing_files(self) -> None:
        if self.module is not None or self.management is None:
            return
        installation = self.management.installation
        hosts = self._hosts.listed(())
        for host in hosts:
            self._hosts.host_key(host.name)
            if installation is not None:
                accounts.find(self.management.credentials, host.name, host.bmc, Path())
        if installation is not None and not installation.source.exists():
            raise GpuprovError("is not there", where=str(installation.source), hint=source.KINDS)

    def preflight(self, plan: Plan, existing_nodes: Collection[str]) -> list[Finding]:
        """Whether the site names its machines, `host_keys` has each, and they answer; or MAAS has enough that are
        ready."""
        settings = self.place.settings
        if isinstance(settings, BareMetalSite) and settings.maas is not None:
            return maas.preflight(self._maas, settings.maas, self.place.site, plan, existing_nodes)
        try:
            hosts = self._hosts.listed([group.name for group in plan.groups if group.site == self.place.site])
            if not hosts:
                hint = f"add sites.{self.place.site}.hosts, or run the file with --sandbox"
                return [Finding("blocks", "hosts", f"site {self.place.site} lists no hosts", hint)]
            for host in hosts:
                self._hosts.host_key(host.name)
        except GpuprovError as error:
            return [Finding("blocks", error.where or "hosts", error.message, error.hint)]
        findings = [Finding("ok", "hosts", f"{counted(len(hosts), 'host')} listed"), *self._answering(hosts)]
        if self.management is not None and self.management.installation is not None:
            systems = {group.stack.os for group in plan.groups if group.site == self.place.site}
            findings += _installable(self.management.credentials, self.management.installation, hosts, systems)
        return findings

    def _answering(self, hosts: list[Host]) -> list[Finding]:
        """A warning for each host, or BMC that is to install one, that does not answer: it may be starting."""
        endpoints = {}
        for host in hosts:
            if self.management is not None and self.management.installation is not None:
                endpoints[f"the BMC of {host.name}"] = (*host.management, False)
            elif not host.local and self._hosts.proxy(host.name) is None:
                endpoints[host.name] = (host.address, host.port, True)
        with ThreadPoolExecutor(max_workers=64) as pool:
            errors = dict(
                zip(endpoints, pool.map(lambda endpoint: _silence(*endpoint), endpoints.values()), strict=True)
            )
        return [
            Finding(
                "warning",
                "answers",
                f"{name} ({endpoints[name][0]} port {endpoints[name][1]}) does not answer: {error_text}",
                "`gpuprov netboot FILE` installs it" if self.netboot is not None else "",
            )
            for name, error_text in errors.items()
            if error_text
        ]

    def clean(self, events: Events) -> list[str]:  # noqa: ARG002
        return []


def _silence(address: str, port: int, ssh: bool) -> str:
    """Why nothing answers there, "" where something does; `ssh`: that it is an sshd."""
    try:
        with socket.create_connection((address, port), timeout=ANSWER_S) as connection:
            if not ssh:
                return ""
            connection.settimeout(ANSWER_S)
            return "" if connection.recv(4) == b"SSH-" else "it is no sshd"
    except socket.gaierror:
        return "its name is not known"
    except OSError as error:
        return "no answer" if isinstance(error, TimeoutError) else error.strerror or str(error)


def _installable(
    credentials: str, installation: Installation, hosts: list[Host], systems: Collection[str]
) -> list[Finding]:
    """What an installation needs on this computer; nothing is asked of a BMC."""
    findings = []
    key = "install.image" if installation.disk_image else "install.iso"
    if not installation.source.exists():
        findings.append(Finding("blocks", key, f"{installation.source} is not there", source.KINDS))
    else:
        findings += _unfit(installation, systems if installation.os is None else [installation.os])
    kernel = installation.disk_image or installation.source.is_dir()
    tools = ["openssl", "xorriso", *(["grub-mkrescue", "mformat"] if kernel else [])]
    packages = "openssl xorriso grub-pc-bin grub-efi-amd64-bin grub-common mtools"
    if installation.disk_image:
        tools += ["zstd", *([] if ramdisk.ready(installation.mirror) else ramdisk.missing())]
        packages += f" zstd {ramdisk.NEEDS}"
    if missing := [tool for tool in tools if tool == "debian-archive-keyring" or shutil.which(tool) is None]:
        hint = f"apt install {packages}"
        findings.append(
            Finding("blocks", "install", f"{', '.join(missing)} missing, to make and serve the image", hint)
        )
    for host in hosts:
        try:
            accounts.find(credentials, host.name, host.bmc, Path())
        except GpuprovError as error:
            findings.append(Finding("blocks", "credentials", f"{error.where}: {error.message}", error.hint))
            break
    return findings


def _unfit(installation: Installation, systems: Collection[str]) -> list[Finding]:
    for system in sorted(systems):
        try:
            if installation.disk_image:
                source.refuse_unfit_disk(installation.source)
            else:
                source.refuse_unfit(system, installation.source, network=False)
        except GpuprovError as error:
            key = "install.image" if installation.disk_image else "install.iso"
            return [Finding("blocks", key, f"{error.where} {error.message}".strip(), error.hint)]
    return []


PROVIDER = BareMetal
