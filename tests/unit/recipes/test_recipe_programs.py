"""The recipes' programs, run by a real torchrun with gloo: loss, checkpoints, and what becomes of them in trouble."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from provisioner.monitoring.servers import free_port
from tests.support import torch_programs
from tests.support.torch_programs import finish, losses, metrics, run, torchrun, wait_for_line, worker_pids

pytestmark = pytest.mark.heavy
TINY = ("--size", "tiny", "--batch", "8", "--precision", "fp32", "--log-every", "5")
PARALLEL = ("ddp", "fsdp2")


def train(folder: Path, *arguments: str, name: str = "metrics", processes: int = 2) -> torch_programs.Run:
    """train.py on one node, with the checkpoints in `folder`/checkpoints."""
    options = (*TINY, "--metrics", str(folder / f"{name}.jsonl"), *arguments)
    return run("train.py", *options, checkpoints=folder / "checkpoints", processes=processes)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[int, float]]:
    """Loss by step of a run that nobody stopped."""
    series = {}
    for parallel in PARALLEL:
        folder = tmp_path_factory.mktemp(parallel)
        result = train(folder, "--parallel", parallel, "--steps", "40", "--no-checkpoints")
        assert result.status == 0, result.errors
        series[parallel] = losses(folder / "metrics.jsonl")
    return series


def test_loss_falls_and_metrics_have_the_conditions(tmp_path: Path) -> None:
    result = train(tmp_path, "--steps", "30", "--checkpoint-every", "10", "--accumulate", "2")
    assert result.status == 0, result.errors
    assert re.search(r"^step 30: loss \d+\.\d{3}, \d+ tokens/s$", result.output, re.MULTILINE), result.output
    rows = metrics(tmp_path / "metrics.jsonl")
    assert rows[0]["conditions"]["model"] == "tiny"
    assert rows[0]["conditions"]["gpus"] == 2
    assert [row["step"] for row in rows[1:]] == list(range(1, 31))
    assert rows[-1]["tokens"] == 2 * 8 * 2 * 64
    assert rows[-1]["loss"] < 0.9 * rows[1]["loss"]
    assert [path.name for path in sorted((tmp_path / "checkpoints").iterdir())] == ["step-00000020", "step-00000030"]


def test_both_recipes_train_the_same_model(uninterrupted: dict[str, dict[int, float]]) -> None:
    assert uninterrupted["fsdp2"] == pytest.approx(uninterrupted["ddp"], rel=1e-4)


def test_loss_that_does_not_fall_ends_with_1(tmp_path: Path) -> None:
    result = train(tmp_path, "--steps", "25", "--learning-rate", "1e-9", "--no-checkpoints")
    assert result.status == 1
    assert "the loss does not fall" in result.output


@pytest.mark.parametrize("parallel", PARALLEL)
def test_sigterm_then_the_next_run_continues(
    tmp_path: Path, parallel: str, uninterrupted: dict[str, dict[int, float]]
) -> None:
    """The losses of both runs are those of a run that nobody stopped."""
    options = (*TINY, "--parallel", parallel, "--metrics", str(tmp_path / "first.jsonl"))
    with torchrun("train.py", *options, "--steps", "100000", checkpoints=tmp_path / "checkpoints") as started:
        lines = wait_for_line(started, "step 10:")
        started.send_signal(signal.SIGTERM)
        result = finish(started)
    output = "".join(lines) + result.output
    match = re.search(r"^stopped after step (\d+)$", output, re.MULTILINE)
    assert match, output + result.errors
    assert f"checkpoint of step {match[1]} written" in output
    end = int(match[1]) + 5
    second = train(tmp_path, "--parallel", parallel, "--steps", str(end), name="second")
    assert second.status == 0, second.errors
    assert f"continuing from the checkpoint of step {match[1]}" in second.output
    series = losses(tmp_path / "first.jsonl") | losses(tmp_path / "second.jsonl")
    assert sorted(series) == list(range(1, end + 1))
    compared = {step: loss for step, loss in uninterrupted[parallel].items() if step in series}
    assert {step: series[step] for step in compared} == pytest.approx(compared, rel=1e-4)


def test_killed_rank_ends_the_run(tmp_path: Path) -> None:
    with torchrun("train.py", *TINY, "--steps", "100000", checkpoints=tmp_path) as started:
        wait_for_line(started, "step 5:")
        os.kill(worker_pids(started.pid)[1], signal.SIGKILL)
        result = finish(started)
    assert result.status != 0
    assert not list(tmp_path.glob("step-*")), "nobody asked for a checkpoint"


def test_damaged_newest_checkpoint_is_left_out(tmp_path: Path) -> None:
    assert train(tmp_path, "--steps", "10", "--checkpoint-every", "5").status == 0
    newest = tmp_path / "checkpoints" / "step-00000010" / "state.pt"
    newest.write_bytes(newest.read_bytes()[:1000])
    result = train(tmp_path, "--steps", "12")
    assert result.status == 0, result.errors
    assert "the checkpoint of step 10 on node 0 is damaged (state.pt has 1000 bytes instead of" in result.output
    assert "continuing from the checkpoint of step 5" in result.output


def test_changed_byte_is_damage(tmp_path: Path) -> None:
    assert train(tmp_path, "--parallel", "fsdp2", "--steps", "4", "--checkpoint-every", "2").status == 0
    newest = sorted((tmp_path / "checkpoints" / "step-00000004").glob("*.distcp"))[1]
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    result = train(tmp_path, "--parallel", "fsdp2", "--steps", "6")
    assert result.status == 0, result.errors
    assert f"({newest.name} has another SHA-256)" in result.output
    assert "continuing from the checkpoint of step 2" in result.output


def test_other_model_is_refused(tmp_path: Path) -> None:
    assert train(tmp_path, "--steps", "2").status == 0
    manifest = tmp_path / "checkpoints" / "step-00000002" / "manifest.json"
    content = json.loads(manifest.read_text())
    content["shape"]["hidden"] = 128
    manifest.write_text(json.dumps(content))
    result = train(tmp_path, "--steps", "4")
    assert result.status == 1
    assert "is of another model: hidden 128 instead of 64" in result.errors
    assert "Traceback" not in result.errors.partition("torch.distributed")[0].partition("E1")[0]
    assert manifest.exists()


def test_ddp_continues_with_another_number_of_processes(
    tmp_path: Path, uninterrupted: dict[str, dict[int, float]]
) -> None:
    """The batch of all processes together stays, so the data and the losses do as well."""
    assert train(tmp_path, "--steps", "10").status == 0
    result = train(tmp_path, "--steps", "15", "--batch", "16", name="alone", processes=1)
    assert result.status == 0, result.errors
    series = losses(tmp_path / "alone.jsonl")
    assert series == pytest.approx({step: uninterrupted["ddp"][step] for step in range(11, 16)}, rel=1e-4)


@contextmanager
def nodes(*folders: Path, arguments: tuple[str, ...]) -> Iterator[list[subprocess.Popen[str]]]:
    """A torchrun for each folder, as if each were a node of its own with one GPU."""
    port = free_port()
    with ExitStack() as stack:
        started = []
        for number, folder in enumerate(folders):
            rendezvous = (
                *("--nnodes", str(len(folders)), "--node-rank", str(number)),
                *("--master-addr", "127.0.0.1", "--master-port", str(port)),
            )
            options = (*TINY, *arguments, "--metrics", str(folder.parent / f"{folder.name}.jsonl"))
            block = torchrun("train.py", *options, checkpoints=folder, processes=1, rendezvous=rendezvous)
            started.append(stack.enter_context(block))
        yield started


@pytest.mark.parametrize("parallel", [("ddp",), ("fsdp2",), ("fsdp2", "--shard", "all")], ids=" ".join)
def test_replaced_node_gets_the_checkpoint_of_another(
    tmp_path: Path, parallel: tuple[str, ...], uninterrupted: dict[str, dict[int, float]]
) -> None:
    """The first node, with rank 0, loses its disk."""
    first, second = tmp_path / "first", tmp_path / "second"
    arguments = ("--parallel", *parallel)
    with nodes(first, second, arguments=(*arguments, "--steps", "10")) as started:
        for node in started:
            result = finish(node)
            assert result.status == 0, result.errors
    (first / "step-00000010").rename(tmp_path / "lost")
    with nodes(first, second, arguments=(*arguments, "--steps", "15")) as started:
        results = [finish(node) for node in started]
    assert [result.status for result in results] == [0, 0], results[0].errors
    assert "node 0 gets the checkpoint of step 10 from node 1" in results[0].output
    assert sorted(path.name for path in first.iterdir()) == ["step-00000010", "step-00000015"]
    series = losses(tmp_path / "first.jsonl")
    assert series == pytest.approx({step: uninterrupted[parallel[0]][step] for step in range(11, 16)}, rel=1e-4)


def test_nodes_on_shared_storage_write_one_copy(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    with nodes(shared, shared, arguments=("--parallel", "fsdp2", "--steps", "3")) as started:
        results = [finish(node) for node in started]
    assert [result.status for result in results] == [0, 0], results[0].errors
    assert [path.name for path in shared.iterdir()] == ["step-00000003"]
    assert len(list((shared / "step-00000003").glob("*.distcp"))) == 1


@pytest.mark.parametrize("parallel", PARALLEL)
def test_write_that_fails_leaves_the_older_checkpoint(tmp_path: Path, parallel: str) -> None:
    arguments = (*TINY, "--parallel", parallel)
    assert train(tmp_path, "--parallel", parallel, "--steps", "2").status == 0
    checkpoints = tmp_path / "checkpoints"
    with torchrun("train.py", *arguments, "--steps", "4", checkpoints=checkpoints) as started:
        resource.prlimit(started.pid, resource.RLIMIT_FSIZE, (500_000, 500_000))  # its processes inherit it
        result = finish(started)
    assert result.status == 1
    assert re.search(
        rf"error: node 0 could not write the checkpoint of step 4 to {checkpoints}: .*; step-00000002 remains",
        result.errors,
    ), result.errors
    assert [path.name for path in checkpoints.iterdir()] == ["step-00000002"]
    after = train(tmp_path, "--parallel", parallel, "--steps", "4")
    assert "continuing from the checkpoint of step 2" in after.output


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system")
def test_full_disk_is_found_before_writing(tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    checkpoints.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(checkpoints)], check=True, timeout=60)
    try:
        result = train(tmp_path, "--steps", "6", "--checkpoint-every", "2")
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
