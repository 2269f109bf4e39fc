"""fabric.json: how a node did with others, over pairs and rings of nodes (fabric_run.py writes it).

Traps: the same name bears one node's part of one run while it is made (probe/fabric.py); that is no verdict. NaN and
Infinity are valid for Python's JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from provisioner.verify.parsers import Unreadable, first_line
from provisioner.verify.parsers.perftest import Card, OwnCards, named_cards, read_own_cards
from provisioner.verify.parsers.rdma_sysfs import growth
from provisioner.verify.parsers.untrusted import read_float, read_map, read_strings, read_whole
from provisioner.verify.tool import Tool

State = Literal["fine", "fault", "undecided", "untested", "unreached", "alone", "busy"]
STATES: tuple[State, ...] = ("fine", "fault", "undecided", "untested", "unreached", "alone", "busy")


@dataclass(frozen=True, slots=True)
class Pair:
    """One run with one other node: GB/s at the message size in bytes that went fastest, and how many of NCCL's channels
    went which way. `good` is the verdict on it, `why` what was wrong."""

    partner: str
    good: bool
    gbps: float | None = None
    bytes: int | None = None
    why: str = ""
    transports: tuple[tuple[str, int], ...] = ()
    latency_us: float | None = None
    """Of an all_reduce of one value."""
    rails: tuple[Card, ...] = ()
    """Each network card of the one with the same of the other, as ib_write_bw told; empty where it was not asked."""


@dataclass(frozen=True, slots=True)
class Ring:
    """The smallest run of several nodes that tells of this one."""

    nodes: tuple[str, ...]
    good: bool
    gbps: float | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Fabric:
    """fine: it works with others; fault: with none of several good ones; undecided: it works with none, and nothing
    tells whose fault it is; untested: what should have been looked at was not; unreached: no other node could be met,
    though its group has some, or may have; alone: there is nobody to meet; busy: a job had its GPUs. `wrong_way`: all
    its pairs went another way than the group's network. `paths` are good nodes that it does not work with. Rates in
    GB/s of 10⁹ bytes."""

    state: State
    why: str = ""
    nodes: int = 0
    wrong_way: bool = False
    floor_gbps: float | None = None
    usual_gbps: float | None = None
    pairs: tuple[Pair, ...] = ()
    paths: tuple[str, ...] = ()
    ring: Ring | None = None
    simulated: bool = False
    grown: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """RDMA port → counter → by how much it grew over all runs with others."""
    borrowed: tuple[str, ...] = ()
    """Partners that were proven before, were idle and were used as the other end; this run does not judge them."""
    own_cards: OwnCards | None = None
    """Its network cards against each other, where it met no other node."""
    awaits_proof: bool = False
    """Unreached, and a machine that no run has proven with others, while a proven neighbour can prove it once that is
    idle."""


def parse(text: str) -> Fabric:
    try:
        document = read_map(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"not JSON: {first_line(text)}") from error
    state = document.get("state")
    if state not in STATES:
        raise Unreadable(f"no verdict in it: {first_line(text)}")
    pairs, ring = document.get("pairs"), read_map(document.get("ring"))
    return Fabric(
        state=state,
        why=_text(document.get("why")),
        nodes=read_whole(document.get("nodes")) or 0,
        wrong_way=document.get("wrong_way") is True,
        floor_gbps=read_float(document.get("floor_gbps")),
        usual_gbps=read_float(document.get("usual_gbps")),
        pairs=tuple(_pair(read_map(row)) for row in pairs) if isinstance(pairs, list) else (),
        paths=read_strings(document.get("paths")) or (),
        ring=_ring(ring) if ring else None,
        simulated=document.get("simulated") is True,
        grown=growth(document.get("grown")),
        borrowed=read_strings(document.get("borrowed")) or (),
        own_cards=read_own_cards(read_map(document.get("own_cards"))),
        awaits_proof=document.get("awaits_proof") is True,
    )


def idle_answer(text: str) -> str:
    """Why a node is not known to be idle, by the probe's answer (probe/fabric.py); "" where it is."""
    try:
        document = read_map(json.loads(text))
    except (ValueError, RecursionError):
        return f"no answer to whether it is idle: {first_line(text)}"
    if document.get("state") == "idle":
        return ""
    return _text(document.get("why")) or "it does not say whether it is idle"


def _pair(row: dict[str, Any]) -> Pair:
    partner, is_good = row.get("partner"), row.get("good")
    if not isinstance(partner, str) or not isinstance(is_good, bool):
        raise Unreadable("a pair without a partner or without a verdict")
    transports = [
        (transport[:40], count)
        for transport, n in read_map(row.get("transports")).items()
        if (count := read_whole(n)) is not None
    ]
    return Pair(
        partner,
        is_good,
        read_float(row.get("gbps")),
        read_whole(row.get("bytes")),
        _text(row.get("why")),
        tuple(sorted(transports)),
        read_float(row.get("latency_us")),
        named_cards(row.get("rails")),
    )


def _ring(row: dict[str, Any]) -> Ring:
    nodes, is_good = read_strings(row.get("nodes")), row.get("good")
    if not nodes or not isinstance(is_good, bool):
        raise Unreadable("a ring without nodes or without a verdict")
    return Ring(nodes, is_good, read_float(row.get("gbps")), _text(row.get("why")))


def _text(value: Any) -> str:
    return value[:1000] if isinstance(value, str) else ""


TOOLS = (
    Tool(
        file="fabric.json",
        field="fabric",
        parse=parse,
        asked="load",
        label="all_reduce over pairs and rings of nodes",
        by_hand=False,
    ),
)
