"""ib_write_bw as the probe runs it: the simulated tool as programs that find each other over TCP."""

from __future__ import annotations

import json
import random
import socket
import sys
import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from provisioner.verify.parsers.perftest import cards, own_cards_answer, parse
from provisioner.verify.probe import load as probe_load
from provisioner.verify.probe import perftest, runner

RATES = {"mlx5_2": (200, 1), "mlx5_10": (200, 0.4)}
TOOL = """#!{python}
import sys
sys.path.insert(0, {source!r})
from provisioner.sandbox.node import perftest, state
state.hardware = lambda: {machine!r}
sys.exit(perftest.ib_write_bw(sys.argv[1:], ""))
"""
WANTED = {"layer": "InfiniBand", "rate_gbps": 200}


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two cards for training, one that is down and one for storage."""
    nics = [
        {"name": name, "state": "Active", "rate_gbps": rate, "speed": speed, "link_layer": "InfiniBand"}
        for name, (rate, speed) in RATES.items()
    ]
    for name, *contents in (("mlx5_10", "4: ACTIVE", "200 Gb/sec (4X HDR)", "InfiniBand"),
                        ("mlx5_2", "4: ACTIVE", "200 Gb/sec (4X HDR)", "InfiniBand"),
                        ("mlx5_3", "1: DOWN", "200 Gb/sec (4X HDR)", "InfiniBand"),
                        ("mlx5_4", "4: ACTIVE", "100 Gb/sec (4X EDR)", "Ethernet")):  # fmt: skip
        folder = tmp_path / "verbs" / name / "ports/1"
        folder.mkdir(parents=True)
        for file, text in zip(("state", "rate", "link_layer"), contents, strict=True):
            (folder / file).write_text(text + "\n", encoding="utf-8")
    source = str(Path(perftest.__file__).parents[3])
    tool = TOOL.format(python=sys.executable, source=source, machine={"nics": nics})
    (tmp_path / "ib_write_bw").write_text(tool, encoding="utf-8")
    (tmp_path / "ib_write_bw").chmod(0o755)
    monkeypatch.setattr(perftest, "VERBS", str(tmp_path / "verbs"))
    monkeypatch.setattr(perftest, "TCP_PORT", free())
    monkeypatch.setattr(perftest, "occupied", lambda vendor: [] if vendor == "nvidia" else None)
    for module in (runner, probe_load, perftest):
        monkeypatch.setattr(module, "PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


def free(count: int = 4) -> int:
    """The first of `count` free ports in a row, below those that the kernel gives to clients (32768 and up)."""
    for first in random.SystemRandom().sample(range(20000, 32000, count), 50):
        with ExitStack() as taken, suppress(OSError):
            for port in range(first, first + count):
                taken.enter_context(socket.create_server(("", port)))
            return first
    raise AssertionError("no free ports")


def ask(vendor: str = "nvidia", **load: Any) -> str:
    return str(perftest.loopback(20.0, {"load": {"vendor": vendor, "rails": WANTED, **load}})["text"])


def test_each_card_with_itself(node: Path) -> None:
    parsed = parse(ask())
    assert [(card.device, card.gbps) for card in parsed.cards] == [("mlx5_2", 197.0), ("mlx5_10", 78.8)]
    (node / "ib_write_bw").unlink()
    assert parse(ask()).why == "ib_write_bw is not installed"
    assert parse(ask("amd")).state == "absent"


def test_each_card_with_another_one_of_the_node(node: Path) -> None:
    """Through cable and switch: the slower one of two decides."""
    text = str(perftest.own_cards(20.0, {"load": {"vendor": "nvidia", "rails": WANTED}})["text"])
    parsed = own_cards_answer(text)
    pairs = [(pair.sender, pair.receiver, pair.gbps) for pair in parsed.pairs]
    assert pairs == [("mlx5_2", "mlx5_10", 78.8), ("mlx5_10", "mlx5_2", 78.8)]
    (node / "verbs/mlx5_10/ports/1/state").write_text("1: DOWN\n")
    answer = perftest.own_cards(20.0, {"load": {"vendor": "nvidia", "rails": WANTED}})
    assert own_cards_answer(str(answer["text"])).pairs == ()
    assert own_cards_answer(str(perftest.own_cards(20.0, {"load": {"vendor": "amd"}})["text"])).state == "absent"


def test_a_job_keeps_own_cards_from_being_worked(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perftest, "occupied", lambda _: [{"pid": 7, "name": "python3"}])
    parsed = own_cards_answer(str(perftest.own_cards(20.0, {"load": {"vendor": "nvidia", "rails": WANTED}})["text"]))
    assert (parsed.state, parsed.why) == ("busy", "a job is using the GPUs: python3 (pid 7)")


def test_storage_ports_are_not_worked(node: Path) -> None:
    """mlx5_10 is of the right kind and rate, and stands where none of the machine's ports for training does."""
    for name, address in (("mlx5_2", "0000:18:00.0"), ("mlx5_10", "0000:aa:00.0")):
        (node / "pci" / address).mkdir(parents=True)
        (node / "verbs" / name / "device").symlink_to(node / "pci" / address)
    worked = {
        addresses: [card.device for card in parse(ask(rails={**WANTED, "pci": addresses.split()})).cards]
        for addresses in ("0000:18:00.0 0000:40:00.0", "0000:11:00.0 0000:12:00.0")
    }
    assert worked == {
        "0000:18:00.0 0000:40:00.0": ["mlx5_2"],
        "0000:11:00.0 0000:12:00.0": ["mlx5_2", "mlx5_10"],  # another layout: nothing is told apart
    }


def test_the_cards_of_two_nodes(node: Path) -> None:
    """Both halves on this computer: the first serves, the second asks and has the rates."""
    part = {"nodes": 2, "address": "127.0.0.1", "port": free()}
    requests = [{"rails": WANTED, "together": {**part, "node": number}} for number in (0, 1)]
    first = threading.Thread(target=perftest.rails, args=(requests[0],), daemon=True)
    first.start()
    rows = perftest.rails(requests[1])
    first.join(10)
    assert [card.gbps for card in cards(json.loads(json.dumps(rows)))] == [197.0, 78.8]
    assert perftest.rails({"rails": WANTED, "together": {**part, "nodes": 3, "node": 1}}) is None
