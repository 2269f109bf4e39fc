"""A run directory that came with somebody's checkout, or that somebody else may write to: nothing of it is run, nobody
else's is ended or removed, and a look at it ends with an answer or a told error."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from provisioner.cli import watch
from provisioner.cli.run_view import RunView
from provisioner.common.errors import GpuprovError
from provisioner.lifecycle.session import open_cluster
from provisioner.transport import keeper, ssh_config, ssh_pins
from tests.support.logins import UBUNTU
from tests.support.run_processes import until
from tests.support.sandbox_cluster import ROOT
from tests.support.terminal import CTRL_C, Terminal, gpuprov

SEED = Path(__file__).parent / "run_directory"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A run directory beside its cluster.yaml."""
    shutil.copy(ROOT / "examples" / "aws-p4d.yaml", tmp_path / "cluster.yaml")
    run_directory = tmp_path / ".gpuprov" / "vision.sandbox"
    shutil.copytree(SEED, run_directory)
    run_directory.chmod(0o700)
    return run_directory


def opened(root: Path) -> None:
    open_cluster(root.parent.parent / "cluster.yaml", sandbox=True)


@pytest.mark.parametrize(
    "line",
    [
        "  ProxyCommand touch /tmp/never", "  ProxyCommand=touch /tmp/never", '"ProxyCommand" touch /tmp/never',
        'Match exec "touch /tmp/never"', "  LocalCommand touch /tmp/never", "  PermitLocalCommand yes",
        "  KnownHostsCommand /bin/touch", "  Include /tmp/other", "  PKCS11Provider /tmp/x.so", "  SendEnv *",
    ],
)  # fmt: skip
def test_no_line_of_a_foreign_ssh_configuration_is_taken(line: str, root: Path) -> None:
    (root / "ssh" / "config").write_text(f"Host *\n{line}\n")
    with pytest.raises(GpuprovError, match="line 2 is not gpuprov's"):
        opened(root)


@pytest.mark.parametrize("line", ["  ProxyCommand touch /tmp/never", 'Match exec "touch /tmp/never"'])
def test_no_line_of_a_foreign_jump_hosts_configuration_is_taken(line: str, root: Path) -> None:
    (root / "ssh" / "jump-east").write_text(f"Host *\n{line}\n")
    with pytest.raises(GpuprovError, match="line 2 is not gpuprov's"):
        opened(root)


WAY = "-o BatchMode=yes -o ConnectTimeout=10 -W [10.0.0.5]:22 me@old.example.com"


def test_a_jump_host_that_cluster_yaml_no_longer_names_is_taken_until_the_next_up(root: Path) -> None:
    config, own_config = root / "ssh" / "config", root / "ssh" / "jump-east"
    own_config.write_text("Host old.example.com\n  HostName 127.77.250.3\n")
    for proxy_command in (f"ssh {WAY}", f"ssh {WAY}".replace("-W", "-p 2222 -W"), f"ssh -F {own_config} {WAY}"):
        config.write_text(f"Host box-0\n  ProxyCommand {proxy_command}\n")
        opened(root)


@pytest.mark.parametrize(
    "command",
    [
        f"ssh {WAY};touch /tmp/never", f"ssh {WAY} touch", f"ssh -F /tmp/other {WAY}", f"ssh {WAY[:-18]}$(id)",
        f"ssh -o LocalCommand=x {WAY}", f"./ssh {WAY}", f"ssh {WAY}".replace("me@", "-oProxyCommand=x@"),
        f"ssh {WAY}".replace("[10.0.0.5]", "[`id`]"), f"ssh -F jump-west {WAY}",
    ],
)  # fmt: skip
def test_no_other_command_passes_for_a_jump_host(command: str, root: Path) -> None:
    (root / "ssh" / "config").write_text(f"Host box-0\n  ProxyCommand {command}\n")
    with pytest.raises(GpuprovError, match="line 2 is not gpuprov's"):
        opened(root)


def test_the_configuration_that_gpuprov_writes_is_taken_with_its_own_proxies_alone(root: Path) -> None:
    cluster = open_cluster(root.parent.parent / "cluster.yaml", sandbox=True)
    nodes = cluster.nodes()
    carry = {node.name: f"aws ssm start-session --target {node.id} --parameters portNumber=%p" for node in nodes}
    ssh_config.save(cluster.paths, nodes, ssh_pins.load_pins(cluster.paths), UBUNTU, carry)
    ssh_config.refuse_foreign(cluster.paths, carry.values)
    with pytest.raises(GpuprovError, match="is not gpuprov's"):
        opened(root)  # a sandbox has no proxies
    ssh_config.save(cluster.paths, nodes, ssh_pins.load_pins(cluster.paths), UBUNTU)
    opened(root)


def test_another_users_directory_or_one_that_others_write_to_is_refused(root: Path) -> None:
    opened(root)
    root.chmod(0o770)
    with pytest.raises(GpuprovError, match="others may write to it"):
        opened(root)
    root.chmod(0o700)
    root.rename(root.with_name("elsewhere"))
    root.symlink_to(root.with_name("elsewhere"))
    with pytest.raises(GpuprovError, match="it is a symbolic link"):
        opened(root)
    if os.geteuid() == 0:
        root.unlink()
        root.with_name("elsewhere").rename(root)
        os.chown(root, 65534, 65534)
        with pytest.raises(GpuprovError, match="belongs to another user"):
            opened(root)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory whose name holds a number, as those of ssh's sockets do."""
    with tempfile.TemporaryDirectory(prefix="gpuprov-77777-") as directory:
        yield Path(directory)


@pytest.mark.parametrize("run", ["77777", "0", "", "../x", "a" * 33, "gpuprov"])
def test_what_is_no_name_of_a_run_removes_and_ends_nothing(run: str, folder: Path) -> None:
    environment = {**os.environ, keeper.NAME: run}
    with subprocess.Popen(["sleep", "60"], env=environment) as child:
        assert keeper.end(run) == 0
        assert child.poll() is None
        child.kill()
    assert folder.exists()


@pytest.mark.parametrize("seconds", ["abc", "1e9", "-1", "nan", "inf", "9" * 400])
def test_a_process_is_not_waited_for_because_it_says_so(seconds: str) -> None:
    run = os.urandom(16).hex()
    environment = {**os.environ, keeper.NAME: run, keeper.MAY_FINISH: seconds}
    with subprocess.Popen(["sleep", "60"], env=environment, start_new_session=True) as child:
        # the kernel sets a new program's environment a moment after Popen has seen that it is started
        assert until(lambda: run.encode() in Path(f"/proc/{child.pid}/environ").read_bytes())
        began = time.monotonic()
        assert keeper.end(run) == 1
        assert child.wait(10) == -9
        assert time.monotonic() - began < 30


HOLDERS: dict[str, bytes] = {
    "brackets": b"[" * 200_000, "a long number": b'{"pid": 99999999999999999999, "command": "up"}', "a list": b"[]",
    "infinity": b'{"pid": 1e999, "command": "up"}', "zero": b'{"pid": 0, "command": "up"}', "text": b"\xff\xfe",
    "minus one": b'{"pid": -1, "command": "up"}', "no command": b'{"pid": 1}',
}  # fmt: skip


@pytest.mark.parametrize("name", HOLDERS)
def test_a_holder_that_is_none_is_nobody(name: str, root: Path) -> None:
    (root / "holder.json").write_bytes(HOLDERS[name])
    assert watch.at_work(root) == ""


def test_a_pipe_in_place_of_a_file_holds_nobody_up(root: Path) -> None:
    (root / "holder.json").unlink()
    os.mkfifo(root / "holder.json")
    assert watch.at_work(root) == ""
    run = root / "runs" / "20260101T000000"
    run.mkdir(parents=True)
    os.mkfifo(run / "events.jsonl")
    assert watch.EventsFile(root / "runs").new()[1] == []


EVENT = {"stage": "verify", "kind": "warning", "time": 1.0, "message": "hot", "node": "train-0"}
BAD: list[object] = [
    [], 5, None, {}, {**EVENT, "stage": []}, {**EVENT, "stage": "other"}, {**EVENT, "kind": 5}, {**EVENT, "message": 5},
    {**EVENT, "time": "x"}, {**EVENT, "time": 10**400}, {**EVENT, "node": ["x"], "unit": "task"},
    {**EVENT, "unit": "x"},
    {**EVENT, "total": "x", "done": "y"}, {**EVENT, "done": -1}, {**EVENT, "data": {"nodes": 5}}, {**EVENT, "data": 5},
    {**EVENT, "data": {"nodes": [5]}}, {**EVENT, "until": True},
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(BAD)))
def test_a_line_that_is_no_event_is_passed_over(number: int, root: Path) -> None:
    run = root / "runs" / "20260101T000000"
    run.mkdir(parents=True)
    lines = [json.dumps(BAD[number]).encode(), b"[" * 200_000, b'{"time": -Infinity}', json.dumps(EVENT).encode()]
    (run / "events.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    begun, events = watch.EventsFile(root / "runs").new()
    assert begun
    assert [event.message for event in events] == ["hot"]


def test_no_control_of_a_foreign_run_reaches_the_terminal(root: Path) -> None:
    run = root / "runs" / "20260101T000000"
    run.mkdir(parents=True)
    evil = "a\x1b]0;pwn\x07\x1b[2J"
    events = [
        {**EVENT, "node": evil, "message": evil},
        {**EVENT, "stage": "fleet", "kind": "started", "node": "", "total": 3, "data": {"nodes": [evil, "b"]}},
        {**EVENT, "stage": "fleet", "kind": "progress", "node": "b", "unit": "node", "done": 1},
        {**EVENT, "stage": "configure", "kind": "started"},
        {**EVENT, "stage": "configure", "kind": "progress", "node": evil, "unit": "task", "done": 1, "total": 2},
    ]
    (run / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    (root / "holder.json").write_text(json.dumps({"pid": os.getpid(), "command": evil, "since": 1.0}))
    argv = gpuprov("status", "cluster.yaml", "--watch")
    with Terminal(argv, cwd=root.parent.parent, lines=40, columns=140) as terminal:
        terminal.wait_for("configure", "waiting for")
        terminal.type(CTRL_C)
        assert terminal.end() == 0
        assert b"\x1b]0;pwn" not in terminal.raw
        assert b"\x1b[2J" not in terminal.raw
    view = RunView()
    assert view.rows(1.0, 3) == []


def test_a_login_is_not_ended_with_a_command_that_is_killed(root: Path, tmp_path: Path) -> None:
    """`gpuprov ssh` has a connection of its own: those that commands share go with a command that is killed."""
    fake = tmp_path / "bin" / "ssh"
    fake.parent.mkdir()
    fake.write_text('#!/bin/sh\necho "$@"\n')
    fake.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-m", "provisioner", "ssh", "cluster.yaml", "train-0", "true"], cwd=root.parent.parent,
        env={**os.environ, "PATH": f"{fake.parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "-o ControlPath=none" in done.stdout, done.stderr
