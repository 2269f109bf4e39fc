"""`nvidia-imex-ctl -N -j`: how this node's IMEX daemon sees the nodes of its domain, its own among them. In a bundle
the same without -j is read too.

Traps: each node has a row for every node; a daemon of another version makes all of them UNAVAILABLE and INVALID;
numbers of nodes are texts; a node may be named by its address or by a name (ComputeDomains of Kubernetes); branch 570
writes a version behind each state, older ones do not.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from provisioner.verify.expectations import IMEX, Expected
from provisioner.verify.parsers import Unreadable, first_line, lines
from provisioner.verify.parsers.untrusted import read_map, read_object, read_text
from provisioner.verify.tool import Tool

_NODE = re.compile(r"^Node #([0-9]{1,4})\s+- (\S+)\s+(?:\(([^)\s]*)\)\s+)?- ([A-Z_]+)(?:\s|$)")
_ROW = re.compile(r"^\s*([0-9]{1,4})\s+(\S.*)$")
_STATUS = re.compile(r"^Domain State: ([A-Z_]+)\s*$")
CELLS = {
    "C": "CONNECTED", "I": "INVALID", "N": "NEVER_CONNECTED", "R": "RECOVERING", "D": "DISCONNECTED",
    "A": "AUTHENTICATING", "!V!": "VERSION_MISMATCH", "!M!": "NODE_MAP_MISMATCH",
}  # fmt: skip
"""Letters of the table (its own legend) → the words of -j, as far as anybody has published those."""


@dataclass(frozen=True, slots=True)
class Domain:
    """`status` is UP, DEGRADED or DOWN; `nodes` address or name → READY, UNAVAILABLE, WAITING_FOR_PEERS …; `broken`
    pairs of them between which there is no connection, with its state; `names` address → host name, where told."""

    status: str
    nodes: dict[str, str]
    broken: tuple[tuple[str, str, str], ...] = ()
    names: dict[str, str] = field(default_factory=dict)


def parse(text: str) -> Domain:
    if "Domain State:" in text or text.lstrip().startswith("Connectivity Table"):
        return _table(text)
    document = read_object(text)
    status, rows = read_text(document.get("status")), document.get("nodes")
    if status is None or not isinstance(rows, dict):
        raise Unreadable(f"no domain in it: {first_line(text)}")
    nodes: dict[str, str] = {}
    names: dict[str, str] = {}
    broken = []
    for number, row in sorted(read_map(rows).items()):
        node_row = read_map(row)
        host = read_text(node_row.get("host")) or f"node {number[:20]}"
        nodes[host] = read_text(node_row.get("status")) or "?"
        if (name := read_text(node_row.get("hostName"))) not in (None, "", "N/A"):
            names[host] = str(name)
        for other in read_map(node_row.get("connections")).values():
            to, state = read_text(read_map(other).get("host")), read_text(read_map(other).get("status"))
            if to is not None and state != "CONNECTED":
                broken.append((host, to, state or "?"))
    return Domain(status, nodes, tuple(broken[:MOST]), names)


MOST = 20_000
"""Broken pairs that are kept: a domain of 72 nodes has 5184 pairs."""


def _table(text: str) -> Domain:
    """What -N prints without -j."""
    hosts: dict[str, str] = {}
    states: dict[str, str] = {}
    names: dict[str, str] = {}
    broken: list[tuple[str, str, str]] = []
    status = None
    columns: list[str] = []
    for line in lines(text):
        if match := _NODE.match(line):
            hosts[match[1]], states[match[2]] = match[2], match[4]
            names |= {match[2]: match[3]} if match[3] else {}
        elif line.strip().startswith("Nodes From\\To"):
            columns = line.split()[2:]
        elif match := _STATUS.match(line):
            status = match[1]
        elif columns and (match := _ROW.match(line)) and len(cells := match[2].split()) == len(columns):
            pairs = zip(columns, cells, strict=True)
            broken += [
                (hosts.get(match[1], match[1]), hosts.get(to, to), CELLS.get(cell, cell))
                for to, cell in pairs
                if cell != "C"
            ]
    if status is None or not states:
        raise Unreadable(f"no domain in it, or it was cut: {first_line(text)}")
    return Domain(status, states, tuple(broken[:MOST]), names)


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
