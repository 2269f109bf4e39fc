"""How RDMA is set up: each check red by one changed output, green without."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from provisioner.catalog import load
from provisioner.verify.checks.rdma_setup import MODULES, OFED_KERNEL
from provisioner.verify.expectations import HEALTH_TIMER, Expected
from provisioner.verify.parsers import ibv_devinfo
from provisioner.verify.pytest_runner import Case, Judged
from tests.support.healthy_bundle import bundle, capture, expected, nth
from tests.support.healthy_perftest import card
from tests.support.judging import judge

NDV4 = "Standard_ND96asr_v4"
ROCE = next(m.name for m in load().machines() if m.network.kind == "roce")
Texts = dict[str, Any]
PACKAGE = "25.10.OFED.25.10.1.2.8.1-1"


def change(file: str, old: str, new: str, count: int = -1) -> Callable[[Texts], object]:
    def apply(texts: Texts) -> None:
        assert old in str(texts[file]), file
        texts[file] = str(texts[file]).replace(old, new, count)

    return apply


def driver(version: str) -> Callable[[Texts], object]:
    return change("rdma.json", '"drivers": {}', json.dumps({"drivers": {"mlx5_core": version}})[1:-1])


def doca(expectation: Expected) -> Expected:
    return replace(expectation, packages={**(expectation.packages or {}), OFED_KERNEL: PACKAGE})


def case(machine: str, breaks: Callable[[Texts], object], also: Callable[[Expected], Expected]) -> Case:
    texts: Texts = dict(nth(machine, 0))
    breaks(texts)
    texts["packages.txt"] = f"{texts['packages.txt']}{OFED_KERNEL}\t{PACKAGE}\tii \n"
    return Case(bundle(texts), also(expected(machine)))


def status(judged: dict[str, Judged], name: str, check: str) -> str:
    return next(c.status for c in judged[name].checks if c.id == check)


def same(expectation: Expected) -> Expected:
    return expectation


def timed(expectation: Expected) -> Expected:
    return replace(expectation, monitoring_units=(HEALTH_TIMER,))


def host(change: Callable[[dict[str, Any]], object]) -> Callable[[Texts], object]:
    def apply(texts: Texts) -> None:
        document = json.loads(str(texts["host.json"]))
        change(document)
        texts["host.json"] = json.dumps(document)

    return apply


def carrier(times: int) -> Callable[[Texts], object]:
    """Each card has an interface of its own; the first has lost its link so often, the others once."""

    def apply(texts: Texts) -> None:
        document = json.loads(str(texts["rdma.json"]))
        rows = {}
        for number, row in enumerate(document["devices"].values()):
            row["net"] = {f"ib{number}": {"operstate": "up"}}
            rows[f"ib{number}"] = {"operstate": "up", "carrier_down_count": str(1 if number else times)}
        texts["rdma.json"] = json.dumps(document)
        host(lambda d: d["interfaces"].update(rows))(texts)

    return apply


def stress(expectation: Expected) -> Expected:
    return replace(expectation, level="stress")


def worked(file: str, change: Callable[[dict[str, Any]], object]) -> Callable[[Texts], object]:
    def apply(texts: Texts) -> None:
        document = json.loads(str(texts[file]))
        change(document)
        texts[file] = json.dumps(document)

    return apply


def rail(*partners: int, gbps: float | None = 90.0) -> Callable[[Texts], object]:
    """The last card is slow with these partners."""
    return worked("fabric.json", lambda d: [d["pairs"][n]["rails"][-1].update(gbps=gbps) for n in partners])


no_rails = worked("fabric.json", lambda d: [pair.update(rails=[]) for pair in d["pairs"]])
no_pairs = worked("fabric.json", lambda d: [pair.update(rails=[], good=False) for pair in d["pairs"]])


def unlocked(expectation: Expected) -> Expected:
    return replace(expectation, level="stress", packages=None)


def counted(**more: int) -> Callable[[Texts], object]:
    return worked("fabric.json", lambda d: d["grown"]["mlx5_ib3/1"].update(more))


def sent(*ports: str) -> Callable[[Texts], object]:
    """Nothing went over these."""
    return worked("fabric.json", lambda d: [d["grown"].pop(port, None) for port in ports])


def alone(**values: Any) -> Callable[[Texts], object]:
    return worked("nic-loopback.json", lambda d: d["cards"][2].update(values))


def cable(old: str, new: str) -> Callable[[Texts], object]:
    """Of the first card."""
    return change("mlxlink.json", old, new, 1)


counted_nothing = worked("fabric.json", lambda d: d.pop("grown"))
DGX = "dgx-h100"
LOOP, ABSENT = "nic-loopback.json", {"state": "absent", "why": "ib_write_bw is not installed"}
listening = host(lambda d: d["listening"].append("tcp 0.0.0.0 9100"))
CASES = {
    "no rdma_ucm": ("rdma.modules", NDV4, change("modules.txt", "rdma_ucm", "other"), same, "fail"),
    "all modules": ("rdma.modules", NDV4, lambda t: None, same, "pass"),
    "the kernel's own driver": ("rdma.driver", NDV4, lambda t: None, doca, "fail"),
    "an older driver": ("rdma.driver", NDV4, driver("24.10-1.1.4"), doca, "fail"),
    "DOCA's driver": ("rdma.driver", NDV4, driver("25.10-1.2.8"), doca, "pass"),
    "without DOCA": ("rdma.driver", NDV4, driver("25.10-1.2.8"), same, "skip"),
    "half a packet": ("rdma.mtu", NDV4, change("ibv_devinfo.txt", "active_mtu:\t\t4096 (5)",
                                               "active_mtu:\t\t2048 (4)", 1), same, "fail"),
    "whole packets": ("rdma.mtu", NDV4, lambda t: None, same, "pass"),
    "an Ethernet of 1500 bytes": ("rdma.mtu", ROCE, change("ibv_devinfo.txt", "active_mtu:\t\t4096 (5)",
                                                           "active_mtu:\t\t1024 (3)"), same, "pass"),
    "one port of 1500 bytes": ("rdma.mtu", ROCE, change("ibv_devinfo.txt", "active_mtu:\t\t4096 (5)",
                                                        "active_mtu:\t\t1024 (3)", 1), same, "fail"),
    "a link that comes and goes": ("rdma.carrier", NDV4, carrier(27), same, "fail"),
    "links lost alike": ("rdma.carrier", NDV4, carrier(3), same, "pass"),
    "nobody listens for the timer": ("services.node_exporter", NDV4, lambda t: None, timed, "fail"),
    "node_exporter": ("services.node_exporter", NDV4, listening, timed, "pass"),
    "a slow card": ("rdma.loopback", NDV4, alone(output=card("x", 121.0)["output"]), stress, "fail"),
    "a dead card": ("rdma.loopback", NDV4, alone(rc=1, output="", error="Failed status 12: wr_id 0"), stress, "fail"),
    "a card that hangs": ("rdma.loopback", NDV4, alone(rc=None, timed_out=True), stress, "fail"),
    "all cards": ("rdma.loopback", NDV4, lambda t: None, stress, "pass"),
    "one RoCE card is slow": ("rdma.loopback", ROCE, alone(output=card("x", 60.0)["output"]), stress, "fail"),
    "cards left out": ("rdma.loopback", NDV4, worked(LOOP, lambda d: d["cards"].pop()), stress, "unknown"),
    "no perftest": ("rdma.loopback", NDV4, worked(LOOP, lambda d: d.update(ABSENT)), stress, "unknown"),
    "no perftest, no lock": ("rdma.loopback", NDV4, worked(LOOP, lambda d: d.update(ABSENT)), unlocked, "skip"),
    "no rail was measured": ("fabric.rails", NDV4, no_rails, stress, "unknown"),
    "no rail was measured, no lock": ("fabric.rails", NDV4, no_rails, unlocked, "skip"),
    "rails at level standard": ("fabric.rails", NDV4, no_rails, same, "skip"),
    "no pair worked": ("fabric.rails", NDV4, no_pairs, stress, "skip"),
    "a slow rail": ("fabric.rail_lost", NDV4, rail(0, 1), stress, "fail"),
    "a dead rail": ("fabric.rail_lost", NDV4, rail(0, 1, gbps=None), stress, "fail"),
    "a rail that is a third slower": ("fabric.rails", NDV4, rail(0, 1, gbps=120.0), stress, "fail"),
    "which has not lost half of its rate": ("fabric.rail_lost", NDV4, rail(0, 1, gbps=120.0), stress, "pass"),
    "a partner's slow rail": ("fabric.rails", NDV4, rail(1), stress, "pass"),
    "a link lost between nodes": ("load.rdma_link", NDV4, counted(link_downed=1), same, "fail"),
    "retries between nodes": ("load.rdma_retries", NDV4, counted(rnr_nak_retry_err=4711), same, "fail"),
    "a card that NCCL leaves out": ("fabric.cards_used", NDV4, sent("mlx5_ib5/1"), same, "fail"),
    "all cards carry": ("fabric.cards_used", NDV4, lambda t: None, same, "pass"),
    "an EFA device left out": ("fabric.cards_used", "p4d.24xlarge", sent("rdmap16s27/1"), same, "fail"),
    "ports without counters": ("fabric.cards_used", NDV4, counted_nothing, same, "skip"),
    "wrong bits": ("rdma.ber", DGX, cable("15E-255", "3E-11"), same, "fail"),
    "few wrong bits": ("rdma.ber", DGX, cable("15E-255", "1E-14"), same, "pass"),
    "no bit error rate": ("rdma.ber", DGX, change("mlxlink.json", "15E-255", "N/A"), same, "skip"),
    "an older transceiver": ("rdma.transceivers", DGX, cable("47.171.0001", "47.151.0001"), same, "fail"),
    "transceivers alike": ("rdma.transceivers", DGX, lambda t: None, same, "pass"),
    "no mlxlink": ("rdma.ber", DGX, worked("mlxlink.json", lambda d: d.update(state="absent", why="-")), same, "skip"),
    "traffic between nodes": ("load.rdma_retries", NDV4, counted(port_xmit_data=4711), same, "pass"),
    "no ibv_devinfo": ("rdma.mtu", NDV4, lambda t: t.pop("ibv_devinfo.txt"), same, "unknown"),
}  # fmt: skip


FLEETS = {
    "fleet.gid_index": change("rdma.json", '"3": ', '"5": '),
    "fleet.transceivers": change("mlxlink.json", "47.171.0001", "47.151.0001"),
    "fleet.rdma_mtu": change("ibv_devinfo.txt", "active_mtu:\t\t4096 (5)", "active_mtu:\t\t1024 (3)"),
}
"""What the third of four nodes has otherwise."""


@pytest.fixture(scope="module")
def judged() -> dict[str, Judged]:
    """All at once: the cases by their names, the nodes of a fleet as n0 to n3 behind the check's."""
    cases = {name: case(machine, breaks, also) for name, (_, machine, breaks, also, _) in CASES.items()}
    for check, breaks in FLEETS.items():
        for number in range(4):
            texts: Texts = dict(nth(ROCE, number))
            if number == 2:
                breaks(texts)
            cases[f"{check} n{number}"] = Case(bundle(texts), expected(ROCE), group=check)
    return judge(cases)


@pytest.mark.parametrize("name", CASES)
def test_one_output_decides(judged: dict[str, Judged], name: str) -> None:
    assert status(judged, name, CASES[name][0]) == CASES[name][4]


@pytest.mark.parametrize("check", FLEETS)
def test_a_roce_node_unlike_its_group(judged: dict[str, Judged], check: str) -> None:
    assert [status(judged, f"{check} n{n}", check) for n in range(4)] == ["pass", "pass", "fail", "pass"]


def test_ibv_devinfo_of_a_real_machine() -> None:
    ports = ibv_devinfo.parse(capture("ibstat/ibv-devinfo-mlx4.txt"))
    assert ports["mlx4_1", 1] == ports["mlx4_1", 2] == (4096, 4096)


def test_the_modules_are_those_that_the_role_loads() -> None:
    role = Path(__file__).parents[3] / "ansible/roles/infiniband/defaults/main.yml"
    assert set(yaml.safe_load(role.read_text())["infiniband_modules"]) == set(MODULES)


def test_cards_with_the_kernels_own_names_are_no_fault() -> None:
    """Plain Ubuntu on Azure: mlx5_0 to mlx5_7. No role renames cards, and nothing that gpuprov writes needs it."""
    texts = {name: str(text).replace("mlx5_ib", "mlx5_") for name, text in nth(NDV4, 0).items()}
    judged = judge({"n": Case(bundle(texts), expected(NDV4))})["n"]
    assert {c.id for c in judged.checks if c.status in ("fail", "unknown")} == set()
