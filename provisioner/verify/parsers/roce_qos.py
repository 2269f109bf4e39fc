"""roce-qos.json: trust, PFC and traffic class of RoCE cards, and what NCCL is told of it (probe/roce_qos.py).

Traps: the file traffic_class is empty where nobody has set one, and has rules of single addresses below its first line;
its value is a whole ToS byte, of which DSCP is the upper six bits. It overrides what NCCL asks for. The table of
mlnx_qos gives each priority its DSCPs, by default eight each.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from provisioner.verify.parsers import Unreadable, first_line
from provisioner.verify.parsers.untrusted import read_map, read_object, read_strings, read_whole, strict_text
from provisioner.verify.tool import Tool

CARDS = 64
PRIORITIES = 8


@dataclass(frozen=True, slots=True)
class Qos:
    """`trust` is dscp or pcp; `pfc` are the priorities that pause instead of losing packets; `traffic_class` is the ToS
    byte that the card marks all RDMA traffic with. None where the driver does not tell."""

    device: str
    trust: str | None = None
    pfc: tuple[int, ...] | None = None
    traffic_class: int | None = None
    priorities: Mapping[int, int] = field(default_factory=dict)
    """DSCP → priority, where the card's table says it."""

    def priority_of(self, traffic_class: int) -> int:
        """The priority of packets that are marked so, where DSCP is trusted."""
        dscp = traffic_class >> 2 & 0x3F
        return self.priorities.get(dscp, dscp // PRIORITIES)


@dataclass(frozen=True, slots=True)
class RoceQos:
    """`nccl_class` is NCCL_IB_TC of /etc/nccl.conf."""

    cards: tuple[Qos, ...]
    nccl_class: int | None = None


def parse(text: str) -> RoceQos:
    document = read_object(text)
    cards = document.get("cards")
    if not isinstance(cards, dict):
        raise Unreadable(f"no cards in it: {first_line(text)}")
    settings = dict(line.split("=", 1) for line in read_strings(document.get("nccl")) or () if "=" in line)
    rows = sorted((str(name)[:40], read_map(row)) for name, row in cards.items())
    return RoceQos(tuple(_card(name, row) for name, row in rows[:CARDS]), _byte(settings.get("NCCL_IB_TC", "")))


def _card(name: str, row: dict[str, object]) -> Qos:
    qos = strict_text(row.get("qos"))
    trust = re.search(r"Priority trust state: *([a-z]{3,8})", qos)
    enabled = re.search(r"^\s*enabled((?: +[01]){8})\s*$", qos, re.M)
    marked = re.match(r"Global tclass=([0-9]{1,3})\b", strict_text(row.get("traffic_class")).strip())
    return Qos(
        name,
        trust[1] if trust else None,
        tuple(i for i, flag in enumerate(enabled[1].split()) if flag == "1") if enabled else None,
        _byte(marked[1]) if marked else None,
        {
            int(dscp): int(priority)
            for priority, values in re.findall(r"prio:([0-7]) dscp:([0-9,]{1,300})", qos)
            for dscp in values.split(",")
            if dscp and int(dscp) < 64
        },
    )


def _byte(text: str) -> int | None:
    value = read_whole(text)
    return value if value is not None and 0 <= value <= 255 else None


TOOLS = (
    Tool(
        file="roce-qos.json",
        field="roce_qos",
        parse=parse,
        seconds=20.0,
        when=lambda expected: expected.network == "roce",
        label="mlnx_qos -i of each RoCE card",
        by_hand=False,
    ),
)
