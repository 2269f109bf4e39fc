"""`nvidia-imex-ctl -N -j`: how this node's IMEX daemon sees the others of its domain.

Traps: each node has a row for every node, its own among them; a daemon of another version makes all of them
UNAVAILABLE and INVALID; numbers of nodes are texts.
"""

from __future__ import annotations

from dataclasses import dataclass

from provisioner.verify.expectations import IMEX, Expected
from provisioner.verify.parsers import Unreadable, first_line
from provisioner.verify.parsers.untrusted import read_map, read_object, read_text
from provisioner.verify.tool import Tool


@dataclass(frozen=True, slots=True)
class Domain:
    """`status` is UP, DEGRADED or DOWN; `nodes` address → READY, UNAVAILABLE, …; `broken` pairs of addresses between
    which there is no connection, with its state."""

    status: str
    nodes: dict[str, str]
    broken: tuple[tuple[str, str, str], ...] = ()


def parse(text: str) -> Domain:
    document = read_object(text)
    status, rows = read_text(document.get("status")), document.get("nodes")
    if status is None or not isinstance(rows, dict):
        raise Unreadable(f"no domain in it: {first_line(text)}")
    nodes: dict[str, str] = {}
    broken = []
    for number, row in sorted(read_map(rows).items()):
        one = read_map(row)
        host = read_text(one.get("host")) or f"node {number[:20]}"
        nodes[host] = read_text(one.get("status")) or "?"
        for other in read_map(one.get("connections")).values():
            to, state = read_text(read_map(other).get("host")), read_text(read_map(other).get("status"))
            if to is not None and state != "CONNECTED":
                broken.append((host, to, state or "?"))
    return Domain(status, nodes, tuple(broken[:200]))


def _joined(expected: Expected) -> bool:
    return expected.nvlink_across and (expected.units is None or IMEX in expected.units)


TOOLS = (
    Tool(
        file="imex.json",
        field="imex",
        parse=parse,
        command=("nvidia-imex-ctl", "-N", "-j"),
        when=_joined,
        seconds=20,
    ),
)
