"""The machines as they are: outputs against the plan, what is remembered, the inventory, waiting for sshd."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from provisioner.common.errors import GpuprovError, ProviderError
from provisioner.common.events import Event, Events
from provisioner.common.paths import ClusterPaths, private_dir
from provisioner.rundir import fleet
from provisioner.rundir.fleet import Node
from provisioner.transport import host_keys, ssh_pins
from tests.support import plans
from tests.support.logins import UBUNTU

NODE = Node("train-0", "train", "here", "p4d.24xlarge", "i-0", "us-east-1a", "203.0.113.5", "10.0.0.5")


def output(**values: Any) -> dict[str, Any]:
    """One node as a module gives it."""
    defaults = {"id": "i-0", "group": "train", "zone": "us-east-1a", "machine": "p4d.24xlarge"}
    return {**defaults, "private_ip": "10.0.0.5", "public_ip": "203.0.113.5", **values}


@pytest.fixture
def paths(tmp_path: Path) -> ClusterPaths:
    cluster_paths = ClusterPaths(tmp_path / "cluster.yaml", "test", sandbox=True)
    private_dir(cluster_paths.root)
    return cluster_paths


@pytest.fixture(scope="module")
def plan() -> Any:
    return plans.plan(plans.cluster_spec("p4d.24xlarge", count=2))


def test_outputs_become_nodes(plan: Any) -> None:
    nodes = fleet.from_outputs(plan, "here", {"train-1": output(id="i-1", public_ip=None), "train-0": output()})
    assert nodes == [
        NODE,
        replace(NODE, name="train-1", id="i-1", address="10.0.0.5"),
    ]


def test_other_outputs_than_planned_are_an_error_that_names_the_nodes(plan: Any) -> None:
    with pytest.raises(ProviderError) as caught:
        fleet.from_outputs(plan, "here", {"train-0": output(), "ghost-7": output()})
    assert "train-1" in caught.value.message
    assert "ghost-7" in caught.value.message
    assert "train-0" not in caught.value.message
    assert caught.value.exit_code == 3


def test_no_outputs_at_all_are_an_error(plan: Any) -> None:
    with pytest.raises(ProviderError, match=r"missing train-0, train-1, unknown none"):
        fleet.from_outputs(plan, "here", {})


def test_nodes_are_remembered(paths: ClusterPaths) -> None:
    assert fleet.load(paths) == []
    fleet.save(paths, [NODE, replace(NODE, name="train-1")])
    assert fleet.load(paths) == [NODE, replace(NODE, name="train-1")]
    assert paths.nodes.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "7",
        "null",
        '["train-0"]',
        '[{"name": "x"}]',
        '[{"nme": "x"}]',
        "[[]]",
        "\x00",
        '{"train-0": {}}',
        "\udcff",
    ],
    ids=repr,
)
def test_damaged_nodes_are_an_error_with_a_remedy(text: str, paths: ClusterPaths) -> None:
    paths.nodes.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(GpuprovError) as caught:
        fleet.load(paths)
    assert caught.value.where == str(paths.nodes)
    assert "remove it" in caught.value.hint


Answer = Callable[[socket.socket], None]


@pytest.fixture
def serve() -> Iterator[Callable[[Answer], int]]:
    """Starts servers on the loopback that do to every connection what they are told; gives the port."""
    open_sockets: list[socket.socket] = []

    def start(answer: Answer) -> int:
        listener = socket.create_server(("127.0.0.1", 0))
        open_sockets.append(listener)

        def loop() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                open_sockets.append(connection)
                answer(connection)

        threading.Thread(target=loop, daemon=True).start()
        return int(listener.getsockname()[1])

    yield start
    for opened in open_sockets:
        opened.close()


def wait(port: int, seconds: float) -> str | None:
    return fleet._wait_for_port("127.0.0.1", fleet.Patience(time.monotonic() + seconds), port)


def test_a_greeting_is_waited_for(serve: Callable[[Answer], int]) -> None:
    assert wait(serve(lambda c: c.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")), 30) is None


def test_a_greeting_in_pieces_is_a_greeting(serve: Callable[[Answer], int]) -> None:
    def slowly(connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(OSError):  # the other side has heard enough
            for piece in (b"S", b"SH", b"-2.0-x\r\n"):
                connection.sendall(piece)
                time.sleep(0.05)

    assert wait(serve(slowly), 0) is None


def test_another_service_is_not_ssh(serve: Callable[[Answer], int]) -> None:
    assert wait(serve(lambda c: c.sendall(b"220 mail\r\n")), 0) == "it does not greet like ssh"


def test_a_connection_that_is_closed_at_once_is_not_ssh(serve: Callable[[Answer], int]) -> None:
    assert wait(serve(lambda c: c.close()), 0) == "it does not greet like ssh"


def test_a_server_that_says_nothing_is_given_up(
    serve: Callable[[Answer], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = socket.create_connection
    monkeypatch.setattr(socket, "create_connection", lambda address, timeout: real(address, timeout=0.2))
    assert "timed out" in (wait(serve(lambda c: None), 0) or "")


def test_a_server_that_comes_up_late_is_found(serve: Callable[[Answer], int]) -> None:
    tries: list[int] = []

    def third_time(connection: socket.socket) -> None:
        tries.append(1)
        if len(tries) >= 3:
            connection.sendall(b"SSH-2.0-x\r\n")
        connection.close()

    assert wait(serve(third_time), 60) is None
    assert len(tries) == 3


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert "refused" in (wait(port, 0) or "")


def test_a_new_machine_is_pinned_and_a_known_one_is_not_asked_again(
    paths: ClusterPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {"203.0.113.5": "ssh-ed25519 AAAAC3NzaC1s", "203.0.113.6": "ssh-ed25519 AAAAC3NzaC1t"}
    scanned: list[str] = []
    monkeypatch.setattr(fleet, "_wait_for_port", lambda *_: None)
    monkeypatch.setattr(host_keys, "scan", lambda address, _: scanned.append(address) or keys[address])
    private_dir(paths.ssh)
    first, second = NODE, replace(NODE, name="train-1", id="i-1", address="203.0.113.6")
    received_events: list[Event] = []
    fleet.contact(paths, [first, second], UBUNTU, Events(received_events.append))
    assert sorted(scanned) == ["203.0.113.5", "203.0.113.6"]
    assert [e.message.split(":")[0] for e in received_events] == ["host key pinned", "host key pinned"]
    scanned.clear()
    keys["203.0.113.5"] = "ssh-ed25519 AAAAC3Nzimpostor"
    fleet.contact(paths, [first, second], UBUNTU, Events())
    assert scanned == []
    assert "impostor" not in paths.known_hosts.read_text()
    replaced = replace(first, id="i-9")
    fleet.contact(paths, [replaced], UBUNTU, Events())
    assert scanned == ["203.0.113.5"]
    assert paths.known_hosts.read_text() == "train-0.test ssh-ed25519 AAAAC3Nzimpostor\n"


def test_only_those_that_matter_are_waited_for(paths: ClusterPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[str] = []
    monkeypatch.setattr(fleet, "_wait_for_port", lambda address, *_: waited.append(address))
    monkeypatch.setattr(host_keys, "scan", lambda *_: "ssh-ed25519 AAAAC3NzaC1s")
    private_dir(paths.ssh)
    nodes = [NODE, replace(NODE, name="train-1", id="i-1", address="203.0.113.6")]
    fleet.contact(paths, nodes, UBUNTU, Events())
    waited.clear()
    fleet.contact(paths, nodes, UBUNTU, Events(), only=["train-1"])
    assert waited == ["203.0.113.6"]
    assert len(paths.known_hosts.read_text().splitlines()) == 2


def test_ctrl_c_ends_the_waiting_for_all(paths: ClusterPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    """One machine answers, the other never will, and a person gives up: without that it would wait for an hour."""

    def answers(address: str, patience: fleet.Patience, port: int) -> str | None:
        while address == "203.0.113.6" and not patience.over:
            patience.pause(0.01)
        return None

    def interrupted(event: Event) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(fleet, "_wait_for_port", answers)
    monkeypatch.setattr(host_keys, "scan", lambda *_: "ssh-ed25519 AAAAC3NzaC1s")
    private_dir(paths.ssh)
    nodes = [NODE, replace(NODE, name="train-1", id="i-1", address="203.0.113.6")]
    with pytest.raises(KeyboardInterrupt):
        fleet.contact(paths, nodes, UBUNTU, Events(interrupted), wait_s=3600)


def test_a_machine_without_ssh_is_named(paths: ClusterPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "_wait_for_port", lambda *_: "no route to host")
    private_dir(paths.ssh)
    failed = fleet.contact(paths, [NODE], UBUNTU, Events(), wait_s=0)
    assert failed["train-0"].where == "train-0"
    assert "no route to host" in failed["train-0"].message


def test_every_field_of_a_node_is_remembered(paths: ClusterPaths) -> None:
    fleet.save(paths, [NODE])
    assert json.loads(paths.nodes.read_text()) == json.loads(json.dumps([asdict(NODE)]))


KEY, OTHER = f"ssh-ed25519 {'A' * 68}", f"ssh-ed25519 {'B' * 68}"


def test_a_key_that_the_console_says_too_is_told_so(paths: ClusterPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "_wait_for_port", lambda *_: None)
    monkeypatch.setattr(host_keys, "scan", lambda *_: KEY)
    private_dir(paths.ssh)
    received_events: list[Event] = []
    fleet.contact(paths, [NODE], UBUNTU, Events(received_events.append), vouched=lambda _: f"{KEY} root@ip-10-0-0-1")
    assert received_events[0].message.endswith("as its console says")


@pytest.mark.parametrize(
    ("listed", "shown_there", "refused"),
    [
        (["train-0", "train-1"], OTHER, True),
        (["train-0", "train-1"], "", True),
        (["train-1"], KEY, False),
        ([], OTHER, False),
    ],
    ids=["moved", "silent", "copies of one image", "machines of a cloud"],
)
def test_the_key_of_another_host_is_pinned_only_where_that_one_shows_it_too(
    paths: ClusterPaths, monkeypatch: pytest.MonkeyPatch, listed: list[str], shown_there: str, refused: bool
) -> None:
    monkeypatch.setattr(fleet, "_wait_for_port", lambda *_: None)
    keys = {"203.0.113.5": KEY}
    monkeypatch.setattr(host_keys, "scan", lambda address, _: keys[address])
    private_dir(paths.ssh)
    fleet.contact(paths, [NODE], UBUNTU, Events(), listed=listed)
    keys |= {"203.0.113.5": shown_there, "203.0.113.6": KEY}
    new = replace(NODE, name="train-1", id="i-1", address="203.0.113.6")
    failed = fleet.contact(paths, [NODE, new], UBUNTU, Events(), listed=listed)
    assert list(failed) == ["train-1"] * refused
    assert ssh_pins.load_pins(paths) == {"train-0": (NODE.id, KEY)} | ({} if refused else {"train-1": ("i-1", KEY)})
    if refused:
        assert failed["train-1"].message.endswith(f"and 203.0.113.5 ({NODE.id}) does not show it")


def test_another_key_than_the_console_says_is_not_pinned(paths: ClusterPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "_wait_for_port", lambda *_: None)
    monkeypatch.setattr(host_keys, "scan", lambda *_: OTHER)
    private_dir(paths.ssh)
    failed = fleet.contact(paths, [NODE], UBUNTU, Events(), vouched=lambda _: KEY)
    assert "console says" in failed["train-0"].message
    assert host_keys.fingerprint(OTHER) in failed["train-0"].message
    assert (ssh_pins.load_pins(paths), paths.known_hosts.read_text()) == ({}, "")
