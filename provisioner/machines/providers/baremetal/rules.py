"""What about a bare-metal site can't work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from ipaddress import IPv4Address
from pathlib import Path
from typing import TYPE_CHECKING

from rapidfuzz.distance import OSA

from provisioner.common.errors import GpuprovError
from provisioner.common.suggest import did_you_mean
from provisioner.common.text import counted
from provisioner.machines.installer import source
from provisioner.machines.providers.baremetal.listing import listed
from provisioner.machines.redfish import accounts
from provisioner.spec.groups import Group
from provisioner.spec.source_map import Finding, Loc, shown

if TYPE_CHECKING:
    from provisioner.machines.providers.baremetal.settings import BareMetalSettings, Install


_GROUP = 1
"""Bit of a MAC address's first byte: of a group of stations, and of none of them (IEEE 802, 8.2)."""
_MANY = "one of many stations at once (multicast)"


def findings(site: BareMetalSettings, at: Loc, groups: Mapping[str, Group]) -> Iterator[Finding]:
    """What cannot work at the site; `groups`: those that are at it."""
    if site.method == "maas":
        yield from _of_maas(site, at, groups)
        return
    if site.maas is not None:
        yield Finding((*at, "maas"), "maas belongs to method: maas", "method: maas, or leave it out", at_key=True)
    yield from _management(site, at)
    for name, parts in site.firmware.items():
        if name not in groups:
            hint = did_you_mean(name, list(groups))
            yield Finding((*at, "firmware", name), f"there is no group {name} at this site", hint, at_key=True)
        for part in parts:
            if right := _misspelled(part):
                message = f"{shown(part)} is not a part that BMCs list"
                yield Finding((*at, "firmware", name, part), message, f"did you mean {right}?", at_key=True)
    if site.hosts and site.inventory:
        yield Finding((*at, "inventory"), "hosts and inventory are both here", "leave out one of them", at_key=True)
        return
    hosts, problems = listed(site, groups)
    for problem in problems:
        yield Finding((*at, *problem.loc), problem.message, problem.hint, problem.at_key)
    if (site.hosts or site.inventory) and not problems:
        yield from _counts(str(at[-1]), Counter(host.group for host in hosts), groups)


def unready(site: BareMetalSettings, at: Loc) -> Iterator[Finding]:
    """What only a sandbox does without: the machines, and the file of their host keys."""
    if site.method == "maas":
        return
    if not site.hosts and not site.inventory:
        example = 'hosts: { local: {} } for this very machine, or { "dgx[01-04].lab": {} }'
        hint = f"{example}; the sandbox needs none: `gpuprov validate --sandbox`"
        yield Finding(at, "the site lists no hosts", hint, at_key=True)
    if site.host_keys is not None and not Path(site.host_keys).is_file():
        message = f"there is no file {shown(site.host_keys, 200)}"
        yield Finding((*at, "host_keys"), message, "`ssh-keyscan -t ed25519 HOST` writes one; or leave host_keys out")
    yield from _accounts(site, at)
    yield from _installer(site, at)


def _accounts(site: BareMetalSettings, at: Loc) -> Iterator[Finding]:
    """The first slip in the file of the BMCs' users and passwords. That it is not here is no slip: it is a secret, and
    whoever checks a file before it is merged has none."""
    kind, _, file = (site.credentials or "").partition(":")
    if kind != "file" or not Path(file).exists():
        return
    for host in listed(site, ())[0]:
        if host.bmc:
            try:
                accounts.find(f"file:{file}", host.name, host.bmc, Path())
            except GpuprovError as error:
                yield Finding((*at, "credentials"), f"{error.where} {error.message}", error.hint)
                return


def _installer(site: BareMetalSettings, at: Loc) -> Iterator[Finding]:
    """An installer that can't install. That one is missing is said to whoever installs: by BMC that is `up`, and over
    the network it is not."""
    install = site.install
    image_path = install.image or install.iso if install is not None else None
    if install is None or image_path is None or site.method not in ("redfish", "pxe"):
        return
    key_path, file = (*at, "install", "image" if install.image else "iso"), Path(image_path)
    if not file.exists():
        if site.method == "redfish":
            disk = "a raw disk image: the .raw of `gpuprov image build`"
            iso = "the distribution's ISO image, or the folder of Debian's netboot images"
            yield Finding(key_path, f"{shown(image_path, 200)} is not there", disk if install.image else iso)
        return
    try:
        if install.image:
            source.refuse_unfit_disk(file)
        else:
            source.refuse_unfit(install.os, file, network=site.method == "pxe")
    except GpuprovError as error:
        hint = error.hint.removeprefix("install.iso: ").removeprefix("install.image: ")
        yield Finding(key_path, f"{error.where} {error.message}".strip(), hint)
    except OSError as error:
        yield Finding(key_path, f"{shown(image_path, 200)} cannot be read: {error.strerror}")


def _misspelled(part: str) -> str:
    """BIOS or BMC, the two parts that have the same name on every machine, where something else was meant to be one of
    them: another case, or one slip. The names of all other parts are the machine's own."""
    for right in ("BIOS", "BMC"):
        is_similar = part.isalpha() and OSA.distance(part.upper(), right) <= 1
        if is_similar and part != right:
            return right
    return ""


def _management(site: BareMetalSettings, at: Loc) -> Iterator[Finding]:
    """What BMCs need, and what installing needs."""
    managed = [name for name, entry in site.hosts.items() if entry.bmc is not None]
    if managed and site.credentials is None:
        message = f"{managed[0]} has a BMC, and its user and password are nowhere"
        yield Finding((*at, "hosts", managed[0], "bmc"), message, "credentials: env:BMC, or file:bmc.yaml of the site")
    if site.method == "pxe":
        yield from _of_pxe(site, at)
        return
    if site.pxe is not None:
        yield Finding((*at, "pxe"), "pxe belongs to method: pxe", "method: pxe, or leave it out", at_key=True)
    for name, entry in site.hosts.items():
        if entry.mac is not None:
            message = f"{name} has a mac, which belongs to method: pxe"
            yield Finding((*at, "hosts", name, "mac"), message, "leave it out", at_key=True)
    if site.method != "redfish":
        if site.install is not None:
            yield Finding((*at, "install"), "install belongs to method: redfish or pxe", "leave it out", at_key=True)
        return
    if not site.hosts and not site.inventory:
        message = "method: redfish needs the machines' BMCs, and no host is listed"
        yield Finding((*at, "method"), message, 'hosts: { "dgx[01-04].lab": { bmc: "bmc-dgx[01-04].lab" } }')
    for name, entry in site.hosts.items():
        if entry.bmc is None:
            message = f"{name} has no bmc, and method: redfish installs machines through theirs"
            yield Finding((*at, "hosts", name), message, "bmc: its address, or a range of as many", at_key=True)
    yield from _image(site, at)


def _image(site: BareMetalSettings, at: Loc) -> Iterator[Finding]:
    install = site.install
    if install is not None:
        yield from _settings(install, {host.serial.upper() for host in listed(site, ())[0]}, (*at, "install"))
    if install is not None and install.image is not None:
        for key in ("iso", "os"):
            if getattr(install, key) is not None:
                message = f"install.image and install.{key} are both here: a disk image is the whole system"
                yield Finding((*at, "install", key), message, "leave out one of them", at_key=True)
        if install.sha256 is None:
            message = "install.sha256 is missing: what is written to a disk is compared with it"
            yield Finding(
                (*at, "install", "image"),
                message,
                "the .json beside a disk of `gpuprov image build` has it",
                at_key=True,
            )
        return
    if install is None or install.iso is None:
        key_path = (*at, "install") if install is not None else (*at, "method")
        message = f"method: {site.method} needs the installer's image"
        yield Finding(
            key_path, message, "install: { iso: ubuntu-24.04.3-live-server-amd64.iso, sha256: … }", at_key=True
        )
    elif install.iso.endswith(".iso") and install.sha256 is None:
        message = "install.sha256 is missing: an image is not installed from unverified"
        yield Finding((*at, "install", "iso"), message, "the distribution publishes it as SHA256SUMS", at_key=True)


def _settings(install: Install, serials: set[str], at: Loc) -> Iterator[Finding]:
    _, _, port = (install.serve or "").rpartition(":")
    if (install.serve or "").count(":") == 1 and not (port.isdigit() and int(port) < 65536):
        yield Finding((*at, "serve"), f"{shown(port)} is not a port", "host:port with a port up to 65535")
    for number, serial in enumerate(install.reinstall if "" not in serials else ()):
        if serial.upper() not in serials:
            message = f"no host of this site has the serial number {serial}"
            yield Finding((*at, "reinstall", number), message, "the serial of a host for a new installation")


def _of_pxe(site: BareMetalSettings, at: Loc) -> Iterator[Finding]:
    """What starting from the network needs: who is answered, where, with what."""
    if site.pxe is None:
        message = "method: pxe needs the interface on which machines are answered"
        yield Finding((*at, "method"), message, "pxe: { interface: eth1 }")
    elif site.pxe.dhcp == "proxy" and (site.pxe.gateway or site.pxe.dns):
        key = "gateway" if site.pxe.gateway else "dns"
        yield Finding((*at, "pxe", key), f"with dhcp: proxy the network's own server gives the {key}", "leave it out")
    for loc, text in _addresses(site):
        if not _is_ipv4(text):
            yield Finding((*at, "pxe", *loc), f"{shown(text)} is not an IPv4 address")
    yield from _image(site, at)
    if site.install is not None and site.install.os is None and site.install.image is None:
        yield Finding((*at, "install"), "install.os is missing: method: pxe installs before versions are chosen",
                      "os: debian-12 or ubuntu-24.04", at_key=True)  # fmt: skip
    elif site.install is not None and (site.install.os or "").startswith("debian") and site.install.sha256:
        message = "Debian starts from the network by its netboot images, a folder, which has no SHA-256"
        yield Finding((*at, "install", "sha256"), message, "iso: the folder of debian-installer-12-netboot-amd64")
    for host in listed(site, ())[0]:
        name = next((host_name for host_name in site.hosts if host_name == host.name), None)
        key_path = (*at, "hosts", name) if name else (*at, "inventory" if site.inventory else "hosts")
        label = "a host" if site.inventory else host.name  # nothing of an inventory is quoted
        if host.local:
            yield Finding(key_path, f"{label} is the machine that gpuprov runs on", "method: ssh", at_key=True)
        elif not host.mac:
            message = f"{label} has no mac, by which method: pxe knows machines"
            yield Finding(key_path, message, "mac: of its boot port, or a list of as many", at_key=True)
        elif int(host.mac[:2], 16) & _GROUP or not host.mac.strip("0:"):
            message = (
                f"{host.mac} of {label} is the address of no port: {_MANY if host.mac.strip('0:') else 'all zeros'}"
            )
            yield Finding((*key_path, "mac") if name else key_path, message, "mac: of its boot port")
        elif site.pxe is not None and site.pxe.dhcp == "static" and site.pxe.gateway == host.address:
            message = f"{label} has the address of pxe.gateway, {host.address}"
            yield Finding(key_path, message, "another address, or another gateway", at_key=True)
        elif site.pxe is not None and site.pxe.dhcp == "static" and not _is_ipv4(host.address):
            message = f"{label} has no IPv4 address to be given"
            yield Finding(key_path, message, "address: 10.0.0.11, or a range; or pxe: { dhcp: proxy }", at_key=True)
        else:
            continue
        return  # one of a range is enough


def _addresses(site: BareMetalSettings) -> Iterator[tuple[Loc, str]]:
    """What the file gives the machines besides their own address."""
    if site.pxe is not None and site.pxe.gateway is not None:
        yield ("gateway",), site.pxe.gateway
    for index, address in enumerate(site.pxe.dns if site.pxe is not None else ()):
        yield ("dns", index), address


def _is_ipv4(text: str) -> bool:
    try:
        IPv4Address(text)
    except ValueError:
        return False
    return True


def _of_maas(site: BareMetalSettings, at: Loc, groups: Mapping[str, Group]) -> Iterator[Finding]:
    if site.maas is None:
        yield Finding((*at, "method"), "method: maas needs the address of a MAAS", "add maas: { url: … }")
        return
    for key in ("hosts", "inventory", "host_keys", "credentials", "install", "pxe", "firmware", "power_budget_w"):
        if getattr(site, key):
            yield Finding(
                (*at, key), f"{key} is not for method: maas: MAAS has the machines", "leave it out", at_key=True
            )
    if site.port != 22:
        yield Finding((*at, "port"), "port is not for method: maas", "leave it out", at_key=True)
    if not site.maas.url.startswith("https://") and not site.maas.insecure:
        message = "the API key would cross the network unencrypted"
        hint = "https://… (`gpuprov docs metal maas`), or `insecure: true` if only you use that network"
        yield Finding((*at, "maas", "url"), message, hint)
    if site.maas.url.startswith("https://") and site.maas.insecure:
        yield Finding((*at, "maas", "insecure"), "insecure is for http://", "leave it out", at_key=True)
    for name in site.maas.tags:
        if name not in groups:
            yield Finding((*at, "maas", "tags", name), f"there is no group {name} at this site", at_key=True)


def _counts(site: str, host_counts: Mapping[str, int], groups: Mapping[str, Group]) -> Iterator[Finding]:
    for name, group in groups.items():
        if host_counts.get(name, 0) != group.count:
            has = f"site {site} lists {counted(host_counts[name], 'host')} for it" if host_counts.get(name) else ""
            message = f"groups.{name}.count is {group.count}, and {has or f'site {site} lists no host for it'}"
            hint = (
                f"count: {host_counts[name]}, or other hosts"
                if host_counts.get(name)
                else f"add hosts with group: {name}"
            )
            yield Finding(("groups", name, "count"), message, hint)
