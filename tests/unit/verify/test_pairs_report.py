"""The page's grid of pairs: each number where it belongs, said in words as well, legible with 64 nodes."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from provisioner.verify.document import asdict
from provisioner.verify.parsers.fabric import parse
from provisioner.verify.report import write
from provisioner.verify.report.html import html
from provisioner.verify.report.pairs import MOST, Cell, grids
from provisioner.verify.results import CheckResult, NodeReport, Report
from tests.support import chromium

PASSED = CheckResult("fabric.pairs", "fatal", "pass", "vendor")
Pairs = dict[tuple[int, int], tuple[bool, float | None]]


def report(count: int, pairs: Pairs, group: str = "train", **fabric: Any) -> Report:
    """A fleet whose nodes did these pairs, through the parser of fabric.json; each end says the same."""
    nodes = []
    for i in range(count):
        own_pairs = [(b if a == i else a, works, rate) for (a, b), (works, rate) in pairs.items() if i in (a, b)]
        rows = [
            {"partner": f"train-{p}", "good": g, "gbps": r, "why": "" if g else f"<slow> with {p}"}
            for p, g, r in own_pairs
        ]
        document = {"state": "fine" if own_pairs else "alone", "pairs": rows, "floor_gbps": 35.0} | fabric
        facts = json.loads(json.dumps({"fabric": asdict(parse(json.dumps(document)))}))
        nodes.append(NodeReport(f"train-{i}", group, "s", "p4d.24xlarge", True, (PASSED,), facts))
    return Report(tuple(nodes), {"verify": 1.0}, 0.0)


SMALL: Pairs = {
    (0, 1): (True, 44.12),
    (2, 3): (True, 43.9),
    (1, 2): (False, 12.0),
    (0, 3): (True, 38.0),
    (1, 3): (True, None),
}


def test_each_pair_is_where_it_belongs_from_both_sides() -> None:
    (grid,) = grids(report(4, SMALL))
    assert (grid["pairs"], grid["usual"], grid["floor"]) == (5, "43.9", "35")
    texts = [[cell.text for cell in row["cells"]] for row in grid["rows"]]
    assert texts == [
        ["·", "44.12", "", "▼ 38"],
        ["44.12", "·", "✗ 12", "✓"],
        ["", "✗ 12", "·", "43.9"],
        ["▼ 38", "✓", "43.9", "·"],
    ]
    assert grid["rows"][0]["cells"][2] == Cell("none", "", "not measured together")
    assert grid["rows"][0]["cells"][3].says == "38 GB/s, 13% below the median"
    assert [grid["rows"][i]["cells"][3 - i].says for i in (1, 2)] == ["<slow> with 2", "<slow> with 1"]


def test_one_end_is_enough_and_the_last_run_of_a_pair_counts() -> None:
    fleet = report(2, {(0, 1): (True, 40.0)})
    first = json.loads(json.dumps(fleet.nodes[0].facts))
    first["fabric"]["pairs"].insert(0, first["fabric"]["pairs"][0] | {"good": False})
    silent = NodeReport("train-1", "train", "s", "p4d.24xlarge", True, (), {}, error="gone")
    answering = NodeReport("train-0", "train", "s", "p4d.24xlarge", True, (PASSED,), first)
    (grid,) = grids(Report((answering, silent), {}, 0.0))
    assert [row["cells"][1 - i].text for i, row in enumerate(grid["rows"])] == ["40", "40"]


@pytest.mark.parametrize("found", [report(1, {}), report(3, {}), report(MOST + 1, {(0, 1): (True, 40.0)})])
def test_where_nothing_was_measured_or_too_many_are_there_is_no_grid(found: Report) -> None:
    assert grids(found) == []
    assert "Pairs of nodes" not in html(found)


def test_a_ring_is_told_once() -> None:
    ring = {"nodes": [f"train-{i}" for i in range(4)], "good": False, "why": "no end within 188 s"}
    (grid,) = grids(report(4, SMALL, ring=ring))
    assert grid["rings"] == [{"good": False, "says": "ring of 4 nodes (train-0 to train-3): no end within 188 s"}]


class Cells(HTMLParser):
    """The text and title of each cell of the grid."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.cells = False, list[list[str]]()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag == "table":
            self.inside = "pairs" in (values.get("class") or "").split()
        elif tag == "td" and self.inside and values.get("class"):
            self.cells.append([values.get("title") or "", ""])
            self.open = True
        else:
            self.open = False

    def handle_data(self, data: str) -> None:
        if self.inside and self.cells and self.open:
            self.cells[-1][1] += data.strip()


def test_the_page_says_each_cell_in_words_and_escapes_them() -> None:
    page = html(report(4, SMALL))
    assert "&lt;slow&gt; with" in page and "<slow>" not in page
    cells = Cells()
    cells.feed(page)
    assert len(cells.cells) == 16
    assert ["train-0, train-1: 44.12 GB/s", "44.12"] in cells.cells
    assert ["train-1, train-2: <slow> with 2", "✗ 12"] in cells.cells
    assert all(title for title, text in cells.cells if text != "·")


def test_sixty_four_nodes_fit_in_a_box_that_scrolls(tmp_path: Path) -> None:
    pairs: Pairs = {
        (i, (i + d) % MOST): ((i, d) != (20, 1), 44.0 - (i * 7 + d) % 10 / 10) for i in range(MOST) for d in (1, 9)
    }
    page = write(report(MOST, pairs), tmp_path / "r", title="vision")
    for width, layout in chromium.measure(page, [1400, 400], tmp_path).items():
        assert layout["scroll"] <= width and layout["wide"] == []
        assert "train: 128 pairs" in layout["text"] and "✗ 4" in layout["text"]
