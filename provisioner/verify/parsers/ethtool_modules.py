"""ethtool-modules.json: `ethtool -m` of each Ethernet port that is up (probe/ethtool_modules.py).

Traps: SFP and QSFP name the same quantity differently, and lanes stand in brackets with and without a space before; the
flags ("Laser rx power low alarm: On") are latched from the last look on, so the readings are compared instead; copper
has no readings, and some modules have limits of nothing but zeros.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from provisioner.verify.parsers import Unreadable, first_line
from provisioner.verify.parsers.optics import LANES, Reading, decibels, number
from provisioner.verify.parsers.untrusted import read_map, read_object, strict_text
from provisioner.verify.tool import Tool

PORTS = 64
QUANTITIES = (
    ("temperature", "°C", r"Module temperature", "Module temperature"),
    ("voltage", "V", r"Module voltage", "Module voltage"),
    ("bias current", "mA", r"Laser (?:tx )?bias current", "Laser bias current"),
    ("transmitted power", "dBm", r"(?:Laser output power|Transmit avg optical power)", "Laser (?:output|tx) power"),
    ("received power", "dBm", r"(?:Receiver signal average optical power|Rcvr signal avg optical power)",
     "Laser rx power"),
)  # fmt: skip
"""Name, unit, the lines of its values and those of its limits (ethtool: sff-common.c, sfpdiag.c, qsfp.c, cmis.c)."""


@dataclass(frozen=True, slots=True)
class Module:
    """The transceiver of a port; without readings where it is copper or stores no limits."""

    port: str
    part: str = ""
    readings: tuple[Reading, ...] = ()


def parse(text: str) -> tuple[Module, ...]:
    ports = read_object(text).get("ports")
    if not isinstance(ports, dict):
        raise Unreadable(f"no ports in it: {first_line(text)}")
    rows = sorted((str(name)[:40], strict_text(read_map(row).get("text"))) for name, row in ports.items())
    return tuple(_module(name, output) for name, output in rows[:PORTS])


def _module(port: str, output: str) -> Module:
    pairs = [(key.strip(), value.strip()) for key, _, value in (line.partition(":") for line in output.splitlines())]
    part = next((value[:80] for key, value in pairs if key == "Vendor PN" and value.isprintable()), "")
    readings = [reading for row in QUANTITIES if (reading := _reading(pairs, *row)) is not None]
    return Module(port, part, tuple(readings))


def _reading(pairs: list[tuple[str, str]], name: str, unit: str, values: str, limits: str) -> Reading | None:
    read = decibels if unit == "dBm" else number
    lanes = [read(value) for key, value in pairs if re.fullmatch(rf"{values}(?: ?\(Channel \d+\))?", key)]
    low, high = (
        next((read(value) for key, value in pairs if re.fullmatch(rf"{limits} {side} alarm threshold", key)), None)
        for side in ("low", "high")
    )
    known = tuple(value for value in lanes[:LANES] if value is not None)
    return Reading(name, unit, known, low, high) if known and low is not None and high is not None else None


TOOLS = (
    Tool(
        file="ethtool-modules.json",
        field="optics",
        parse=parse,
        seconds=20.0,
        when=lambda expected: expected.bare_metal,
        label="ethtool -m of each port that is up",
        by_hand=False,
    ),
)
