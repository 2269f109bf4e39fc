"""last-look.json: what counters stood at when the node was looked at before, as growth.py writes it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from provisioner.verify.parsers import Unreadable
from provisioner.verify.tool import Tool

FILE = "last-look.json"


@dataclass(frozen=True, slots=True)
class Look:
    """`uptime`: seconds since the boot `boot_id`, which no clock that is set moves; `counters`: counter → what it stood
    at, without those at 0; `read`: ports, interfaces and links whose counters were read (growth.owner)."""

    uptime: float
    boot_id: str
    counters: Mapping[str, int]
    read: frozenset[str]

    def to_json(self) -> dict[str, Any]:
        document = {"uptime": self.uptime, "boot_id": self.boot_id, "counters": dict(self.counters)}
        return document | {"read": sorted(self.read)}


@dataclass(frozen=True, slots=True)
class Looks:
    """Two looks at a node: limits count within an hour, or within a day."""

    hour: Look
    day: Look


def parse(text: str) -> Looks:
    try:
        document = json.loads(text)
        return Looks(_look(document["hour"]), _look(document["day"]))
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError, OverflowError):
        raise Unreadable("it is not what gpuprov writes of a look") from None


def _look(document: Any) -> Look:
    counters = {str(name): count for name, count in document["counters"].items() if type(count) is int}
    uptime = float(document["uptime"])
    if not math.isfinite(uptime) or uptime < 0:
        raise ValueError("no uptime")
    return Look(uptime, str(document["boot_id"]), counters, frozenset(map(str, document["read"])))


TOOLS = (
    Tool(
        file=FILE, field="last_look", parse=parse, asked="elsewhere", label="what gpuprov saw before", by_hand=False,
        document={},
    ),
)  # fmt: skip
