"""The page's section "Pairs of nodes": who was measured with whom at level stress, and what they reached together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from provisioner.verify.results import NodeReport, Report

MOST = 64
"""Nodes up to which a group has its grid: 4,096 cells are what a page and an eye can take."""
BELOW = 0.10
"""Share below the usual rate from which on a pair that is good enough is marked; no verdict, the checks give those."""


@dataclass(frozen=True, slots=True)
class Cell:
    """What two nodes did together. `kind` is good, odd (good enough, and slower than others), bad, none (not measured)
    or self; `says` is the cell in words."""

    kind: str
    text: str
    says: str = ""


def grids(report: Report) -> list[dict[str, Any]]:
    """One grid for each group in which pairs ran; none of a run without them."""
    groups: dict[str, list[NodeReport]] = {}
    for node in report.nodes:
        groups.setdefault(node.group, []).append(node)
    all_grids = [_grid(name, nodes) for name, nodes in groups.items() if 2 <= len(nodes) <= MOST]
    return [grid for grid in all_grids if grid is not None]


def _grid(group: str, nodes: Sequence[NodeReport]) -> dict[str, Any] | None:
    ran: dict[tuple[str, str], Mapping[str, Any]] = {}
    for node in nodes:
        fabric = node.facts.get("fabric") or {}
        for pair in fabric.get("pairs") or ():
            # A pair that was tried again is told by its last run; both ends say the same of it.
            ran[node.name, pair["partner"]] = pair
    names = [node.name for node in nodes]
    known = [pair for (first, other), pair in ran.items() if first in names and other in names]
    if not known:
        return None
    rates = [pair["gbps"] for pair in known if pair["good"] and pair["gbps"] is not None]
    typical_rate = median(rates) if rates else None
    floors = [f["floor_gbps"] for node in nodes if (f := node.facts.get("fabric")) and f["floor_gbps"] is not None]
    cells = {a: [_cell(a, b, ran, typical_rate) for b in names] for a in names}
    kinds = [cell.kind for row in cells.values() for cell in row]
    return {
        "group": group or "-",
        "names": names,
        "rows": [{"name": name, "cells": row} for name, row in cells.items()],
        "kinds": set(kinds),
        "pairs": sum(kind in ("good", "odd", "bad") for kind in kinds) // 2,
        "usual": f"{typical_rate:.4g}" if typical_rate is not None else None,
        "floor": f"{min(floors):.4g}" if floors else None,
        "below": f"{BELOW:.0%}",
        "rings": _rings(nodes),
    }


def _cell(node: str, other: str, ran: Mapping[tuple[str, str], Mapping[str, Any]], typical_rate: float | None) -> Cell:
    if node == other:
        return Cell("self", "·")
    pair = ran.get((node, other)) or ran.get((other, node))
    if pair is None:
        return Cell("none", "", "not measured together")
    rate = f"{pair['gbps']:.4g}" if pair["gbps"] is not None else ""
    if not pair["good"]:
        return Cell("bad", f"✗ {rate}".strip(), pair["why"] or "bad")
    if not rate:
        return Cell("good", "✓", "works; no rate")
    if typical_rate is not None and pair["gbps"] < typical_rate * (1 - BELOW):
        return Cell("odd", f"▼ {rate}", f"{rate} GB/s, {1 - pair['gbps'] / typical_rate:.0%} below the median")
    return Cell("good", rate, f"{rate} GB/s")


def _rings(nodes: Sequence[NodeReport]) -> list[dict[str, Any]]:
    """Each ring once, in words."""
    rings: dict[tuple[str, ...], dict[str, Any]] = {}
    for node in nodes:
        ring = (node.facts.get("fabric") or {}).get("ring")
        if ring:
            rate = f"{ring['gbps']:.4g} GB/s" if ring["gbps"] is not None else "no rate"
            members = tuple(ring["nodes"])
            description = f"ring of {len(members)} nodes ({members[0]} to {members[-1]}): "
            rings[members] = {
                "good": ring["good"],
                "says": description + (rate if ring["good"] else ring["why"] or "bad"),
            }
    return list(rings.values())
