"""The recipes of DeepSpeed and Megatron-core with the real packages, on the CPU with gloo. What Megatron-core asks of
CUDA is simulated (tests/support/cuda_on_cpu)."""

from __future__ import annotations

import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.torch_programs import (
    CUDA_ON_CPU,
    Run,
    finish,
    frameworks_python,
    losses,
    run,
    run_nodes,
    torchrun,
    wait_for_line,
)

pytestmark = pytest.mark.slow
TINY = ("--size", "tiny", "--precision", "fp32", "--log-every", "5")


def environment(program: str) -> dict[str, Any]:
    """How the framework of a program runs on a CPU."""
    python_path = str(CUDA_ON_CPU) if program == "train_megatron.py" else ""
    return {"python": frameworks_python(), "variables": {"DS_ACCELERATOR": "cpu", "PYTHONPATH": python_path}}


def train(program: str, folder: Path, *arguments: str, name: str, processes: int = 2) -> Run:
    """A program on one node, its metrics in `folder`/`name`.jsonl."""
    options = (*TINY, *arguments, "--metrics", str(folder / f"{name}.jsonl"))
    return run(program, *options, checkpoints=folder / "checkpoints", processes=processes, **environment(program))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """Loss by step with DistributedDataParallel."""
    folder = tmp_path_factory.mktemp("plain")
    result = train("train.py", folder, "--steps", "15", "--batch", "8", "--no-checkpoints", name="plain")
    assert result.status == 0, result.errors
    return losses(folder / "plain.jsonl")


@pytest.mark.parametrize("stage", ["1", "2", "3"])
def test_zero_trains_as_ddp_does_and_continues(tmp_path: Path, stage: str, plain: dict[int, float]) -> None:
    options = ("--stage", stage, "--batch", "4", "--accumulate", "2")
    first = train("train_deepspeed.py", tmp_path, *options, "--steps", "10", name="first")
    assert first.status == 0, first.errors
    second = train("train_deepspeed.py", tmp_path, *options, "--steps", "15", name="second")
    assert second.status == 0, second.errors
    assert "continuing from the checkpoint of step 10" in second.output
    assert losses(tmp_path / "first.jsonl") | losses(tmp_path / "second.jsonl") == pytest.approx(plain, rel=1e-3)


def test_zero_stops_on_sigterm(tmp_path: Path) -> None:
    options = (*TINY, "--stage", "3", "--batch", "8", "--steps", "100000")
    with torchrun("train_deepspeed.py", *options, checkpoints=tmp_path, **environment("train_deepspeed.py")) as started:
        wait_for_line(started, "step 5:")
        started.send_signal(signal.SIGTERM)
        result = finish(started)
    assert re.search(r"^stopped after step \d+$", result.output, re.MULTILINE), result.output + result.errors
    assert [path.name[:5] for path in tmp_path.iterdir()] == ["step-"]


def test_zero_continues_on_a_node_without_the_checkpoint(tmp_path: Path, plain: dict[int, float]) -> None:
    """The optimizer's parts of the lost node are on the other one too."""
    folders = tmp_path / "first", tmp_path / "second"
    options = (*TINY, "--stage", "2", "--batch", "8", "--metrics", str(tmp_path / "metrics.jsonl"))
    results = run_nodes(
        "train_deepspeed.py", *options, "--steps", "10", checkpoints=folders, **environment("train_deepspeed.py")
    )
    assert [result.status for result in results] == [0, 0], results[0].errors
    shutil.rmtree(folders[0])
    results = run_nodes(
        "train_deepspeed.py", *options, "--steps", "15", checkpoints=folders, **environment("train_deepspeed.py")
    )
    assert [result.status for result in results] == [0, 0], results[0].errors
    assert "node 0 gets the checkpoint of step 10 from node 1" in results[0].output
    expected = {step: loss for step, loss in plain.items() if step > 10}
    assert losses(tmp_path / "metrics.jsonl") == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(
    ("options", "processes"),
    [
        (("--batch", "8", "--accumulate", "2", "--tensor", "2"), 2),
        (("--batch", "8", "--accumulate", "2", "--pipeline", "2"), 2),
        (("--batch", "8", "--accumulate", "2", "--tensor", "2", "--pipeline", "2"), 4),
        (("--batch", "8"), 2),
    ],
    ids=["tensor", "pipeline", "both", "data"],
)
def test_megatron_trains_and_continues(tmp_path: Path, options: tuple[str, ...], processes: int) -> None:
    """The same samples in each way: the losses are near each other, the first values differ. A run in two parts has the
    losses of a whole one."""
    complete = train(
        "train_megatron.py", tmp_path, *options, "--steps", "25", "--no-checkpoints", name="all", processes=processes
    )
    assert complete.status == 0, complete.output + complete.errors
    series = losses(tmp_path / "all.jsonl")
    assert series[1] == pytest.approx(6.25, abs=0.05)  # ln 512
    assert series[25] == pytest.approx(4.9, abs=0.35)
    first = train("train_megatron.py", tmp_path, *options, "--steps", "8", name="first", processes=processes)
    assert first.status == 0, first.errors
    second = train("train_megatron.py", tmp_path, *options, "--steps", "12", name="second", processes=processes)
    assert "continuing from the checkpoint of step 8" in second.output, second.errors
    parts = losses(tmp_path / "first.jsonl") | losses(tmp_path / "second.jsonl")
    assert parts == pytest.approx({step: series[step] for step in range(1, 13)}, rel=1e-4)


def test_megatron_refuses_what_does_not_fit(tmp_path: Path) -> None:
    result = train("train_megatron.py", tmp_path, "--tensor", "3", "--steps", "1", name="refused")
    assert result.status == 1
    assert "error: --tensor 3 × --pipeline 1 does not divide 2 GPUs" in result.errors
