"""The benchmark shows a missed promise as missed, and its exit status says so."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from bench import __main__ as bench
from bench import fleet, imaging, measure, rendering, starting
from bench.promises import Promise, table

KEPT = Promise("a", "at most 2 ×", "1 s against 1 s", 1.0, 2.0)
MISSED = Promise("b", "at least 15 × faster", "1 s against 3 s", 3.0, 15.0, at_most=False)


@pytest.fixture(autouse=True)
def own_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "HERE", tmp_path)


def measured(monkeypatch: pytest.MonkeyPatch, *promises: Promise) -> int:
    monkeypatch.setattr(starting, "measure", lambda runs: list(promises))
    return bench.main(["--only", "start"])


def test_a_kept_promise(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert measured(monkeypatch, KEPT) == 0
    assert "| met" in capsys.readouterr().out
    (file,) = (tmp_path / "results").glob("*.json")
    assert [p["kept"] for p in json.loads(file.read_text())["promises"]] == [True]


def test_a_missed_promise_is_shown_and_is_the_exit_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert measured(monkeypatch, KEPT, MISSED) == 1
    assert "**MISSED**" in capsys.readouterr().out


def test_what_could_not_be_measured_is_not_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(runs: int) -> list[Promise]:
        raise measure.Failed("pcluster: exit status 1")

    monkeypatch.setattr(starting, "measure", broken)
    monkeypatch.setattr(rendering, "measure", lambda runs: [KEPT])
    assert bench.main(["--only", "start", "--only", "render"]) == 1
    assert "Not measured: start: pcluster" in capsys.readouterr().out


def test_the_table_goes_between_its_marks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    page = tmp_path / "bench.md"
    page.write_text(f"# head\n\n{bench.BEGIN}\nold\n{bench.END}\n\ntail\n")
    monkeypatch.setattr(bench, "DOCS", page)
    bench._write_docs("new")
    assert page.read_text() == f"# head\n\n{bench.BEGIN}\n\nnew\n\n{bench.END}\n\ntail\n"


def test_commands_take_turns_and_the_first_round_is_not_counted() -> None:
    order: list[str] = []

    def command(name: str, seconds: float) -> measure.Done:
        order.append(name)
        return measure.Done(seconds, "", 0)

    ours, theirs = measure.take_turns(lambda: command("a", 1), lambda: command("b", 4), runs=2)
    assert order == ["a", "b"] * 3
    assert (ours.median, theirs.median, len(ours.runs)) == (1, 4, 2)


def test_a_command_that_fails_is_no_measurement() -> None:
    with pytest.raises(measure.Failed, match="exit status 3"):
        measure.run([sys.executable, "-c", "raise SystemExit(3)"])


def test_children_are_weighed_with_their_parent() -> None:
    hungry = "import time; held = bytearray(60 << 20); held[::4096] = b'x' * len(held[::4096]); time.sleep(1.5)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {hungry!r}], check=True)"
    assert measure.run([sys.executable, "-c", parent], weigh=True).peak_mib > 60


def test_the_table_is_markdown() -> None:
    lines = table([KEPT, MISSED]).splitlines()
    assert len({line.count("|") for line in lines}) == 1
    assert len(lines) == 4


def test_both_ways_are_taken_as_often_as_asked_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its commands are recorded: what they are given has to be there each time."""
    calls: list[list[str]] = []

    def run(argv: list[str], **options: Any) -> measure.Done:
        calls.append(argv)
        if argv[1] == "up":
            assert Path(argv[2]).exists()
            assert options["env"] == imaging.BARE
            return measure.Done(2.0, json.dumps({"seconds": {}, "nodes": []}), 0)
        built = {"targets": {"p4d": {"ids": {"us-east-1": "localhost/gpuprov-image:x"}}}}
        return measure.Done(1.0, json.dumps(built) if argv[2] == "build" else "", 0)

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(imaging, "run", run)
    monkeypatch.setattr(fleet, "run", run)
    (promise,) = imaging.measure(2)
    assert promise.numbers["golden"] == (2.0, 2.0)
    assert [argv[1] for argv in calls].count("up") == 4
    assert ["podman", "rmi", "--force", "localhost/gpuprov-image:x"] in calls
    assert list(tmp_path.iterdir()) == []
