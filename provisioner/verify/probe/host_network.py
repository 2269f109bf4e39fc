"""A host's interfaces, addresses, sockets and the look-up of its own name, for host.json.

Standard library only, Python 3.8 or newer.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import struct
import time
from typing import Any

from provisioner.verify.probe.runner import COLLECTORS, lines_of, listed, result, texts

INTERFACE_FILES = ("mtu", "speed", "operstate", "carrier_down_count", "type", "address")
COUNTS = ("rx_packets", "tx_packets", "rx_errors", "tx_errors", "rx_dropped", "tx_dropped")
SEVERAL = re.compile(r"^(veth|br-|docker|cni|flannel|cali|lxc|tap|virbr)")
"""Interfaces that belong to containers."""


def interfaces() -> dict[str, dict[str, Any]]:
    base = "/sys/class/net"
    rows: dict[str, dict[str, Any]] = {}
    for name in listed(base):
        if not SEVERAL.match(name) and len(rows) < 128:
            row: dict[str, Any] = texts(base + "/" + name, INTERFACE_FILES)
            row["counts"] = texts(base + "/" + name + "/statistics", COUNTS)
            row["device"] = os.path.exists(base + "/" + name + "/device")  # noqa: PTH110
            rows[name] = row
    return rows


COLLECTORS["interfaces-after.json"] = lambda _, __: result(json.dumps(interfaces()), 0)


def bonds() -> dict[str, str]:
    return texts("/proc/net/bonding", listed("/proc/net/bonding"))


def addresses() -> list[str]:
    """The node's own addresses, from the kernel's routing tables."""
    numbers, last = set(), ""
    with contextlib.suppress(OSError):
        for line in lines_of("/proc/net/fib_trie"):
            if "|-- " in line:
                last = line.split("|-- ")[1].strip()
            elif "/32 host LOCAL" in line:
                numbers.add(last)
    with contextlib.suppress(OSError):
        for line in lines_of("/proc/net/if_inet6"):
            numbers.add(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(line.split()[0])))
    return sorted(numbers)[:256]


def default_routes() -> list[str]:
    """Interfaces that lead to everywhere, IPv4 and IPv6."""
    names: set[str] = set()
    with contextlib.suppress(OSError):
        rows = [line.split() for line in lines_of("/proc/net/route")]
        names.update(row[0] for row in rows if len(row) > 7 and row[1] == row[7] == "00000000")
    with contextlib.suppress(OSError):
        rows = [line.split() for line in lines_of("/proc/net/ipv6_route")]
        names.update(
            row[9] for row in rows if len(row) > 9 and row[0] == "0" * 32 and row[1] == "00" and row[9] != "lo"
        )
    return sorted(names)


def listening() -> list[str]:
    """Sockets that wait for connections, as "tcp 0.0.0.0 22". The kernel lists those before all others."""
    sockets = set()
    for kind, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        with contextlib.suppress(OSError):
            for line in lines_of("/proc/net/" + kind, 4 << 20)[1:]:
                fields = line.split()
                if len(fields) > 3 and fields[3] == "0A":
                    address, _, port = fields[1].partition(":")
                    # Four bytes at a time, each in the order of the machine.
                    raw = bytes.fromhex(address)
                    swapped = b"".join(
                        struct.pack("=I", *struct.unpack(">I", raw[i : i + 4])) for i in range(0, len(raw), 4)
                    )
                    sockets.add(f"tcp {socket.inet_ntop(family, swapped)} {int(port, 16)}")
    return sorted(sockets)[:1000]


def resolves() -> dict[str, Any]:
    """How long the node takes to find its own name, and what it finds; once more where it took long, because the probe
    itself is a load for a moment."""
    seconds, error, numbers = 0.0, "", set()
    for _ in range(2):
        started = time.monotonic()
        try:
            numbers = {str(row[4][0]) for row in socket.getaddrinfo(socket.gethostname(), None)}
        except OSError as failure:
            error = str(failure)[:200]
        took = time.monotonic() - started
        seconds = min(seconds, took) if seconds else took
        if took < 0.5:
            break
    return {"seconds": round(seconds, 3), "addresses": sorted(numbers), "error": error}
