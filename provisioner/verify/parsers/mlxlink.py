"""mlxlink.json: cables and transceivers of mlx5 cards (probe/mlxlink.py), of mlxlink's own JSON documents.

Traps: an error rate of none is 15E-255; numbers are texts in some versions and numbers in others; a port without a
cable, a copper cable and a version that can't read it say N/A; "Firmware Version" is the card's, "FW Version" the
transceiver's.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from provisioner.verify.parsers import Unreadable, first_line
from provisioner.verify.parsers.optics import LANES, Reading, number
from provisioner.verify.parsers.untrusted import read_map, read_object, strict_float, strict_text
from provisioner.verify.tool import Tool

CARDS = 64


@dataclass(frozen=True, slots=True)
class Cable:
    """What a card sees of its cable; None or "" where it does not say. `ber` is what is left of bit errors behind the
    correction (effective physical BER), since the counters were cleared."""

    device: str
    ber: float | None = None
    raw_ber: float | None = None
    part: str = ""
    firmware: str = ""
    advice: str = ""
    """The card's own recommendation."""
    readings: tuple[Reading, ...] = ()
    """Light, laser current, heat and voltage of an optical transceiver, beside its own limits."""


@dataclass(frozen=True, slots=True)
class Cables:
    """`why`: nothing could be asked."""

    why: str = ""
    cables: tuple[Cable, ...] = ()


def parse(text: str) -> Cables:
    document = read_object(text)
    if document.get("state") not in ("ran", "absent"):
        raise Unreadable(f"no state in it: {first_line(text)}")
    rows = [(name, read_map(row)) for name, row in list(read_map(document.get("cards")).items())[:CARDS]]
    return Cables(strict_text(document.get("why"))[:200], tuple(_cable(name[:40], row) for name, row in sorted(rows)))


def _cable(name: str, row: dict[str, Any]) -> Cable:
    try:
        sections = read_map(read_map(read_map(json.loads(strict_text(row.get("output")))).get("result")).get("output"))
    except (ValueError, RecursionError):
        return Cable(name)
    counters, module = read_map(sections.get("Physical Counters and BER Info")), read_map(sections.get("Module Info"))
    return Cable(
        name,
        _rate(counters.get("Effective Physical BER")),
        _rate(counters.get("Raw Physical BER")),
        _clean_text(module.get("Vendor Part Number")),
        _clean_text(module.get("FW Version")),
        _clean_text(read_map(sections.get("Troubleshooting Info")).get("Recommendation")),
        tuple(reading for key, *of in QUANTITIES if (reading := _reading(module.get(key), *of)) is not None),
    )


QUANTITIES = (
    ("Temperature [C]", "temperature", "°C"),
    ("Voltage [mV]", "voltage", "mV"),
    ("Bias Current [mA]", "bias current", "mA"),
    ("Rx Power Current [dBm]", "received power", "dBm"),
    ("Tx Power Current [dBm]", "transmitted power", "dBm"),
)
_RANGE = re.compile(r"([-0-9.,]{1,200}) \[(-?[0-9.]{1,12})\.\.(-?[0-9.]{1,12})\]")


def _reading(value: Any, quantity: str, unit: str) -> Reading | None:
    """Of "1.886,1.989 [-10.41..6]", a value for each lane and the module's limits; None of copper ("0,0 [0..0]")."""
    match = _RANGE.fullmatch(strict_text(value).strip())
    if match is None:
        return None
    low, high = number(match[2]), number(match[3])
    lanes = tuple(lane for text in match[1].split(",")[:LANES] if (lane := number(text)) is not None)
    if not lanes or low is None or high is None or low >= high:
        return None
    return Reading(quantity, unit, lanes, low, high)


def _rate(value: Any) -> float | None:
    if isinstance(value, str):
        try:
            value = float(value[:20])
        except ValueError:
            return None
    rate = strict_float(value)
    return rate if rate is not None and 0 <= rate <= 1 else None


def _clean_text(value: Any) -> str:
    text = strict_text(value).strip()[:120]
    return "" if text.upper() == "N/A" or not text.isprintable() else text


TOOLS = (
    Tool(
        file="mlxlink.json",
        field="cables",
        parse=parse,
        seconds=30.0,
        when=lambda expected: expected.bare_metal and expected.network in ("infiniband", "roce"),
        asked="after",
        label="mlxlink -m -c --json of each card",
        by_hand=False,
    ),
)
