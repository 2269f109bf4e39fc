"""The network on which machines are answered: this computer's address there, and what the machines are given of it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from ipaddress import IPv4Address, IPv4Interface
from pathlib import Path
from typing import Any

from provisioner.common.errors import GpuprovError
from provisioner.common.text import few
from provisioner.machines.providers.hosts import Host

NEEDS = "sudo apt-get install -y dnsmasq-base ipxe iproute2"
ARP = Path("/proc/net/arp")
NAMED = 8
"""Hosts that an error names, of more."""


def address(interface: str, requested_address: str, location: str) -> IPv4Interface:
    """This computer's address on an interface: the wanted one, or the first. Raises GpuprovError where there is none,
    or the interface is down."""
    try:
        done = subprocess.run(
            ["ip", "-json", "address", "show"],
            capture_output=True, text=True, encoding="utf-8", errors="replace", timeout=10, check=False,
        )  # fmt: skip
        rows = json.loads(done.stdout or "[]") if done.returncode == 0 else None
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise GpuprovError(f"cannot list this computer's addresses: {error}", where=location, hint=NEEDS) from None
    if rows is None:
        raise GpuprovError(f"cannot list this computer's addresses: {done.stderr.strip()}", where=location, hint=NEEDS)
    row = next((candidate for candidate in rows if candidate.get("ifname") == interface), None)
    if row is None:
        raise GpuprovError(
            f"this computer has no network interface {interface}", where=f"{location}: pxe.interface",
            hint="`ip -brief address` lists them",
        )  # fmt: skip
    return _of_row(row, interface, requested_address, location)


def _of_row(row: dict[str, Any], interface: str, requested_address: str, location: str) -> IPv4Interface:
    if "UP" not in row.get("flags", ()):  # administratively; without a carrier it may be the machines that are off
        raise GpuprovError(f"{interface} is down", where=location, hint=f"sudo ip link set {interface} up")
    infos = [info for info in row.get("addr_info", ()) if info.get("family") == "inet"]
    addresses = [IPv4Interface(f"{info['local']}/{info['prefixlen']}") for info in infos]
    chosen = next((candidate for candidate in addresses if requested_address in ("", str(candidate.ip))), None)
    if chosen is None:
        has = ", ".join(map(str, addresses)) or "none"
        raise GpuprovError(
            f"{interface} has no IPv4 address{f' {requested_address}' if requested_address else ''}: it has {has}",
            where=location, hint="give it one, or correct pxe.interface and install.serve",
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


def refuse_unusable(
    hosts: Sequence[Host], host_interface: IPv4Interface, gateway: str, interface: str, location: str
) -> None:
    """Raises GpuprovError for addresses that can't be given to machines there, and for a gateway that they can't
    reach; all of them in one. `gateway`: "" for none."""
    reasons = list(_unusable(hosts, host_interface, gateway))
    if reasons:
        raise GpuprovError(
            few(reasons, NAMED), where=location,
            hint=f"{interface} is {host_interface}: use free addresses of {host_interface.network} and a gateway in it",
        )  # fmt: skip


def _unusable(hosts: Sequence[Host], host_interface: IPv4Interface, gateway: str) -> Iterator[str]:
    for host in hosts:
        if reason := _not_for_a_machine(IPv4Address(host.address), host_interface):
            yield f"{host.name} is to have the address {host.address}, {reason}"
        elif IPv4Address(host.address) == host_interface.ip:
            yield f"{host.name} is to have the address {host.address}, which is this computer's own"
        elif host.address == gateway:
            yield f"{host.name} is to have the address {host.address}, which is pxe.gateway"
    if gateway and (reason := _not_for_a_machine(IPv4Address(gateway), host_interface)):
        yield f"pxe.gateway is {gateway}, {reason}"


def _not_for_a_machine(address: IPv4Address, host_interface: IPv4Interface) -> str:
    """Why no machine there can have it, "" where one can. A /31 has no address but those of machines (RFC 3021)."""
    network = host_interface.network
    if address not in network:
        return f"which is not one of {network}"
    if network.prefixlen < 31 and address == network.network_address:
        return f"which is that of the network {network} itself"
    if network.prefixlen < 31 and address == network.broadcast_address:
        return f"which is the broadcast address of {network}"
    return ""
