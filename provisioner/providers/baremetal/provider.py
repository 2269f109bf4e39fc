"""See providers/base.py for the contract."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping
from functools import cached_property
from pathlib import Path

from provisioner import ssh
from provisioner.catalog import distributions
from provisioner.errors import GpuprovError
from provisioner.events import Events
from provisioner.plan import Plan
from provisioner.preflight import Finding
from provisioner.providers.baremetal import maas
from provisioner.providers.baremetal.known_hosts import key_of
from provisioner.providers.baremetal.maas import MaasApi, MaasModule
from provisioner.providers.baremetal.site import BareMetalSite
from provisioner.providers.base import Installation, Place, Provider
from provisioner.providers.hosts import Host
from provisioner.redfish import accounts
from provisioner.stack.models import BaseImage
from provisioner.text import counted


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
        way = (host.jump or self._settings.jump) if host is not None else None
        return ssh.jump(way, host.address, host.port) if host is not None and way else None

    def console(self, machine: str) -> str | None:  # noqa: ARG002 (nobody records it)
        return None


class BareMetalManagement:
    """The BMCs of a site."""

    def __init__(self, settings: BareMetalSite) -> None:
        self.credentials = settings.credentials or "env:BMC"
        self.firmware: Mapping[str, Mapping[str, str]] = settings.firmware
        self.power_budget_w = settings.power_budget_w
        install = settings.install
        self.installation = (
            Installation(
                install.os, install.disk, Path(install.iso), install.sha256 or "", install.serve or "", install.mirror,
                install.reinstall,
            )
            if settings.method == "redfish" and install is not None and install.iso
            else None
        )  # fmt: skip


class BareMetal(Provider):
    """Machines of one's own."""

    name = "baremetal"

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        settings = place.settings
        if not isinstance(settings, BareMetalSite):
            raise GpuprovError("this is no site of bare metal", where=f"site {place.site}")
        self._hosts = BareMetalHosts(settings)
        if settings.maas is not None:
            self.module = MaasModule(place, settings.maas)
            self._maas = MaasApi(settings.maas.url)
        else:
            self.hosts = self.access = self._hosts
            self.management = BareMetalManagement(settings)

    def base_image(self, system: str) -> BaseImage:
        if self.module is not None:
            row = distributions.row(system)
            if row["family"] != "ubuntu":
                raise GpuprovError(f"MAAS has no image of {system} by itself", hint="stack.os: ubuntu-24.04")
            return BaseImage(id=row["codename"], why="its series in MAAS")
        return BaseImage(id="installed", why=f"what runs there has to be {system}")

    def preflight(self, plan: Plan, there: Collection[str]) -> list[Finding]:
        """Whether the site names its machines, and `host_keys` has each; or MAAS has enough that are ready."""
        settings = self.place.settings
        if isinstance(settings, BareMetalSite) and settings.maas is not None:
            return maas.preflight(self._maas, settings.maas, self.place.site, plan, there)
        try:
            hosts = self._hosts.listed([group.name for group in plan.groups if group.site == self.place.site])
            if not hosts:
                hint = f"add sites.{self.place.site}.hosts, or rehearse the file with --sandbox"
                return [Finding("blocks", "hosts", f"site {self.place.site} lists no hosts", hint)]
            for host in hosts:
                self._hosts.host_key(host.name)
        except GpuprovError as error:
            return [Finding("blocks", error.where or "hosts", error.message, error.hint)]
        found = [Finding("ok", "hosts", f"{counted(len(hosts), 'host')} listed")]
        if self.management is not None and self.management.installation is not None:
            found += _installable(self.management.credentials, self.management.installation, hosts)
        return found

    def clean(self, events: Events) -> list[str]:  # noqa: ARG002
        return []


def _installable(credentials: str, installation: Installation, hosts: list[Host]) -> list[Finding]:
    """What an installation needs on this computer; nothing is asked of a BMC."""
    found = []
    if not installation.iso.exists():
        hint = "install.iso: the distribution's ISO image, or the folder of Debian's netboot images"
        found.append(Finding("blocks", "install.iso", f"{installation.iso} is not there", hint))
    tools = ["openssl", "xorriso", *(["grub-mkrescue", "mformat"] if installation.iso.is_dir() else [])]
    if missing := [tool for tool in tools if shutil.which(tool) is None]:
        hint = "apt install openssl xorriso grub-pc-bin grub-efi-amd64-bin grub-common mtools"
        found.append(Finding("blocks", "install", f"{', '.join(missing)} missing, to make and serve the image", hint))
    for host in hosts:
        try:
            accounts.find(credentials, host.name, host.bmc, Path())
        except GpuprovError as error:
            found.append(Finding("blocks", "credentials", f"{error.where}: {error.message}", error.hint))
            break
    return found


PROVIDER = BareMetal
