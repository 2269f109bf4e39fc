"""`ibv_devinfo`: the packet sizes of RDMA ports, which ibstat and sysfs do not tell.

Traps: sizes are "4096 (5)", the number of their code behind them; a device without a port of its own is listed too.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from provisioner.verify.parsers import Unreadable, first_line, lines
from provisioner.verify.tool import Tool

if TYPE_CHECKING:
    from provisioner.verify.expectations import Expected

_HCA = re.compile(r"^\s*hca_id:\s*(\S{1,64})")
_PORT = re.compile(r"^\s*port:\s*([0-9]{1,3})\s*$")
_MTU = re.compile(r"^\s*(max|active)_mtu:\s*([0-9]{3,5}) \(", re.ASCII)


def parse(text: str) -> dict[tuple[str, int], tuple[int, int]]:
    """(device, port) → bytes of a packet: now, and the most that it can."""
    mtus: dict[tuple[str, int], dict[str, int]] = {}
    device, key = "", None
    for line in lines(text):
        if match := _HCA.match(line):
            device, key = match[1], None
        elif device and (match := _PORT.match(line)):
            key = (device, int(match[1]))
        elif key is not None and (match := _MTU.match(line)):
            mtus.setdefault(key, {})[match[1]] = int(match[2])
    if not device:
        raise Unreadable(f"no device in it: {first_line(text)}")
    return {key: (row["active"], row["max"]) for key, row in mtus.items() if len(row) == 2}


def _cards(expected: Expected) -> bool:
    return expected.network in ("infiniband", "roce")


TOOLS = (
    Tool(
        file="ibv_devinfo.txt",
        field="ib_mtu",
        parse=parse,
        command=("ibv_devinfo",),
        seconds=10,
        when=_cards,
        document={"ib_mtu": lambda value: {f"{name}/{port}": list(sizes) for (name, port), sizes in value.items()}},
    ),
)
