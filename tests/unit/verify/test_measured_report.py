"""The page's section "Measured" and the terminal's line: what was reached, beside the record, over the last runs."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from provisioner.verify.baseline import Reached
from provisioner.verify.report.document import report_document
from provisioner.verify.report.html import html
from provisioner.verify.report.measured import HIGH, MOST, WIDE, line, tables
from provisioner.verify.report.terminal import slower, table
from provisioner.verify.results import CheckResult, NodeReport, Report
from tests.support import chromium

PASSED = CheckResult("gpu.count", "fatal", "pass", "replace")
EVIL = "<b>x</b>&\"'"


def node(name: str, *measures: Reached, group: str = "train") -> NodeReport:
    return NodeReport(name, group, "here", "p4d.24xlarge", True, (PASSED,), measures=measures)


def memory(value: float, record: float | None = None, *, own_record: bool = True, slow: bool = False) -> Reached:
    return Reached("memory", "GB/s", value, record, own_record if record else None, None, slow)


BUSBW = Reached("busbw", "GB/s", 232.0, 240.0, True, 235.26)
FLEET = Report(
    (
        node("train-0", memory(1500.0, 1490.0), BUSBW),
        node("train-1", memory(1390.0, 1500.0, slow=True)),
        node("train-2", memory(1480.0, 1500.0, own_record=False)),
        node("train-3"),
        node("infer-0", memory(900.0), group="infer"),
    ),
    {"verify": 3.0},
    0.0,
    title="vision",
    trend={
        "train-0": tuple({"memory": 1490.0 + i, "busbw": 230.0} for i in range(5)),
        "train-1": ({"memory": 1390.0},),
    },
)


def section(page: str) -> str:
    return page.split('<h2 id="reached">')[1].split("</section>", maxsplit=1)[0]


def cells(table: str, name: str) -> list[str]:
    """Of a row, as text."""
    row = re.search(rf'<tr><th scope="row"><a href="#node-{name}">.*?</tr>', table, re.S)
    assert row
    plain = re.sub(r"<svg.*?</svg>", "[line]", row[0], flags=re.S)
    return [" ".join(re.sub("<[^>]*>", "", cell).split()) for cell in re.findall("<td>(.*?)</td>", plain, re.S)]


def test_each_group_has_a_table_with_its_nodes_and_what_was_measured() -> None:
    train, infer = section(html(FLEET)).split("<table")[1:]
    assert re.findall(r'<th scope="col">([^<]*)', train) == ["Node", "GPU memory", "all_reduce"]
    assert cells(train, "train-0") == ["1500 +0.7 %[line]", "232 -3.3 %[line]"]
    assert cells(train, "train-1") == ["1390 ▼ -7.3 %", "–"]
    assert cells(train, "train-2") == ["1480 -1.3 %*", "–"]
    assert "train-3" not in train
    assert "235.3" in train.split("<tfoot>")[1]
    assert cells(infer, "infer-0") == ["900"]
    assert "tfoot" not in infer
    assert "median of its group" in train and "median of its group" not in infer


def test_a_run_that_measured_nothing_has_no_such_section() -> None:
    quiet = replace(FLEET, nodes=(node("train-0"),), trend={})
    assert 'id="reached"' not in html(quiet)
    assert slower(quiet) == ""


def test_without_a_record_the_page_says_how_to_make_one() -> None:
    assert "--save-baseline" in section(html(replace(FLEET, nodes=(node("infer-0", memory(900.0)),))))
    assert "--save-baseline" not in section(html(FLEET))


def test_of_a_large_group_only_who_is_slower_has_a_row() -> None:
    many = [node(f"train-{i}", memory(1500.0, 1500.0)) for i in range(MOST)]
    (of_many,) = tables(replace(FLEET, nodes=(*many, node("slow", memory(1.0, 1500.0, slow=True)))))
    assert ([row["name"] for row in of_many["rows"]], of_many["nodes"]) == (["slow"], MOST + 1)
    assert len(tables(replace(FLEET, nodes=tuple(many)))[0]["rows"]) == MOST


def test_names_cannot_break_the_page() -> None:
    page = html(replace(FLEET, nodes=(node(EVIL, memory(900.0), group=EVIL),), trend={EVIL: ({"memory": 1.0},) * 3}))
    assert "<b>x" not in section(page)


@given(
    st.lists(st.floats(min_value=1e-3, max_value=1e6), max_size=20),
    st.none() | st.floats(min_value=1e-3, max_value=1e6),
)
def test_a_line_stays_within_its_frame_and_says_what_it_shows(values: list[float], record: float | None) -> None:
    drawn = line(values, record, "GB/s")
    if len(values) < 2:
        assert drawn == ""
        return
    root = ElementTree.fromstring(drawn)
    label = root.get("aria-label") or ""
    assert root.get("role") == "img" and root.findtext("title") == label
    assert f"last {len(values)} runs" in label
    assert f"{values[-1]:.4g} GB/s" in label
    points = [tuple(map(float, p.split(","))) for p in (root.find("polyline").get("points") or "").split()]  # type: ignore[union-attr]
    assert len(points) == len(values)
    assert all(0 <= x <= WIDE and 0 <= y <= HIGH for x, y in points)
    assert [x for x, _ in points] == sorted(x for x, _ in points)
    assert points[values.index(max(values))][1] <= points[values.index(min(values))][1]
    assert (root.find("line") is not None) <= (record is not None)


def test_a_per_cent_of_noise_is_drawn_as_one() -> None:
    flat = ElementTree.fromstring(line([100.0, 101.0, 100.0], None, "GB/s"))
    heights = [float(p.split(",")[1]) for p in (flat.find("polyline").get("points") or "").split()]  # type: ignore[union-attr]
    assert max(heights) - min(heights) < HIGH / 8


def render(report: Report) -> str:
    from rich.console import Console

    stream = io.StringIO()
    Console(file=stream, width=200).print(table(report))
    return stream.getvalue()


def test_the_terminal_has_one_line_for_all_who_are_slower() -> None:
    sentence = "slower than the fleet's own record: train-1 (GPU memory -7.3%)"
    assert render(FLEET).count(sentence) == 1
    many = replace(FLEET, nodes=tuple(node(f"n{i}", memory(1.0, 2.0, slow=True)) for i in range(7)))
    assert slower(many).endswith("n4 (GPU memory -50.0%) and 2 more")
    assert "slower than" not in render(replace(FLEET, nodes=FLEET.nodes[:1]))


def test_the_document_has_the_measures_of_those_that_have_some() -> None:
    nodes: dict[str, Any] = {n["name"]: n for n in json.loads(json.dumps(report_document(FLEET).to_json()))["nodes"]}
    assert list(nodes["train-0"]["measures"]) == ["memory", "busbw"]
    assert nodes["infer-0"]["measures"]["memory"]["of"] is None
    assert "measures" not in nodes["train-3"]


def test_the_section_in_a_browser(tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text(html(FLEET))
    for layout in chromium.measure(tmp_path / "report.html", [1400, 400], tmp_path).values():
        assert layout["scroll"] <= layout["width"]
        assert layout["wide"] == []
        assert "GPU memory" in layout["text"] and "-7.3 %" in layout["text"]
