"""Supervisors as nodes run them, in processes of their own on loopback addresses; docker is a stand-in that starts the
command itself."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from provisioner.lifecycle.jobs import supervisor

PROGRAM = Path(supervisor.__file__)
DEADLINE_S = 120.0
DOCKER = """\
#!/bin/bash
# What the supervisor uses of docker: run, stop, kill, inspect. A container is the command itself.
state=$STATE
case $1 in
run)
  for word in "$@"; do
    case $word in --env-file=*) while IFS= read -r line; do export "$line"; done <"${word#*=}" ;; esac
  done
  while [ "$1" != image ]; do shift; done
  shift
  "$@" &
  echo $! >$state/pid
  trap 'kill -TERM $(cat $state/pid)' TERM
  wait $(cat $state/pid); status=$?
  rm -f $state/pid
  exit $status
  ;;
inspect) cat $state/pid 2>/dev/null ;;
stop)
  echo "$*" >>$state/stops; kill -TERM $(cat $state/pid); sleep 0.2
  [ "$3" -gt 5 ] || { sleep 0.5; kill -KILL $(cat $state/pid); }
  ;;
kill) kill -KILL $(cat $state/pid) ;;
esac
"""


def free_port() -> int:
    """A port that is free with the one behind it, on every loopback address."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as first:
            port = int(first.getsockname()[1])
            if port >= 65000:
                continue
            try:
                socket.create_server(("127.0.0.1", port + 1)).close()
            except OSError:
                continue
            return port


@dataclass
class Nodes:
    """The nodes of one job, each a folder and a process."""

    root: Path
    names: Sequence[str]
    command: Sequence[str]
    overrides: dict[str, Any] = field(default_factory=dict)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def folder(self, name: str) -> Path:
        return self.root / name

    def start(self, *names: str) -> None:
        port = self.overrides.setdefault("port", free_port())
        for name in names or self.names:
            folder = self.folder(name)
            for path in (folder / "work", folder / "out", folder / "bin"):
                path.mkdir(parents=True, exist_ok=True)
            (folder / "bin" / "docker").write_text(DOCKER)
            (folder / "bin" / "docker").chmod(0o755)
            job = {
                "id": "ddp-1", "name": "ddp", "node": name, "token": "secret", "image": "image", "options": [],
                "nodes": [{"name": node, "address": f"127.0.0.{number + 1}"} for number, node in enumerate(self.names)],
                "volumes": [], "environment": {}, "command": list(self.command), "gpus": 2, "grace_s": 20,
                "checkpoints": "/scratch/checkpoints/ddp", "rdma": False, "gpudirect": False, "port": port,
                **self.overrides,
            }  # fmt: skip
            (folder / "job.json").write_text(json.dumps(job))
            environment = {**os.environ, "STATE": str(folder), "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-I", str(PROGRAM), str(folder)], env=environment, start_new_session=True
            )

    def log(self, name: str) -> str:
        file = self.folder(name) / "log"
        return file.read_text() if file.is_file() else ""

    def await_text(self, name: str, text: str) -> None:
        until = time.monotonic() + DEADLINE_S
        while text not in self.log(name):
            assert time.monotonic() < until, self.log(name)
            time.sleep(0.05)

    def await_connections(self) -> None:
        """Wait until every other node is connected to the first."""
        local, established = f":{self.overrides['port'] + 1:04X}", "01"
        until = time.monotonic() + DEADLINE_S
        while time.monotonic() < until:
            rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
            if sum(row[1].endswith(local) and row[3] == established for row in rows) == len(self.names) - 1:
                return
            time.sleep(0.05)
        raise AssertionError("not all nodes have connected")

    def outcome(self, name: str) -> dict[str, Any]:
        self.processes[name].wait(DEADLINE_S)
        document: dict[str, Any] = json.loads((self.folder(name) / "status.json").read_text())
        return {key: document[key] for key in ("state", "status", "reason")}

    def end(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()
        for name in self.names:
            pid = self.folder(name) / "pid"
            if pid.is_file():
                subprocess.run(["kill", "-9", pid.read_text().strip()], check=False, capture_output=True)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    fleet = Nodes(tmp_path, ("train-0", "train-1", "train-2"), ())
    yield fleet
    fleet.end()


def test_a_job_is_completed_when_every_container_has_ended_well(nodes: Nodes) -> None:
    nodes.command = ["sh", "-c", "echo rank $GPUPROV_NODE_RANK of $GPUPROV_NODES at $GPUPROV_LEADER"]
    nodes.start()
    for name in nodes.names:
        assert nodes.outcome(name) == {"state": "completed", "status": 0, "reason": ""}
    assert nodes.log("train-2") == "rank 2 of 3 at 127.0.0.1\n"


def test_a_container_that_fails_ends_those_of_all_nodes(nodes: Nodes) -> None:
    nodes.command = ["sh", "-c", "echo begun; [ $GPUPROV_NODE_RANK != 2 ] || exit 7; exec sleep 600"]
    nodes.start()
    reason = "train-2: the container ended with exit status 7"
    for name in nodes.names:
        assert nodes.outcome(name) == {"state": "failed", "status": 7, "reason": reason}
        assert f"[gpuprov] stopping: {reason}" in nodes.log(name)


@pytest.mark.parametrize("name", ["train-0", "train-1"])
def test_a_node_whose_supervisor_dies_ends_the_job_on_the_others(nodes: Nodes, name: str) -> None:
    nodes.command = ["sh", "-c", "echo begun; exec sleep 600"]
    nodes.start()
    nodes.await_connections()
    nodes.processes[name].kill()
    for other in nodes.names:
        if other != name:
            outcome = nodes.outcome(other)
            assert outcome == {"state": "failed", "status": 1, "reason": f"{name} does not answer any more"}


def test_a_stop_on_any_node_stops_all_and_says_who_asked(nodes: Nodes) -> None:
    nodes.command = ["sh", "-c", "trap 'echo saved; exit 0' TERM; echo begun; while :; do sleep 0.1; done"]
    nodes.start()
    for name in nodes.names:
        nodes.await_text(name, "begun")
    (nodes.folder("train-1") / "stop").write_text("stopped by ann\n")
    nodes.processes["train-1"].send_signal(signal.SIGTERM)
    for name in nodes.names:
        assert nodes.outcome(name) == {"state": "stopped", "status": 143, "reason": "stopped by ann"}
        assert "saved" in nodes.log(name)


def test_a_node_that_shuts_down_says_so(nodes: Nodes) -> None:
    nodes.names, nodes.command = ("train-0",), ["sh", "-c", "echo begun; exec sleep 600"]
    nodes.start()
    nodes.await_text("train-0", "begun")
    nodes.processes["train-0"].send_signal(signal.SIGTERM)
    assert nodes.outcome("train-0") == {"state": "stopped", "status": 143, "reason": "train-0 shuts down"}


def test_the_ranks_are_asked_to_end_not_torchrun(nodes: Nodes) -> None:
    """torchrun would kill its ranks after 30 s; here it is the shell, which would end at once."""
    rank = "trap 'echo saved; exit 0' TERM; echo begun; while :; do sleep 0.1; done"
    nodes.names = ("train-0",)
    nodes.command = ["bash", "-c", f"trap 'echo torchrun ended; exit 1' TERM; LOCAL_RANK=0 bash -c \"{rank}\" & wait"]
    nodes.start()
    nodes.await_text("train-0", "begun")
    nodes.processes["train-0"].send_signal(signal.SIGTERM)
    assert nodes.outcome("train-0")["state"] == "stopped"
    assert "saved" in nodes.log("train-0") and "torchrun ended" not in nodes.log("train-0")


def test_nccl_over_sockets_ends_a_job_on_a_network_with_rdma(nodes: Nodes) -> None:
    nodes.names, nodes.overrides = ("train-0", "train-1"), {"rdma": True, "gpudirect": True}
    line = "ip-10-0-0-4:61:82 [0] NCCL INFO Channel 00/0 : 8[0] -> 0[0] [receive] via NET/Socket/0"
    nodes.command = ["sh", "-c", f"[ $GPUPROV_NODE_RANK = 1 ] || echo '{line}' >$OUT/out/nccl.61; exec sleep 600"]
    os.environ["OUT"] = str(nodes.folder("train-0"))
    try:
        nodes.start()
        reason = "train-0: NCCL goes over sockets (NET/Socket), and this network has RDMA"
        for name in nodes.names:
            assert nodes.outcome(name) == {"state": "failed", "status": 1, "reason": reason}
    finally:
        del os.environ["OUT"]


def test_a_stranger_ends_no_job(nodes: Nodes) -> None:
    """Somebody on the network without the token, and one with garbage."""
    nodes.names, nodes.command = ("train-0", "train-1"), ["sh", "-c", "echo begun; sleep 2; echo ended"]
    nodes.start("train-0")
    nodes.await_text("train-0", "begun")
    for text in (b'{"node": "train-1", "proof": "guessed"}\n{"stop": "by me"}\n', b"\xff" * 200_000 + b"\n"):
        with socket.create_connection(("127.0.0.1", nodes.overrides["port"] + 1), timeout=DEADLINE_S) as stranger:
            stranger.recv(1000)
            with contextlib.suppress(ConnectionError):
                stranger.sendall(text)
                assert stranger.recv(1000) == b""
    nodes.start("train-1")
    for name in nodes.names:
        assert nodes.outcome(name)["state"] == "completed"


def test_secrets_stand_in_no_argument(nodes: Nodes, tmp_path: Path) -> None:
    nodes.names, nodes.overrides = ("train-0",), {"environment": {"HF_TOKEN": "hf_secret"}}
    nodes.command = ["sh", "-c", "echo $HF_TOKEN"]
    nodes.start()
    assert nodes.outcome("train-0")["state"] == "completed"
    job = json.loads((nodes.folder("train-0") / "job.json").read_text())
    assert "hf_secret" not in " ".join(supervisor.docker_command(job, "/folder"))
    assert nodes.log("train-0") == "hf_secret\n"
    assert (nodes.folder("train-0") / "environment").stat().st_mode & 0o777 == 0o600


def test_what_torchrun_keeps_of_the_output_does_not_fill_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "RANK_LOGS_LIMIT", 1000)
    monkeypatch.setattr(supervisor, "TRIM_S", 0.0)
    job = {"node": "train-0", "nodes": [{"name": "train-0", "address": "127.0.0.1"}]}
    under_test = supervisor.Supervisor(job, str(tmp_path))
    file = tmp_path / "out/ranks/x/attempt_0/0/stdout.log"
    file.parent.mkdir(parents=True)
    with file.open("wb", buffering=0) as rank:
        rank.write(b"x" * 100_000)
        under_test._trim_rank_logs()
        rank.write(b"more")
        assert file.stat().st_blocks * 512 < 10_000
        assert file.read_bytes().endswith(b"more")


def test_torchrun_that_waits_for_other_nodes_is_ended_soon(nodes: Nodes) -> None:
    """Its ranks have ended, and it ignores SIGTERM in its exit barrier; so does this shell."""
    waits = "trap '' TERM; echo waits; while :; do sleep 0.1; done"
    torchrun = nodes.root / "torchrun"
    torchrun.write_text(f"#!/bin/sh\n[ $GPUPROV_NODE_RANK = 0 ] || exit 7\n{waits}\n")
    torchrun.chmod(0o755)
    nodes.names, nodes.command = ("train-0", "train-1"), [str(torchrun), "--standalone", "train.py"]
    nodes.overrides = {"grace_s": 100}
    nodes.start()
    for name in nodes.names:
        assert nodes.outcome(name)["status"] == 7
    stops = (nodes.folder("train-0") / "stops").read_text()
    assert all(int(line.split()[2]) <= supervisor.LINGER_S for line in stops.splitlines()), stops


def test_a_full_disk_costs_the_log_and_not_the_outcome(nodes: Nodes) -> None:
    """A small tmpfs is the node's disk."""
    nodes.names, nodes.command = ("train-0",), ["sh", "-c", "head -c 3000000 /dev/zero; exit 5"]
    folder = nodes.folder("train-0")
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(folder)], check=True, timeout=60)
    try:
        nodes.start()
        outcome = nodes.outcome("train-0")
        assert (outcome["state"], outcome["status"]) == ("failed", 5)
        assert "the log of train-0 has gaps: No space left on device" in outcome["reason"]
    finally:
        nodes.end()
        subprocess.run(["umount", str(folder)], check=True, timeout=60)
