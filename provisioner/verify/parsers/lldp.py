"""`lldpctl -f json0`: which switch port each Ethernet port of the node is cabled to, as the switch itself says by LLDP.

Traps: in json0 everything is a list, also what there is one of; a port can have several neighbours (a virtual switch on
the way), of which the bridges count; without neighbours there is no "interface" at all.
"""

from __future__ import annotations

from typing import Any

from provisioner.verify.parsers import Unreadable, first_line
from provisioner.verify.parsers.ib_switches import Link
from provisioner.verify.parsers.untrusted import read_map, read_object, strict_text
from provisioner.verify.tool import Tool

PORTS = 64


def parse(text: str) -> tuple[Link, ...]:
    document = read_object(text)
    rows = document.get("lldp")
    if not isinstance(rows, list):
        raise Unreadable(f"no neighbours in it: {first_line(text)}")
    ports = [row for part in rows for row in _list(read_map(part).get("interface"))]
    links = [link for row in ports[:PORTS] if (link := _link(row)) is not None]
    return tuple({link.port: link for link in reversed(links)}.values())[::-1]


def _link(row: dict[str, Any]) -> Link | None:
    name = strict_text(row.get("name"))[:40]
    chassis, port = _first(row.get("chassis")), _first(row.get("port"))
    switch = _value(chassis.get("id"))
    if not name or not switch or row.get("via") not in ("LLDP", None):
        return None
    return Link(name, switch, _value(chassis.get("name")), _value(port.get("id")) or _value(port.get("descr")))


def _list(value: Any) -> list[dict[str, Any]]:
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def _first(value: Any) -> dict[str, Any]:
    rows = _list(value)
    return rows[0] if rows else {}


def _value(value: Any) -> str:
    text = strict_text(_first(value).get("value")).strip()[:64]
    return text if text.isprintable() else ""


TOOLS = (
    Tool(
        file="lldp.json",
        field="lldp",
        parse=parse,
        command=("lldpctl", "-f", "json0"),
        seconds=10.0,
        when=lambda expected: expected.bare_metal,
    ),
)
