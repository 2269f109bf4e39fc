"""What a node tells slurmctld of its own checks, from the metrics that the timer writes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from provisioner.scheduler import on_head, slurm_health
from provisioner.verify import health
from provisioner.verify.bundle import Bundle
from provisioner.verify.facts import read
from tests.support.healthy_bundle import bundle, expected, healthy, without_gpu

P4D = "p4d.24xlarge"
NOW, EVERY = 100_000.0, 600.0


def metrics(kind: str, at: float) -> str:
    """The very text that the node's timer writes."""
    if kind == "killed":
        return health.metrics(None, at, 1.0)
    files = healthy(P4D)
    if kind == "lost":
        files["nvidia-smi.xml"] = without_gpu(str(files["nvidia-smi.xml"]), 3)
    node = Bundle(error="gone") if kind == "unanswered" else bundle(files)
    return health.metrics(health.judge(read(node), expected(P4D, "quick")), at, 1.0)


def judge(kind: str | None, *, age: float = 60.0, proven: float = 0.0, earlier: dict[str, object] | None = None) -> str:
    text = None if kind is None else metrics(kind, NOW - age)
    return str(slurm_health.judge(text, NOW, EVERY, proven, earlier or {})["comment"])


def test_a_healthy_node_has_no_comment() -> None:
    assert judge("healthy") == ""


def test_fatal_checks_that_failed_are_named() -> None:
    comment = judge("lost")
    assert comment.startswith("gpuprov bad: gpu.count")
    assert comment.startswith(on_head.BAD)


@pytest.mark.parametrize("kind", ["killed", "unanswered"])
def test_what_is_not_known_is_bad_only_three_times_in_a_row(kind: str) -> None:
    state: dict[str, object] = {}
    comments = []
    for number in range(5):
        at = NOW + number * EVERY
        for _ in range(3):  # slurmd asks several times for each verdict
            state = slurm_health.judge(metrics(kind, at), at + 30, EVERY, 0.0, state)
        comments.append(state["comment"])
    assert comments[:2] == ["", ""]
    assert comments[2] == "gpuprov bad: 3 verdicts in a row without an answer"
    state = slurm_health.judge(metrics("healthy", NOW + 9000), NOW + 9030, EVERY, 0.0, state)
    assert (state["comment"], state["unknown"]) == ("", 0)


def test_old_verdicts_and_none_are_bad() -> None:
    assert judge("healthy", age=1790) == ""
    assert judge("healthy", age=1900) == "gpuprov bad: no verdict for 32 minutes"
    assert judge(None, proven=NOW - 1900) == "gpuprov bad: no verdict for 32 minutes"


def test_a_proof_counts_more_than_an_older_verdict() -> None:
    assert judge("lost", age=60, proven=NOW - 10) == ""  # repaired, proven, and the timer has not looked since
    assert judge("lost", age=5, proven=NOW - 10) != ""
    assert judge(None, proven=NOW - 10) == ""  # a new node whose timer was not due yet


def test_a_clock_that_was_put_back_makes_no_node_healthy() -> None:
    assert judge("healthy", age=-30) == ""
    assert judge("healthy", age=-400_000) != ""  # stamped in the future: no verdict
    assert judge("lost", age=60, proven=NOW + 400_000) == ""
    assert judge("lost", age=-10, proven=NOW + 400_000) != ""  # a proof is never later than now
    nan = metrics("healthy", NOW).replace("timestamp_seconds 100000", "timestamp_seconds NaN")
    assert slurm_health.judge(nan, NOW, EVERY, 0.0, {})["comment"] != ""


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a scontrol that remembers what it is told."""
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(f'#!/bin/sh\n[ ! -e "{tmp_path}/down" ] || exit 1\necho "$*" >> "{tmp_path}/calls"\n')
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURMD_NODENAME", "train-0")
    monkeypatch.setattr(slurm_health.time, "time", lambda: NOW)
    return tmp_path


def report(node: Path, kind: str, age: float = 60.0) -> list[str]:
    """Calls of scontrol so far."""
    (node / "x.prom").write_text(metrics(kind, NOW - age))
    slurm_health.main([str(node / "x.prom"), str(EVERY), str(node / "marker"), str(node / "state.json")])
    return (node / "calls").read_text().splitlines() if (node / "calls").exists() else []


def test_slurmctld_is_told_what_is_new_alone(node: Path) -> None:
    first = report(node, "lost")
    assert first[-1].startswith("update nodename=train-0 comment=gpuprov bad: gpu.count")
    assert report(node, "lost") == first
    repeated = report(node, "lost", age=30)  # a new verdict: a resume may have taken the comment away
    assert len(repeated) == len(first) + 1
    assert report(node, "healthy", age=20)[-1] == "update nodename=train-0 comment="
    assert report(node, "healthy", age=10) == report(node, "healthy", age=5)


def test_what_slurmctld_was_not_told_is_told_later(node: Path) -> None:
    (node / "down").touch()
    assert report(node, "lost") == []
    (node / "down").unlink()
    assert len(report(node, "lost")) == 1
    for number, text in enumerate(("{", "null"), 2):  # damaged: it is told once more
        (node / "state.json").write_text(text)
        assert len(report(node, "lost")) == number


def test_a_comment_of_somebody_else_stays(node: Path) -> None:
    assert report(node, "healthy") == []  # at boot, and ever after
    report(node, "lost")
    assert len(report(node, "healthy", age=5)) == 2
