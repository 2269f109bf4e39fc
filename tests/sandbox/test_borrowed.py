"""A node that `up` adds is proven with an idle neighbour, never one with a job; what is unreached is told."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from provisioner.sandbox import containers, faults
from tests.support.sandbox_cluster import Done, SandboxCluster, failing, unknown, wrongs

pytestmark = [pytest.mark.sandbox, pytest.mark.slow]
DEADLINE_S = 400
SLURM_JOB = "cp /bin/sleep /tmp/slurmstepd && exec /tmp/slurmstepd 3600"
"""A step of a job: what runs in it uses no GPU yet."""
GPU_PROCESS = 'echo \'[{"gpu": 0, "pid": 1, "name": "python3"}]\' > /run/gpuprov-sandbox/processes.json'


@pytest.fixture
def grown(tmp_path: Path) -> Iterator[SandboxCluster]:
    """Two nodes with InfiniBand that are proven; a third one is asked for."""
    sandbox_cluster = SandboxCluster.of_example("azure-ndv4", tmp_path)
    try:
        sandbox_cluster.first = sandbox_cluster.up()
        assert sandbox_cluster.first.status == 0, wrongs(sandbox_cluster.first)
        document = yaml.safe_load(sandbox_cluster.file.read_text())
        document["groups"]["train"]["count"] = 3
        sandbox_cluster.file.write_text(yaml.safe_dump(document, sort_keys=False))
        yield sandbox_cluster
    finally:
        sandbox_cluster.down()


def execute(sandbox_cluster: SandboxCluster, node: str, command: str, *options: str) -> None:
    subprocess.run(
        ["podman", "exec", *options, sandbox_cluster.container(node), "sh", "-c", command], check=True, timeout=60
    )


def inject_while_configured(sandbox_cluster: SandboxCluster, node: str, fault: str) -> Done:
    """`up`, with a fault that comes as soon as the roles run on the node, before it is verified."""
    earlier = {*runs(sandbox_cluster)}
    process = sandbox_cluster.start("up", sandbox_cluster.file, "--sandbox", "--yes", "--json")
    until = time.monotonic() + DEADLINE_S
    while not any(line.startswith("running the roles on") for line in messages(*({*runs(sandbox_cluster)} - earlier))):
        assert process.poll() is None and time.monotonic() < until, process.communicate()
        time.sleep(0.05)
    faults.inject(containers.find_node(sandbox_cluster.root, node).name, fault)
    out, err = process.communicate(timeout=DEADLINE_S)
    return Done(process.returncode, out, err)


def runs(sandbox_cluster: SandboxCluster) -> list[Path]:
    return list(sandbox_cluster.root.glob("runs/*/events.jsonl"))


def messages(*files: Path) -> list[str]:
    return [json.loads(line)["message"] for file in files for line in file.read_text().splitlines()]


def checks(done: Done, node: str) -> dict[str, dict[str, Any]]:
    (row,) = (node_row for node_row in done.json["nodes"] if node_row["name"] == node)
    return {check["id"]: check for check in row["checks"]}


def test_a_node_that_up_adds_is_proven_with_an_idle_neighbour(grown: SandboxCluster) -> None:
    execute(grown, "train-0", SLURM_JOB, "--detach")

    bad = inject_while_configured(grown, "train-2", "fabric-dead")
    assert bad.status == 1, bad.stderr
    assert failing(bad.json) == {"train-2": {"fabric.pairs"}}, wrongs(bad)
    assert "with train-1: " in checks(bad, "train-2")["fabric.pairs"]["message"]
    assert checks(bad, "train-1")["fabric.pairs"]["status"] == "skip", "what was borrowed is not judged"

    faults.clear(containers.find_node(grown.root, "train-2").name)
    healthy = grown.up()
    assert healthy.status == 0, wrongs(healthy)
    pairs = checks(healthy, "train-2")["fabric.pairs"]
    assert (pairs["status"], len(pairs["actual"])) == ("pass", 1)
    assert pairs["actual"][0].startswith("train-1 (borrowed): ")
    assert pairs["message"] == "measured with train-1, borrowed for it and not judged"
    assert [node["name"] for node in healthy.json["nodes"] if node["ok"]] == ["train-0", "train-1", "train-2"]
    assert [node.get("borrowed") for node in healthy.json["nodes"]] == [None, None, ["train-1"]]

    execute(grown, "train-1", GPU_PROCESS)
    alone = grown.verify("--node", "train-2")
    assert alone.status == 0, wrongs(alone)
    assert [node["name"] for node in alone.json["nodes"]] == ["train-2"]
    assert {"fabric.pairs", "fabric.transport"} <= unknown(alone.json)["train-2"]
    message = checks(alone, "train-2")["fabric.pairs"]["message"]
    assert message.startswith("measured between the node's own cards, not through the path to another node")
    assert "train-0: Slurm has a job on it" in message and "train-1: a job is using the GPUs: python3" in message
    assert f"`gpuprov verify {grown.file} --sandbox --node train-2` proves it" in message
    assert checks(alone, "train-2")["fabric.own_cards"]["status"] == "pass"

    faults.inject(containers.find_node(grown.root, "train-2").name, "ib-card-slow")
    lame = grown.verify("--node", "train-2")
    assert failing(lame.json) == {"train-2": {"fabric.own_cards"}}, wrongs(lame)
    assert checks(lame, "train-2")["fabric.own_cards"]["message"].startswith("mlx5_ib7: ")
