"""The network on which machines are answered: this computer's address there, and what the machines are given of it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from ipaddress import IPv4Address, IPv4Interface
from pathlib import Path
from typing import Any

from provisioner.errors import GpuprovError
from provisioner.providers.hosts import Host
from provisioner.text import few

NEEDS = "sudo apt-get install -y dnsmasq-base ipxe iproute2"
ARP = Path("/proc/net/arp")
NAMED = 8
"""Hosts that an error names, of more."""


def address(interface: str, wanted: str, where: str) -> IPv4Interface:
    """This computer's address on an interface: the wanted one, or the first. Raises GpuprovError where there is none,
    or the interface is down."""
    try:
        done = subprocess.run(
            ["ip", "-json", "address", "show"],
            capture_output=True, text=True, encoding="utf-8", errors="replace", timeout=10, check=False,
        )  # fmt: skip
        rows = json.loads(done.stdout or "[]") if done.returncode == 0 else None
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise GpuprovError(f"cannot list this computer's addresses: {error}", where=where, hint=NEEDS) from None
    if rows is None:
        raise GpuprovError(f"cannot list this computer's addresses: {done.stderr.strip()}", where=where, hint=NEEDS)
    row = next((one for one in rows if one.get("ifname") == interface), None)
    if row is None:
        raise GpuprovError(
            f"this computer has no network interface {interface}", where=f"{where}: pxe.interface",
            hint="`ip -brief address` lists them",
        )  # fmt: skip
    return _of_row(row, interface, wanted, where)


def _of_row(row: dict[str, Any], interface: str, wanted: str, where: str) -> IPv4Interface:
    if "UP" not in row.get("flags", ()):  # administratively; without a carrier it may be the machines that are off
        raise GpuprovError(f"{interface} is down", where=where, hint=f"sudo ip link set {interface} up")
    infos = [one for one in row.get("addr_info", ()) if one.get("family") == "inet"]
    found = [IPv4Interface(f"{one['local']}/{one['prefixlen']}") for one in infos]
    chosen = next((one for one in found if wanted in ("", str(one.ip))), None)
    if chosen is None:
        has = ", ".join(map(str, found)) or "none"
        raise GpuprovError(
            f"{interface} has no IPv4 address{f' {wanted}' if wanted else ''}: it has {has}", where=where,
            hint="give it one, or correct pxe.interface and install.serve",
        )  # fmt: skip
    return chosen


def mac_of(address: str, table: Path = ARP) -> str:
    """The MAC address that an IPv4 address has on this computer's networks (proc_net(5), arp); "" where that is not
    known, as of this computer itself."""
    try:
        rows = [line.split() for line in table.read_text(encoding="ascii", errors="replace").splitlines()[1:]]
    except OSError:
        return ""
    complete = 2  # ATF_COM of <net/if_arp.h>
    for row in rows:
        if len(row) >= 4 and row[0] == address and int(row[2], 16) & complete:
            return row[3].lower()
    return ""


def refuse_unusable(hosts: Sequence[Host], here: IPv4Interface, gateway: str, interface: str, where: str) -> None:
    """Raises GpuprovError for addresses that can't be given to machines there, and for a gateway that they can't
    reach; all of them in one. `gateway`: "" for none."""
    why = list(_unusable(hosts, here, gateway))
    if why:
        raise GpuprovError(
            few(why, NAMED), where=where,
            hint=f"{interface} is {here}: addresses of {here.network} that nobody has, and a gateway there",
        )  # fmt: skip


def _unusable(hosts: Sequence[Host], here: IPv4Interface, gateway: str) -> Iterator[str]:
    for host in hosts:
        if said := _not_for_a_machine(IPv4Address(host.address), here):
            yield f"{host.name} is to have the address {host.address}, {said}"
        elif IPv4Address(host.address) == here.ip:
            yield f"{host.name} is to have the address {host.address}, which is this computer's own"
        elif host.address == gateway:
            yield f"{host.name} is to have the address {host.address}, which is pxe.gateway"
    if gateway and (said := _not_for_a_machine(IPv4Address(gateway), here)):
        yield f"pxe.gateway is {gateway}, {said}"


def _not_for_a_machine(one: IPv4Address, here: IPv4Interface) -> str:
    """Why no machine there can have it, "" where one can. A /31 has no address but those of machines (RFC 3021)."""
    network = here.network
    if one not in network:
        return f"which is not one of {network}"
    if network.prefixlen < 31 and one == network.network_address:
        return f"which is that of the network {network} itself"
    if network.prefixlen < 31 and one == network.broadcast_address:
        return f"which is the broadcast address of {network}"
    return ""
