"""What is kept once for many nodes stays what each of them said: results, facts, the report's lines."""

from __future__ import annotations

import gc
import json
from dataclasses import asdict, replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from provisioner.verify import document
from provisioner.verify import facts as facts_module
from provisioner.verify.facts import read
from provisioner.verify.facts_document import facts_document
from provisioner.verify.parsers import Unreadable, nvidia_smi
from provisioner.verify.pytest_runner import Case, Judged, judge
from provisioner.verify.report import write
from provisioner.verify.report.document import report_document
from provisioner.verify.results import CheckResult, NodeReport, Report
from tests.support.healthy_bundle import bundle, expected, healthy, nth

P4D = "p4d.24xlarge"
MINE = """
from provisioner.verify.check import check, fail, saw

@check("mine.kinds", severity="warn", action="none", says="x")
def test_kinds(name):
    saw(expected={"a": 1, "b": 1.0, "c": True}[name], actual={"a": 0, "b": False, "c": 0.0}[name])

@check("mine.list", severity="warn", action="none", says="x")
def test_list(name):
    saw(actual=["one"] if name != "b" else ["another"])
    if name == "c":
        fail("only here")
"""


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Judged]:
    folder = tmp_path_factory.mktemp("checks")
    (folder / "mine.py").write_text(MINE)
    expectation = expected(P4D)
    return judge({name: Case(bundle(nth(P4D, i)), expectation) for i, name in enumerate("abc")}, checks=[folder])


def of(judged: dict[str, Judged], check: str) -> dict[str, CheckResult]:
    return {name: next(c for c in verdict.checks if c.id == check) for name, verdict in judged.items()}


def test_equal_results_are_one_and_others_are_not(judged: dict[str, Judged]) -> None:
    count = of(judged, "gpu.count")
    assert count["a"] is count["b"] is count["c"]
    kinds = of(judged, "mine.kinds")
    assert [repr((kinds[n].expected, kinds[n].actual)) for n in "abc"] == ["(1, 0)", "(1.0, False)", "(True, 0.0)"]
    lists = of(judged, "mine.list")
    assert [(lists[n].status, lists[n].actual) for n in "abc"] == [
        ("pass", ["one"]),
        ("pass", ["another"]),
        ("fail", ["one"]),
    ]


def test_each_node_has_facts_of_its_own(judged: dict[str, Judged]) -> None:
    serials = {name: verdict.facts["gpus"][0]["serial"] for name, verdict in judged.items()}
    assert len(set(serials.values())) == 3
    node_facts = json.loads(json.dumps(facts_document(read(bundle(nth(P4D, 1)))), default=str))
    assert dict(judged["b"].facts) == node_facts
    assert len(judged["b"].facts) == len(node_facts)


def test_the_written_report_says_what_the_report_says(judged: dict[str, Judged], tmp_path: Path) -> None:
    nodes = [NodeReport(name, "g", "s", P4D, False, verdict.checks, verdict.facts) for name, verdict in judged.items()]
    evil = 'no "checks": [] and no "nodes": [] here'
    silent = NodeReport(evil, evil, "s", P4D, True, (), error=evil)
    report = Report((silent, *nodes), {"verify": 1.0}, 0.0)
    write(report, tmp_path, title=evil)
    text = (tmp_path / "report.json").read_text()
    assert json.loads(text) == json.loads(json.dumps(report_document(report).to_json()))
    assert '{"id": "gpu.count", ' in text.replace("\n", "\n "), "a line for each check"
    suites = list(ElementTree.parse(tmp_path / "report.xml").getroot())
    cases = [(suite.get("name"), case.get("classname"), case.get("name")) for suite in suites for case in suite][1:]
    expected_cases = [(node.name, node.name, check.id) for node in nodes for check in node.checks]
    assert [case for case in cases if case[2]] == [(evil, evil, "verify.checks"), *expected_cases]


def test_a_mapping_of_facts_is_that_of_the_standard_library() -> None:
    facts = read(bundle(healthy(P4D)))
    assert facts.smi is not None and facts.host is not None and facts.load is not None
    for fact in (*facts.smi.gpus, facts.host, facts.load, *(facts.rdma or ())):
        assert json.dumps(document.asdict(fact)) == json.dumps(asdict(fact))


def test_texts_are_not_kept_and_reading_leaves_nothing_behind() -> None:
    """A worker that reads a thousand nodes looks for no circles: there are to be none."""
    texts = bundle(healthy(P4D))
    facts = read(texts)
    assert {name: replace(output, text="") for name, output in texts.files.items()} == facts.outputs
    gc.collect()
    gc.disable()
    try:
        read(texts)
        assert gc.collect() == 0
    finally:
        gc.enable()


@pytest.mark.parametrize("message", ["GPU is lost", "[GPU is lost]", "&#71;PU is &#108;ost", " gpu IS lost\n"])
def test_a_lost_gpu_is_seen_however_it_is_spelled(message: str) -> None:
    text = str(healthy(P4D)["nvidia-smi.xml"])
    start = text.index("<fan_speed>", text.index("<fan_speed>") + 1) + len("<fan_speed>")
    end = text.index("<", start)
    smi = nvidia_smi.parse(text[:start] + message + text[end:])
    assert [gpu.lost for gpu in smi.gpus] == [False, True, *[False] * 6]


def test_elements_without_an_end_are_not_walked() -> None:
    deep = "<a>" * 20_000 + "</a>" * 20_000
    with pytest.raises(Unreadable):
        nvidia_smi.parse(f"<nvidia_smi_log><gpu id='0:1:0.0'>{deep}</gpu></nvidia_smi_log>")


def test_a_text_that_nodes_share_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def parse(text: str) -> tuple[str]:
        calls.append(text)
        if text == "bad":
            raise Unreadable("bad")
        return (text,)

    def read_kernel(text: str) -> object:
        return facts_module.read_file("kernel.txt", bundle({"kernel.txt": text}), parse)[0]

    monkeypatch.setattr(facts_module, "_known", {})
    assert read_kernel("6.8.0") is read_kernel("6.8.0") and read_kernel("6.9.0") == ("6.9.0",)
    assert calls == ["6.8.0", "6.9.0"]
    assert read_kernel("bad") is None and read_kernel("bad") is None  # what cannot be read says so on each node
    for i in range(facts_module.ALIKE - 1):
        read_kernel("6.8.0")
        read_kernel(f"other {i}")
    assert calls.count("6.8.0") == 1  # what comes again and again stays
    assert calls.count("6.9.0") == 1 and read_kernel("6.9.0") and calls.count("6.9.0") == 2
    read_kernel("x" * (facts_module.LARGE + 1))
    read_kernel("x" * (facts_module.LARGE + 1))
    assert calls[-2:] == ["x" * (facts_module.LARGE + 1)] * 2
    assert len(facts_module._known) == facts_module.ALIKE
