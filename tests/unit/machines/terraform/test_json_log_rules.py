"""Terraform's JSON log: what each kind of line becomes, and what is left of a failure."""

from __future__ import annotations

import json
from typing import Any

import pytest

from provisioner.common.errors import Diagnostic, LockedError, ProviderError
from provisioner.common.events import Event, Events
from provisioner.machines.terraform.json_log import LOCK_ERROR, Changes, JsonLog, from_text, is_lock_error

HOOK = {"resource": {"resource_key": "train-0", "addr": 'node["train-0"]'}, "output": "made"}


def reading(*records: object) -> tuple[JsonLog, list[Event]]:
    events: list[Event] = []
    log = JsonLog("apply", Events(events.append))
    for record in records:
        log.read(record if isinstance(record, str) else json.dumps(record))
    return log, events


def planned(action: str | None, address: str = "node.a") -> dict[str, Any]:
    return {"type": "planned_change", "change": {"resource": {"addr": address}, "action": action}}


SUMMARY = {"type": "change_summary", "changes": {"add": 1, "change": 2, "remove": 4}}


def test_the_summary_has_the_numbers_and_the_actions_before_it() -> None:
    log, _ = reading(planned("create"), planned("noop"), planned("read"), planned("replace", "node.b"), SUMMARY)
    assert log.changes == Changes(1, 2, 4)
    assert log.changes.total == 7
    assert log.changes.actions == (("node.a", "create"), ("node.b", "replace"))
    assert not log.changes.outputs


def test_a_planned_change_has_its_reason() -> None:
    change = planned("replace")
    change["change"]["reason"] = "cannot_update"
    log, _ = reading(change, planned("create", "node.b"), SUMMARY)
    assert log.changes.reasons == {"node.a": "cannot_update"}


def test_what_a_line_lacks_is_none_or_unknown() -> None:
    log, _ = reading({"type": "planned_change", "change": {}}, {"type": "change_summary"})
    assert (log.changes, log.changes.actions) == (Changes(), (("?", "?"),))


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(
    ("rows", "changes"),
    [
        ({"nodes": {"action": "update"}}, True),
        ({"nodes": {"action": "noop"}, "other": {"action": "create"}}, True),
        ({"nodes": {"action": "noop"}, "other": {"action": "read"}}, False),
        ({"nodes": {"value": 1}}, False),
        ({}, False),
    ],
)
def test_outputs_that_differ_are_a_change_wherever_they_stand(rows: dict[str, Any], changes: bool, first: bool) -> None:
    outputs = {"type": "outputs", "outputs": rows}
    log, _ = reading(*([outputs, SUMMARY] if first else [SUMMARY, outputs]))
    assert (log.changes.outputs, log.changes) == (changes, Changes(1, 2, 4))


@pytest.mark.parametrize(
    ("type", "kind", "unit"),
    [("apply_complete", "progress", "resource"), ("apply_start", "progress", ""), ("apply_errored", "log", "")],
)
def test_what_happens_to_a_resource_is_an_event_of_its_node(type: str, kind: str, unit: str) -> None:
    _, (event,) = reading({"type": type, "@message": "it happens", "hook": HOOK})
    assert (event.stage, event.kind, event.message, event.node) == ("terraform", kind, "it happens", "train-0")
    assert (event.unit or "") == unit


@pytest.mark.parametrize("key", [None, 0])
def test_a_resource_without_a_name_is_of_no_node(key: int | None) -> None:
    _, (event,) = reading({"type": "apply_start", "@message": "x", "hook": {"resource": {"resource_key": key}}})
    assert event.node is None
    assert reading({"type": "apply_start"})[1][0].message == ""


def test_what_a_provisioner_prints_is_passed_on() -> None:
    _, (event,) = reading({"type": "provision_progress", "hook": HOOK})
    assert (event.kind, event.message, event.node) == ("log", "made", "train-0")


def test_lines_of_other_kinds_are_passed_over_and_lines_without_json_kept() -> None:
    log, events = reading({"type": "version"}, {}, "[]", "7", "panic: out of memory")
    assert (log.plain, events, log.errors) == (["panic: out of memory"], [], [])


def diagnostic(severity: str, summary: str = "no capacity", **more: str) -> dict[str, Any]:
    return {"type": "diagnostic", "diagnostic": {"severity": severity, "summary": summary, **more}}


def test_errors_are_kept_and_warnings_only_told() -> None:
    error = diagnostic("error", detail="in us-east-1a", address="node.a")
    log, events = reading(error, diagnostic("warning", "deprecated"))
    assert log.errors == [Diagnostic("no capacity", "in us-east-1a", "node.a", "error")]
    assert [(event.kind, event.data) for event in events] == [
        (kind, {"command": "apply", "severity": severity})
        for kind, severity in (("log", "error"), ("warning", "warning"))
    ]


def test_a_failure_says_each_error_once_and_keeps_them() -> None:
    log, _ = reading(diagnostic("error"), diagnostic("error"), "noise")
    error = log.failure(1, "/site", "/log")
    assert isinstance(error, ProviderError)
    assert (error.message, error.where, error.hint) == (
        "terraform apply failed: no capacity", "/site", "the whole log: /log"
    )  # fmt: skip
    assert len(error.diagnostics) == 2
    assert log.failure(1, "/site", "").hint == ""


def test_a_failure_without_diagnostics_has_the_last_lines() -> None:
    log, _ = reading(*[f"line {n}" for n in range(8)], "  ", "╷", "  the end  ")
    assert log.failure(1, "", "").message == "terraform apply failed: " + "\n  ".join(
        [*(f"line {n}" for n in range(3, 8)), "the end"]
    )
    assert reading()[0].failure(7, "", "").message.endswith("it exited with status 7 and said nothing")


def test_a_failure_that_was_printed_for_people_is_read() -> None:
    log, _ = reading("╷", "│ Error: no such bucket", "│ ", "│ It was removed.", "╵")
    assert log.failure(1, "", "").message == "terraform apply failed: no such bucket: It was removed."


TEXT = """\
Initializing the backend...
╷
│ Error: Invalid value
│
│   with module.a.node["x"],
│   on main.tf line 3, in resource "node":
│    3:   size = "big"
│
│ It has to be small.
│ Really.
╵
Error: second
"""


def test_errors_are_read_off_what_people_see() -> None:
    assert from_text([TEXT]) == [
        Diagnostic("Invalid value", "It has to be small.\nReally.", 'module.a.node["x"]'), Diagnostic("second", "", "")
    ]  # fmt: skip
    assert from_text(["  with a,", "no error"]) == []


@pytest.mark.parametrize(
    ("summary", "detail", "locked"),
    [
        (LOCK_ERROR, "Lock Info:\n  ID:   7f3a\n", True),
        (LOCK_ERROR, "Lock Info:\n  ID:   \n", False),
        (LOCK_ERROR, "AccessDenied", False),
        ("another error", "Lock Info:\n  ID:   7f3a\n", False),
    ],
)
def test_a_state_is_held_only_by_somebody_who_has_a_name(summary: str, detail: str, locked: bool) -> None:
    assert is_lock_error(Diagnostic(summary, detail)) == locked
    log, _ = reading(diagnostic("error", "other"), diagnostic("error", summary, detail=detail))
    error = log.failure(1, "/site", "/log")
    assert isinstance(error, LockedError) == locked
    assert ("gpuprov unlock" in error.hint) == locked
