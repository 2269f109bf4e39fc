"""`ibstat`: the ports of every RDMA adapter, InfiniBand and Ethernet alike. In a bundle the lists of ibstatus,
ibv_devinfo and `rdma link` are read too (ibstat_forms.py).

Traps: adapters come in text order; the tool can panic after good output; unused Ethernet ports are Down on healthy
nodes.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

from provisioner.verify.parsers import Unreadable, first_line, ibstat_forms, lines, number
from provisioner.verify.parsers.rdma_port import Port
from provisioner.verify.tool import Tool, further_looks, listed

_CA = re.compile(r"^CA '([^']{1,64})'$")
_PORT = re.compile(r"^\s+Port ([0-9]{1,3}):$")
_COUNT = re.compile(r"^\s+Number of ports:\s*([0-9]{1,3})$")
_CARD = re.compile(r"^\s+(CA type|Firmware version|Node GUID):\s*(.*)$")
_KEY = re.compile(r"^\s+(State|Physical state|Rate|Base lid|SM lid|Port GUID|Link layer):\s*(.*)$")
_FIELDS = {"CA type": "card", "Firmware version": "firmware", "Node GUID": "node_guid", "State": "state",
           "Physical state": "physical_state", "Port GUID": "guid", "Link layer": "link_layer"}  # fmt: skip
STATES = ("Active", "Armed", "Initializing", "Down")
_NUMBERS = {"Rate": "rate_gbps", "Base lid": "lid", "SM lid": "sm_lid"}


@dataclass(frozen=True, slots=True)
class Ibstat:
    ports: tuple[Port, ...]
    panic: str | None = None
    """What ibstat said when it broke off."""
    excerpt: str = ""
    """Where its end is missing, where it was cut: what is listed is not all."""


def parse(text: str) -> Ibstat:
    ports: list[Port] = []
    device: str | None = None
    panic: str | None = None
    card: dict[str, Any] = {}
    port_counts: dict[str, int] = {}
    open_port = False
    for line in lines(text):
        if match := _CA.match(line):
            device, card, open_port = match[1], {}, False
        elif line.lstrip().startswith("ibpanic:"):
            panic, open_port = line.strip()[:200], False
        elif device and (match := _PORT.match(line)):
            ports.append(Port(device, int(match[1]), **card))
            open_port = True
        elif open_port and (match := _KEY.match(line)):
            ports[-1] = replace(ports[-1], **_value(match[1], match[2]))
        elif device and (match := _COUNT.match(line)):
            port_counts[device] = int(match[1])
        elif device and not open_port and (match := _CARD.match(line)):
            card |= _value(match[1], match[2])
    if device is None and panic is None and (other_ports := ibstat_forms.read(text)):
        return Ibstat(other_ports)
    if device is None and panic is None:
        raise Unreadable(f"no adapter in it: {first_line(text)}")
    # A card says at first how many ports it has, a port its link layer at last: where one does not, it was cut.
    listed = Counter(port.device for port in ports)
    short = [name for name, count in port_counts.items() if listed[name] < count]
    last = ports[-1] if ports else None
    half = last is not None and last.link_layer is None and (ports[0].link_layer or last.state not in STATES)
    if panic is None and (short or half):
        cut = f"it ends in the midst of {(short or [ports[-1].device])[0]}"
        complete = [port for port in ports if port.state in STATES and (port.link_layer or port.physical_state)]
        if not complete:
            raise Unreadable(cut)
        return Ibstat(tuple(complete), excerpt=f"ibstat's output is cut: {cut}")
    return Ibstat(tuple(ports), panic)


def _value(key: str, text: str) -> dict[str, Any]:
    if field := _NUMBERS.get(key):
        parsed = number(text)
        return {field: parsed if field == "rate_gbps" or parsed is None else int(parsed)}
    return {_FIELDS[key]: text.strip()[:40] or None}


LOOK = Tool(
    file="ibstat.txt",
    field="ib",
    parse=parse,
    command=("ibstat",),
    when=lambda expected: expected.network in ("infiniband", "roce"),
    merge=True,
    training=r"Physical state:\s*(?:Polling|PortConfigurationTraining|LinkErrorRecovery)|\bState:\s*(?:Init|Armed)",
    complaint_answers=True,
    document={"ib_ports": lambda ib: listed(ib.ports), "ib_panic": lambda ib: ib.panic},
)
TOOLS = (LOOK, *further_looks(LOOK))
