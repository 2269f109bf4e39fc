"""Nodes run the roles themselves: what is left there when gpuprov, a node or a worker dies, and the next `up`."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from tests.support.run_processes import until
from tests.support.sandbox_cluster import Done, SandboxCluster

pytestmark = [pytest.mark.sandbox, pytest.mark.slow]

WORKER = "/var/lib/gpuprov/worker"
RUNNING = "grep -la /var/lib/gpuprov/[w]orker/ /proc/[0-9]*/cmdline"
"""Brackets, so that it does not find itself."""
NODES = ("train-0", "train-1")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxCluster]:
    """Two nodes; the first test makes them."""
    sandbox_cluster = SandboxCluster.of_example("aws-p4d", tmp_path_factory.mktemp("workers"), count=2)
    try:
        yield sandbox_cluster
    finally:
        assert sandbox_cluster.down().status == 0


def inside(fleet: SandboxCluster, node: str, script: str) -> str:
    argv = ["podman", "exec", fleet.container(node), "sh", "-c", script]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False).stdout.strip()


def ansible_on(fleet: SandboxCluster, node: str) -> str:
    """Ansible's processes on a node."""
    return inside(fleet, node, RUNNING)


def forget(fleet: SandboxCluster) -> None:
    """Have the next `up` run all roles."""
    for node in NODES:
        inside(fleet, node, "rm /etc/gpuprov/node.json")


def up_until(
    fleet: SandboxCluster, then: Callable[[subprocess.Popen[str]], object], nodes: Sequence[str] = NODES
) -> Done:
    """`up`, with `then` done once these nodes run Ansible."""
    process = fleet.start("up", fleet.file, "--sandbox", "--yes", "--json")
    output: list[str] = []
    reader = threading.Thread(target=lambda: output.extend(process.communicate()))
    reader.start()
    assert until(lambda: process.poll() is not None or run_ansible(fleet, nodes), 300)
    assert process.poll() is None, output
    then(process)
    reader.join(300)
    assert process.returncode is not None
    return Done(process.returncode, output[0], output[1])


def run_ansible(fleet: SandboxCluster, nodes: Sequence[str]) -> bool:
    try:
        return all(ansible_on(fleet, node) for node in nodes)
    except KeyError:  # it is not made yet
        return False


def choices(fleet: SandboxCluster) -> list[str]:
    """Who ran Ansible in the last run, and why."""
    return [event["message"] for event in events(fleet) if (event.get("data") or {}).get("method")]


def events(fleet: SandboxCluster) -> list[dict[str, Any]]:
    """Of the last run."""
    run = max((fleet.root / "runs").iterdir())
    return [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGINT])
def test_gpuprov_ends_and_so_does_ansible_on_the_nodes(fleet: SandboxCluster, sign: signal.Signals) -> None:
    if fleet.containers():
        forget(fleet)
    up_until(fleet, lambda process: process.send_signal(sign))
    for node in NODES:
        assert until(lambda node=node: not ansible_on(fleet, node), 30), ansible_on(fleet, node)
        assert until(lambda node=node: inside(fleet, node, "ls -d /run/gpuprov-configure") == "", 30)


def test_the_next_up_goes_on_and_says_who_ran_ansible(fleet: SandboxCluster) -> None:
    done = fleet.up()
    assert done.status == 0, done.stderr
    assert choices(fleet) == ["train: Ansible runs on 2 nodes"]
    for node in NODES:
        assert len(inside(fleet, node, f"ls {WORKER}").split()) == 1, "it is kept for the next time, and no other one"
        assert inside(fleet, node, f"stat -c '%U %a' {WORKER}") == "root 700"
    assert fleet.up().json["changes"] == {"resources": 0, "configured": 0}


def test_a_worker_that_is_killed_is_named_and_the_other_node_is_proven(fleet: SandboxCluster) -> None:
    forget(fleet)
    kill = f"for file in $({RUNNING}); do kill -9 $(echo $file | cut -d/ -f3); done"
    done = up_until(fleet, lambda _: inside(fleet, "train-0", kill), ["train-0"])
    assert done.status != 0
    failed = [event for event in events(fleet) if event["kind"] == "failed" and event.get("node") == "train-0"]
    assert failed and "killed by signal 9" in str(failed[0]["message"]), failed
    assert "train-1" not in {event.get("node") for event in events(fleet) if event["kind"] == "failed"}


def test_a_full_disk_is_named(fleet: SandboxCluster) -> None:
    forget(fleet)
    inside(fleet, "train-0", f"rm -rf {WORKER}/*; mount -t tmpfs -o size=64k tmpfs {WORKER}")
    try:
        done = fleet.up()
    finally:
        inside(fleet, "train-0", f"umount {WORKER}")
    assert done.status != 0
    messages = [str(event["message"]) for event in events(fleet) if event.get("node") == "train-0"]
    assert any("No space left on device" in message and WORKER in message for message in messages), messages


def test_a_changed_archive_is_refused_and_replaced(fleet: SandboxCluster) -> None:
    forget(fleet)
    inside(fleet, "train-1", f"sed -i '$ a raise SystemExit' {WORKER}/*/lib/ansible/constants.py")
    assert fleet.up().status == 0
    warnings = [str(event["message"]) for event in events(fleet) if event.get("node") == "train-1"]
    assert any("lib/ansible/constants.py was changed" in message for message in warnings), warnings


def test_a_push_does_the_same(fleet: SandboxCluster) -> None:
    forget(fleet)
    text = fleet.file.read_text()
    fleet.file.write_text(text + "\nconfigure: { push: true }\n")
    done = fleet.up()
    fleet.file.write_text(text)
    assert (done.status, choices(fleet)) == (0, ["train: push to 2 nodes: cluster.yaml has configure.push"]), (
        done.stderr
    )
    assert fleet.up().json["changes"] == {"resources": 0, "configured": 0}


def test_a_node_that_dies_in_the_middle_is_named(fleet: SandboxCluster) -> None:
    forget(fleet)
    name = fleet.container("train-0")
    done = up_until(fleet, lambda _: subprocess.run(["podman", "kill", name], check=True), ["train-0"])
    assert done.status != 0
    failed = {event.get("node") for event in events(fleet) if event["kind"] == "failed"}
    assert failed == {"train-0"}, done.stderr
