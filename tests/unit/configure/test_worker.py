"""ansible-runner's events → ours."""

from __future__ import annotations

from typing import Any

import pytest

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
    said = record(event("runner_on_start"))
    assert said is not None
    assert (said["event"], said["task"], said["message"]) == ("start", "base : Do it", "")


def test_a_failure_says_message_and_error_output() -> None:
    said = record(event("runner_on_failed", {"msg": "non-zero\nreturn code", "stderr": "E: no space left"}))
    assert said is not None
    assert said["message"] == "non-zero return code E: no space left"


def test_a_loop_says_the_item_that_failed() -> None:
    items = {"results": [{"failed": False, "msg": "fine"}, {"failed": True, "msg": "no key"}], "msg": "One or more"}
    said = record(event("runner_on_failed", items))
    assert said is not None
    assert said["message"] == "no key"


def test_an_ignored_failure_is_no_failure() -> None:
    said = record(event("runner_on_failed", {"msg": "x"}, ignore_errors=True))
    assert said is not None
    assert said["event"] == "ok"


def test_a_long_message_is_cut() -> None:
    said = record(event("runner_on_unreachable", {"msg": "x" * 10_000}))
    assert said is not None
    assert len(said["message"]) == MESSAGE_LIMIT


@pytest.mark.parametrize("kind", ["verbose", "playbook_on_stats", "runner_item_on_failed", ""])
def test_the_rest_is_dropped(kind: str) -> None:
    assert record(event(kind)) is None
