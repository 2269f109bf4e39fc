"""Drain and resume commands in detail: which command runs, where what it prints goes, and when it counts as failed."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from provisioner.common.errors import GpuprovError
from provisioner.common.events import Event, Events
from provisioner.lifecycle import alertmanagers, hooks, silencing
from provisioner.monitoring import silences
from provisioner.spec.models import Monitoring, Prometheus
from provisioner.spec.scheduler import Scheduler
from tests.unit.lifecycle.test_hooks import NODES, run


@pytest.fixture(autouse=True)
def no_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """No job of `gpuprov run` is on a node."""
    monkeypatch.setattr(hooks, "await_jobs", lambda *_: {})


@pytest.mark.parametrize(("step", "command"), [("drain", "drain it"), ("resume", "resume it")])
def test_the_command_of_the_step_is_run(monkeypatch: pytest.MonkeyPatch, step: Any, command: str) -> None:
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(hooks, "run", lambda *arguments, **how: calls.append((*arguments[:2], how)) or {})
    spec = SimpleNamespace(
        name="vision", hooks=SimpleNamespace(drain="drain it", resume="resume it", timeout_s=7.0),
        monitoring=Monitoring(), scheduler=Scheduler(),
    )  # fmt: skip
    cluster: Any = SimpleNamespace(
        spec=spec, file=Path("/x/cluster.yaml"), events=Events(), share=lambda: calls.append(("share",))
    )
    hooks.call(cluster, step, NODES, "up", {"train-0": "why"})
    assert calls.pop(0) == ("share",)  # before the command runs
    ((ran_step, ran_command, how),) = calls
    assert (ran_step, ran_command, how["folder"], how["deadline_s"]) == (step, command, Path("/x"), 7.0)
    assert (how["action"], how["cluster"], how["reasons"]) == ("up", "vision", {"train-0": "why"})


def watched_cluster(warnings: list[str], url: str | None = "http://manager:9093") -> Any:
    events = Events()
    events.subscribe(lambda event: warnings.append(event.message) if event.kind == "warning" else None)
    hook = SimpleNamespace(drain="true", resume='test "$GPUPROV_NODE" = train-0', timeout_s=60.0)
    spec = SimpleNamespace(name="vision", hooks=hook, monitoring=Monitoring(alertmanager=url), scheduler=Scheduler())
    return SimpleNamespace(spec=spec, file=Path("/x/cluster.yaml"), events=events, share=lambda: None, sandbox=True)


def test_alerts_of_a_node_out_of_service_are_silenced_until_it_is_back(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(silences, "begin", lambda *arguments: calls.append(("begin", *arguments)))
    monkeypatch.setattr(silences, "end", lambda *arguments: calls.append(("end", *arguments)))
    cluster = watched_cluster(warnings := [])
    cluster.file = tmp_path / "cluster.yaml"
    hooks.call(cluster, "drain", NODES, "upgrade", {"train-0": "a new driver"})
    comments = {"train-0": "upgrade: a new driver", "train-1": "upgrade"}
    assert calls == [("begin", "http://manager:9093", "vision.sandbox", comments)]
    # train-1 is not back
    assert set(hooks.call(cluster, "resume", NODES, "upgrade", {})) == {"train-1"}
    assert calls[1:] == [("end", "http://manager:9093", "vision.sandbox", ["train-0"])]
    assert warnings == []


def test_an_alertmanager_that_fails_keeps_no_drain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls: list[str] = []

    def refuse(url: str, *_: Any) -> None:
        calls.append(url)
        raise GpuprovError("connection refused", where=url)

    monkeypatch.setattr(silences, "begin", refuse)
    monkeypatch.setattr(silencing, "_failed_until", {})
    cluster = watched_cluster(warnings := [])
    cluster.file = tmp_path / "cluster.yaml"
    assert hooks.call(cluster, "drain", NODES, "upgrade", {}) == {}
    assert warnings == ["alerts of train-0, train-1 are not silenced: http://manager:9093: connection refused"]
    # the next batch does not wait for it again
    assert hooks.call(cluster, "drain", NODES, "upgrade", {}) == {}
    assert (len(calls), len(warnings)) == (1, 1)


def test_silences_reach_the_alertmanager_of_a_head_node_that_was_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one on a machine that is being made does not answer, and nothing is left of one that `down` has removed."""
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(silences, "settle", lambda *arguments: calls.append(arguments))
    monkeypatch.setattr(alertmanagers, "_through_ssh", lambda _, node: contextlib.nullcontext(f"http://{node}"))
    proven: dict[str, bool | None] = {"head-0": True, "head-west-0": None}
    states = SimpleNamespace(of=lambda name: SimpleNamespace(ok=proven.get(name)))
    monkeypatch.setattr(alertmanagers.node_state, "load", lambda _: states)
    cluster = watched_cluster([], None)
    cluster.spec.monitoring = Monitoring(prometheus=Prometheus(at=("head", "head-west")))
    groups = {"head-0": "head", "head-west-0": "head-west", "train-0": "train"}
    cluster.nodes = lambda: [SimpleNamespace(name=name, group=group) for name, group in groups.items()]
    cluster.paths = None
    silencing.settle(cluster, "verify", {"train-0": "why"})
    assert calls == [("http://head-0", "vision.sandbox", {"train-0": "why"})]
    silencing.settle(cluster, "down", {}, heads=False)
    assert len(calls) == 1


def test_without_an_alertmanager_nothing_is_silenced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(silences, "begin", lambda *_: pytest.fail("nobody asked for it"))
    cluster = watched_cluster([], None)
    cluster.file = tmp_path / "cluster.yaml"
    assert hooks.call(cluster, "drain", NODES, "upgrade", {}) == {}


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
