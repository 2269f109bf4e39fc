"""The page in a browser, as wide as a telephone, a laptop and a screen: no text over another, none out of its cell."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from provisioner.catalog import load
from provisioner.common.events import Events
from provisioner.output.report import QuarantineOutput
from provisioner.verify.baseline import MEASURES, Reached
from provisioner.verify.check import ACTIONS
from provisioner.verify.document import asdict
from provisioner.verify.parsers.fabric import parse
from provisioner.verify.report.html import html
from provisioner.verify.results import Breaker, CheckResult, NodeReport, Report
from provisioner.verify.run import verify
from provisioner.verify.subject import Subject
from tests.support import chromium
from tests.support.healthy_bundle import bundle, expected, nth, nvlink

P4D = "p4d.24xlarge"
WIDTHS = (400, 1000, 1300, 1800)
LONG = "explained by gpu.count: 9 pairs differ: GPU1-NIC1 PIX (others NODE); " * 4
ADDRESS = "us-docker.pkg.dev/deeplearning-platform-release/gcr.io/pytorch@sha256:" + "0123456789abcdef" * 4


def odd_checks() -> tuple[CheckResult, ...]:
    """Every severity with every result and every action, under long names, with values that are long in every way."""
    values: list[Any] = [
        True, "590.48.01", list(range(64)), {f"0000:{i:02x}:00.0": "16 GT/s" for i in range(8)}, ADDRESS,
        ADDRESS.replace("/", ""),
    ]  # fmt: skip
    names = ("log.machine_check_corrected", "container.survives_reload", "driver.loaded_is_installed", "gpu.xid")
    results = []
    for i in range(24):
        severity = ("fatal", "warn", "info")[i % 3]
        status = ("unknown", "fail", "pass", "skip")[i // 3 % 4]
        results.append(
            CheckResult(
                names[i % 4], severity, status, ACTIONS[i % len(ACTIONS)], "A sentence for the person on call.",  # type: ignore[arg-type]
                values[i % 6], values[(i + 1) % 6], (LONG, "7 of 8 GPUs answer", ADDRESS)[i % 3],
            )
        )  # fmt: skip
    return tuple(results)


def fabric(me: int, count: int) -> dict[str, Any]:
    rows = [
        {"partner": f"train-{p}", "good": (me, p) != (1, 2), "gbps": 44.1 - p, "why": "slow with it"}
        for p in range(count)
        if p != me
    ]
    document = {"state": "fine", "pairs": rows, "floor_gbps": 35.0}
    return dict(json.loads(json.dumps(asdict(parse(json.dumps(document))))))


@pytest.fixture(scope="module")
def fleet() -> Report:
    """Everything that a page can have: healthy nodes and broken ones, one without an answer, quarantine, the breaker,
    pairs, measures with a record and a trend."""
    broken = nth(P4D, 1)
    broken["nvlink.txt"] = nvlink(load().machine(P4D), {3: 11})
    subjects = [
        Subject(
            f"train-{i}", "train", "lab", P4D, bundle(broken if i == 1 else nth(P4D, i)), expected(P4D), simulated=True
        )
        for i in range(4)
    ]
    report = verify(subjects, events=Events(lambda _: None))
    measures = tuple(
        Reached(m.name, m.unit, 1234.5, 1400.0, i != 0, 1500.0, slower=i % 2 == 0) for i, m in enumerate(MEASURES)
    )
    quarantine = QuarantineOutput(
        owner="gpuprov", reason="gpu.count: 7 of 8 GPUs answer; " * 4, since="2026-11-21T10:00:00Z", checks=[]
    )
    nodes = [
        replace(
            node,
            facts={**node.facts, "fabric": fabric(i, 4)},
            measures=measures,
            quarantine=quarantine if i == 1 else None,
        )
        for i, node in enumerate(report.nodes)
    ]
    nodes[2] = replace(nodes[2], checks=odd_checks())
    name = "inference-in-the-second-building-0123"
    nodes.append(NodeReport(name, "inference", "lab", "Standard_ND96asr_v4", True, (), error=f"no answer: {ADDRESS}"))
    trend = {node.name: tuple({m.name: 1300.0 + i for m in MEASURES} for i in range(6)) for node in nodes}
    breaker = Breaker(bad=("train-1", "train-2"), quarantined=1, bound=1, nodes=5, check="nvlink.links", shared=1)
    return replace(report, nodes=tuple(nodes), title="vision", trend=trend, breaker=breaker)


@pytest.fixture(scope="module")
def layouts(fleet: Report, tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, Any]]:
    scratch = tmp_path_factory.mktemp("page")
    previous_report = {
        "nodes": [{"name": n.name, "checks": [{"id": c.id, "status": "pass"} for c in n.checks]} for n in fleet.nodes]
    }
    page = scratch / "report.html"
    page.write_text(html(fleet, previous_report), encoding="utf-8")
    return chromium.measure(page, WIDTHS, scratch)


@pytest.mark.parametrize("width", WIDTHS)
def test_no_text_lies_over_another_or_leaves_its_place(layouts: dict[int, dict[str, Any]], width: int) -> None:
    layout = layouts[width]
    for text in ("What failed", "Since the run before", "Measured", "Pairs of nodes", "in quarantine by", "Nobody was"):
        assert text in layout["text"]
    assert layout["texts"] > 1000
    assert layout["overlapping"] == []
    assert layout["spilled"] == []
    assert layout["split"] == []
    assert layout["broken"] == []
    assert layout["wide"] == []
    assert layout["scroll"] <= layout["width"] == width


def test_the_measure_sees_what_is_wrong(tmp_path: Path) -> None:
    """Two texts over each other, one that leaves its cell, a word in two lines."""
    page = tmp_path / "page.html"
    page.write_text(
        "<!DOCTYPE html><body style='margin:0;font:16px monospace'><table style='table-layout:fixed;width:200px'><tr>"
        "<td style='width:50px;white-space:nowrap;padding:0'>? unknown (warn)</td><td style='padding:0'>expected</td>"
        "</tr></table><p style='width:40px;overflow-wrap:anywhere'>indivisible</p></body>"
    )
    layout = chromium.measure(page, [400], tmp_path)[400]
    assert layout["overlapping"] == [["? unknown (warn)", "expected"]]
    assert layout["spilled"] == ["? unknown (warn)"]
    assert layout["split"] == ["indivisible"]
