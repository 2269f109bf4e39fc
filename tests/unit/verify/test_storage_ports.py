"""Ports of a DGX for storage and management: told apart from those for training by where they are plugged in."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from provisioner.verify.pytest_runner import Case, Judged
from tests.support.healthy_bundle import bundle, expected, nth
from tests.support.judging import judge

DGX = "dgx-h100"
STORAGE = {"mlx5_1": "0000:29:00.0", "mlx5_2": "0000:29:00.1", "mlx5_7": "0000:aa:00.0", "mlx5_8": "0000:aa:00.1"}
"""The dual-port cards of slots 1 and 2 (DGX H100/H200 User Guide, network ports). Port 1 of each is InfiniBand here,
port 2 Ethernet; a healthy DGX H100 whose storage is elsewhere shows all four down."""
Texts = dict[str, Any]


def storage(texts: Texts, *, up: bool = True, rate: int = 400) -> None:
    """Give the machine its storage cards: InfiniBand in partitions of their own, and Ethernet that is down."""
    document = json.loads(texts["rdma.json"])
    block = str(texts["ibstat.txt"]).split("CA '")[1]
    state = ("Active", "LinkUp") if up else ("Down", "Disabled")
    for name, address in STORAGE.items():
        device = json.loads(json.dumps(document["devices"]["mlx5_0"])) | {"pci": address}
        ethernet = address.endswith(".1")
        port_state, physical = ("Down", "Disabled") if ethernet else state
        device["ports"]["1"] |= {
            "state": "4: ACTIVE" if port_state == "Active" else "1: DOWN",
            "phys_state": "5: LinkUp" if port_state == "Active" else "3: Disabled",
            "rate": f"{rate} Gb/sec (4X)",
            "link_layer": "Ethernet" if ethernet else "InfiniBand",
            "pkeys": ["0x8044", "0x7fff"],
        }
        document["devices"][name] = device
        document["uverbs"].append(name)
        body = block.replace("mlx5_0", name, 1).replace("State: Active", f"State: {port_state}")
        body = body.replace("Physical state: LinkUp", f"Physical state: {physical}")
        body = re.sub(r"Rate: \d+", f"Rate: {rate}", body)
        texts["ibstat.txt"] += "CA '" + (body.replace("InfiniBand", "Ethernet") if ethernet else body)
    texts["rdma.json"] = json.dumps(document)


def down(texts: Texts) -> None:
    storage(texts, up=False)


def slower(texts: Texts) -> None:
    storage(texts, rate=200)


def lost(texts: Texts) -> None:
    """The card of GPU 7 is gone, the last one: every other name stays."""
    storage(texts)
    document = json.loads(texts["rdma.json"])
    del document["devices"]["mlx5_11"]
    texts["rdma.json"] = json.dumps(document)
    texts["ibstat.txt"] = re.sub(r"CA 'mlx5_11'(?:(?!CA ').)*", "", texts["ibstat.txt"], flags=re.S)


def renamed(texts: Texts) -> None:
    """The card of GPU 0 is gone, the first one: the kernel counts on, and all others have another name."""
    storage(texts)
    document = json.loads(texts["rdma.json"])
    del document["devices"]["mlx5_0"]
    devices = sorted(document["devices"].items(), key=lambda item: item[1]["pci"])
    names = {old: f"mlx5_{number}" for number, (old, _) in enumerate(devices)}
    document["devices"] = {names[old]: row for old, row in devices}
    document["uverbs"] = list(names.values())
    texts["rdma.json"] = json.dumps(document)
    blocks = {m[1]: m[2] for m in re.finditer(r"CA '(mlx5_\d+)'((?:(?!CA ').)*)", texts["ibstat.txt"], flags=re.S)}
    texts["ibstat.txt"] = "".join(f"CA '{new}'{blocks[old]}" for old, new in names.items())


def without_addresses(breaks: Callable[[Texts], None]) -> Callable[[Texts], None]:
    """As an older probe saw it."""

    def change(texts: Texts) -> None:
        breaks(texts)
        texts["rdma.json"] = re.sub(r', "pci": "[^"]*"', "", texts["rdma.json"])

    return change


NODES: dict[str, Callable[[Texts], None]] = {
    "n0": storage, "n1": storage, "n2": storage, "n3": storage, "down": down, "slower": slower, "lost": lost,
    "renamed": renamed, "older": without_addresses(storage),
}  # fmt: skip


@pytest.fixture(scope="module")
def judged() -> dict[str, Judged]:
    cases = {}
    for number, (name, breaks) in enumerate(NODES.items()):
        texts: Texts = dict(nth(DGX, number))
        breaks(texts)
        cases[name] = Case(bundle(texts), expected(DGX, "quick"), group="train")
    alone: Texts = dict(nth(DGX, 0))
    return judge({**cases, **{f"bare{i}": Case(bundle(alone), expected(DGX, "quick"), group="bare") for i in range(3)}})


def failing(verdict: Judged) -> set[str]:
    ours = ("ib.", "rdma.", "fleet.storage_ports", "gpu.nic_affinity")
    return {check.id for check in verdict.checks if check.status == "fail" and check.id.startswith(ours)}


def status_and_message(verdict: Judged, id: str) -> str:
    return next(f"{check.status}: {check.message}" for check in verdict.checks if check.id == id)


@pytest.mark.parametrize("name", ["n0", "older", "bare0"])
def test_storage_ports_are_not_judged_as_those_for_training(judged: dict[str, Judged], name: str) -> None:
    """Other partitions, Ethernet, and down, as nothing for training may be."""
    assert failing(judged[name]) == set()


@pytest.mark.parametrize("name", ["down", "slower"])
def test_storage_that_is_down_or_slower_is_told_as_storage(judged: dict[str, Judged], name: str) -> None:
    assert failing(judged[name]) == {"fleet.storage_ports"}
    expected_ports = {"down": "none of them", "slower": "2 x InfiniBand 200 Gbit/s"}[name]
    assert status_and_message(judged[name], "fleet.storage_ports").startswith(
        f"fail: ports for storage up {expected_ports}; "
    )


def test_storage_does_not_stand_in_for_a_lost_card(judged: dict[str, Judged]) -> None:
    """Nine InfiniBand ports are up at full rate, seven of them for training."""
    assert status_and_message(judged["lost"], "ib.ports") == "fail: no card at 0000:dc:00.0 (GPU 7)"
    assert status_and_message(judged["renamed"], "ib.ports") == "fail: no card at 0000:18:00.0 (GPU 0)"


def test_machines_without_such_ports_are_not_compared(judged: dict[str, Judged]) -> None:
    assert status_and_message(judged["bare0"], "fleet.storage_ports").startswith("skip")
