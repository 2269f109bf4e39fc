"""The recipes' programs, run by a real torchrun with gloo: loss, checkpoints, and what becomes of them in trouble."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support import torch_programs
from tests.support.torch_programs import finish, losses, metrics, run, run_nodes, torchrun, wait_for_line, worker_pids

pytestmark = [pytest.mark.heavy, pytest.mark.begins(1)]
TINY = ("--size", "tiny", "--batch", "8", "--precision", "fp32", "--log-every", "5")
PARALLEL = ("ddp", "fsdp2")


def train(
    folder: Path, *arguments: str, name: str = "metrics", processes: int = 2, checkpoints: str = "checkpoints"
) -> torch_programs.Run:
    """train.py on one node, its metrics in `folder`/`name`.jsonl."""
    options = (*TINY, "--metrics", str(folder / f"{name}.jsonl"), *arguments)
    return run("train.py", *options, checkpoints=folder / checkpoints, processes=processes)


class Trained(NamedTuple):
    """A training of 40 steps that nobody interrupted, with a checkpoint at each fifth step."""

    folder: Path
    output: str

    @property
    def losses(self) -> dict[int, float]:
        return losses(self.folder / "metrics.jsonl")

    def copy(self, folder: Path, *steps: int) -> Path:
        """Copy the checkpoints of these steps into a folder."""
        for step in steps:
            name = f"step-{step:08}"
            shutil.copytree(self.folder / "checkpoints" / name, folder / name)
        return folder

    def compare(self, series: dict[int, float], first: int, last: int) -> None:
        """Other losses are the same as these at the steps from `first` to `last`."""
        assert sorted(series) == list(range(first, last + 1))
        expected = {step: loss for step, loss in self.losses.items() if step in series}
        assert {step: series[step] for step in expected} == pytest.approx(expected, rel=1e-4)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trained]:
    """By way to spread the model."""
    trainings = {}
    for parallel in PARALLEL:
        folder = tmp_path_factory.mktemp(parallel)
        result = train(folder, "--parallel", parallel, "--steps", "40", "--checkpoint-every", "5", "--keep", "8")
        assert result.status == 0, result.errors
        trainings[parallel] = Trained(folder, result.output)
    return trainings


def test_loss_falls_and_the_newest_checkpoints_stay(trained: dict[str, Trained]) -> None:
    folder, output = trained["ddp"]
    assert re.search(r"^step 30: loss \d+\.\d{3}, \d+ tokens/s$", output, re.MULTILINE), output
    rows = metrics(folder / "metrics.jsonl")
    assert rows[0]["conditions"]["model"] == "tiny"
    assert rows[0]["conditions"]["gpus"] == 2
    assert [row["step"] for row in rows[1:]] == list(range(1, 41))
    assert rows[-1]["tokens"] == 2 * 8 * 64
    assert rows[-1]["loss"] < 0.9 * rows[1]["loss"]
    names = sorted(path.name for path in (folder / "checkpoints").iterdir())
    assert names == [f"step-{step:08}" for step in range(5, 41, 5)]


def test_both_recipes_train_the_same_model(trained: dict[str, Trained]) -> None:
    assert trained["fsdp2"].losses == pytest.approx(trained["ddp"].losses, rel=1e-4)


@pytest.mark.slow
def test_options_that_save_memory_train_the_same_model(tmp_path: Path, trained: dict[str, Trained]) -> None:
    """Two forward passes for a step, activations computed again."""
    options = ("--batch", "4", "--accumulate", "2", "--activation-checkpointing", "--no-checkpoints", "--steps", "12")
    result = train(tmp_path, "--parallel", "fsdp2", *options)
    assert result.status == 0, result.errors
    trained["ddp"].compare(losses(tmp_path / "metrics.jsonl"), 1, 12)


def test_loss_that_does_not_fall_ends_with_1(tmp_path: Path) -> None:
    result = train(tmp_path, "--steps", "25", "--learning-rate", "1e-9", "--no-checkpoints", processes=1)
    assert result.status == 1
    assert "the loss does not fall" in result.output


@pytest.mark.parametrize("parallel", PARALLEL)
def test_stopped_run_is_continued_by_the_next(tmp_path: Path, parallel: str, trained: dict[str, Trained]) -> None:
    """SIGTERM to torchrun, which fails for it; or SIGUSR1 to one process, and the run succeeds: all stop together."""
    options = (*TINY, "--parallel", parallel, "--metrics", str(tmp_path / "first.jsonl"))
    with torchrun("train.py", *options, "--steps", "100000", checkpoints=tmp_path / "checkpoints") as started:
        lines = wait_for_line(started, "step 10:")
        if parallel == "ddp":
            started.send_signal(signal.SIGTERM)
        else:
            os.kill(worker_pids(started.pid)[1], signal.SIGUSR1)
        result = finish(started)
    assert (result.status == 0) is (parallel == "fsdp2")
    output = "".join(lines) + result.output
    match = re.search(r"^stopped after step (\d+)$", output, re.MULTILINE)
    assert match, output + result.errors
    assert f"checkpoint of step {match[1]} written" in output
    end = int(match[1]) + 5
    second = train(tmp_path, "--parallel", parallel, "--steps", str(end), name="second")
    assert second.status == 0, second.errors
    assert f"continuing from the checkpoint of step {match[1]}" in second.output
    trained[parallel].compare(losses(tmp_path / "first.jsonl") | losses(tmp_path / "second.jsonl"), 1, end)


def test_killed_rank_ends_the_run(tmp_path: Path) -> None:
    with torchrun("train.py", *TINY, "--steps", "100000", checkpoints=tmp_path) as started:
        wait_for_line(started, "step 5:")
        os.kill(worker_pids(started.pid)[1], signal.SIGKILL)
        result = finish(started)
    assert result.status != 0
    assert not list(tmp_path.glob("step-*")), "nobody asked for a checkpoint"


def test_truncated_checkpoint_is_left_out(tmp_path: Path, trained: dict[str, Trained]) -> None:
    """The run has another number of processes. The batch of all together stays, so the losses do as well."""
    newest = trained["ddp"].copy(tmp_path / "checkpoints", 5, 10, 15) / "step-00000015" / "state.pt"
    (tmp_path / "checkpoints" / "new-00000020").mkdir()  # of a run that was killed as it wrote
    newest.write_bytes(newest.read_bytes()[:1000])
    result = train(tmp_path, "--steps", "14", "--batch", "16", processes=1)
    assert result.status == 0, result.errors
    assert "the checkpoint of step 15 on node 0 is damaged (state.pt has 1000 bytes instead of" in result.output
    assert "continuing from the checkpoint of step 10" in result.output
    trained["ddp"].compare(losses(tmp_path / "metrics.jsonl"), 11, 14)
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == ["step-00000010", "step-00000014"]


def test_changed_byte_is_damage(tmp_path: Path, trained: dict[str, Trained]) -> None:
    """One process reads what two have written."""
    folder = trained["fsdp2"].copy(tmp_path / "checkpoints", 10, 15)
    newest = sorted((folder / "step-00000015").glob("*.distcp"))[1]
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    result = train(tmp_path, "--parallel", "fsdp2", "--steps", "14", "--batch", "16", processes=1)
    assert result.status == 0, result.errors
    assert f"({newest.name} has another SHA-256)" in result.output
    assert "continuing from the checkpoint of step 10" in result.output
    trained["fsdp2"].compare(losses(tmp_path / "metrics.jsonl"), 11, 14)


def test_other_model_is_refused(tmp_path: Path, trained: dict[str, Trained]) -> None:
    manifest = trained["ddp"].copy(tmp_path / "checkpoints", 10) / "step-00000010" / "manifest.json"
    content = json.loads(manifest.read_text(encoding="utf-8"))
    content["shape"]["hidden"] = 128
    manifest.write_text(json.dumps(content), encoding="utf-8")
    result = train(tmp_path, "--steps", "12", processes=1)
    assert result.status == 1
    assert "is of another model: hidden 128 instead of 64" in result.errors
    assert 'train.py", line' not in result.errors, "a traceback"
    assert manifest.exists()


def train_nodes(folder: Path, *arguments: str, names: Sequence[str]) -> list[torch_programs.Run]:
    """train.py on one node for each name, with the checkpoints in the folder of that name."""
    options = (*TINY, "--metrics", str(folder / "metrics.jsonl"), *arguments)
    return run_nodes("train.py", *options, checkpoints=[folder / name for name in names])


@pytest.mark.parametrize("parallel", PARALLEL)
def test_replaced_node_gets_the_checkpoint_of_another(
    tmp_path: Path, parallel: str, trained: dict[str, Trained]
) -> None:
    """The first node, with rank 0, has an empty disk."""
    trained[parallel].copy(tmp_path / "second", 10)
    results = train_nodes(tmp_path, "--parallel", parallel, "--steps", "15", names=("first", "second"))
    assert [result.status for result in results] == [0, 0], results[0].errors
    assert "node 0 gets the checkpoint of step 10 from node 1" in results[0].output
    names = sorted(path.name for path in (tmp_path / "first").iterdir())
    assert names == ["step-00000010", "step-00000015"]
    trained[parallel].compare(losses(tmp_path / "metrics.jsonl"), 11, 15)


def test_nodes_that_trained_apart_get_the_same_state(tmp_path: Path, trained: dict[str, Trained]) -> None:
    """Both have a checkpoint of step 10, not the same one: the first node's counts."""
    trained["ddp"].copy(tmp_path / "first", 10)
    other = trained["ddp"].copy(tmp_path / "second", 5) / "step-00000005"
    other = other.rename(other.with_name("step-00000010"))
    manifest = json.loads((other / "manifest.json").read_text(encoding="utf-8"))
    manifest["progress"]["step"] = 10
    (other / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    results = train_nodes(tmp_path, "--steps", "12", names=("first", "second"))
    assert [result.status for result in results] == [0, 0], results[0].errors
    assert "node 1 gets the checkpoint of step 10 from node 0" in results[0].output
    trained["ddp"].compare(losses(tmp_path / "metrics.jsonl"), 11, 12)


def test_every_node_has_the_parts_of_all(tmp_path: Path, trained: dict[str, Trained]) -> None:
    """With a model spread over all nodes, one node's disk is enough to continue."""
    names, options = ("first", "second"), ("--parallel", "fsdp2", "--shard", "all")
    results = train_nodes(tmp_path, *options, "--steps", "10", names=names)
    assert [result.status for result in results] == [0, 0], results[0].errors
    shutil.rmtree(tmp_path / "first")
    results = train_nodes(tmp_path, *options, "--steps", "15", names=names)
    assert [result.status for result in results] == [0, 0], results[0].errors
    assert "node 0 gets the checkpoint of step 10 from node 1" in results[0].output
    trained["fsdp2"].compare(losses(tmp_path / "metrics.jsonl"), 11, 15)


def test_nodes_on_shared_storage_write_one_copy(tmp_path: Path) -> None:
    results = train_nodes(tmp_path, "--parallel", "fsdp2", "--steps", "3", names=("shared", "shared"))
    assert [result.status for result in results] == [0, 0], results[0].errors
    assert [path.name for path in (tmp_path / "shared").iterdir()] == ["step-00000003"]
    assert len(list((tmp_path / "shared" / "step-00000003").glob("*.distcp"))) == 1


@pytest.mark.parametrize("parallel", PARALLEL)
def test_write_that_fails_leaves_the_older_checkpoint(
    tmp_path: Path, parallel: str, trained: dict[str, Trained]
) -> None:
    checkpoints = trained[parallel].copy(tmp_path / "checkpoints", 10)
    arguments = (*TINY, "--parallel", parallel, "--steps", "12")
    with torchrun("train.py", *arguments, checkpoints=checkpoints, processes=1) as started:
        resource.prlimit(started.pid, resource.RLIMIT_FSIZE, (500_000, 500_000))  # its processes inherit it
        result = finish(started)
    assert result.status == 1
    error = rf"error: node 0 could not write the checkpoint of step 12 to {checkpoints}: .*; step-00000010 remains"
    assert re.search(error, result.errors), result.errors
    assert [path.name for path in checkpoints.iterdir()] == ["step-00000010"]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system")
def test_full_disk_is_found_before_writing(tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    checkpoints.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(checkpoints)], check=True, timeout=60)
    try:
        result = train(tmp_path, "--steps", "6", "--checkpoint-every", "2", processes=1)
        names = [path.name for path in checkpoints.iterdir()]
    finally:
        subprocess.run(["umount", "--lazy", str(checkpoints)], check=False, timeout=60)
    assert result.status == 1
    assert "no space left: step-00000002 takes 2 MiB (1 MiB free); step-00000002 remains" in result.errors
    assert names == ["step-00000002"]


@pytest.mark.parametrize(
    ("program", "arguments", "unit"),
    [
        ("bert.py", ("--size", "tiny", "--batch", "16", "--steps", "25"), "sequences"),
        ("resnet50.py", ("--image-size", "32", "--batch", "4", "--steps", "21"), "images"),
    ],
)
def test_programs_of_the_benchmarks(tmp_path: Path, program: str, arguments: tuple[str, ...], unit: str) -> None:
    file = tmp_path / "metrics.jsonl"
    result = run(program, *arguments, "--metrics", str(file), checkpoints=tmp_path, processes=1)
    assert result.status == 0, result.output + result.errors
    rows = metrics(file)
    assert rows[0]["conditions"]["unit"] == unit
    assert rows[-1]["samples"] == int(arguments[3])
    assert rows[-1]["loss"] < 0.9 * rows[1]["loss"]
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"], "a benchmark writes no checkpoint"
