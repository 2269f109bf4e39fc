"""`gpuprov run` on two nodes: real docker, torchrun and PyTorch on processors. What stops a job, and what the next one
goes on from. One fleet, in the order of the tests."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pexpect
import pytest

from provisioner.cli.sandbox import PYTORCH
from provisioner.sandbox import pytorch
from tests.support.run_processes import until
from tests.support.sandbox_cluster import SandboxCluster

pytestmark = [pytest.mark.sandbox, pytest.mark.begins(9)]

FILE = """\
name: {name}
sites: {{ ohio: {{ provider: aws, region: us-east-2 }} }}
verify: {{ level: quick }}
groups:
  train:
    machine: g5.2xlarge
    count: 2
    capacity: {{ kind: spot }}
    storage: {{ scratch: /scratch }}
stack: {{ containers: ["nvcr.io/nvidia/pytorch:25.10-py3"] }}
"""
TINY = ("--size", "tiny", "--checkpoint-every", "10")
ENDLESS = ("ddp", "--", *TINY, "--steps", "1000000")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxCluster]:
    pytorch.install(PYTORCH)
    folder = tmp_path_factory.mktemp("run")
    cluster = SandboxCluster(folder / "cluster.yaml", f"t-run-{folder.parent.name[-4:].strip('-')}")
    cluster.file.write_text(FILE.format(name=cluster.name))
    try:
        first = cluster.up()
        assert first.status == 0, first.stderr
        yield cluster
    finally:
        cluster.down()


class Job:
    """`gpuprov run` as a process that the test watches."""

    def __init__(self, fleet: SandboxCluster, *arguments: str) -> None:
        self.fleet, self.output = fleet, fleet.file.parent / "output"
        with self.output.open("w") as stream:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "provisioner", "run", str(fleet.file), *arguments], cwd=fleet.file.parent,
                stdout=stream, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    @property
    def text(self) -> str:
        return self.output.read_text()

    @property
    def id(self) -> str:
        match = re.search(r"^(\S+) runs on", self.text, re.M)
        assert match is not None, self.text
        return match[1]

    def has_checkpoint(self) -> bool:
        assert self.process.poll() is None, self.text
        return "checkpoint of step" in self.text

    def wait(self) -> int:
        return self.process.wait(600)


def resumed_after(text: str) -> int:
    """The step of the checkpoint from which a job went on."""
    match = re.search(r"continuing from the checkpoint of step (\d+)", text)
    assert match is not None, text
    return int(match[1])


def containers_of(fleet: SandboxCluster, node: str) -> str:
    return fleet.run("ssh", fleet.file, node, "sudo", "docker", "ps", "--all", "--quiet").stdout


def row_of(fleet: SandboxCluster, job_id: str) -> dict[str, Any]:
    rows: list[dict[str, Any]] = fleet.run("run", fleet.file, "--list", "--json").json["jobs"]
    return next(row for row in rows if row["id"] == job_id)


def test_a_recipe_trains_and_a_second_run_goes_on(fleet: SandboxCluster) -> None:
    first = fleet.run("run", fleet.file, "ddp", "--", *TINY, "--steps", "20")
    assert first.status == 0, first.stdout + first.stderr
    assert "train-0: [rank 0] step 20: loss" in first.stdout
    second = fleet.run("run", fleet.file, "ddp", "--", *TINY, "--steps", "30")
    assert second.status == 0 and resumed_after(second.stdout) == 20, second.stdout + second.stderr


def test_a_command_runs_in_a_copy_of_the_folder(fleet: SandboxCluster) -> None:
    folder = fleet.file.parent / "mine"
    folder.mkdir()
    (folder / "a.sh").write_text('echo "$PWD $A $GPUPROV_NODE_RANK"; exit $GPUPROV_NODE_RANK')
    done = fleet.run("run", fleet.file, "--folder", "mine", "--env", "A=b", "--", "sh", "a.sh")
    assert done.status == 1, done.stderr  # the second node's
    assert {"train-0: /job b 0", "train-1: /job b 1"} <= {*done.stdout.splitlines()}
    assert "train-1: the container ended with exit status 1" in done.stderr


def test_a_killed_rank_ends_all_and_the_next_run_goes_on(fleet: SandboxCluster) -> None:
    job = Job(fleet, *ENDLESS)
    until(job.has_checkpoint)
    refused = fleet.run("run", fleet.file, "--", "true")
    assert refused.status == 2 and f"job {job.id} of" in refused.stderr
    killed = fleet.run("ssh", fleet.file, "train-1", "sudo pkill -9 -f '[-]u train.py'")
    assert killed.status == 0, killed.stderr
    assert job.wait() == 1, job.text
    row = row_of(fleet, job.id)
    assert (row["state"], row["nodes"], row["missing"]) == ("failed", ["train-0", "train-1"], [])
    assert "the container ended with exit status 1" in row["reason"], row  # the other rank's error may come first
    assert containers_of(fleet, "train-0") == containers_of(fleet, "train-1") == ""
    resumed = fleet.run("run", fleet.file, "ddp", "--", *TINY, "--steps", "1")
    assert resumed_after(resumed.stdout) >= 10, resumed.stdout


@pytest.mark.slow
def test_ctrl_c_writes_a_checkpoint_and_ends_with_130(fleet: SandboxCluster) -> None:
    arguments = ["-m", "provisioner", "run", str(fleet.file), "--name", "typed", *ENDLESS]
    with (fleet.file.parent / "screen").open("w") as screen:
        typed = pexpect.spawn(sys.executable, arguments, encoding="utf-8", timeout=600, cwd=str(fleet.file.parent))
        typed.logfile_read = screen
        typed.expect("step 10: loss")
        typed.sendintr()
        typed.expect("stopping typed-")
        typed.expect("checkpoint of step")
        typed.expect("was stopped on all nodes")
        typed.expect(pexpect.EOF)
        typed.close()
    assert typed.exitstatus == 130


@pytest.mark.slow
def test_a_job_outlives_the_command_that_started_it(fleet: SandboxCluster) -> None:
    job = Job(fleet, *ENDLESS)
    until(job.has_checkpoint)
    job.process.send_signal(signal.SIGKILL)
    job.process.wait()
    assert row_of(fleet, job.id)["state"] == "running"
    stopped = fleet.run("run", fleet.file, "--stop", job.id)
    assert stopped.status == 0, stopped.stderr
    logs = fleet.run("run", fleet.file, "--logs", job.id)
    assert logs.status == 143 and "checkpoint of step" in logs.stdout, logs.stderr
    assert fleet.run("run", fleet.file, "--stop", job.id).status == 2


@pytest.mark.slow
def test_a_notice_of_the_cloud_stops_a_job_within_its_two_minutes(fleet: SandboxCluster) -> None:
    job = Job(fleet, *ENDLESS)
    until(job.has_checkpoint)
    assert fleet.run("sandbox", "fault", fleet.file, "train-1", "spot-notice").status == 0
    try:
        assert job.wait() == 143, job.text
    finally:
        fleet.run("sandbox", "clear", fleet.file)
    assert "the cloud takes train-1 away: terminate at" in job.text


@pytest.mark.slow
def test_benchmarks_are_compared_with_their_own_baseline(fleet: SandboxCluster) -> None:
    """On processors the rates say nothing, so the baseline is edited."""
    small = ("--image-size", "32", "--batch", "2", "--precision", "fp32")
    command = ("bench", fleet.file, "resnet50", "--steps", "4", "--json", "--scale", "node")
    first = fleet.run(*command, "--scale", "gpu", "--save-baseline", "--", *small)
    assert first.status == 0, first.stdout + first.stderr
    rows = first.json["runs"]
    expected = [("gpu", ["train-0"]), ("node", ["train-0"]), ("node", ["train-1"])]
    assert [(row["scale"], row["nodes"]) for row in rows] == expected
    assert all(
        row["rate"] > 0 and row["gpus"] == 1 and row["steps"] == 2 and row.get("baseline") is None for row in rows
    ), rows
    baseline = fleet.root / "bench.json"
    document = json.loads(baseline.read_text())
    for row in document["rates"].values():
        row["rate"] *= 1000
    baseline.write_text(json.dumps(document))
    second = fleet.run(*command, "--", *small)
    assert second.status == 1
    assert all("below the baseline of" in row["problems"][0] for row in second.json["runs"]), second.stdout


def test_a_node_in_quarantine_has_no_job(fleet: SandboxCluster) -> None:
    assert fleet.run("quarantine", fleet.file, "train-0", "--reason", "noisy fan").status == 0
    try:
        all_nodes = fleet.run("run", fleet.file, "--", "true")
        assert all_nodes.status == 2 and "noisy fan" in all_nodes.stderr and "--nodes 1" in all_nodes.stderr
        single = fleet.run("run", fleet.file, "--nodes", "1", "--", "sh", "-c", "echo $GPUPROV_NODES")
        assert (single.status, single.stdout) == (0, "1\n"), single.stderr
    finally:
        fleet.run("release", fleet.file, "train-0")


@pytest.mark.slow
def test_a_replaced_machine_waits_for_the_job_and_gets_the_state_from_the_other(fleet: SandboxCluster) -> None:
    job = Job(fleet, *ENDLESS)
    until(job.has_checkpoint)
    replacing = fleet.start("replace", fleet.file, "train-0", "--even-if-healthy", "--sandbox", "--yes")
    assert replacing.stderr is not None
    try:
        waiting = next(line for line in replacing.stderr if "waiting for" in line)
        assert job.id in waiting
        assert fleet.run("run", fleet.file, "--stop", job.id).status == 0
        replacing.communicate(timeout=600)
    finally:
        replacing.kill()
        replacing.wait()
    assert replacing.returncode == 0
    files = fleet.run("ssh", fleet.file, "train-0", "sudo", "ls", "-A", "/scratch/checkpoints")
    assert files.status != 0 or files.stdout == ""
    done = fleet.run("run", fleet.file, "ddp", "--", *TINY, "--steps", "1")
    assert resumed_after(done.stdout) >= 10, done.stdout + done.stderr


@pytest.mark.slow
def test_a_lost_node_ends_the_job_on_the_others(fleet: SandboxCluster, tmp_path: Path) -> None:
    job = Job(fleet, *ENDLESS)
    until(job.has_checkpoint)
    subprocess.run(["podman", "kill", fleet.container("train-1")], check=True, capture_output=True, timeout=60)
    assert job.wait() == 1, job.text
    assert "train-1 does not answer any more" in job.text
