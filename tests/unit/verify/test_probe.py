"""The probe's own machinery, on this machine."""

from __future__ import annotations

import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from provisioner.verify.probe import runner as probe


def test_what_a_command_wrote_just_before_its_end_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a loaded node the command writes and ends between a select that found nothing and the next look at it."""
    real, calls = select.select, []

    def late(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 1:
            time.sleep(1.0)  # the command ends meanwhile
            return [], [], []
        return real(*arguments)

    monkeypatch.setattr(probe.select, "select", late)
    assert probe.run(["sh", "-c", "sleep 0.2; echo late"], 10)["text"] == "late\n"


def test_a_daemon_that_holds_the_pipe_does_not_hold_the_probe() -> None:
    began = time.monotonic()
    output = probe.run(["sh", "-c", "sleep 20 & echo done"], 10)
    assert output["text"] == "done\n"
    assert not output["timed_out"]
    assert time.monotonic() - began < 9


def test_a_command_that_hangs_is_ended_with_its_children() -> None:
    output = probe.run(["sh", "-c", "echo before; sleep 60 & wait"], 0.5)
    assert output["timed_out"]
    assert output["rc"] is None
    assert output["text"] == "before\n"


def test_a_missing_tool_is_missing() -> None:
    assert probe.run(["no-such-tool-at-all"], 1)["missing"]


PROBE = """
import sys
from provisioner.verify.probe.runner import main
argv = ["sh", "-c", "sleep 120 & echo $! > '%s'; wait" % sys.argv[1]]
main({"files": {"x": 100}, "tools": {"x": {"argv": argv, "merge": False, "omit": ""}}, "deadline": 110})
"""


def test_when_nobody_reads_the_answer_all_ends(tmp_path: Path) -> None:
    """gpuprov was killed: its connection ends, and what the probe has started must not go on beside the next run."""
    note = tmp_path / "pid"
    with subprocess.Popen([sys.executable, "-c", PROBE, str(note)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        deadline = time.monotonic() + 60
        while not (note.exists() and note.read_text().endswith("\n")) and time.monotonic() < deadline:
            time.sleep(0.02)
        pid = int(note.read_text())
        process.stdout.close()
        assert process.wait(60) == 1
        while living(pid) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not living(pid)


def living(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
