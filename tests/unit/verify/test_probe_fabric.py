"""A node's part in a run of several: docker, nvidia-smi and PyTorch are small stand-ins here, all else is what runs."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from provisioner.verify.bundle import Bundle
from provisioner.verify.load import multi_node_launcher as launcher
from provisioner.verify.parsers.fabric import idle_answer
from provisioner.verify.parsers.load import Load, parse
from provisioner.verify.probe import fabric as probe_fabric
from provisioner.verify.probe import idle as probe_idle
from provisioner.verify.probe import job as probe_job
from provisioner.verify.probe import load as probe_load
from provisioner.verify.probe import runner
from provisioner.verify.request import load_request
from tests.support.healthy_bundle import PULL, expected

DOCKER = """#!/bin/sh
echo "$*" >> CALLS
[ "$1" = run ] || exit 0
cat > SENT
THEN
"""
SMI = '#!/bin/sh\ncase "$*" in *compute-apps*) cat APPS 2>/dev/null; exit 0;; esac\n'
EXE = 0o755
JOB = ("--gpus=all", "--network=host", "--env=GLOO_SOCKET_IFNAME=eth7", "--volume=/etc/topo.xml:/etc/topo.xml:ro")


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of programs that stands before all others in PATH."""
    for module in (runner, probe_load):
        monkeypatch.setattr(module, "PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(probe_fabric, "VANISH_S", 0.1)
    monkeypatch.setattr(probe_job, "IMAGES", str(tmp_path / "images.json"))
    environment(tmp_path, *JOB)
    script(tmp_path / "nvidia-smi", SMI.replace("APPS", str(tmp_path / "apps")))
    docker(tmp_path, "exit 0")
    return tmp_path


def script(file: Path, text: str) -> None:
    file.write_text(text)
    file.chmod(EXE)


def environment(folder: Path, *arguments: str) -> None:
    """What role pytorch_images writes for users."""
    (folder / "images.json").write_text(json.dumps([{"pull": PULL, "docker_run": arguments}]))


def docker(folder: Path, then: str) -> None:
    text = DOCKER.replace("CALLS", str(folder / "calls")).replace("SENT", str(folder / "sent")).replace("THEN", then)
    script(folder / "docker", text)


def ask(deadline: float = 10.0, own_address: str = "127.0.0.1", *, lent: bool = False) -> Load:
    part = {"launcher": "# launcher\n", "nodes": 2, "node": 1, "address": "10.0.0.4", "own": own_address, "port": 23456}
    return parse(answer(deadline, options={"budget": 40}, together={**part, "lent": lent}))


def answer(deadline: float = 10.0, **part: Any) -> str:
    request = load_request(expected("p4d.24xlarge", "stress"))
    assert request is not None and request.load is not None
    request_document: dict[str, Any] = request.to_json()
    request_document["load"] = {**request.load, **part}
    document = runner.probe({**request_document, "files": {"fabric.json": deadline}, "deadline": deadline + 30})
    return Bundle.from_json(document).files["fabric.json"].text


@pytest.mark.parametrize("rows", [[{"pull": "x", "docker_run": JOB}], [{"pull": PULL, "docker_run": None}], "?", None])
def test_nothing_runs_where_no_role_wrote_how_jobs_run(node: Path, rows: Any) -> None:
    """There is no second description of a job's environment to fall back to."""
    (node / "images.json").unlink()
    if rows is not None:
        (node / "images.json").write_text(json.dumps(rows))
    load = ask()
    assert (load.state, "`gpuprov up` writes the environment of a job" in load.why) == ("absent", True)
    assert not (node / "calls").exists()


def test_the_part_runs_in_the_locked_image_as_a_job_does(node: Path) -> None:
    docker(node, f"echo '{probe_load.LOAD_MARK}phase all_reduce'; echo trouble >&2; exit 3")
    load = ask()
    assert (load.state, load.rc, load.phase, load.error) == ("ran", 3, "all_reduce", "trouble")
    run, removed = (node / "calls").read_text().splitlines()
    assert removed.startswith("rm --force gpuprov-load-")
    assert f"{PULL} - gpuprov-together --nodes 2 --node 1 --address 10.0.0.4 --port 23456" in run
    assert run.endswith("--only all_reduce --budget 40")
    assert f" --security-opt no-new-privileges {' '.join(JOB)} " in run and "--pull=never" in run
    assert "NCCL_SOCKET_IFNAME" not in run, "NCCL reads that from the node's settings, as in every job"
    sent = (node / "sent").read_text()
    assert sent.startswith("# launcher\n")
    program = Path(str(launcher.__file__)).with_name("program.py").read_text()
    assert json.dumps(json.dumps(program)) in sent


def test_a_node_that_names_no_interface_takes_the_groups(node: Path) -> None:
    environment(node, "--network=host")
    ask()
    run = (node / "calls").read_text()
    assert "GLOO_SOCKET_IFNAME=lo" in run and "NCCL_SOCKET_IFNAME==lo" in run


def test_a_part_that_does_not_end_is_killed_and_removed(node: Path) -> None:
    docker(node, "exec sleep 60")
    begun = time.monotonic()
    load = ask(0.5)
    assert load.timed_out
    assert time.monotonic() - begun < 30
    assert "rm --force" in (node / "calls").read_text()


@pytest.mark.parametrize(
    ("then", "own_address", "apps", "state", "reason"),
    [
        ("exit 0", "127.0.0.1", "4711, python3\n", "busy", ""),
        ("exit 0", "203.0.113.9", "", "absent", "no interface of this node has its address 203.0.113.9"),
        ("echo 'docker: no such image' >&2; exit 125", "127.0.0.1", "", "absent", "docker: no such image"),
        ("echo 'Error: the rendezvous is taken' >&2; exit 75", "127.0.0.1", "", "absent", "the rendezvous is taken"),
    ],
)
def test_what_could_not_begin_says_so(
    node: Path, then: str, own_address: str, apps: str, state: str, reason: str
) -> None:
    docker(node, then)
    (node / "apps").write_text(apps)
    load = ask(own_address=own_address)
    assert (load.state, reason in load.why) == (state, True)


def test_a_node_says_whether_it_is_idle_and_starts_nothing(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_idle, "running", lambda: [{"comm": "sshd", "cmdline": "sshd", "cgroup": "0::/"}])
    assert idle_answer(answer(alone="idle")) == ""
    (node / "apps").write_text("4711, python3\n")
    assert idle_answer(answer(alone="idle")) == "a job is using the GPUs: python3 (pid 4711)"
    assert not (node / "calls").exists()
    assert idle_answer("") and idle_answer("{}") and idle_answer('{"state": "busy"}')


def test_a_node_that_is_lent_takes_part_only_while_it_is_idle(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job of a scheduler that has not opened a GPU yet keeps no other node from its own test."""
    step = {"comm": "slurmstepd", "cmdline": "slurmstepd: [614.0]", "cgroup": "0::/"}
    monkeypatch.setattr(probe_idle, "running", lambda: [step])
    load = ask(lent=True)
    assert (load.state, load.why) == ("absent", "Slurm has a job on it: slurmstepd: [614.0]")
    assert not (node / "calls").exists()
    assert ask().state == "ran"


def test_a_run_of_one_node_goes_over_its_own_network_cards(node: Path) -> None:
    part = {"launcher": "", "node": 0, "address": "127.0.0.1", "own": "127.0.0.1", "port": 23456}
    off = "--env NCCL_NVLS_ENABLE=0 --env NCCL_P2P_DISABLE=1 --env NCCL_SHM_DISABLE=1"
    for nodes in (1, 2):
        answer(options={}, together={**part, "nodes": nodes})
        assert (off in (node / "calls").read_text()) == (nodes == 1)
        (node / "calls").unlink()


# The launcher, with a PyTorch whose store is a folder.

TORCH = """
import contextlib, fcntl, os, pathlib, socket, time
class cuda:
    device_count = staticmethod(lambda: 2)
class TCPStore:
    def __init__(self, address, port, is_master, wait_for_workers, timeout=None, master_listen_fd=None):
        self.folder = pathlib.Path(os.environ["STORE"])
        if is_master:
            with socket.socket(fileno=master_listen_fd) as listener:
                (self.folder / "listens").write_text(listener.getsockname()[0])
        until = time.monotonic() + (timeout.total_seconds() if timeout else 0)
        while not (self.folder / "listens").exists():
            if time.monotonic() > until:
                raise OSError("nobody there")
            time.sleep(0.02)
    def add(self, key, number):
        with open(self.folder / key, "a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            total = int(file.read() or 0) + number
            file.truncate(0)
            file.write(str(total))
        return total
"""
PROGRAM = """
import json, os, sys, time
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "GROUP_RANK", "TORCHELASTIC_USE_AGENT_STORE")
os.write(1, (json.dumps([os.environ[name] for name in names] + sys.argv[1:]) + "\\n").encode())
if os.environ["RANK"] == os.environ.get("BAD"):
    sys.exit("RuntimeError: a bad card")
if os.environ.get("BAD"):
    time.sleep(60)
"""


def launch(folder: Path, node: int, *more: str, bad: str = "", address: str = "127.0.0.2") -> subprocess.Popen[str]:
    (folder / "torch").mkdir(exist_ok=True)
    (folder / "torch/__init__.py").write_text(TORCH)
    (folder / "torch/distributed.py").write_text("from torch import TCPStore\n")
    assert launcher.__file__
    source = (
        Path(launcher.__file__).read_text() + f"\nimport json\nmain(json.loads({json.dumps(json.dumps(PROGRAM))}))\n"
    )
    arguments = ["--nodes", "2", "--node", str(node), "--address", address, "--port", str(free_port(folder)), *more]
    process = subprocess.Popen(
        [sys.executable, "-", "gpuprov-together", *arguments, "--only", "all_reduce"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(folder), "STORE": str(folder), **({"BAD": bad} if bad else {})},
    )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write(source)
    process.stdin.close()
    process.stdin = None
    return process


def free_port(folder: Path) -> int:
    """The same for all nodes of a test."""
    file = folder / "port"
    if not file.exists():
        with socket.create_server(("127.0.0.1", 0)) as probe_:
            file.write_text(str(probe_.getsockname()[1]))
    return int(file.read_text())


def test_all_processes_of_all_nodes_know_their_place(tmp_path: Path) -> None:
    nodes = [launch(tmp_path, number) for number in (0, 1)]
    outputs = [node.communicate(timeout=60) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], outputs
    rows = sorted(json.loads(line) for out, _ in outputs for line in out.splitlines())
    common = ["127.0.0.2", "True", "--only", "all_reduce"]
    assert rows == [[str(n * 2 + i), str(i), "4", common[0], str(n), *common[1:]] for n in (0, 1) for i in (0, 1)]
    assert (tmp_path / "listens").read_text() == "127.0.0.2", "the rendezvous is on that address alone"


def test_one_process_that_fails_ends_all_of_all_nodes(tmp_path: Path) -> None:
    begun = time.monotonic()
    nodes = [launch(tmp_path, number, bad="3") for number in (0, 1)]
    outputs = [node.communicate(timeout=60) for node in nodes]
    assert [node.returncode for node in nodes] == [1, 1]
    assert "a process on another node failed" in outputs[0][1]
    assert "a bad card" in outputs[1][1]
    assert time.monotonic() - begun < 50


def test_a_first_node_that_does_not_answer_is_told(tmp_path: Path) -> None:
    node = launch(tmp_path, 1, "--wait", "0.2")
    _, error = node.communicate(timeout=60)
    assert (node.returncode, "no answer from the first node, 127.0.0.2" in error) == (1, True)


def test_an_address_that_is_not_the_nodes_says_nothing_of_the_network(tmp_path: Path) -> None:
    node = launch(tmp_path, 0, address="203.0.113.9")
    _, error = node.communicate(timeout=60)
    assert (node.returncode, "can't listen on 203.0.113.9" in error) == (launcher.COULD_NOT_BEGIN, True)
    assert launcher.COULD_NOT_BEGIN == probe_fabric.COULD_NOT_BEGIN
