"""What a node wrote reaches no terminal and no page as a control: escapes, bells, C1 and bidirectional controls in
every file of a bundle, looked for in all that gpuprov prints and writes of it."""

from __future__ import annotations

import json
import random
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from provisioner.cli.main import run
from provisioner.common.errors import GpuprovError
from provisioner.common.events import Event
from provisioner.common.text import printable
from provisioner.configure.drift import Difference
from provisioner.verify.bundle import STATUS
from provisioner.verify.results import CheckResult, NodeReport
from tests.support.healthy_bundle import healthy

P4D = "p4d.24xlarge"
EVIL = ("\x1b]0;PWNED\x07", "\x1b[2J", "\x07", "\x9b31m", "\x9d0;PWNED\x9c", "\u202etxt.exe", "\u2066", "\x08\x08",
        "\rok", "\u200b", "\u2028", "\x7f", "\x00", "\U000e0041")  # fmt: skip
CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\U000e0000-\U000e007f]"
)


def ends_of_lines(text: str, draw: random.Random) -> str:
    return "".join(line + draw.choice(EVIL) + "\n" for line in text.split("\n"))


def beginnings_of_lines(text: str, draw: random.Random) -> str:
    return "".join(draw.choice(EVIL) + line + "\n" for line in text.split("\n"))


def some_words(text: str, draw: random.Random) -> str:
    return re.sub(r"\w+", lambda match: match[0] + draw.choice(EVIL) if draw.random() < 0.05 else match[0], text)


def values(text: str, draw: random.Random) -> str:
    """Inside of the values of JSON and of XML, so that the document itself can be read."""
    if text.startswith(("{", "[{")):
        return json.dumps(_texts(json.loads(text), draw))
    if text.lstrip().startswith("<"):
        allowed = [evil for evil in EVIL if not re.search("[\x00-\x08\x0b-\x1f]", evil)]
        # The same of the same value: a GPU has its one name in every look at it.
        evil = lambda value: allowed[zlib.crc32(value.encode()) % len(allowed)]  # noqa: E731
        return re.sub(r">([^<>\n]+)<", lambda value: f">{value[1]}{evil(value[1])}<", text)
    return some_words(text, draw)


def _texts(value: Any, draw: random.Random) -> Any:
    if isinstance(value, dict):
        return {key: _texts(inner, draw) for key, inner in value.items()}
    if isinstance(value, list):
        return [_texts(inner, draw) for inner in value]
    return value + draw.choice(EVIL) if isinstance(value, str) and draw.random() < 0.5 else value


@pytest.mark.parametrize("spoil", [ends_of_lines, beginnings_of_lines, some_words, values], ids=lambda f: f.__name__)
def test_no_control_of_a_bundle_comes_out(
    spoil: Callable[[str, random.Random], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draw = random.Random(7)
    node = tmp_path / "node\x1b[2J"
    node.mkdir()
    for name, text in healthy(P4D).items():
        (node / name).write_text(spoil(str(text), draw), encoding="utf-8")
    status = {"files": {"lspci.txt": {"rc": 1, "error": "".join(EVIL)}, "topo.txt": {"rc": 9, "error": "\x1b[2J"}}}
    (node / STATUS).write_text(json.dumps(status), encoding="utf-8")
    for command in (
        ["verify", "--bundle", str(node), "--machine", P4D, "--report", str(tmp_path)],
        ["verify", "--bundle", str(node), "--machine", P4D, "--json"],
        ["facts", "--bundle", str(node)],
        ["facts", "--bundle", str(node), "--json"],
    ):
        run(command)
        output = capsys.readouterr()
        assert len(output.out) > 500, output.err
        assert not CONTROLS.findall(output.out + output.err), command
    assert r"node\x1b[2J" in (tmp_path / "report.html").read_text(encoding="utf-8")
    for page in ("report.html", "report.xml", "report.json"):
        assert not CONTROLS.findall((tmp_path / page).read_text(encoding="utf-8")), page
    ElementTree.parse(tmp_path / "report.xml")


def test_a_node_that_says_why_it_does_not_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / STATUS).write_text(json.dumps({"error": "ssh: \x1b]0;PWNED\x07 \ud800", "files": {}}), encoding="utf-8")
    for command in (["verify", "--machine", P4D], ["facts"]):
        assert run([*command, "--bundle", str(tmp_path)]) == 1
        output = capsys.readouterr()
        assert not CONTROLS.findall(output.out + output.err)
        assert r"\x1b]0;PWNED" in output.out + output.err


def test_what_an_own_check_says() -> None:
    result = CheckResult(
        "own\x1b", "fatal", "fail", "reboot", "\x9b", {"a\x07": ["\x1b"]}, ("\u202e",), "crashed: \x1b[2J"
    )
    assert not CONTROLS.findall(f"{result.id}{result.says}{result.expected}{result.actual}{result.message}")
    assert (result.expected, result.actual) == ({r"a\x07": [r"\x1b"]}, (r"\u202e",))


@pytest.mark.parametrize(
    "sanitize",
    [
        lambda text: Event("configure", "failed", text).message,
        lambda text: str(GpuprovError(text, where=text, hint=text)),
        lambda text: NodeReport("n", "", "", P4D, False, (), error=text).why,
        lambda text: Difference("package", "libnccl2", "1", text, text).message,
    ],
)
def test_what_prints_is_given_nothing_else(sanitize: Callable[[str], str]) -> None:
    output = sanitize("before" + "".join(EVIL) + "after")
    assert not CONTROLS.findall(output)
    assert "before" in output
    assert "after" in output


def test_ordinary_texts_stay_as_they_are() -> None:
    for text in ("GPU 3: Überhitzt, 93 °C", "a\tb\nc", "显卡", "naïve – “quoted”", "🙂"):
        assert printable(text) == text
    assert printable("\x1b[31mred\x1b[0m\r\n") == "red\n"
    assert printable({"n": 1, "t": (1.5, None, True)}) == {"n": 1, "t": (1.5, None, True)}
