"""The hosts that a bare-metal site lists, in cluster.yaml or in an inventory, and what is wrong with the list."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, NamedTuple

from pydantic import TypeAdapter, ValidationError

from provisioner.common.suggest import did_you_mean
from provisioner.common.text import counted
from provisioner.machines.providers.baremetal import inventory
from provisioner.machines.providers.hosts import LOCAL, Host
from provisioner.spec.ranges import expand
from provisioner.spec.site import Jump, LoginName
from provisioner.spec.source_map import Finding, Loc, shown

if TYPE_CHECKING:
    from provisioner.machines.providers.baremetal.settings import BareMetalSettings, HostEntry

HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
SERIAL = r"[A-Za-z0-9._:/-]{2,64}"
ADDRESS = re.compile(r"[0-9A-Za-z][0-9A-Za-z.:-]{0,252}")
_USER: TypeAdapter[str] = TypeAdapter(LoginName)
_JUMP: TypeAdapter[str] = TypeAdapter(Jump)


class _Given(NamedTuple):
    """A range of hosts: of cluster.yaml (`loc`), or of an inventory (`where`: FILE:LINE)."""

    pattern: str
    group: str
    address: str | None
    port: int
    user: str | None
    jump: str | None
    bmc: str | None
    serials: tuple[str, ...]
    macs: tuple[str, ...]
    loc: Loc
    where: str = ""

    @property
    def label(self) -> str:
        """What errors call it. Nothing of an inventory is quoted: its path may name a file of secrets."""
        return "the host" if self.where else self.pattern


def listed(site: BareMetalSettings, groups: Collection[str]) -> tuple[list[Host], list[Finding]]:
    """The site's hosts, and what is wrong with them, each at its place in the site's block. `groups`: those at it;
    empty where that is not known."""
    hosts: list[Host] = []
    problems: list[Finding] = []
    pattern_by_name: dict[str, str] = {}
    called: dict[tuple[str, int], str] = {}
    managed: dict[str, str] = {}
    serials: dict[str, str] = {}
    cards: dict[str, str] = {}
    try:
        host_ranges = list(_host_ranges(site))
    except inventory.InventoryError as error:
        return [], [Finding(("inventory",), str(error))]
    for host_range in host_ranges:
        range_hosts, wrong = _hosts(host_range, groups)
        problems += wrong
        for host in range_hosts:
            clash = _clash(host, host_range, pattern_by_name, called, managed)
            if not clash and host.mac and cards.setdefault(host.mac, host.name) != host.name:
                clash = f"{cards[host.mac]} and {host.name} have the same MAC address, {host.mac}"
            if not clash and host.serial and serials.setdefault(host.serial.lower(), host.name) != host.name:
                clash = f"{serials[host.serial.lower()]} and {host.name} have the same serial number, {host.serial}"
            if clash:
                problems.append(_at(host_range, (), clash, at_key=True))
                break
        hosts += range_hosts
    return hosts, problems


def _clash(
    host: Host,
    host_range: _Given,
    pattern_by_name: dict[str, str],
    called: dict[tuple[str, int], str],
    managed: dict[str, str],
) -> str:
    """Why the host can't be a machine of its own beside those before it; empty where it can. It is remembered."""
    name = LOCAL[0] if host.local else host.name.lower()
    if name in pattern_by_name:
        twice = (
            f"in {pattern_by_name[name]} and in {host_range.pattern}"
            if pattern_by_name[name] != host_range.pattern
            else f"in {host_range.pattern}"
        )
        return f"{host.name} is listed twice: {twice}"
    pattern_by_name[name] = host_range.pattern
    # Behind a jump host of its own an address may be another machine.
    endpoint = (f"{host.jump or ''} {host.address.lower()}", host.port)
    other = called.setdefault(endpoint, host.name)
    if other != host.name:
        return f"{other} and {host.name} have the same address, {host.address} port {host.port}"
    if host.bmc and (other := managed.setdefault(host.bmc.lower(), host.name)) != host.name:
        return f"{other} and {host.name} have the same BMC, {host.bmc}"
    return ""


def _host_ranges(site: BareMetalSettings) -> Iterator[_Given]:
    """The ranges of the file, or those of the inventory. Raises InventoryError."""
    for name, entry in site.hosts.items():
        yield _of_file(site, name, entry)
    for line in inventory.read(site.inventory) if site.inventory and not site.hosts else ():
        keys = line.keys
        _check(line)
        yield _Given(
            line.pattern, line.group, keys.get("address"), int(keys.get("port", site.port)), keys.get("user"),
            keys.get("jump"), keys.get("bmc"), tuple(filter(None, (keys.get("serial"),))),
            tuple(filter(None, (keys.get("mac"),))), ("inventory",), line.where,
        )  # fmt: skip


def _of_file(site: BareMetalSettings, name: str, entry: HostEntry) -> _Given:
    serials, macs = (((value,) if isinstance(value, str) else value or ()) for value in (entry.serial, entry.mac))
    return _Given(
        name, entry.group or "", entry.address, entry.port or site.port, entry.user, entry.jump, entry.bmc, serials,
        macs, ("hosts", name),
    )  # fmt: skip


def _check(line: inventory.Line) -> None:
    """Raises InventoryError for a value that is not what its key takes, without the value."""
    for key, pattern in (("host", line.pattern), ("address", line.keys.get("address")), ("bmc", line.keys.get("bmc"))):
        if pattern is not None and not _is_range(pattern, host=key == "host", port=key == "bmc"):
            raise inventory.InventoryError(f"{line.where}: {key} is not a host name, an address or a range of them")
    port = line.keys.get("port", "22")
    if not re.fullmatch(r"[1-9][0-9]{0,4}", port) or int(port) > 65535:
        raise inventory.InventoryError(f"{line.where}: ansible_port is not a port")
    if not re.fullmatch(r"[0-9A-Fa-f]{2}([:-][0-9A-Fa-f]{2}){5}", line.keys.get("mac", "00:00:00:00:00:00")):
        raise inventory.InventoryError(f"{line.where}: mac is not a MAC address such as b8:59:9f:00:00:01")
    if not re.fullmatch(SERIAL, line.keys.get("serial", "unknown")):
        message = "serial is not a serial number: 2 to 64 letters, digits and . _ : / -"
        raise inventory.InventoryError(f"{line.where}: {message}")
    for key, reads in (("user", _USER), ("jump", _JUMP)):
        try:
            reads.validate_python(line.keys.get(key, "me"))
        except ValidationError:
            expected = "login name" if key == "user" else "jump host, [user@]host[:port]"
            raise inventory.InventoryError(f"{line.where}: {key} is not a {expected}") from None


def _is_range(pattern: str, *, host: bool, port: bool) -> bool:
    try:
        names = expand(pattern)
    except ValueError:
        return False
    return all((not host or HOST.fullmatch(name)) and _is_address(name, port=port) for name in names)


def _at(host_range: _Given, keys: Loc, message: str, hint: str = "", *, at_key: bool = False) -> Finding:
    """A finding about a range, or about one of its keys."""
    if host_range.where:
        return Finding(host_range.loc, f"{host_range.where}: {message}", hint)
    return Finding((*host_range.loc, *keys), message, hint, at_key=at_key)


def _hosts(host_range: _Given, groups: Collection[str]) -> tuple[list[Host], list[Finding]]:
    """The hosts that a range stands for, and what is wrong with it."""
    try:
        names = expand(host_range.pattern)
    except ValueError as error:
        hint = "a host name, or a range such as dgx[01-16].lab"
        return [], [_at(host_range, (), f"{shown(host_range.pattern)} is not a host: {error}", hint, at_key=True)]
    if bad := [name for name in names if not HOST.fullmatch(name) or not _is_address(name, port=False)]:
        hint = "a host name or an IPv4 address; give an IPv6 address with the key address"
        return [], [_at(host_range, (), f"{shown(bad[0])} is not a host name", hint, at_key=True)]
    problems = list(_group(host_range, groups))
    local = any(name in LOCAL for name in names)
    if local and (away := [key for key in ("address", "user", "jump", "bmc") if getattr(host_range, key)]):
        message = f"{names[0]} is the machine that gpuprov runs on: it has no {away[0]}"
        problems.append(_at(host_range, (away[0],), message, "leave it out", at_key=True))
    addresses, wrong = _as_many(host_range, "address", names)
    bmcs, also = _as_many(host_range, "bmc", names)
    for key, values, noun in (("serial", host_range.serials, "serial number"), ("mac", host_range.macs, "MAC address")):
        if values and len(values) != len(names):
            message = f"{counted(len(values), noun)} for the {counted(len(names), 'host')} of {host_range.label}"
            problems.append(_at(host_range, (key,), message, "as many of one as of the other", at_key=True))
    if wrong or also or problems:
        return [], [*problems, *wrong, *also]
    group = host_range.group or (next(iter(groups)) if len(groups) == 1 else "")
    empty = [""] * len(names)
    macs = [mac.lower().replace("-", ":") for mac in host_range.macs]
    rows = zip(names, addresses or names, bmcs or empty, host_range.serials or empty, macs or empty, strict=True)
    return [
        Host(name, group, address, host_range.port, host_range.user, host_range.jump, bmc, serial, mac)
        for name, address, bmc, serial, mac in rows
    ], []


def _is_address(text: str, *, port: bool) -> bool:
    """Whether it can be one: of numbers and dots alone it is an IPv4 address, and no host name."""
    host, colon, number = text.rpartition(":")
    if port and colon and ":" not in host:
        if not re.fullmatch(r"[1-9][0-9]{0,4}", number) or int(number) > 65535:
            return False
        text = host
    if ":" in text or re.fullmatch(r"[0-9]+(\.[0-9]*)+", text):
        try:
            ipaddress.ip_address(text)
        except ValueError:
            return False
        return True
    return ADDRESS.fullmatch(text) is not None


def _group(host_range: _Given, groups: Collection[str]) -> Iterator[Finding]:
    if not groups:
        return
    if not host_range.group and len(groups) > 1:
        hint = f"group: {' or '.join(list(groups)[:4])}"
        yield _at(
            host_range,
            ("group",),
            f"{host_range.label} has no group, and {len(groups)} are at its site",
            hint,
            at_key=True,
        )
    elif host_range.group and host_range.group not in groups:
        hint = did_you_mean(host_range.group, list(groups)) or f"known here: {', '.join(list(groups)[:8])}"
        group_text = "of that section's name" if host_range.where else shown(host_range.group)
        yield _at(host_range, ("group",), f"there is no group {group_text} at its site", hint)


def _as_many(host_range: _Given, key: str, names: list[str]) -> tuple[list[str], list[Finding]]:
    """The addresses of a key, one for each host; empty where it is not there."""
    pattern = getattr(host_range, key)
    if pattern is None:
        return [], []
    try:
        addresses = expand(pattern)
    except ValueError as error:
        return [], [_at(host_range, (key,), f"{shown(pattern)} is not an address: {error}")]
    port = key == "bmc"
    if bad := [text for text in addresses if not _is_address(text, port=port)]:
        message = f"{shown(bad[0])} is not a host name or an IP address{', host[:port]' if port else ''}"
        bare = re.sub(r"^[a-z]+://([^/]*).*$", r"\1", pattern)
        return [], [_at(host_range, (key,), message, f"without the scheme: {bare}" if bare != pattern else "")]
    if len(addresses) != len(names):
        subject = key if host_range.where else shown(pattern)
        message = f"{subject} is a range of {len(addresses)}, and {host_range.label} of {len(names)}"
        return [], [_at(host_range, (key,), message, "as many of one as of the other")]
    return addresses, []
