"""What ssh says where it fails is what a person reads: a real ssh against sockets that refuse, close and are silent."""

from __future__ import annotations

import os
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from provisioner.common.errors import ProviderError
from provisioner.common.events import Events
from provisioner.rundir import fleet
from provisioner.rundir.fleet import Node
from provisioner.transport import host_keys, ssh_config, ssh_failure
from provisioner.verify.collect import collect
from provisioner.verify.request import ProbeRequest

CHANGED = """\
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
IT IS POSSIBLE THAT SOMEONE IS DOING SOMETHING NASTY!
Someone could be eavesdropping on you right now (man-in-the-middle attack)!
It is also possible that a host key has just been changed.
The fingerprint for the ED25519 key sent by the remote host is
SHA256:2RLbE3Ir3OuAXrFbMVvGzLMWJZtyPUCmPNz1PMVZgUA.
Please contact your system administrator.
Add correct host key in /home/ada/known_hosts to get rid of this message.
Offending ED25519 key in /home/ada/known_hosts:1
Host key for box-0.demo has changed and you have requested strict checking.
Host key verification failed.
"""


@contextmanager
def listening(answer: bytes | None) -> Iterator[int]:
    """A port of this machine: each connection gets `answer` and is closed, or is left open with None."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        connections: list[socket.socket] = []

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:  # the test has ended
                    return
                connections.append(connection)
                if answer is not None:
                    connection.sendall(answer)
                    connection.recv(1 << 16)
                    connection.close()

        threading.Thread(target=serve, daemon=True).start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            for connection in connections:
                connection.close()


def target(port: int) -> list[str]:
    options = ("BatchMode=yes", "LogLevel=ERROR", "StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null")
    return [
        "ssh",
        "-F",
        "/dev/null",
        *(argument for option in options for argument in ("-o", option)),
        "-p",
        str(port),
        "127.0.0.1",
    ]


def probe_error(argv: list[str]) -> str:
    return collect({"box-0": argv}, ProbeRequest({"dmesg.txt": 5.0}), events=Events())["box-0"].error or ""


def test_a_port_where_nobody_listens() -> None:
    with listening(None) as port:
        pass
    assert probe_error(target(port)) == (
        f"ssh failed: ssh: connect to host 127.0.0.1 port {port}: Connection refused"
    )  # fmt: skip


def test_a_connection_that_is_closed_is_no_silence() -> None:
    """With LogLevel ERROR ssh says nothing of it."""
    with listening(b"SSH-2.0-test\r\n") as port:
        assert probe_error(target(port)) == f"ssh failed: Connection closed by 127.0.0.1 port {port}"


def test_a_server_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh_failure, "OPTIONS", ("BatchMode=yes", "ConnectTimeout=1"))
    with listening(None) as port:
        assert "timed out" in ssh_failure.explain(target(port), "")


def test_a_changed_host_key_is_a_sentence() -> None:
    text = ssh_failure.error_text(CHANGED)
    assert text == (
        "Host key verification failed: it shows another one (SHA256:2RLbE3Ir3OuAXrFbMVvGzLMWJZtyPUCmPNz1PMVZgUA) than "
        "is pinned"
    )


def test_what_was_said_is_one_bounded_line_without_controls() -> None:
    assert ssh_failure.error_text("\x1b[2Jubuntu@192.0.2.7: Permission denied (publickey).\r\n") == (
        "\\x1b[2Jubuntu@192.0.2.7: Permission denied (publickey)."
    )
    long = ssh_failure.error_text("a\n" + "x" * 10_000 + "\nend\n")
    assert (len(long), long[-3:]) == (ssh_failure.CHARACTERS, "end")


def test_ssh_is_asked_again_only_where_it_said_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "ssh"
    script.write_text('#!/bin/sh\necho "$@" >>"$0.log"\n[ ! -e "$0.broken" ] || { echo broken >&2; exit 255; }\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert ssh_failure.explain(["ssh", "box-0"], "Connection reset by peer\n") == "Connection reset by peer"
    assert not (tmp_path / "ssh.log").exists()
    assert ssh_failure.explain(["ssh", "box-0"], "") == ssh_failure.BROKEN
    (tmp_path / "ssh.broken").touch()
    assert ssh_failure.explain(["ssh", "box-0"], " \n") == "broken"
    assert "ControlPath=none" in (tmp_path / "ssh.log").read_text()


@pytest.mark.parametrize(
    ("argv", "status", "is_ssh_failure"),
    [(["ssh", "x"], 255, True), (["/usr/bin/ssh", "x"], 255, True), (["ssh", "x"], 1, False), (["sh"], 255, False)],
)
def test_which_status_is_its_own(argv: list[str], status: int, *, is_ssh_failure: bool) -> None:
    assert ssh_failure.is_own(argv, status) is is_ssh_failure


@pytest.fixture
def folder() -> Iterator[Path]:
    """One whose path leaves room for a socket's name."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        yield Path(name)


def through(port: int, folder: Path, *, config: bool = False) -> list[str]:
    """An ssh to a node behind a jump host at a port of this machine, whose connection would be shared, as gpuprov's."""
    jump_config = folder / "jump"
    jump_config.write_text("UserKnownHostsFile /dev/null\nStrictHostKeyChecking no\nIdentityFile none\n")
    proxy_command = ssh_config.jump(f"me@127.0.0.1:{port}", "10.0.0.5", config=jump_config if config else None)
    file = folder / "config"
    file.write_text(
        f"Host box-0\n  HostName 10.0.0.5\n  ProxyCommand {proxy_command}\nHost *\n  BatchMode yes\n  LogLevel ERROR\n"
        f"  ControlMaster auto\n  ControlPersist 5s\n  ControlPath {folder}/%C\n"
    )
    return ["ssh", "-F", str(file), "box-0"]


def test_a_jump_host_that_does_not_run_is_named(folder: Path) -> None:
    """The ssh to it writes to /dev/null there: what is left says nothing of a jump host."""
    with listening(None) as port:
        pass
    reason = f"jump host me@127.0.0.1:{port} is not reached: ssh: connect to host 127.0.0.1 port {port}: "
    reason += "Connection refused; "
    assert probe_error(through(port, folder)) == (
        f"ssh failed: {reason}does `ssh -p {port} me@127.0.0.1 true` work from here?"
    )
    assert probe_error(through(port, folder, config=True)) == f"ssh failed: {reason}{ssh_failure.SIMULATED}"


def test_a_jump_host_that_closes_connections_is_named(folder: Path) -> None:
    with listening(b"SSH-2.0-test\r\n") as port:
        assert f"jump host me@127.0.0.1:{port} is not reached: Connection closed by 127.0.0.1 port {port}" in (
            probe_error(through(port, folder, config=True))
        )


def test_a_first_contact_names_the_jump_host() -> None:
    with listening(None) as port:
        pass
    proxy_command = ssh_config.jump(f"me@127.0.0.1:{port}", "10.0.0.5")
    assert host_keys.scan_through(proxy_command, "10.0.0.5") == ""
    message = (
        f"jump host me@127.0.0.1:{port} is not reached: ssh: connect to host 127.0.0.1 port {port}: Connection refused"
    )
    assert host_keys.explain_through(proxy_command, "10.0.0.5").startswith(message)
    node = Node("box-0", "box", "here", "m", "i-0", "", "10.0.0.5", "10.0.0.5")
    with pytest.raises(ProviderError, match=r"jump host me@127\.0\.0\.1:[0-9]+ is not reached"):
        fleet._first_key(node, fleet.Patience(0), lambda _: None, proxy_command)


WAY = "ssh -o BatchMode=yes -W [10.0.0.5]:22 me@bastion"
ENDED = "kex_exchange_identification: Connection closed by remote host\nConnection closed by UNKNOWN port 65535\n"


@pytest.mark.parametrize(
    ("command", "output", "text"),
    [
        (
            WAY, f"channel 0: open failed: connect failed: Connection refused\r\nstdio forwarding failed\r\n{ENDED}",
            "jump host me@bastion does not connect to the node: channel 0: open failed: connect failed: "
            "Connection refused / stdio forwarding failed",
        ),
        (
            WAY, f"me@bastion: Permission denied (publickey).\r\n{ENDED}",
            "jump host me@bastion is not reached: me@bastion: Permission denied (publickey).; "
            "does `ssh me@bastion true` work from here?",
        ),
        (WAY, CHANGED + ENDED, "jump host me@bastion is not reached: Host key verification failed: it shows another "
         "one (SHA256:2RLbE3Ir3OuAXrFbMVvGzLMWJZtyPUCmPNz1PMVZgUA) than is pinned; does `ssh me@bastion true` work "
         "from here?"),
        (WAY, ENDED, ""),  # the node's sshd closed it: the ssh to the jump host said nothing
        (WAY, "ubuntu@10.0.0.5: Permission denied (publickey).\n", ""),
        ("aws ssm start-session --target i-0ab", f"An error occurred (TargetNotConnected)\n{ENDED}", ""),
        ("unclosed 'quote", f"x\n{ENDED}", ""),
    ],
)  # fmt: skip
def test_whose_fault_it_is(command: str, output: str, text: str) -> None:
    assert ssh_failure.explain_carried(command, output) == text
