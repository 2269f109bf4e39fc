"""Checks that compare a node with its group: the odd one out is found, and nobody else; small groups are not judged."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from provisioner.verify.peers import Common, Peers, Spread
from provisioner.verify.pytest_runner import Case, Judged
from tests.support.healthy_bundle import bundle, capture, expected, nth
from tests.support.judging import judge

pytestmark = pytest.mark.heavy

NDV4, P4D = "Standard_ND96asr_v4", "p4d.24xlarge"
Texts = dict[str, Any]


def fleet(machine: str, count: int, breaks: Mapping[int, Callable[[Texts], object]], group: str = "train") -> Any:
    cases = {}
    for index in range(count):
        texts: Texts = dict(nth(machine, index))
        breaks.get(index, lambda _: None)(texts)
        cases[f"n{index}"] = Case(bundle(texts), expected(machine, "stress"), group=group)
    return cases


def failing(verdicts: Mapping[str, Judged]) -> dict[str, set[str]]:
    """Node → fleet checks that fail on it, where some do."""
    wrong = {
        n: {c.id for c in j.checks if c.status == "fail" and c.id.startswith("fleet.")} for n, j in verdicts.items()
    }
    return {name: ids for name, ids in wrong.items() if ids}


def sub(file: str, old: str, new: str) -> Callable[[Texts], object]:
    def change(texts: Texts) -> None:
        broken = re.sub(old, new, str(texts[file]))
        assert broken != texts[file]
        texts[file] = broken

    return change


FAULTS = {
    "fleet.kernel": sub("kernel.txt", r"^\S+", "6.8.0-9999-aws"),
    "fleet.device_names": sub("ibstat.txt", r"CA 'mlx5_ib3'|CA 'mlx5_3'", "CA 'rdma3'"),
    "fleet.vbios": sub("nvidia-smi.xml", r"<vbios_version>[^<]*", "<vbios_version>92.00.FF.00.01"),
    "fleet.inforom": sub("nvidia-smi.xml", r"<img_version>[^<]*", "<img_version>G520.0200.00.99"),
    "fleet.hot": sub("nvidia-smi.xml", r"<gpu_temp>[^<]*", "<gpu_temp>71 C"),
    "fleet.pkeys": sub("rdma.json", r'"0x8012"|"0xffff"', '"0x8077"'),
    "fleet.latency": sub("fabric.json", '"latency_us": 31.0', '"latency_us": 310.0'),
    "fleet.nic_board": sub("rdma.json", "MT_0000000838", "MT_0000000223"),
    "fleet.ipoib": sub("rdma.json", r'"operstate": "up"', '"operstate": "down"'),
    "fleet.nic_firmware": sub("ibstat.txt", r"Firmware version: \S+", "Firmware version: 16.1.1"),
}


@pytest.fixture(scope="module")
def judged_nodes() -> dict[str, Judged]:
    """One group of five for each fault, with the fault on its third node; and one healthy group."""
    cases: dict[str, Case] = {}
    for check, breaks in FAULTS.items():
        group_cases = fleet(NDV4, 5, {2: breaks}, check)
        cases |= {f"{check}/{name}": case for name, case in group_cases.items()}
    cases |= {f"healthy/{name}": case for name, case in fleet(NDV4, 5, {}, "healthy").items()}
    cases |= {f"healthy p4d/{name}": case for name, case in fleet(P4D, 5, {}, "healthy p4d").items()}
    return judge(cases | dgx_os())


@pytest.mark.parametrize("check", list(FAULTS))
def test_the_odd_one_out_is_named_and_no_other(judged_nodes: dict[str, Judged], check: str) -> None:
    group = {name: judged for name, judged in judged_nodes.items() if name.startswith(f"{check}/")}
    assert failing(group) == {f"{check}/n2": {check}}


def test_alike_nodes_are_fine(judged_nodes: dict[str, Judged]) -> None:
    assert failing({name: judged for name, judged in judged_nodes.items() if name.startswith("healthy")}) == {}


def dgx_os() -> dict[str, Case]:
    """Machines without a lock, which gpuprov leaves as they are: a rack with DGX OS, and one without."""
    rows = [("rack", release) for release in ("a100-5.2.0", "a100-5.2.0", "a100-5.2.0", "gb300-7.6.0", "")] + [
        ("plain", "")
    ] * 3
    cases = {}
    for index, (group, release) in enumerate(rows):
        texts: Texts = dict(nth("dgx-a100-80gb", index))
        texts["dgx-release.txt"] = capture(f"dgx_release/{release}.txt") if release else ""
        want = replace(expected("dgx-a100-80gb", "quick"), packages=None)
        cases[f"dgx/{group}{index}"] = Case(bundle(texts), want, group=group)
    return cases


def test_dgx_os_of_another_release_is_told(judged_nodes: dict[str, Judged]) -> None:
    dgx_nodes = {name: judged for name, judged in judged_nodes.items() if name.startswith("dgx/")}
    by_node = {name: next(c for c in j.checks if c.id == "fleet.dgx_os") for name, j in dgx_nodes.items()}
    assert {name for name, c in by_node.items() if c.status == "fail"} == {"dgx/rack3", "dgx/rack4"}
    assert {name for name, c in by_node.items() if c.status == "skip"} == {"dgx/plain5", "dgx/plain6", "dgx/plain7"}
    assert by_node["dgx/rack3"].message.startswith("DGX OS 7.6.0; 3 of 5 have 5.2.0")


def test_a_slow_partner_is_another_nodes_fault() -> None:
    slow_partner = sub("fabric.json", r'("latency_us": )31.0((?:(?!latency_us).)*"partner": "train-1")', r"\1 310.0\2")
    assert failing(judge(fleet(NDV4, 4, {1: slow_partner}))) == {}


def test_two_nodes_are_too_few_to_say_which_one_is_odd() -> None:
    two = judge(fleet(NDV4, 2, {1: FAULTS["fleet.kernel"]}))
    assert failing(two) == {}
    assert {c.status for j in two.values() for c in j.checks if c.id == "fleet.kernel"} == {"skip"}


def test_without_a_majority_all_are_told() -> None:
    other = sub("kernel.txt", r"^\S+", "6.8.0-9999-aws")
    four = judge(fleet(NDV4, 4, {0: other, 1: other}))
    assert failing(four) == {f"n{i}": {"fleet.kernel"} for i in range(4)}


def test_nodes_of_different_groups_are_not_compared() -> None:
    cases = fleet(NDV4, 4, {1: FAULTS["fleet.kernel"]})
    assert failing(judge({name: replace(case, group=name) for name, case in cases.items()})) == {}


def joined(domain: str, clique: int) -> Callable[[Texts], object]:
    """All GPUs are in that partition of that NVLink domain."""

    def change(texts: Texts) -> None:
        text = re.sub(r"<cliqueId>[^<]*", f"<cliqueId>{clique}", str(texts["nvidia-smi.xml"]))
        texts["nvidia-smi.xml"] = re.sub(r"<clusterUuid>[^<]*", f"<clusterUuid>{domain}", text)

    return change


def test_a_node_in_another_partition_of_its_rack() -> None:
    racks = {i: joined("rack-a" if i < 4 else "rack-b", 7 if i == 2 else 1) for i in range(6)}
    verdicts = judge(fleet("p6e-gb200.36xlarge", 6, racks))
    assert failing(verdicts) == {"n2": {"fleet.clique"}}
    assert {c.status for c in verdicts["n5"].checks if c.id == "fleet.clique"} == {"pass"}


def with_a_card(cell: str) -> Callable[[Texts], object]:
    """`nvidia-smi topo -m` with one network card, that far from GPU7."""

    def change(texts: Texts) -> None:
        lines = str(texts["topo.txt"]).splitlines()
        rows = [line.split("\t") for line in lines[:9]]
        for index, row in enumerate(rows):
            row.insert(9, "NIC0" if index == 0 else (cell if index == 8 else "SYS"))
        rows.append(["NIC0", *["SYS"] * 7, cell, " X ", "", "", ""])
        texts["topo.txt"] = "\n".join(["\t".join(row) for row in rows] + lines[9:])

    return change


def test_a_network_card_in_another_slot() -> None:
    cases = fleet(NDV4, 5, {i: with_a_card("PHB" if i == 2 else "PXB") for i in range(5)})
    judged = judge(cases)
    assert failing(judged) == {"n2": {"fleet.topology"}}
    assert "GPU7-NIC0 PHB (others PXB)" in next(c.message for c in judged["n2"].checks if c.id == "fleet.topology")


def test_one_machine_under_two_names() -> None:
    cases = fleet(P4D, 4, {})
    cases["n3"] = replace(cases["n1"])
    assert failing(judge(cases)) == {"n1": {"fleet.cloned"}, "n3": {"fleet.cloned"}}


def busbw(value: float) -> Callable[[Texts], object]:
    """all_reduce_perf's table with that peak."""

    def change(texts: Texts) -> None:
        lines = str(texts["all_reduce.txt"]).splitlines()
        for index, cells in enumerate(line.split() for line in lines):
            if cells and cells[0].isdigit() and len(cells) >= 13:
                cells[7] = cells[11] = f"{value:.2f}"
                lines[index] = "  ".join(cells)
        texts["all_reduce.txt"] = "\n".join(lines)

    return change


def test_a_node_slower_than_its_group_is_found_although_it_meets_the_threshold() -> None:
    cases = fleet(P4D, 6, {i: busbw(278 + 0.4 * i) for i in range(5)} | {5: busbw(235)})
    judged = judge(cases)
    assert failing(judged) == {"n5": {"fleet.slow_nccl"}}
    assert "nccl.bandwidth" not in {c.id for c in judged["n5"].checks if c.status == "fail"}


def test_a_group_whose_runs_differ_is_not_blamed() -> None:
    cases = fleet(P4D, 6, {i: busbw(value) for i, value in enumerate((230, 278, 235, 275, 240, 270))})
    assert failing(judge(cases)) == {}


def test_an_outlier_is_far_for_its_own_group_and_by_a_share() -> None:
    rng = random.Random(7)
    for _ in range(2000):
        values = [rng.gauss(100, rng.choice((0.0, 0.1, 1, 3))) for _ in range(rng.randint(3, 40))]
        middle = sorted(values)[len(values) // 2]
        spread = Spread(len(values), middle, sorted(abs(v - middle) for v in values)[len(values) // 2])
        assert not any(spread.below(v, 0.15) for v in values)
        assert spread.below(middle * 0.4, 0.15)


def test_common_values() -> None:
    assert Common({"a": 3, "b": 1}).value == "a"
    assert Common({"a": 2, "b": 2}).value is None
    assert Common({}).value is None
    assert Peers({}).spread(lambda _: 1.0) is None
