"""The container that stands for a site's jump hosts: its accounts and ports, what its sshd allows, when it is lost."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from provisioner.common.errors import ProviderError
from provisioner.machines.providers.base import Place
from provisioner.machines.providers.sandbox.provider import Sandbox
from provisioner.sandbox import containers, jump_host
from provisioner.sandbox.containers import Container
from provisioner.sandbox.node import jump
from provisioner.spec.site import JumpHost, Site

WORKSPACE = Path("/ws/lab.sandbox/sites/east")
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBastion root@jump\n"


def container(role: str, state: str = "running", node: str = "") -> Container:
    return Container("i", f"gpuprov-lab.{role}.250", "lab", node, str(WORKSPACE), role, 250, state)


def has(monkeypatch: pytest.MonkeyPatch, *listed: Container) -> None:
    monkeypatch.setattr(containers, "list_containers", lambda *_, **__: list(listed))


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("bastion", ("", "bastion", 22)), ("me@bastion.example.com", ("me", "bastion.example.com", 22)),
        ("bastion:2222", ("", "bastion", 2222)), ("me@10.0.0.9:22022", ("me", "10.0.0.9", 22022)),
    ],
)  # fmt: skip
def test_what_cluster_yaml_says_of_a_jump_host(text: str, parsed: tuple[str, str, int]) -> None:
    assert JumpHost.parse(text) == parsed


def test_one_container_has_every_login_name_and_port() -> None:
    assert jump_host.module_input(["ops@bastion.lab", "gate:2222", "ops@gate"]) == {
        "users": ["jump", "ops"], "ports": [22, 2222],
    }  # fmt: skip


def test_its_sshd_carries_connections_and_does_nothing_else() -> None:
    lines = jump.config([22, 2222]).splitlines()
    assert lines[:2] == ["Port 22", "Port 2222"]
    settings = dict(line.split(" ", 1) for line in lines)
    refused = {"MaxSessions": "0", "AuthenticationMethods": "publickey", "PermitTTY": "no"}
    refused |= {"AllowTcpForwarding": "local", "AllowAgentForwarding": "no", "AllowStreamLocalForwarding": "no"}
    refused |= {"PermitTunnel": "no", "X11Forwarding": "no"}
    assert settings.items() >= refused.items()


@pytest.mark.parametrize(
    ("there", "message", "hint"),
    [
        ([container("mirror")], "the simulated jump host me@bastion does not exist", "`gpuprov up` makes it"),
        ([container("jump", "exited")], "the simulated jump host me@bastion is exited, not running", "makes it again"),
        ([container("jump")], "does not answer on 127.77.250.3 port 22: Connection refused", "podman logs"),
    ],
)
def test_one_that_does_not_run_is_named(
    there: list[Container], message: str, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    has(monkeypatch, *there)
    monkeypatch.setattr(jump_host, "START_S", 0)

    def refused(*_: object, **__: object) -> None:
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr(socket, "create_connection", refused)
    with pytest.raises(ProviderError) as error:
        jump_host.address_and_key(WORKSPACE, ["me@bastion"])
    assert message in error.value.message
    assert hint in error.value.hint


def test_its_key_is_read_by_podman_once_it_greets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever key is shown at the address: nobody asks there."""
    commands = []

    def execute(*arguments: str, **_: object) -> str:
        commands.append(arguments)
        return KEY

    monkeypatch.setattr(containers, "execute", execute)
    has(monkeypatch, container("mirror"), container("jump"))
    with socket.create_server(("127.0.0.1", 0)) as server:
        real, port = socket.create_connection, server.getsockname()[1]
        monkeypatch.setattr(socket, "create_connection", lambda _, **options: real(("127.0.0.1", port), **options))

        def greet() -> None:
            for greeting in (b"HTTP", b"SSH-2.0-x\r\n"):
                connection, _ = server.accept()
                connection.sendall(greeting)
                connection.close()

        threading.Thread(target=greet, daemon=True).start()
        address = jump_host.address_and_key(WORKSPACE, ["me@bastion"])
    assert address == ("127.77.250.3", KEY.removesuffix(" root@jump\n"))
    assert commands == [("gpuprov-lab.jump.250", "cat", "/etc/ssh/ssh_host_ed25519_key.pub")]


@pytest.mark.parametrize(
    ("jumps", "there", "lost"),
    [
        (True, [container("mirror"), container("jump")], []),
        (True, [container("mirror"), container("jump", "exited")], ["module.site.terraform_data.jump[0]"]),
        (True, [container("mirror")], ["module.site.terraform_data.jump[0]"]),
        (False, [container("mirror")], []),
        (False, [], ["module.site.terraform_data.mirror"]),
    ],
)
def test_one_that_does_not_run_is_made_again(
    jumps: bool, there: list[Container], lost: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    node = container("node", node="train-0")
    has(monkeypatch, node, *there)
    settings = Site(provider="aws", jump="me@bastion" if jumps else None)
    module = Sandbox(Place("lab", "east", settings, tmp_path)).module
    assert module is not None
    assert module.lost(["train-0"]) == lost
    assert set(lost) <= set(module.shared)
