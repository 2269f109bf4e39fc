"""The report: one fleet, read back in every form."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from provisioner.catalog import load
from provisioner.common.errors import GpuprovError
from provisioner.common.events import Event, Events
from provisioner.output.report import QuarantineOutput
from provisioner.verify.bundle import Bundle
from provisioner.verify.report import write
from provisioner.verify.report.compare import changes, earlier
from provisioner.verify.report.document import report_document
from provisioner.verify.report.html import html
from provisioner.verify.report.junit import junit
from provisioner.verify.report.terminal import NOT_LOOKED_AT, table
from provisioner.verify.results import Breaker, CheckResult, Report
from provisioner.verify.run import verify
from provisioner.verify.subject import Subject
from tests.support import chromium
from tests.support.healthy_bundle import bundle, expected, nth, nvlink

pytestmark = pytest.mark.heavy

P4D, NDV4 = "p4d.24xlarge", "Standard_ND96asr_v4"
EVIL = "<script>alert(1)</script>\x00\x1b[31m'\"&{{ 7331*7 }}"


@pytest.fixture(scope="module")
def fleet() -> Report:
    """Two healthy nodes, one with a link down, one that hides its topology, one that cannot be reached."""
    broken, silent = nth(P4D, 1), nth(NDV4, 2)
    broken["nvlink.txt"] = nvlink(load().machine(P4D), {3: 11})
    del silent["topo.txt"]
    sources = {
        "train-0": (P4D, bundle(nth(P4D, 3))),
        "train-1": (P4D, bundle(broken)),
        "infer-0": (NDV4, bundle(silent)),
        "infer-1": (NDV4, bundle(nth(NDV4, 4))),
        "train-2": (P4D, Bundle(error=f"no answer within 120 s: {EVIL}")),
    }
    subjects = [
        Subject(name, name.split("-")[0], "lab", machine, source, expected(machine), simulated=True)
        for name, (machine, source) in sources.items()
    ]
    events: list[Event] = []
    report = verify(subjects, events=Events(events.append))
    assert [e.node for e in events if e.kind == "warning"] == ["train-1", "infer-0", "train-2"]
    assert (events[0].kind, events[-1].kind, events[-1].message) == ("started", "failed", "2 of 5 nodes healthy")
    return replace(report, title="vision")


def test_the_json_has_its_stable_shape(fleet: Report) -> None:
    document = json.loads(json.dumps(report_document(fleet).to_json()))
    assert set(document) == {"ok", "nodes", "seconds", "simulated", "limits"}
    assert document["ok"] is False
    assert fleet.healthy_nodes == ("train-0", "infer-1")
    for node in document["nodes"]:
        assert {"name", "group", "machine", "site", "ok", "checks", "simulated"} <= set(node)
        for check in node["checks"]:
            keys = {"id", "severity", "status", "expected", "actual", "message", "action"}
            assert set(check) in (keys, keys | {"parts"})
            assert check["status"] in ("pass", "fail", "unknown", "skip")
            assert check["action"] == "none" or check["status"] in ("fail", "unknown")
    real = replace(fleet, nodes=tuple(replace(node, simulated=False) for node in fleet.nodes))
    assert "simulated" not in report_document(real).to_json()


def test_junit_counts_what_it_holds(fleet: Report) -> None:
    root = ElementTree.fromstring("".join(junit(fleet)))
    assert (root.tag, root.get("name")) == ("testsuites", "vision")
    suites = {suite.get("name"): suite for suite in root}
    assert list(suites) == ["train-0", "train-1", "infer-0", "infer-1", "train-2"]
    for suite in root:
        cases = suite.findall("testcase")
        assert int(suite.get("tests", "")) == len(cases)
        for key, element in {"failures": "failure", "errors": "error", "skipped": "skipped"}.items():
            assert int(suite.get(key, "")) == len(suite.findall(f"testcase/{element}"))
    assert [case.get("name") for case in suites["train-1"] if case.find("failure") is not None] == ["nvlink.links"]
    assert [case.get("name") for case in suites["infer-0"] if case.find("error") is not None] == ["nvlink.topology"]
    assert int(suites["train-2"].get("errors", "")) > 10
    assert int(root.get("errors", "")) == sum(int(suite.get("errors", "")) for suite in root)


def test_what_tools_print_cannot_break_a_report(fleet: Report) -> None:
    check = CheckResult("gpu.count", "fatal", "fail", "replace", EVIL, {EVIL: EVIL}, [EVIL], EVIL)
    report = replace(fleet, nodes=(replace(fleet.nodes[0], checks=(check,), error=""),), title=EVIL)
    ElementTree.fromstring("".join(junit(report)))
    page = html(report)
    assert "<script" not in page
    assert "51317" not in re.sub(r"#[0-9a-f]{6}", "", page.split("<main>")[1])
    text = render(report)
    assert "gpu.count" in text


class Outside(HTMLParser):
    """Addresses that a page would load, and the scripts in it."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.tables: list[dict[str, int]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag in ("script", "iframe", "object", "embed", "base"):
            self.found.append(tag)
        self.found += [v for k in ("src", "href") if (v := values.get(k)) and not v.startswith(("#", "data:,"))]
        if tag == "table":
            self.tables.append({"caption": 0, "th": 0})
        elif self.tables and tag in ("caption", "th"):
            self.tables[-1][tag] += 1
            assert tag == "caption" or values.get("scope") in ("col", "row")


def test_the_page_needs_nothing_from_outside_and_its_tables_are_named(fleet: Report) -> None:
    page = html(fleet)
    outside = Outside()
    outside.feed(page)
    assert outside.found == []
    assert "url(" not in page
    assert "default-src 'none'" in page
    assert len(outside.tables) >= len(fleet.nodes)
    assert all(table["caption"] == 1 and table["th"] > 1 for table in outside.tables)


@pytest.fixture(scope="module")
def layouts(fleet: Report, tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, Any]]:
    scratch = tmp_path_factory.mktemp("page")
    return chromium.measure(write(fleet, scratch / "report", title="vision"), [1400, 400], scratch)


@pytest.mark.parametrize("width", [1400, 400])
def test_the_page_in_a_browser(fleet: Report, layouts: dict[int, dict[str, Any]], width: int) -> None:
    layout = layouts[width]
    assert layout["width"] == width
    assert layout["scroll"] <= width
    assert layout["wide"] == []
    # What is broken lies open, what is healthy is folded away.
    assert sorted(layout["open"]) == ["node-infer-0", "node-train-1", "node-train-2"]
    text = layout["text"]
    assert "SIMULATED" in text
    assert "2 of 5 healthy" in text
    first, _, node_sections = text.partition("Fleet\n")
    assert "nvlink.links" in first
    assert "GPU 3 has 11 of 12" in first
    assert "Do: reset" in first
    assert "no answer within 120 s" in first
    assert "<script>alert(1)</script>" in first
    assert "dcgm.exporter" not in first
    for node in fleet.nodes:
        assert node.name in node_sections
    assert "NV12" in node_sections
    assert "580.173.02" in node_sections


def test_a_telephone_shows_the_whole_quarantine_and_breaks_no_word(fleet: Report, tmp_path: Path) -> None:
    """Short cells of wide tables stay in one line: those tables are scrolled."""
    quarantine = QuarantineOutput(
        owner="gpuprov", reason="gpu.count: 7 of 8 GPUs answer; " * 4, since="2026-11-21T10:00:00Z", checks=[]
    )
    nodes = tuple(replace(node, quarantine=quarantine) for node in fleet.nodes)
    previous_report = {
        "nodes": [{"name": node.name, "checks": [{"id": "gpu.count", "status": "fail"}]} for node in nodes]
    }
    page = tmp_path / "report.html"
    page.write_text(html(replace(fleet, nodes=nodes), previous_report), encoding="utf-8")
    layout = chromium.measure(page, [390], tmp_path)[390]
    assert layout["scroll"] <= 390
    assert layout["wide"] == []
    assert layout["broken"] == []


def test_a_healthy_fleet_says_so(fleet: Report) -> None:
    page = html(replace(fleet, nodes=tuple(node for node in fleet.nodes if node.ok)))
    assert "all healthy" in page
    assert "Nothing failed." in page
    assert "not healthy</span>" not in page
    empty = html(replace(fleet, nodes=()))
    assert "nothing was looked at" in empty


def test_a_node_of_which_not_all_was_seen_is_unknown_and_not_failed(fleet: Report) -> None:
    healthy_node = next(node for node in fleet.nodes if node.ok)
    fatal = next(check for check in healthy_node.checks if check.severity == "fatal" and check.status == "pass")
    unseen = replace(fatal, status="unknown", message="nobody asked")
    report = replace(fleet, nodes=(replace(healthy_node, checks=(unseen, *healthy_node.checks[1:])),))
    assert (report.nodes[0].ok, report.nodes[0].verdict) == (False, "unknown")
    page = html(report)
    assert "unknown</title>" in page
    assert "✗ unknown</span>" in page
    assert "UNKNOWN" in render(report) and "NOT HEALTHY" not in render(report)


def test_a_node_that_was_not_looked_at_is_unknown_and_one_that_is_gone_is_not_healthy(fleet: Report) -> None:
    silent = next(node for node in fleet.nodes if node.error)
    assert (silent.ok, silent.verdict) == (False, "unknown")
    text = " ".join(render(replace(fleet, nodes=(silent,))).split())
    assert "UNKNOWN" in text and NOT_LOOKED_AT in text
    absent_node = replace(silent, absent=True)
    assert absent_node.verdict == "not healthy"
    assert NOT_LOOKED_AT not in render(replace(fleet, nodes=(absent_node,)))
    assert replace(silent, lost=True).verdict == "not healthy"


@pytest.mark.parametrize("text", [None, "", "def tset_x(host):\n    pass\n", "x = 1\n"])
def test_a_folder_of_own_checks_without_one_is_refused(tmp_path: Path, text: str | None) -> None:
    """A misspelled name would be a check that never says anything."""
    if text is not None:
        (tmp_path / "own.py").write_text(text)
    subject = Subject("a", "", "", P4D, bundle(nth(P4D, 0)), expected(P4D), simulated=True)
    with pytest.raises(GpuprovError, match="no check in it"):
        verify([subject], checks=[tmp_path], events=Events())
    (tmp_path / "second.py").write_text("def test_one(node):\n    pass\n")
    assert verify([subject], checks=[tmp_path], events=Events()).nodes


def render(report: Report) -> str:
    from rich.console import Console

    stream = io.StringIO()
    Console(file=stream, width=120).print(table(report))
    return stream.getvalue()


def test_the_terminal_shows_each_node_and_only_what_failed(fleet: Report) -> None:
    text = render(fleet)
    for node in fleet.nodes:
        assert node.name in text
    assert "GPU 3 has 11 of 12" in text
    assert "efa.devices" not in text.split("train-2")[0]
    assert "2 of 5 nodes healthy (SIMULATED hardware)" in text


def test_the_terminal_names_every_unknown_check(fleet: Report) -> None:
    """Also one that condemns nobody: with its reason where its own code is broken, else in one line."""
    node = fleet.nodes[0]
    crashed = CheckResult("ours.broken", "warn", "unknown", "none", message="the check crashed: KeyError: 'x'")
    quiet = [CheckResult(f"ours.n{i}", "warn", "unknown", "none", message="no output") for i in range(9)]
    of_all = replace(fleet, nodes=(replace(node, name="a", checks=(*node.checks, crashed, *quiet)),))
    text = render(replace(of_all, nodes=(*of_all.nodes, replace(of_all.nodes[0], name="b"))))
    assert text.count("the check crashed: KeyError: 'x'") == 2
    assert f"unknown, but not fatal: {', '.join(c.id for c in quiet[:8])} and 1 more" in " ".join(text.split())
    assert "not fatal" not in render(replace(fleet, nodes=(node,)))


def test_the_report_names_who_was_borrowed_and_who_met_nobody(fleet: Report) -> None:
    """Nothing of it is wrong, so no row of what is wrong has it."""
    node = fleet.nodes[0]
    reason = "no other node of its group could be met. `gpuprov verify f --node b` proves it once one of them is idle"
    unmet = CheckResult("fabric.pairs", "warn", "unknown", "none", message=reason)
    other_checks = tuple(check for check in node.checks if check.id != "fabric.pairs")
    first = replace(node, name="a", facts={**node.facts, "fabric": {"state": "fine", "borrowed": ["c", "d"]}})
    second = replace(
        node, name="b", facts={**node.facts, "fabric": {"state": "unreached"}}, checks=(*other_checks, unmet)
    )
    report = replace(fleet, nodes=(first, second))
    text = " ".join(render(report).split())
    assert "a: measured with c and d, borrowed for it and not judged" in text and f"b: {reason}" in text
    assert [row.get("borrowed") for row in report_document(report).to_json()["nodes"]] == [["c", "d"], None]
    condemned = replace(unmet, severity="fatal")
    text = " ".join(render(replace(report, nodes=(replace(second, checks=(*other_checks, condemned)),))).split())
    assert f"b: {reason}" not in text and "fabric.pairs" in text, "it stands among what is wrong"


def test_the_level_is_told_and_what_only_a_higher_one_answers(fleet: Report) -> None:
    assert fleet.level == "", "bundles are judged by what they have"
    node = fleet.nodes[0]
    later = CheckResult("load.x", "fatal", "skip", "none", message="only from level stress on")
    quick = replace(fleet, level="quick", nodes=(replace(node, checks=(*node.checks, later)),))
    assert report_document(quick).to_json()["level"] == "quick"
    text, later_count = render(quick), sum(check.later for check in node.checks)
    assert f", {later_count + 1} at higher levels only" in text
    assert "healthy at level quick (SIMULATED hardware)" in text
    page = html(quick)
    assert " s at level quick</p>" in page
    assert f", {later_count + 1} at higher levels only" in page


def test_the_files_are_private_and_whole(fleet: Report, tmp_path: Path) -> None:
    page = write(fleet, tmp_path / "r", title="vision")
    assert sorted(path.name for path in (tmp_path / "r").iterdir()) == ["report.html", "report.json", "report.xml"]
    assert json.loads((tmp_path / "r" / "report.json").read_text())["ok"] is False
    assert page.stat().st_mode & 0o777 == 0o600


def test_what_changed_since_the_run_before_is_told(fleet: Report, tmp_path: Path) -> None:
    well = replace(fleet, nodes=tuple(n for n in fleet.nodes if n.name == "train-0"))
    broken = next(n for n in fleet.nodes if n.name == "train-1")
    current = replace(fleet, nodes=(replace(broken, name="train-0"), broken))
    page = write(well, tmp_path / "one", title="vision")
    previous = earlier(page)
    assert previous is not None
    differences = changes(previous, current)
    assert [(c.node, c.check, c.before, c.after) for c in differences if c.after == "fail"] == [
        ("train-0", "nvlink.links", "pass", "fail"),
        ("train-1", "nvlink.links", None, "fail"),
    ]
    text = write(current, tmp_path / "two", title="vision", previous=page).read_text()
    assert "Since the run before" in text
    assert "Since the run before" not in page.read_text()
    back = changes(json.loads((tmp_path / "two" / "report.json").read_text()), well)
    assert ("train-0", "nvlink.links", "fail", "pass") in {(c.node, c.check, c.before, c.after) for c in back}
    assert not any(change.worse for change in back)


def test_a_damaged_report_of_an_earlier_run_is_none(tmp_path: Path) -> None:
    for text in ("", "[]", '{"nodes": 3}', "{"):
        (tmp_path / "report.json").write_text(text)
        assert earlier(tmp_path / "report.html") is None
    assert earlier(tmp_path / "gone" / "report.html") is None
    assert earlier(None) is None


def test_the_page_has_the_runbook_of_what_failed_and_no_more(fleet: Report) -> None:
    text = html(fleet)
    for action in ("reset", "replace"):
        assert (f'id="do-{action}"' in text) == (f'href="#do-{action}"' in text)
    assert 'href="#do-reset"' in text  # a link is down
    assert "<code>nvidia-smi --gpu-reset</code>" in text
    assert "See it by hand: <code>nvidia-smi nvlink -s</code>" in text


def test_the_terminal_says_what_no_lock_left_out(fleet: Report) -> None:
    skipped = [CheckResult(f"x.{n}", "warn", "skip", "none", message="no lock names a package") for n in range(5)]
    skipped += [CheckResult("os.release", "fatal", "skip", "none", message="no lock names a distribution")]
    node = replace(fleet.nodes[0], checks=(*fleet.nodes[0].checks, *skipped))
    text = " ".join(render(replace(fleet, nodes=(node,))).split())
    assert "checks of versions, packages, images and services did not judge these nodes" in text
    assert "no lock: " not in render(fleet)


def test_the_terminal_says_what_takes_a_node_out_of_quarantine(fleet: Report) -> None:
    ours = {"owner": "gpuprov", "reason": "gpu.count: 7", "since": "2026-11-21T10:00:00Z", "checks": []}
    for quarantine, out in (
        (
            ours | {"level": "stress"},
            "gpu.count: 7; out by a healthy verify at level stress, or `gpuprov release FILE n`",
        ),
        (ours, "gpu.count: 7; out by a healthy verify, or `gpuprov release FILE n`"),
        (ours | {"owner": "ada", "trouble": "drain: 1"}, "gpu.count: 7 (drain: 1); out by `gpuprov release FILE n`"),
        (ours | {"reason": "gpu.count: 7; it stays until this has passed: load.completes"}, "load.completes"),
    ):
        text = " ".join(
            render(
                replace(fleet, nodes=(replace(fleet.nodes[0], name="n", quarantine=QuarantineOutput(**quarantine)),))
            ).split()
        )
        assert out in text, text


def test_the_page_names_quarantine_and_the_breaker(fleet: Report) -> None:
    quarantine = QuarantineOutput(owner="<b>ops</b>", reason="RMA 4711", since="2026-11-21T10:00:00Z", checks=[])
    first = replace(fleet.nodes[0], quarantine=quarantine)
    breaker = Breaker(bad=("train-1", "infer-0"), quarantined=1, bound=1, nodes=5, check="nvlink.links", shared=1)
    text = html(replace(fleet, nodes=(first, *fleet.nodes[1:]), breaker=breaker))
    assert "in quarantine by &lt;b&gt;ops&lt;/b&gt; since 2026-11-21T10:00:00Z: RMA 4711" in text
    assert text.count("the breaker tripped") == 1
    assert "nvlink.links" in text
