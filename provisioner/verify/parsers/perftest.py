"""nic-loopback.json: what ib_write_bw reached with each RDMA card (probe/perftest.py); the rails of two nodes too.

Traps: without --report_gbits the table is in MB/s of 2^20 bytes; with a duration the peak is 0.00; rates of small
messages have more digits.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from provisioner.verify.parsers import Unreadable, first_line
from provisioner.verify.parsers.untrusted import holders, read_object, strict_float, strict_text, strict_whole
from provisioner.verify.tool import Tool

State = Literal["ran", "busy", "absent"]
_ROW = re.compile(
    r"BW average\[Gb/sec\][^\n]*\n\s*[0-9]{1,12}\s+[0-9]{1,12}\s+[0-9.]{1,16}\s+([0-9]{1,6}\.[0-9]{1,9})\s"
)
CARDS = 64
COMPLAINTS = ("ompletion with error", "Failed status", "ouldn't connect", "Unable to", "ailed to")
"""In perftest's own words, which stand on either stream."""


@dataclass(frozen=True, slots=True)
class Card:
    """One port: Gbit/s, or None and why not."""

    device: str
    port: int
    gbps: float | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Loopback:
    """`state`: ib_write_bw ran, a job had the GPUs, or there was nothing to run (`why`)."""

    state: State
    why: str = ""
    busy: tuple[str, ...] = ()
    cards: tuple[Card, ...] = ()


@dataclass(frozen=True, slots=True)
class CardPair:
    """One card that wrote to another one of its node: Gbit/s, or None and why not."""

    sender: str
    receiver: str
    gbps: float | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class OwnCards:
    """A node's cards against each other: by ib_write_bw in pairs, EFA's by NCCL all at once. `state` and `why` as in
    Loopback; with NCCL `why` also says what was wrong with the run."""

    state: State
    why: str = ""
    pairs: tuple[CardPair, ...] = ()
    busbw_gbps: float | None = None
    """GB/s that NCCL's all_reduce reached over them."""

    @property
    def measured(self) -> bool:
        """Whether there is a rate."""
        return self.busbw_gbps is not None or any(pair.gbps is not None for pair in self.pairs)


def own_cards_answer(text: str) -> OwnCards:
    """What the probe says of them (probe/perftest.py: own_cards)."""
    document = read_object(text)
    base = parse(text)
    rows = document.get("cards")
    names = [strict_text(row.get("to"))[:40] for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    pairs = tuple(
        CardPair(card.device, name, card.gbps, card.why) for card, name in zip(base.cards, names, strict=False)
    )
    reason = base.why or (f"a job is using the GPUs: {', '.join(base.busy[:3])}" if base.state == "busy" else "")
    return OwnCards(base.state, reason, pairs)


def read_own_cards(document: dict[str, Any]) -> OwnCards | None:
    """Of what fabric_run.py has made of it; None of what is none."""
    state, rows = document.get("state"), document.get("pairs")
    if state not in ("ran", "busy", "absent"):
        return None
    listed = [row for row in rows[:CARDS] if isinstance(row, dict)] if isinstance(rows, list) else []
    return OwnCards(state, strict_text(document.get("why"))[:300], tuple(
        CardPair(strict_text(row.get("sender"))[:40], strict_text(row.get("receiver"))[:40],
                 strict_float(row.get("gbps")), strict_text(row.get("why"))[:200])
        for row in listed
    ), strict_float(document.get("busbw_gbps")))  # fmt: skip


def parse(text: str) -> Loopback:
    document = read_object(text)
    state = document.get("state")
    if state not in ("ran", "busy", "absent"):
        raise Unreadable(f"no state in it: {first_line(text)}")
    return Loopback(
        state, strict_text(document.get("why"))[:300], holders(document.get("busy")), cards(document.get("cards"))
    )


def cards(rows: Any) -> tuple[Card, ...]:
    """Of the probe's rows, those that are some."""
    return tuple(_card(row) for row in rows[:CARDS] if isinstance(row, dict)) if isinstance(rows, list) else ()


def named_cards(rows: Any) -> tuple[Card, ...]:
    """Of what fabric_run.py has made of such cards."""
    card_rows = [row for row in rows[:CARDS] if isinstance(row, dict)] if isinstance(rows, list) else []
    return tuple(
        Card(strict_text(r.get("device"))[:40], strict_whole(r.get("port")) or 1, strict_float(r.get("gbps")),
             strict_text(r.get("why"))[:200])
        for r in card_rows
    )  # fmt: skip


def _card(row: dict[str, Any]) -> Card:
    port = strict_text(row.get("port"))
    name = strict_text(row.get("device"))[:40], int(port) if port.isascii() and port.isdigit() and len(port) < 4 else 1
    if row.get("timed_out") is True:
        return Card(*name, None, "no end")
    table = _ROW.search(strict_text(row.get("output")))
    if strict_whole(row.get("rc")) == 0 and table is not None:
        return Card(*name, float(table[1]))
    printed = strict_text(row.get("error")) + "\n" + strict_text(row.get("output"))
    rows = [line.strip() for line in printed.splitlines() if line.strip()]
    complaint = "; ".join([line for line in rows if any(phrase in line for phrase in COMPLAINTS)][:2])[:200]
    return Card(*name, None, "".join(c if c.isprintable() else "?" for c in complaint) or "no rate in its answer")


TOOLS = (
    Tool(
        file="nic-loopback.json",
        field="loopback",
        parse=parse,
        asked="load",
        label="ib_write_bw of each card with itself",
        by_hand=False,
    ),
)
