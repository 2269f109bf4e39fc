"""The report as one page: no outside resource, light and dark, for a screen, a telephone and paper."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup, escape

from provisioner.common.paths import data
from provisioner.common.text import printable
from provisioner.rundir import placement
from provisioner.verify.document import DETAILED
from provisioner.verify.merged_checks import reported
from provisioner.verify.registry import declared
from provisioner.verify.report.compare import changes
from provisioner.verify.report.measured import tables
from provisioner.verify.report.pairs import grids
from provisioner.verify.results import CheckResult, NodeReport, Report
from provisioner.verify.runbook import STEPS, by_hand

MOST_CHANGES = 50
NEARNESS = ("PIX", "PXB", "PHB", "NODE", "SYS")
"""Paths of `nvidia-smi topo -m` from the nearest on."""
COUNTERS = {
    "°C": "temperature",
    "ECC uncorrectable": "ecc_uncorrectable",
    "ECC corrected": "ecc_correctable",
    "rows remapped": "remap_uncorrectable",
    "PCIe replays": "pcie_replays",
}
"""Column → key of a GPU in the `facts` document."""
SIGNS = {"pass": "✓", "fail": "✗", "unknown": "?", "note": "i", "skip": "-"}
ORDER = {"fail": 0, "unknown": 1, "note": 2, "pass": 3, "skip": 4}


def html(report: Report, previous: Mapping[str, Any] | None = None) -> str:
    """The page. Up to DETAILED nodes healthy ones have their tables too; that of more nodes shows those of the others,
    and says where the rest is (1,000 nodes with a hundred checks each are 50 MB of HTML). Every value goes through
    Jinja's autoescape: what a node printed stays text, and its control characters are written out. `previous`: the
    report.json of an earlier run."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(data("templates")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["value"] = _value
    environment.filters["code"] = _code
    environment.filters["breakable"] = _breakable
    problems = _problems(report)
    detailed = len(report.nodes) <= DETAILED
    page = environment.get_template("report.html.j2").render(
        title=report.title,
        site_lines=placement.lines(report.site_choices),
        report=report,
        signs=SIGNS,
        problems=problems,
        runbook=[(action, STEPS[action]) for action in STEPS if any(p["action"] == action for p in problems)],
        changes=changes(previous, report)[:MOST_CHANGES] if previous else None,
        nodes=[_node(node, detailed) for node in sorted(report.nodes, key=lambda n: n.ok)],
        measured=tables(report),
        pairs=grids(report),
        detailed=detailed,
        time=datetime.fromtimestamp(report.started, UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        seconds=report.seconds.get("verify", 0.0),
    )
    return str(printable(page))


def _problems(report: Report) -> list[dict[str, Any]]:
    """What failed, worst first, one entry for each check with the nodes that it failed on."""
    entries: dict[tuple[str, str, str, str], dict[str, Any]] = {}
    for node in report.nodes:
        if node.error:
            check_fields = ("node.exists", "fatal", "unknown", "reconfigure", "The node is wanted and not there.")
            if not node.absent:
                check_fields = ("node.reachable", "fatal", "unknown", "reboot", "The node gave no answer.")
            entry = entries.setdefault(("", check_fields[0], "", ""), _entry(*check_fields))
            entry["nodes"].append({"name": node.name, "message": node.error})
            continue
        for check in node.checks:
            if check.status == "fail" or (check.condemns and not check.explained_by):
                key = (check.id, check.status, check.action, check.says)
                entry = entries.setdefault(
                    key, _entry(check.id, check.severity, check.status, check.action, check.says)
                )
                entry["acknowledged"] = check.acknowledged is not None and (not entry["nodes"] or entry["acknowledged"])
                by = f" (acknowledged by {check.acknowledgement})" if check.acknowledged else ""
                entry["nodes"].append({"name": node.name, "message": check.message + by})
    severity = {"fatal": 0, "warn": 1, "info": 2}
    return sorted(entries.values(), key=lambda e: (severity[e["severity"]], ORDER[e["status"]], -len(e["nodes"])))


def _entry(id: str, severity: str, status: str, action: str, title: str) -> dict[str, Any]:
    manual = dict.fromkeys(command for check in declared() if check.id == id or reported(check.id) == id
                         for command in by_hand(check))  # fmt: skip
    return {"id": id, "severity": severity, "status": status, "action": action, "says": title, "by_hand": tuple(manual),
            "nodes": [], "acknowledged": False}  # fmt: skip


def _node(node: NodeReport, detailed: bool) -> dict[str, Any]:
    if node.ok and not detailed:
        return {"report": node, "counts": _counts(node), "whole": False}
    wrong = {c.id for c in node.checks if c.status in ("fail", "unknown")}
    return {
        "report": node,
        "wrong": sorted((c for c in node.checks if c.id in wrong), key=lambda c: (ORDER[c.status], c.id)),
        "rest": sorted((c for c in node.checks if c.id not in wrong), key=lambda c: (ORDER[c.status], c.id)),
        "counts": _counts(node),
        "whole": True,
        "matrix": _matrix(node.facts.get("topology"), _topology(node.checks)),
        "matrix_wrong": "nvlink.topology" in wrong,
        "near": _nearest_cards(node.facts.get("nics_near")),
        "counters": _counters(node.facts),
        "versions": _versions(node.facts),
    }


def _counts(node: NodeReport) -> dict[str, int]:
    counts: Counter[str] = Counter(
        "later" if check.later else "warn" if check.warns else "owned" if check.acknowledged else check.status
        for check in node.checks
    )
    return {status: counts[status] for status in (*ORDER, "warn", "owned", "later")}


def _topology(checks: tuple[CheckResult, ...]) -> Mapping[str, str]:
    expected = next((c.expected for c in checks if c.id == "nvlink.topology"), None)
    return expected if isinstance(expected, Mapping) else {}


def _matrix(topology: Any, expected: Mapping[str, str]) -> dict[str, Any] | None:
    """Rows of (cell, as expected?) for the table; None where the node gave no matrix or has one GPU."""
    if not isinstance(topology, Mapping) or len(topology) < 2:
        return None
    names = list(topology)
    complete = len(names) * (len(names) - 1) // 2 == len(expected)
    rows = []
    for i, a in enumerate(names):
        row = []
        for j, b in enumerate(names):
            cell = None if i == j else topology[a].get(b)
            allowed = expected.get(f"{min(i, j)}-{max(i, j)}", "").split("/") if complete else [cell]
            row.append({"text": "·" if i == j else (cell or "?"), "ok": i == j or cell in allowed, "self": i == j})
        rows.append({"name": a, "cells": row})
    return {"names": names, "rows": rows}


def _nearest_cards(cells_by_gpu: Any) -> dict[str, Any] | None:
    """GPU by network card: the path between them, the nearest marked; None where the node has no such columns."""
    if not isinstance(cells_by_gpu, Mapping) or not any(cells_by_gpu.values()):
        return None
    cards = list(next(iter(cells_by_gpu.values())))
    rows = []
    for gpu, cells in cells_by_gpu.items():
        best = min((NEARNESS.index(c) for c in cells.values() if c in NEARNESS), default=None)
        close = {card for card, cell in cells.items() if best is not None and cell == NEARNESS[best]}
        row = [{"text": cells.get(card) or "?", "best": card in close} for card in cards]
        rows.append({"name": gpu, "cells": row})
    return {"names": cards, "rows": rows}


def _counters(facts: Mapping[str, Any]) -> dict[str, Any] | None:
    """What each GPU counts; columns that no GPU of the node gives are left out."""
    gpus = facts.get("gpus") or []
    errors = facts.get("nvlink_errors") or {}
    rows = []
    for gpu in gpus:
        links = errors.get(str(gpu.get("index")), {}).values()
        counted = [n for link in links if isinstance(link, Mapping) for n in link.values() if isinstance(n, int)]
        rows.append([gpu.get(key) for key in COUNTERS.values()] + [sum(counted) if links else None])
    names = [*COUNTERS, "NVLink errors"]
    columns = [i for i in range(len(names)) if any(row[i] is not None for row in rows)]
    if not columns:
        return None
    names_of = [f"GPU{gpu.get('index')}" for gpu in gpus]
    table = [{"name": name, "cells": [row[i] for i in columns]} for name, row in zip(names_of, rows, strict=True)]
    return {"names": [names[i] for i in columns], "rows": table}


def _versions(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    packages = facts.get("packages") or {}
    known = [
        ("driver (loaded)", facts.get("driver_version")),
        ("CUDA (driver)", facts.get("cuda_version")),
        ("NCCL", packages.get("libnccl2")),
        ("fabric manager", packages.get("nvidia-fabricmanager")),
        ("container toolkit", packages.get("nvidia-container-toolkit")),
        ("kernel", facts.get("kernel")),
    ]
    for report in facts.get("frameworks") or []:
        versions = [f"{key} {report[key]}" for key in ("torch", "cuda", "nccl", "python") if report.get(key)]
        known.append((str(report.get("reference") or "image"), ", ".join(versions) or report.get("error")))
    return [(name, str(value)) for name, value in known if value]


def _code(text: str) -> Markup:
    """What stands between backquotes as <code>; the rest escaped."""
    parts = [escape(part) for part in text.split("`")]
    return Markup("").join(Markup("<code>{}</code>").format(p) if i % 2 else p for i, p in enumerate(parts))


def _breakable(id: str) -> Markup:
    """A check's id that a narrow column may break where its words end."""
    return Markup("<wbr>").join(escape(segment) for segment in re.split(r"(?<=[._])", id))


def _value(value: Any) -> str:
    """An expected or actual value in a cell: short JSON without its quotes, cut where it is long."""
    if value is None:
        return ""
    if value in ({}, [], ()):
        return "none"
    if isinstance(value, Mapping) and len(value) > 3 and len(set(map(_value, value.values()))) == 1:
        text = f"{_value(next(iter(value.values())))} (all {len(value)})"
    elif isinstance(value, Mapping):
        text = ", ".join(f"{key}: {_value(inner)}" for key, inner in value.items())
    elif isinstance(value, list | tuple):
        text = ", ".join(_value(inner) for inner in value)
    else:
        text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= 400 else text[:397] + "…"
