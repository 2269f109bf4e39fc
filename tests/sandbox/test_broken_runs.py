"""Runs that are killed, interrupted or refused: the next one goes on, and nothing is left behind."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
import yaml

from tests.support.person import not_theirs, their_folder, without_sudo
from tests.support.run_processes import keeper_of, left_over, processes, scratch_of, until
from tests.support.sandbox_cluster import Done, SandboxCluster

pytestmark = [pytest.mark.sandbox, pytest.mark.apart]
__all__ = ["their_folder"]

KILLS = int(os.environ.get("GPUPROV_TEST_KILLS", "5"))
"""How often a command is killed; `GPUPROV_TEST_KILLS=50` for the long run."""
SEED = int(os.environ.get("GPUPROV_TEST_SEED", "20261122"))
SECONDS = {"up": 30.0, "verify": 3.0, "down": 1.5, "upgrade": 30.0, "replace": 35.0}
"""How long each takes, about, until it was seen: it is killed at some moment within."""
NODE = "box-0"


@pytest.mark.slow
def test_killed_at_any_moment_the_next_command_goes_on_and_nothing_is_left(tmp_path: Path) -> None:
    """`up`, `upgrade`, `replace`, `verify` and `down` are killed, each followed by the same once more, to its end."""
    sandbox_cluster = SandboxCluster.of_example("rtx4090", tmp_path, count=1)
    text = sandbox_cluster.file.read_text()
    sandbox_cluster.file.write_text(text.replace("stack:\n", 'stack:\n  driver: "580"\n'))
    dice, seconds, order = random.Random(SEED), dict(SECONDS), list(SECONDS)
    if len(order) < KILLS:
        order = [name for _ in range(-(-KILLS // len(order))) for name in dice.sample(order, len(order))]
    is_up, killed = False, dict.fromkeys(SECONDS, 0)
    try:
        for command in order[:KILLS]:
            if command == "up" and is_up:
                to_the_end(sandbox_cluster, "down")
            elif command != "up" and not is_up:
                to_the_end(sandbox_cluster, "up")
            if command == "upgrade":
                other_driver(sandbox_cluster)
            moment = dice.uniform(0, seconds[command])
            killed[command] += kill(sandbox_cluster, command, moment)
            begun = time.monotonic()
            to_the_end(sandbox_cluster, command)
            seconds[command] = max(2.0, time.monotonic() - begun) if command in ("verify", "down") else seconds[command]
            is_up = command != "down"
    finally:
        done = sandbox_cluster.down()
    assert done.status == 0, done.stderr
    assert left_over(sandbox_cluster) == []
    print(f"killed while they ran: {killed}")
    assert sum(killed.values()) > 0


def command_line(sandbox_cluster: SandboxCluster, command: str) -> list[object]:
    more = {"verify": ["--sandbox"], "replace": [NODE, "--even-if-healthy", "--force-budget", "--sandbox", "--yes"]}
    return [command, sandbox_cluster.file, *more.get(command, ["--sandbox", "--yes"])]


def to_the_end(sandbox_cluster: SandboxCluster, command: str) -> Done:
    done = sandbox_cluster.run(*command_line(sandbox_cluster, command))
    assert done.status == 0, (command, done.stdout[-3000:], done.stderr[-3000:])
    if command == "down":
        assert left_over(sandbox_cluster) == []
    return done


def kill(sandbox_cluster: SandboxCluster, command: str, moment: float) -> bool:
    """SIGKILL to a command so many seconds after its start; whether it still ran. No process of it is left then."""
    process = sandbox_cluster.start(*command_line(sandbox_cluster, command))
    run = keeper_of(process)
    try:
        process.communicate(timeout=moment)
    except subprocess.TimeoutExpired:
        process.kill()
    print(f"{command} killed after {moment:.1f} s")
    return was_killed(sandbox_cluster, process, run)


def kill_at(sandbox_cluster: SandboxCluster, stage: str) -> None:
    """SIGKILL to `up` as soon as it has come to that stage, however long that takes. No process of it is left then."""
    process = sandbox_cluster.start(*command_line(sandbox_cluster, "up"))
    run = keeper_of(process)
    reached(process, stage)
    process.kill()
    assert was_killed(sandbox_cluster, process, run)


def was_killed(sandbox_cluster: SandboxCluster, process: subprocess.Popen[str], run: str) -> bool:
    """Whether a command ended by SIGKILL, once no process and no file of its run is left."""
    died = time.monotonic()
    if not until(lambda: processes(sandbox_cluster.file.parent, run) == [], 2):
        print("\n".join(processes(sandbox_cluster.file.parent, run)))
    assert until(lambda: processes(sandbox_cluster.file.parent, run) == []), processes(sandbox_cluster.file.parent, run)
    assert until(lambda: scratch_of(run) == []), scratch_of(run)
    print(f"the last process ended {time.monotonic() - died:.2f} s later")
    process.communicate()
    return process.returncode == -signal.SIGKILL


def other_driver(sandbox_cluster: SandboxCluster) -> None:
    text = sandbox_cluster.file.read_text()
    other = {"580": "595", "595": "580"}
    sandbox_cluster.file.write_text(re.sub(r'(?<=driver: ")(580|595)', lambda match: other[match[1]], text))


def test_interrupted_and_killed_with_sudo_the_next_up_finishes_and_all_is_theirs(their_folder: Path) -> None:
    """Ctrl-C, which says how to go on; SIGKILL within a run, after which no process of it is left; a run to its end.
    What all of them made belongs to whoever called sudo, and they can look at it without."""
    sandbox_cluster = SandboxCluster.of_example("rtx4090", their_folder, count=1)
    theirs = without_sudo(sandbox_cluster)
    try:
        for stage in ("terraform", "configure"):
            interrupt(sandbox_cluster, stage)
            assert sandbox_cluster.root.is_dir()
            assert not_theirs(their_folder) == [str(sandbox_cluster.file)]  # the test's own
        kill_at(sandbox_cluster, "configure")
        to_the_end(sandbox_cluster, "up")
        assert not_theirs(their_folder) == [str(sandbox_cluster.file)]
        assert "verified" in theirs.run("status", sandbox_cluster.file).stdout
        assert theirs.verify().status == 0
        assert theirs.run("exec", sandbox_cluster.file, "hostname").stdout == f"{NODE}: {NODE}\n"
        refused = theirs.run("down", sandbox_cluster.file, "--yes")
        assert (refused.status, "the sandbox needs root" in refused.stderr) == (2, True)
        assert len(sandbox_cluster.containers()) == 2
        assert sandbox_cluster.run("status", sandbox_cluster.file).status == 0  # and with sudo again
    finally:
        done = sandbox_cluster.down()
    assert done.status == 0, done.stderr
    assert left_over(sandbox_cluster) == []


def reached(process: subprocess.Popen[str], stage: str) -> None:
    """Wait until a run says that it has come to that stage."""
    assert process.stderr is not None
    assert any(f" {stage}:" in line for line in process.stderr), f"it ended before its {stage}"


def interrupt(sandbox_cluster: SandboxCluster, stage: str) -> None:
    """Ctrl-C as soon as `up` has come to that stage; it says how to go on."""
    process = sandbox_cluster.start("up", sandbox_cluster.file, "--sandbox", "--yes")
    reached(process, stage)
    process.send_signal(signal.SIGINT)
    _, error_text = process.communicate(timeout=120)
    assert process.returncode == 130, error_text
    assert f"sudo gpuprov up {sandbox_cluster.file} --sandbox" in error_text
    assert "Traceback" not in error_text


def test_down_of_nothing_is_fine(tmp_path: Path) -> None:
    sandbox_cluster = SandboxCluster.of_example("rtx4090", tmp_path)
    assert sandbox_cluster.down().status == 0
    assert left_over(sandbox_cluster) == []


def test_plan_leaves_nothing_behind(tmp_path: Path) -> None:
    sandbox_cluster = SandboxCluster.of_example("rtx4090", tmp_path, count=1)
    document = sandbox_cluster.run("plan", sandbox_cluster.file, "--sandbox", "--json")
    assert document.status == 0, document.stderr
    assert sum(site["add"] for site in document.json["changes"].values()) == 2
    assert left_over(sandbox_cluster) == []


def test_a_cloud_that_refuses_is_sandboxed_in_its_own_words(tmp_path: Path) -> None:
    """Half a group is made: it is told, kept and shown. Then no zone has any more, and it goes."""
    sandbox_cluster = SandboxCluster.of_example("rtx4090", tmp_path, count=2)
    document = yaml.safe_load(sandbox_cluster.file.read_text())
    document["sites"] = {"here": {"provider": "aws", "region": "us-east-1", "zones": ["us-east-1a", "us-east-1b"]}}
    document["groups"] = {"train": {"machine": "g5.xlarge", "count": 2}}
    sandbox_cluster.file.write_text(yaml.safe_dump(document))
    try:
        assert sandbox_cluster.run("sandbox", "fault", sandbox_cluster.file, "here", "half-made").status == 0
        failed = sandbox_cluster.run("up", sandbox_cluster.file, "--sandbox", "--yes")
        assert failed.status == 3
        assert "train-1: InvalidPlacementGroup.InUse (conflict)" in failed.stderr
        assert "1 machine of the cluster stands now" in failed.stderr
        node_rows = sandbox_cluster.run("status", sandbox_cluster.file, "--offline", "--json").json["nodes"]
        assert {node["name"]: node["stage"] for node in node_rows} == {"train-0": "incomplete", "train-1": "not made"}
        assert sandbox_cluster.run("sandbox", "clear", sandbox_cluster.file, "here").status == 0
        assert sandbox_cluster.run("sandbox", "fault", sandbox_cluster.file, "here", "no-capacity").status == 0
        failed = sandbox_cluster.run("up", sandbox_cluster.file, "--sandbox", "--yes")
        assert failed.status == 3
        for zone in ("us-east-1a", "us-east-1b"):
            assert f"train, on-demand in {zone}: InsufficientInstanceCapacity (shortage)" in failed.stderr
        assert "stand" not in failed.stderr.rpartition("no capacity for")[2]
    finally:
        sandbox_cluster.run("sandbox", "clear", sandbox_cluster.file)
        assert sandbox_cluster.run("down", sandbox_cluster.file, "--yes").status == 0


def test_without_a_terminal_nobody_is_asked(tmp_path: Path) -> None:
    sandbox_cluster = SandboxCluster.of_example("rtx4090", tmp_path, count=1)
    refused = sandbox_cluster.run("up", sandbox_cluster.file, "--sandbox")
    assert refused.status == 2
    assert "--yes" in refused.stderr
    assert sandbox_cluster.containers() == []
    assert sandbox_cluster.down().status == 0
