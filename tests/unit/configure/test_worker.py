"""ansible-runner's events → ours."""

from __future__ import annotations

import io
import json
import signal
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import ansible_runner
import pytest

from provisioner.configure import worker
from provisioner.configure.worker import MESSAGE_LIMIT, record


def event(kind: str, res: dict[str, Any] | None = None, **data: Any) -> dict[str, Any]:
    return {"event": kind, "event_data": {"host": "a-0", "role": "base", "task": "Do it", "res": res or {}, **data}}


def test_ok_and_changed() -> None:
    assert record(event("runner_on_ok", {"changed": True})) == {
        "event": "ok",
        "host": "a-0",
        "task": "base : Do it",
        "changed": True,
        "message": "",
    }


def test_a_task_that_begins_is_told() -> None:
    event_record = record(event("runner_on_start"))
    assert event_record is not None
    assert (event_record["event"], event_record["task"], event_record["message"]) == ("start", "base : Do it", "")


def test_a_failure_says_message_and_error_output() -> None:
    event_record = record(event("runner_on_failed", {"msg": "non-zero\nreturn code", "stderr": "E: no space left"}))
    assert event_record is not None
    assert event_record["message"] == "non-zero return code E: no space left"


def test_a_loop_says_the_item_that_failed() -> None:
    items = {"results": [{"failed": False, "msg": "fine"}, {"failed": True, "msg": "no key"}], "msg": "One or more"}
    event_record = record(event("runner_on_failed", items))
    assert event_record is not None
    assert event_record["message"] == "no key"


def test_an_ignored_failure_is_no_failure() -> None:
    event_record = record(event("runner_on_failed", {"msg": "x"}, ignore_errors=True))
    assert event_record is not None
    assert event_record["event"] == "ok"


def test_a_long_message_is_cut() -> None:
    event_record = record(event("runner_on_unreachable", {"msg": "x" * 10_000}))
    assert event_record is not None
    assert len(event_record["message"]) == MESSAGE_LIMIT


@pytest.mark.parametrize("kind", ["verbose", "playbook_on_stats", "runner_item_on_failed", ""])
def test_the_rest_is_dropped(kind: str) -> None:
    assert record(event(kind)) is None


@pytest.mark.parametrize("keep_events", [True, False])
def test_which_events_stay_as_files(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, keep_events: bool
) -> None:
    """Of thousands of nodes they would be a million files."""
    retained = dict[str, bool]()

    def run(*, event_handler: Callable[[dict[str, Any]], bool], playbook: str, **_: Any) -> SimpleNamespace:
        assert playbook == "site.yml"
        kinds = ("runner_on_start", "runner_on_ok", "runner_on_failed", "runner_on_unreachable", "verbose")
        retained.update({kind: event_handler(event(kind)) for kind in kinds})
        return SimpleNamespace(rc=0)

    monkeypatch.setattr(ansible_runner, "run", run)
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps({"playbook": "site.yml", "keep_events": keep_events})))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert worker.main() == 0
    assert {kind for kind, stays in retained.items() if stays} == (
        set(retained) if keep_events else {"runner_on_failed", "runner_on_unreachable"}
    )
    assert len(capsys.readouterr().out.splitlines()) == 4
