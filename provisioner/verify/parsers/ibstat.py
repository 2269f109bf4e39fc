"""`ibstat`: the ports of every RDMA adapter, InfiniBand and Ethernet alike.

Traps: adapters come in text order; the tool can panic after good output; unused Ethernet ports are Down on healthy
nodes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from provisioner.verify.parsers import Unreadable, first_line, lines, number

_CA = re.compile(r"^CA '([^']{1,64})'$")
_PORT = re.compile(r"^\s+Port ([0-9]{1,3}):$")
_KEY = re.compile(r"^\s+(State|Physical state|Rate|Link layer):\s*(.*)$")


@dataclass(frozen=True, slots=True)
class Port:
    """One port; `rate_gbps` is what it runs at now, in Gbit/s."""

    device: str
    port: int
    state: str | None = None
    physical_state: str | None = None
    rate_gbps: float | None = None
    link_layer: str | None = None

    @property
    def up(self) -> bool:
        return self.state == "Active" and self.physical_state in ("LinkUp", None)


@dataclass(frozen=True, slots=True)
class Ibstat:
    ports: tuple[Port, ...]
    panic: str | None = None
    """What ibstat said when it broke off."""


def parse(text: str) -> Ibstat:
    ports: list[Port] = []
    device: str | None = None
    panic: str | None = None
    open_port = False
    for line in lines(text):
        if match := _CA.match(line):
            device, open_port = match[1], False
        elif line.lstrip().startswith("ibpanic:"):
            panic, open_port = line.strip()[:200], False
        elif device and (match := _PORT.match(line)):
            ports.append(Port(device, int(match[1])))
            open_port = True
        elif open_port and (match := _KEY.match(line)):
            value = match[2].strip()[:40] or None
            match match[1]:
                case "State":
                    ports[-1] = replace(ports[-1], state=value)
                case "Physical state":
                    ports[-1] = replace(ports[-1], physical_state=value)
                case "Link layer":
                    ports[-1] = replace(ports[-1], link_layer=value)
                case _:
                    ports[-1] = replace(ports[-1], rate_gbps=number(value))
    if device is None and panic is None:
        raise Unreadable(f"no adapter in it: {first_line(text)}")
    return Ibstat(tuple(ports), panic)
