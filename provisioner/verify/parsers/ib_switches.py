"""ib-switches.json: which switch each InfiniBand port of the node is cabled to (probe/ib_switches.py).

Traps: a port that is cabled to another host shows a Channel Adapter; a switch without a name of its own has a
description of its model; LocalPort is the switch's port that the question came in by.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from provisioner.verify.parsers import Unreadable, first_line
from provisioner.verify.parsers.untrusted import read_map, read_object, strict_text
from provisioner.verify.tool import Tool

PORTS = 64


@dataclass(frozen=True, slots=True)
class Link:
    """A port of the node and what is at the other end: `switch` identifies it (a GUID, a MAC address), `name` is for
    people."""

    port: str
    switch: str
    name: str = ""
    switch_port: str = ""


def parse(text: str) -> tuple[Link, ...]:
    ports = read_object(text).get("ports")
    if not isinstance(ports, dict):
        raise Unreadable(f"no ports in it: {first_line(text)}")
    rows = sorted((str(name)[:40], read_map(row)) for name, row in ports.items())
    return tuple(link for name, row in rows[:PORTS] if (link := _link(name, row)) is not None)


def _link(port: str, row: dict[str, object]) -> Link | None:
    info = strict_text(row.get("nodeinfo"))
    kind = re.search(r"^NodeType:\.+(\S.{0,30})$", info, re.M)
    guid = re.search(r"^(?:SystemGuid):\.+(0x[0-9a-f]{1,16})$", info, re.M)
    if kind is None or guid is None or kind[1].strip() != "Switch":
        return None
    by = re.search(r"^LocalPort:\.+([0-9]{1,3})$", info, re.M)
    name = re.search(r"Node Description:\.+(.{1,64})", strict_text(row.get("nodedesc")))
    description = name[1].strip() if name and name[1].isprintable() else ""
    return Link(port, guid[1], description, by[1] if by else "")


TOOLS = (
    Tool(
        file="ib-switches.json",
        field="ib_links",
        parse=parse,
        seconds=20.0,
        when=lambda expected: expected.bare_metal and expected.network == "infiniband",
        label="smpquery -D nodeinfo 0,1 of each port",
        by_hand=False,
    ),
)
