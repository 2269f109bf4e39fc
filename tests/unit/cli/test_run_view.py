"""Rows of a run, from its events alone."""

from __future__ import annotations

from typing import Any

import pytest

from provisioner.cli.run_view import Row, RunView, clock
from provisioner.common.events import Event, Kind, Stage

T = 1_000.0


def view_of(*events: tuple[Any, ...]) -> RunView:
    """A view of (seconds, stage, kind, message[, fields])."""
    view = RunView()
    for at, stage, kind, message, *fields in events:
        view.see(Event(stage, kind, message, time=T + at, **(fields[0] if fields else {})))
    return view


def only(view: RunView, at: float, maximum: int = 10) -> Row:
    rows = view.rows(T + at, maximum)
    assert len(rows) == 1
    return rows[0]


def task(node: str, at: float, message: str, done: int, total: int = 10) -> tuple[Any, ...]:
    return at, "configure", "progress", message, {"node": node, "done": done, "total": total, "unit": "task"}


def test_a_wait_says_whom_for_and_from_five_seconds_on_until_when() -> None:
    nodes = ["a-0", "a-1", "a-2"]
    view = view_of(
        (0, "fleet", "started", "waiting for ssh", {"total": 3, "until": T + 300, "data": {"nodes": nodes}}),
        (1, "fleet", "progress", "host key pinned", {"node": "a-1", "unit": "node"}),
        (2, "fleet", "log", "sshd answers", {"node": "a-0", "unit": "node"}),
    )
    assert only(view, 3).text == "waiting for ssh; 2 of 3 nodes; waiting for a-2"
    late = only(view, 62)
    assert late.text == "waiting for ssh; 2 of 3 nodes; waiting for a-2; gives up in 3:58"
    assert (late.done, late.total, late.seconds) == (2, 3, 62)


def test_the_slowest_node_is_the_one_that_has_done_least_and_is_at_it_longest() -> None:
    view = view_of(
        (0, "configure", "started", "running the roles on 3 nodes", {"total": 3}),
        task("a-0", 1, "cuda : Install", 4), task("a-1", 2, "cuda : Install", 4), task("a-2", 3, "efa : Install", 9),
    )  # fmt: skip
    stage, *nodes = view.rows(T + 75, 10)
    assert stage.text == "0 of 3 nodes done; slowest a-0, 1:14 in cuda : Install"
    assert (stage.done, stage.total) == (17, 30)
    assert [(row.label, row.seconds, row.done) for row in nodes] == [("a-0", 74, 4), ("a-1", 73, 4), ("a-2", 72, 9)]


def test_a_task_that_is_told_again_goes_on() -> None:
    view = view_of(
        (0, "configure", "started", "roles", {}),
        task("a-0", 1, "cuda : Install", 4),
        task("a-0", 9, "cuda : Install", 5),
    )
    assert view.rows(T + 11, 10)[1].seconds == 10


def test_a_failed_node_keeps_its_row_to_the_end_and_the_reason_comes_first() -> None:
    failed = {"node": "a-1", "unit": "task", "data": {"task": "cuda : Install", "reason": "no space left on device"}}
    view = view_of(
        (0, "configure", "started", "roles", {}), task("a-0", 1, "x", 10), task("a-1", 1, "cuda : Install", 4),
        (2, "configure", "failed", "cuda : Install: no space left on device", failed),
        (3, "configure", "started", "comparing 2 configured nodes with the lock", {"total": 2}),
        (4, "configure", "done", "2 nodes configured"),
    )  # fmt: skip
    view.end("failed", T + 5)
    stage, node = view.rows(T + 5, 10)
    assert (stage.outcome, stage.text, stage.seconds) == ("done", "2 nodes configured", 4)
    assert (node.label, node.outcome, node.text) == ("a-1", "failed", "no space left on device (cuda : Install)")


def test_of_many_nodes_the_failed_and_the_slowest_are_shown_and_the_rest_is_counted() -> None:
    view = view_of((0, "configure", "started", "roles", {}), *(task(f"a-{n}", 1, "x", n % 11) for n in range(300)))
    view.see(Event("configure", "failed", "broken", node="a-299", unit="task", time=T + 2))
    _, *nodes = view.rows(T + 3, 8)
    assert len(nodes) == 8
    assert nodes[0].label == "a-299"
    assert [row.done for row in nodes[1:7]] == [0] * 6
    assert (nodes[7].label, nodes[7].text) == ("293 more", "266 at work, 27 done")


@pytest.mark.parametrize("how", ["done", "failed", "interrupted"])
def test_the_end_of_a_run_ends_what_was_at_work(how: Any) -> None:
    view = view_of((0, "stack", "started", "solving"), (2, "stack", "done", "locked"), (3, "terraform", "started", "5"))
    view.end(how, T + 9)
    assert [(row.label, row.outcome, row.seconds) for row in view.rows(T + 99, 1)] == [
        ("stack", "done", 2), ("terraform", how, 6),
    ]  # fmt: skip


def test_a_stage_that_begins_again_has_one_row_at_its_new_place() -> None:
    view = view_of(
        (0, "terraform", "started", "virginia", {"total": 5}), (1, "terraform", "done", "virginia: 5 resources"),
        (2, "fleet", "started", "waiting", {}), (3, "terraform", "started", "ohio", {"total": 2}),
    )  # fmt: skip
    assert [(row.label, row.text, row.done, row.total) for row in view.rows(T + 4, 1)] == [
        ("fleet", "waiting", 0, None), ("terraform", "ohio", 0, 2),
    ]  # fmt: skip


@pytest.mark.parametrize(("stage", "kind"), [("verify", "warning"), ("run", "log"), ("hooks", "warning")])
def test_what_concerns_no_stage_at_work_makes_no_row(stage: Stage, kind: Kind) -> None:
    assert view_of((0, stage, kind, "something")).rows(T, 5) == []


def test_clock() -> None:
    assert [clock(s) for s in (0, 59.9, 60, 3600, 36_061)] == ["0:00", "0:59", "1:00", "1:00:00", "10:01:01"]
