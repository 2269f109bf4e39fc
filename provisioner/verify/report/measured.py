"""The page's section "Measured": what each node reached at work, beside the record and its own last runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from provisioner.common.text import counted
from provisioner.verify.baseline import MEASURES, Measure, Reached
from provisioner.verify.results import NodeReport, Report

WIDE, HIGH, EDGE = 84, 22, 3
"""Of a line, pixels of CSS."""
LEAST = 0.10
"""Share of its median that a line's height stands for at least: noise of a per cent must not look like a fault."""
MOST = 64
"""Nodes up to which all have their row; of a larger group those that are slower than their record have."""


def tables(report: Report) -> list[dict[str, Any]]:
    """One table for each group in which something was measured; none of a run that measured nothing."""
    groups: dict[str, list[NodeReport]] = {}
    for node in report.nodes:
        if node.measures:
            groups.setdefault(node.group or node.name, []).append(node)
    return [_table(name, nodes, report.trend) for name, nodes in groups.items()]


def _table(
    group: str, nodes: Sequence[NodeReport], trend: Mapping[str, Sequence[Mapping[str, float]]]
) -> dict[str, Any]:
    have = {row.name for node in nodes for row in node.measures}
    columns = [measure for measure in MEASURES if measure.name in have]
    listed_nodes = [node for node in nodes if len(nodes) <= MOST or any(row.slower for row in node.measures)]
    published = {row.name: row.published for node in nodes for row in node.measures if row.published is not None}
    rows = []
    for node in listed_nodes:
        by_name = {row.name: row for row in node.measures}
        runs = trend.get(node.name, ())
        rows.append({"name": node.name, "cells": [_cell(m, by_name.get(m.name), runs) for m in columns]})
    return {
        "group": group,
        "columns": columns,
        "rows": rows,
        "nodes": len(nodes),
        "published": [published.get(measure.name) for measure in columns] if published else None,
        "compared": any(row.record is not None for node in nodes for row in node.measures),
        "by_group": any(row.own is False for node in listed_nodes for row in node.measures),
    }


def _cell(measure: Measure, reached: Reached | None, runs: Sequence[Mapping[str, float]]) -> dict[str, Any] | None:
    """The value, how far it is from the record, and the line of its last runs; None where it was not measured."""
    if reached is None:
        return None
    values = [run[measure.name] for run in runs if measure.name in run]
    return {
        "value": f"{reached.value:.4g}",
        "share": f"{reached.share * 100:+.1f} %" if reached.share is not None else "",
        "slower": reached.slower,
        "group": reached.own is False,
        "line": line(values, reached.record, measure.unit),
    }


def line(values: Sequence[float], record: float | None, unit: str) -> Markup | str:
    """Values as a small SVG line, the oldest first, with the record dashed behind them where it lies within; nothing of
    fewer than two."""
    if len(values) < 2:
        return ""
    middle = sorted(values)[len(values) // 2]
    low, high = min(values), max(values)
    if high - low < LEAST * middle:
        centre = (low + high) / 2
        low, high = centre - LEAST * middle / 2, centre + LEAST * middle / 2

    def y(value: float) -> str:
        return f"{EDGE + (high - value) / (high - low) * (HIGH - 2 * EDGE):.1f}"

    step = (WIDE - 2 * EDGE) / (len(values) - 1)
    points = " ".join(f"{EDGE + i * step:.1f},{y(value)}" for i, value in enumerate(values))
    last = points.rpartition(" ")[2].split(",")
    label = f"last {counted(len(values), 'run')}: from {values[0]:.4g} to {values[-1]:.4g} {unit}"
    label += f", at least {min(values):.4g}, at most {max(values):.4g}"
    record_line = ""
    if record is not None and low <= record <= high:
        record_line = Markup('<line x1="{0}" x2="{1}" y1="{2}" y2="{2}"/>').format(EDGE, WIDE - EDGE, y(record))
    return Markup(
        '<svg class="trend" role="img" viewBox="0 0 {w} {h}" width="{w}" height="{h}" aria-label="{said}">'
        '<title>{said}</title>{behind}<polyline points="{points}"/><circle cx="{x}" cy="{y}" r="2"/></svg>'
    ).format(w=WIDE, h=HIGH, said=label, behind=record_line, points=points, x=last[0], y=last[1])
