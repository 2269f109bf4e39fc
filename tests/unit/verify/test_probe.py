"""The probe's own machinery, on this machine."""

from __future__ import annotations

import select
import time
from typing import Any

import pytest

from provisioner.verify import probe


def test_what_a_command_wrote_just_before_its_end_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a loaded node the command writes and ends between a select that found nothing and the next look at it."""
    real, asked = select.select, []

    def late(*arguments: Any) -> Any:
        asked.append(arguments)
        if len(asked) == 1:
            time.sleep(1.0)  # the command ends meanwhile
            return [], [], []
        return real(*arguments)

    monkeypatch.setattr(probe.select, "select", late)
    assert probe.run(["sh", "-c", "sleep 0.2; echo late"], 10)["text"] == "late\n"


def test_a_daemon_that_holds_the_pipe_does_not_hold_the_probe() -> None:
    began = time.monotonic()
    found = probe.run(["sh", "-c", "sleep 20 & echo done"], 10)
    assert found["text"] == "done\n"
    assert not found["timed_out"]
    assert time.monotonic() - began < 9


def test_a_command_that_hangs_is_ended_with_its_children() -> None:
    found = probe.run(["sh", "-c", "echo before; sleep 60 & wait"], 0.5)
    assert found["timed_out"]
    assert found["rc"] is None
    assert found["text"] == "before\n"


def test_a_missing_tool_is_missing() -> None:
    assert probe.run(["no-such-tool-at-all"], 1)["missing"]
