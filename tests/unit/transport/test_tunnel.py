"""Ports of this computer that lead to a node: which ones, and what is said of one that is in use."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from provisioner.cli import main
from provisioner.common.errors import GpuprovError
from provisioner.lifecycle import session
from provisioner.transport import tunnel
from tests.support.plans import cluster_spec

HEADS = {"prometheus": {"at": "train"}}


@contextmanager
def busy(port: int = 0) -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind((tunnel.LOOPBACK, port))
        listener.listen()
        yield int(listener.getsockname()[1])


def test_a_port_in_use_gives_another_one() -> None:
    with busy() as port:
        assert tunnel._free_ports([port])[0] != port
    assert tunnel._free_ports([port]) == (port,)


def test_a_chosen_port_in_use_is_named() -> None:
    with busy() as port:
        assert tunnel._these_ports(port + 1, 1) == (port + 1,)
        with pytest.raises(GpuprovError) as caught:
            tunnel._these_ports(port - 1, 2)
    assert caught.value.message == f"cannot listen on port {port} of this computer: Address already in use"
    assert "choose 2 free ports in a row" in str(caught.value.hint)


def opened(monkeypatch: pytest.MonkeyPatch, monitoring: dict[str, Any], local_ports: tuple[int, ...], *arguments: str,
           ) -> tuple[Any, ...]:  # fmt: skip
    """Ports of the node and the first local port that `monitoring open` asks a tunnel for."""
    spec = cluster_spec("m6i.large", monitoring=monitoring)
    node = SimpleNamespace(name="train-0", group="train")
    cluster = SimpleNamespace(spec=spec, nodes=lambda: [node], paths=SimpleNamespace(spec=Path("cluster.yaml")))
    requested: list[Any] = []

    def fake(_paths: object, _node: str, ports: list[int], first_port: int | None) -> Any:
        requested.extend((tuple(ports), first_port))
        return nullcontext(local_ports)

    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(session, "open_cluster", lambda *_, **__: cluster)
    monkeypatch.setattr(tunnel, "tunnel", fake)
    monkeypatch.setattr("threading.Event.wait", interrupted)
    assert main.run(["monitoring", "open", "cluster.yaml", *arguments]) == 0
    return tuple(requested)


def test_all_addresses_are_printed_and_a_port_in_use_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    requested = opened(monkeypatch, HEADS | {"grafana": True}, (40001, 9093, 3000))
    assert requested == ((9090, 9093, 3000), None)
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [
        "Prometheus of train-0: http://127.0.0.1:40001", "Alertmanager: http://127.0.0.1:9093",
        "Grafana: http://127.0.0.1:3000", "Ctrl-C ends the connection",
    ]  # fmt: skip
    assert printed.err == "port 9090 of this computer is in use; --port PORT chooses another\n"


def test_chosen_ports_are_used_and_grafana_is_asked_for_where_it_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert opened(monkeypatch, HEADS, (19090, 19091), "--port", "19090") == ((9090, 9093), 19090)
    printed = capsys.readouterr()
    assert (printed.err, "Grafana" in printed.out) == ("", False)
