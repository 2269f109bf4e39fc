"""Nodes that answer with anything at all: what one of them says costs that node its verdict, and no other anything.

Work is bounded, not timed: the guard ends what takes the square of its input, and a test that it ends has failed. What
a fuzzer found is a file in corpus/ from then on.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from provisioner.verify import check_runner
from provisioner.verify.bundle import SAID, Bundle, Output
from provisioner.verify.check_runner import NodeUnderTest
from provisioner.verify.collect import decode
from provisioner.verify.facts import Facts, read
from provisioner.verify.facts_document import facts_document
from provisioner.verify.parsers import LONGEST, Unreadable, dmesg
from provisioner.verify.peers import Peers
from provisioner.verify.probe.runner import MARK
from provisioner.verify.pytest_runner import Case, Judged, judge
from provisioner.verify.registry import plain_checks
from provisioner.verify.report.document import check_document, node_document
from provisioner.verify.results import NodeReport
from provisioner.verify.tools import FILES
from provisioner.verify.watch import limited
from tests.support.healthy_bundle import bundle, expected, healthy, nth
from tests.unit.verify.test_parsers import TEXTS

pytestmark = pytest.mark.heavy

P4D = "p4d.24xlarge"
CORPUS = Path(__file__).parent / "corpus"
GUARD_S = 10.0
"""Seconds of a processor, a hundred times what the slowest of these takes."""
TOOLS = {name.split("/")[0]: name for name in TEXTS}


def flood(kind: str, text: str, size: int) -> str:
    rows = [row for row in text.splitlines() if row.strip()]
    longest = max(rows, key=len)
    match kind:
        case "one line":
            return (text.replace("\n", " ") * (size // len(text) + 1))[:size]
        case "short lines":
            return (longest.split()[0][:8] + "\n") * (size // 9)
        case "lines as long as may be":
            return "\n".join([(longest + " ") * (LONGEST // (len(longest) + 1))] * (size // LONGEST))
        case _:
            return (longest[: len(longest) // 2] + "\n") * (size // (len(longest) // 2 + 1))


def survives(parse: Callable[[str], object], text: str) -> None:
    with limited(GUARD_S):
        try:
            parse(text)
        except Unreadable as error:
            assert len(str(error)) < 1000


KINDS = ("one line", "short lines", "lines as long as may be", "halves of a line")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tool", TOOLS)
def test_no_parser_takes_the_square_of_its_input(tool: str, kind: str) -> None:
    parse, text = TEXTS[TOOLS[tool]]
    survives(parse, flood(kind, text, 200_000))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", TEXTS)
def test_no_parser_takes_the_square_of_two_megabytes(name: str, kind: str) -> None:
    parse, text = TEXTS[name]
    survives(parse, flood(kind, text, 2_000_000))


WORDS = (
    "NVRM: ", "NVRM: GSP ", "NVRM: rpcRecvPoll ", "NVRM: NVLink ", "NVRM: GPU at x ", "nvidia-nvlink: ",
    "NVRM: Xid (PCI:0000:01:00): ", "NVRM: The NVIDIA GPU 0000:b3:00.0 ", "SXid (PCI:0000:01:00): 20034, ",
    "Memory failure: 0x1: recovery action ", "[Hardware Error]: CPU:1 MC1_STATUS[ ", "XFS (a): ", "EXT4-fs (a): ",
    "BTRFS ", "mlx5_core ", "efa x ", "ena x ", "DMAR: [DMA ", "amdgpu ", "amdgpu socket: 1 die: 1 ", "BUG: ",
    "mce: [Hardware Error]: CPU 1: Machine Check: ", "Kernel panic - not syncing: ", "AER: device ", "Watchdog: ",
    "0000:01:00.0: 1.0 Gb/s available PCIe bandwidth, limited by ", "eth0: ", "kernel: ", "[ 1.0] ", "fallen off ",
)  # fmt: skip
"""With what patterns for a kernel's messages begin, before they look for more."""


@pytest.mark.parametrize("size", [150_000, pytest.param(2_000_000, marks=pytest.mark.slow)])
def test_the_beginnings_of_kernel_messages_take_no_square(size: int) -> None:
    for beginning in WORDS:
        survives(dmesg.parse, "\n".join(["[    1.000000] " + beginning * (4080 // len(beginning))] * (size // 4096)))
        survives(dmesg.parse, "[    1.000000] x\n[    1.000000] " + beginning * (size // len(beginning)))


def test_what_is_crowded_into_one_line_is_still_read() -> None:
    crowd = "[1.5] " + " ".join("NVRM: nothing" for _ in range(40))
    (event,) = dmesg.parse(f"{crowd} NVRM: GPU 0000:18:00.0: RmInitAdapter failed! (0x62:0x55:1860)").events
    assert (event.kind, event.where) == ("rm_init", "0000:18:00.0")


def test_a_line_that_nobody_prints_is_no_answer() -> None:
    with pytest.raises(Unreadable, match="a line of 2000006 characters"):
        dmesg.parse("[1.5] " + "x" * 2_000_000 + "\n[2.5] y")


def answer(document: object) -> bytes:
    return (MARK + base64.b64encode(zlib.compress(json.dumps(document).encode())).decode() + "\n").encode()


NUMBERS = (10**400, -(10**400), float("nan"), float("inf"), True, "1", [], {}, None, 1e300)


@pytest.mark.parametrize("key", ["collected", "seconds", "received", "rc"])
@pytest.mark.parametrize("value", NUMBERS, ids=lambda value: str(value)[:8])
def test_a_number_that_is_none_is_not_believed(key: str, value: object) -> None:
    document: dict[str, Any] = {"files": {"kernel.txt": {"text": "6.8.0\n", "rc": 0, key: value}}, key: value}
    decoded = decode(answer(document))
    assert not decoded.error
    assert decoded.files["kernel.txt"].text == "6.8.0\n"
    for number in (decoded.collected, decoded.seconds, decoded.received, decoded.files["kernel.txt"].seconds):
        assert number is None
    assert decoded.files["kernel.txt"].rc == (None if key == "rc" else 0)


def test_numbers_that_are_some_are_kept() -> None:
    decoded = decode(answer({"files": {"a": 1}, "collected": 1.78e9, "seconds": 2}))
    assert (decoded.collected, decoded.seconds, decoded.files) == (1.78e9, 2.0, {})


@pytest.mark.parametrize(
    ("out", "reason"),
    [
        (b"", "no answer from the probe"),
        (b"Welcome\n", "no answer from the probe"),
        (MARK.encode() + b"AAAA\n", "error"),
        (MARK.encode() + b"\xff\xfe\n", "ValueError"),
        (MARK.encode() + base64.b64encode(zlib.compress(b"[" * 100_000)) + b"\n", "RecursionError"),
        (MARK.encode() + base64.b64encode(zlib.compress(b"9" * 5000)) + b"\n", "ValueError"),
        (MARK.encode() + base64.b64encode(zlib.compress(b"[]")) + b"\n", "not a JSON object"),
        (MARK.encode() + base64.b64encode(zlib.compress(b"[" + b"[],"[:3] * 1_000_000)) + b"\n", "1000000 values"),
        (MARK.encode() + base64.b64encode(zlib.compress(b" " * (33 << 20))) + b"\n", "larger than 32 MiB"),
    ],
    ids=range(9),
)
def test_what_is_no_answer_is_a_bundle_that_says_so(out: bytes, reason: str) -> None:
    decoded = decode(out)
    assert not decoded.files
    assert "answer from the probe" in decoded.error
    assert reason in decoded.error


def test_an_error_of_four_megabytes_is_told_once_and_short() -> None:
    flooded = {"text": "", "error": "x" * (4 << 20), "unfit": "y" * (4 << 20)}
    document = {"files": dict.fromkeys(FILES, flooded), "error": "z" * (4 << 20)}
    received = Bundle.from_json(document)
    assert {len(out.error) for out in received.files.values()} == {len(received.error)} == {SAID}
    for bad in (Bundle.from_json(document | {"error": ""}), Bundle(error=received.error)):
        (node,) = judge({"a": Case(bad, expected(P4D))}).values()
        report = NodeReport("a", "", "", P4D, False, node.checks, error=bad.error)
        assert not report.ok
        assert max(len(json.dumps(check_document(check).to_json())) for check in node.checks) < 4000
        assert len(json.dumps(node_document(report).to_json())) < 1000 * len(node.checks)


SLOW = 'APT "";\nAPT::Periodic::Unattended-Upgrade "1";\n'
SLOW += 'Unattended-Upgrade::Package-Blacklist:: "^(([a-z0-9.-]+)+)+!";\n'


def statuses(judged: Judged) -> list[tuple[str, str, str]]:
    return [(check.id, check.status, check.message) for check in judged.checks]


OWN = """
import time
from provisioner.verify.check import check

@check("own.slow", severity="fatal", action="none", says="x")
def test_slow(name):
    while name == "bad":
        pass
"""


def test_a_check_that_does_not_end_on_a_node_is_unknown_there_alone(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    healthy_case, bad = Case(bundle(healthy(P4D)), expected(P4D)), Case(bundle(healthy(P4D)), expected(P4D))
    verdicts_by_node = judge({"bad": bad, "good": healthy_case}, checks=[tmp_path])
    late = {check.id: check for check in verdicts_by_node["bad"].checks}["own.slow"]
    assert (late.status, late.message) == ("unknown", "the check timed out on this node")
    assert [row for row in statuses(verdicts_by_node["good"]) if row[1] != "pass"] == [
        row for row in statuses(judge({"good": healthy_case})["good"]) if row[1] != "pass"
    ]
    assert {check.id: check.status for check in verdicts_by_node["good"].checks}["own.slow"] == "pass"


def test_expressions_of_a_node_that_do_not_end_match_nothing() -> None:
    settings_ = read(Bundle({"unattended.txt": Output(SLOW, rc=0)})).unattended
    assert settings_ is not None
    with limited(GUARD_S):
        assert not settings_.spares("nvidia-driver-580-server-open")


def test_facts_that_are_too_many_are_unknown_and_not_kept() -> None:
    many = "".join(f"a{number}\t1\tii \n" for number in range(300_000))
    verdict = judge({"a": Case(bundle(healthy(P4D) | {"packages.txt": many}), expected(P4D))})["a"]
    assert not any(check.status == "pass" for check in verdict.checks)
    assert any("MiB of facts" in check.message for check in verdict.checks)
    assert len(json.dumps(dict(verdict.facts))) < 100_000


# -- fuzzing ------------------------------------------------------------------------------------------------------


@cache
def fleet() -> dict[str, NodeUnderTest]:
    """Three healthy nodes."""
    return {f"good-{n}": node(f"good-{n}", read(bundle(nth(P4D, n)))) for n in range(3)}


def node(name: str, facts: Facts) -> NodeUnderTest:
    return NodeUnderTest(name, facts, expected(P4D), None, "group")


def verdicts(nodes: Mapping[str, NodeUnderTest], of: set[str]) -> dict[tuple[str, str], tuple[str, str]]:
    peers = Peers({name: node.facts for name, node in nodes.items()})
    outcomes = {}
    for function, declared in plain_checks():
        for name in of:
            outcome = check_runner.run(function, declared, nodes[name], peers)
            outcomes[name, declared.id] = outcome.status, outcome.message
    return outcomes


@cache
def undisturbed() -> dict[tuple[str, str], tuple[str, str]]:
    return verdicts(fleet(), set(fleet()))


def costs_itself_only(texts: Mapping[str, str | Output]) -> None:
    """A node with these outputs beside three healthy ones."""
    with limited(3 * GUARD_S):
        facts = read(Bundle.from_json(bundle(dict(texts)).to_json()))
        json.dumps(facts_document(facts))
        outcomes = verdicts({"bad": node("bad", facts), **fleet()}, {"bad", *fleet()})
    changed = {
        key: (undisturbed()[key], outcome)
        for key, outcome in outcomes.items()
        if key[0] != "bad" and outcome[0] != undisturbed()[key][0]
    }
    assert not changed
    assert all(len(message) <= check_runner.MESSAGE for _, message in outcomes.values())
    unread = {name for name, source in facts.sources.items() if source.state == "unreadable"}
    assert not [name for name in unread if "the parser failed" in facts.source(name).reason]


@pytest.mark.parametrize("case", sorted(CORPUS.glob("*/*")), ids=lambda path: f"{path.parent.name}-{path.name}")
def test_what_a_fuzzer_found_once(case: Path) -> None:
    text = case.read_bytes().decode("utf-8", "replace")
    if case.parent.name == "probe.json":
        decoded = decode(MARK.encode() + base64.b64encode(zlib.compress(text.encode())) + b"\n")
        costs_itself_only(nth(P4D, 3) | dict(decoded.files))
        return
    costs_itself_only(nth(P4D, 3) | {case.parent.name: text})


def test_the_corpus_is_there() -> None:
    assert {path.parent.name for path in CORPUS.glob("*/*")} <= {*FILES, "probe.json"}
    assert len(list(CORPUS.glob("*/*"))) >= 5


STRANGE = st.one_of(
    st.sampled_from(
        [
            "",
            "\x00",
            "9" * 400,
            "-1",
            "1e400",
            "NaN",
            "null",
            "[]",
            "{}",
            '"',
            "[[",
            "N/A",
            "\ud800",
            "\u202e",
            "٣",
            "²",
        ]
    ),
    st.text(max_size=8),
    st.integers().map(str),
)


@st.composite
def damaged(draw: st.DrawFn, text: str) -> str:
    """A text with pieces cut out, doubled, or replaced by something strange."""
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, max(0, len(text) - 1)))
        length = draw(st.sampled_from([0, 1, 2, 5, 20, 200, 5000]))
        piece = draw(st.one_of(STRANGE, st.just(text[start : start + length] * 2)))
        text = text[:start] + piece + text[start + length :]
    return text


VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.sampled_from([10**30, 10**400, -1, 2**63]), st.floats(),
              st.text(max_size=6), st.sampled_from(["N/A", "9" * 30, "1e400"])),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
    max_leaves=6,
)  # fmt: skip


@st.composite
def other_values(draw: st.DrawFn, text: str) -> str:
    """A JSON document with something else in some places."""
    document = json.loads(text)
    for _ in range(draw(st.integers(1, 3))):
        container = document
        while isinstance(container, dict | list) and container:
            key = draw(st.sampled_from(sorted(container) if isinstance(container, dict) else range(len(container))))
            inner = container[key]
            if not isinstance(inner, dict | list) or not inner or draw(st.booleans()):
                container[key] = draw(VALUES)
                break
            container = inner
    return json.dumps(document)


class Damage(dict[str, str]):
    """The files that are other than a healthy node's; all of them are too much to print."""

    def __repr__(self) -> str:
        return ", ".join(f"{name}: {len(text)} characters" for name, text in self.items())


@st.composite
def hostile(draw: st.DrawFn) -> Damage:
    texts = Damage()
    healthy_ = nth(P4D, 3)
    for name in draw(st.lists(st.sampled_from(sorted(healthy_)), min_size=1, max_size=3, unique=True)):
        text = str(healthy_[name])
        if name.endswith(".json") and draw(st.booleans()):
            texts[name] = draw(other_values(text))
        else:
            texts[name] = draw(damaged(text))
    return texts


def fuzz(texts: Damage) -> None:
    costs_itself_only(nth(P4D, 3) | texts)


COMMON: dict[str, Any] = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
}
test_any_outputs_cost_their_node_only = settings(max_examples=12, derandomize=True, **COMMON)(given(hostile())(fuzz))
test_any_outputs_cost_their_node_only_at_length = pytest.mark.slow(
    settings(max_examples=1500, **COMMON)(given(hostile())(fuzz))
)


@given(st.recursive(VALUES, lambda v: st.dictionaries(st.sampled_from(
    ["files", "error", "collected", "seconds", "received", "kernel.txt", "dmesg.txt", "text", "rc", "unfit"]), v),
    max_leaves=10))  # fmt: skip
@settings(max_examples=100, derandomize=True, **COMMON)
def test_any_answer_is_a_bundle(document: object) -> None:
    facts = read(decode(answer(document)))
    json.dumps(facts_document(facts))


@given(st.text())
@settings(max_examples=100, derandomize=True, **COMMON)
def test_any_status_file_is_a_bundle_or_an_error(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    from provisioner.common.errors import GpuprovError

    folder = tmp_path_factory.mktemp("bundle")
    (folder / "probe.json").write_text(text, encoding="utf-8", errors="replace")
    try:
        Bundle.read(folder)
    except GpuprovError as error:
        assert "probe.json" in str(error)
