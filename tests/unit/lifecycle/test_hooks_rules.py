"""Drain and resume commands in detail: which command runs, where what it prints goes, and when it counts as failed."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from provisioner.common.events import Event, Events
from provisioner.lifecycle import hooks
from tests.unit.lifecycle.test_hooks import NODES, run


@pytest.mark.parametrize(("step", "command"), [("drain", "drain it"), ("resume", "resume it")])
def test_the_command_of_the_step_is_run(monkeypatch: pytest.MonkeyPatch, step: Any, command: str) -> None:
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(hooks, "run", lambda *arguments, **how: calls.append((*arguments[:2], how)) or {})
    spec = SimpleNamespace(
        name="vision", hooks=SimpleNamespace(drain="drain it", resume="resume it", timeout_s=7.0)
    )  # fmt: skip
    cluster: Any = SimpleNamespace(
        spec=spec, file=Path("/x/cluster.yaml"), events=Events(), share=lambda: calls.append(("share",))
    )
    hooks.call(cluster, step, NODES, "up", {"train-0": "why"})
    assert calls.pop(0) == ("share",)  # before the command runs
    ((ran_step, ran_command, how),) = calls
    assert (ran_step, ran_command, how["folder"], how["deadline_s"]) == (step, command, Path("/x"), 7.0)
    assert (how["action"], how["cluster"], how["reasons"]) == ("up", "vision", {"train-0": "why"})


@pytest.mark.parametrize(
    ("action", "stage"),
    [("release", "quarantine"), ("up", "terraform"), ("upgrade", "upgrade"), ("quarantine", "quarantine")],
)
def test_what_a_command_prints_is_of_the_stage_that_runs_it(tmp_path: Path, action: Any, stage: str) -> None:
    heard: list[Event] = []
    hooks.run(
        "drain", "echo it; echo; printf '%600s' x", NODES[:1], action=action, reasons={}, cluster="c", folder=tmp_path,
        deadline_s=30, events=Events(heard.append),
    )  # fmt: skip
    assert {event.stage for event in heard} == {stage}
    assert [event.message for event in heard if event.node] == ["drain: it", "drain: x"]
    assert [event.message for event in heard if event.until] == ["drain command on 1 node"]


def test_a_long_line_is_cut(tmp_path: Path) -> None:
    heard: list[Event] = []
    run("printf '%600s' | tr ' ' x", tmp_path, events=Events(heard.append))
    assert {len(event.message) for event in heard if event.node} == {len("drain: ") + hooks.LINE}
    assert hooks.LINE == 500


def test_no_node_is_no_command(tmp_path: Path) -> None:
    heard: list[Event] = []
    actual = hooks.run(
        "drain", "exit 1", [], action="up", reasons={}, cluster="c", folder=tmp_path, deadline_s=30,
        events=Events(heard.append),
    )  # fmt: skip
    assert (actual, heard) == ({}, [])


def test_a_command_that_does_not_end_is_stopped_and_counts_once(tmp_path: Path) -> None:
    command = 'test $GPUPROV_NODE = train-0 && exit 0; echo "$$" > pid; exec sleep 60'
    began = time.monotonic()
    assert run(command, tmp_path, deadline_s=1) == {"train-1": "the drain command did not end within 1 s"}
    assert time.monotonic() - began < 20
    process = Path("/proc") / (tmp_path / "pid").read_text().strip()
    deadline = time.monotonic() + 20
    while process.exists() and "sleep" in (process / "cmdline").read_text():
        assert time.monotonic() < deadline, "it runs on"
        time.sleep(0.05)


def test_a_command_that_fails_silently_has_its_status(tmp_path: Path) -> None:
    assert run("exit 4", tmp_path) == dict.fromkeys(
        ("train-0", "train-1"), "the drain command ended with status 4"
    )  # fmt: skip


@pytest.mark.parametrize(("length", "text"), [(200, "x" * 200), (201, "x" * 199 + "…")])
def test_a_reason_has_at_most_200_characters(length: int, text: str) -> None:
    assert hooks.plain("x" * length) == text


def test_a_refusal_names_each_node() -> None:
    error = hooks.refusal({"a": "jobs run", "b": "no answer"}, "later")
    assert (error.message, error.where, error.hint) == ("a: jobs run; b: no answer", "drain", "later")
