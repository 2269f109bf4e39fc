"""RDMA as the kernel shows it: the parser on what it may meet, and each check red by one changed file alone."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provisioner.catalog import load
from provisioner.sandbox.sources import variant
from provisioner.verify.checks.rdma import COUNTERS
from provisioner.verify.parsers import Unreadable
from provisioner.verify.parsers.rdma_sysfs import LANE_GBPS, parse
from provisioner.verify.pytest_runner import Case, Judged
from provisioner.verify.registry import declared
from tests.support.healthy_bundle import bundle, expected, healthy, rdma
from tests.support.judging import judge

NDV4, P4D, P5, ROCE = "Standard_ND96asr_v4", "p4d.24xlarge", "p5.48xlarge", "ebmgn7ix.32xlarge"
OTHERS = {"peermem.loaded", "efa.drops"}
Change = Callable[[dict[str, Any]], object]


def first(document: dict[str, Any]) -> dict[str, Any]:
    return next(iter(document["devices"].values()))  # type: ignore[no-any-return]


def device(**files: str) -> Change:
    return lambda d: first(d).update({name.replace("__", "/"): text for name, text in files.items()})


def port(**files: Any) -> Change:
    return lambda d: first(d)["ports"]["1"].update(files)


def counter(**counts: int) -> Change:
    return lambda d: first(d)["ports"]["1"]["counters"].update({name: str(n) for name, n in counts.items()})


def roce_machine() -> str:
    return next(m.name for m in load().machines() if m.network.kind == "roce")


FAULTS: dict[str, tuple[str, Change, str]] = {
    "down for the kernel, active for ibstat": (NDV4, port(state="1: DOWN"), "rdma.ports"),
    "no device file": (NDV4, lambda d: d["uverbs"].pop(0), "rdma.uverbs"),
    "no device file on EFA": (P4D, lambda d: d["uverbs"].pop(0), "rdma.uverbs"),
    "no LID": (NDV4, port(lid="0x0"), "rdma.lid"),
    "no subnet manager": (NDV4, port(sm_lid="0x0"), "rdma.lid"),
    "a limited member": (
        NDV4,
        lambda d: [p["ports"]["1"].update(pkeys=["0x7fff"]) for p in d["devices"].values()],
        "rdma.pkey",
    ),
    "another partition": (NDV4, port(pkeys=["0x8012", "0x7fff"]), "rdma.pkeys_alike"),
    "no IP address": ("roce", port(gids={"0": "fe80:0000:0000:0000:0015:5dff:fe34:11eb"}), "rdma.gids"),
    "an empty address": ("roce", port(gids={"3": ":".join(["0000"] * 8)}, gid_types={"3": "RoCE v2"}), "rdma.gids"),
    "a card of another make": (NDV4, device(board_id="MT_0000000223"), "rdma.board"),
    "other firmware": (NDV4, device(fw_ver="28.31.1014"), "rdma.firmware"),
    "a slow PCIe link": (NDV4, device(device__current_link_speed="2.5 GT/s PCIe"), "rdma.pcie"),
    "half of its lanes": (NDV4, device(device__current_link_width="8"), "rdma.pcie"),
    "another accelerator's memory": (P5, device(device__p2p="NEURON"), "rdma.gpu_memory"),
    "GPU memory out of reach": (P5, device(device__p2p=str(variant("efa.p2p", "none"))), "rdma.gpu_memory"),
    "a way of another name": (P5, device(device__p2p="nvidia-none"), "rdma.gpu_memory"),
    "symbol errors": (NDV4, counter(symbol_error=4821), "rdma.errors"),
    "buffer overruns": (NDV4, counter(excessive_buffer_overrun_errors=1), "rdma.errors"),
    "a link that goes up and down": (NDV4, counter(link_downed=27), "rdma.errors"),
    "a RoCE address at another index": (
        "roce",
        port(gids={"5": "0000:0000:0000:0000:0000:ffff:0a00:0005"}, gid_types={"5": "RoCE v2"}),
        "rdma.gid_index",
    ),
    "dropped packets": (P4D, counter(rx_drops=51_000), "efa.drops"),
}


def every(**files: Any) -> Change:
    """The same change on the first port of each device."""
    return lambda d: [v["ports"]["1"].update(files) for v in d["devices"].values()]


def virtual(document: dict[str, Any]) -> None:
    for row in document["devices"].values():
        row |= {"device/current_link_speed": "Unknown", "device/current_link_width": "0"}


def add_device(name: str, **files: Any) -> Change:
    """One more device."""

    def change(document: dict[str, Any]) -> None:
        document["devices"][name] = {**first(document), **files}
        document["uverbs"].append(name)

    return change


HARMLESS: dict[str, tuple[str, Change]] = {
    "virtual functions": (NDV4, virtual),
    "no counters": (NDV4, every(counters={})),
    "every link lost at boot": (NDV4, every(counters={"link_downed": "9", "symbol_error": "900"})),
    "a storage card of another kind": (NDV4, add_device("mlx5_9", fw_ver="1.1.1", hca_type="MT4123")),
    "an Ethernet port that is down": (
        NDV4,
        add_device("eth", ports={"1": {"state": "1: DOWN", "link_layer": "Ethernet"}}),
    ),
    "GPU memory through efa_nv_peermem": (P5, device(device__p2p=str(variant("efa.p2p", "peermem")))),
    "the kernel's own EFA driver": (P5, lambda d: [v.pop("device/p2p") for v in d["devices"].values()]),
    "keys beside the full one": (NDV4, every(pkeys=["0x8012", "0x7fff"])),
}


def case(machine: str, change: Change | None = None) -> Case:
    name = roce_machine() if machine == "roce" else machine
    texts = healthy(name)
    if change is not None:
        document = json.loads(str(texts["rdma.json"]))
        change(document)
        texts["rdma.json"] = json.dumps(document)
    return Case(bundle(texts), expected(name))


@pytest.fixture(scope="module")
def judged() -> dict[str, Judged]:
    cases = {name: case(machine, change) for name, (machine, change, _) in FAULTS.items()}
    cases |= {name: case(machine, change) for name, (machine, change) in HARMLESS.items()}
    cases |= {f"healthy {machine}": case(machine) for machine in (NDV4, P4D, P5, "roce")}
    return judge(cases)


def failing(verdict: Judged) -> set[str]:
    """Failing checks of RDMA; those of other parts are others' to prove."""
    areas = ("rdma", "efa", "ib", "peermem")
    return {check.id for check in verdict.checks if check.status == "fail" and check.id.split(".")[0] in areas}


@pytest.mark.parametrize("fault", list(FAULTS))
def test_one_cause_fails_one_check(judged: dict[str, Judged], fault: str) -> None:
    assert failing(judged[fault]) == {FAULTS[fault][2]}


def test_where_some_devices_do_not_say_how_they_reach_the_gpus_it_is_not_known() -> None:
    silent = case(P5, lambda d: next(iter(d["devices"].values())).pop("device/p2p"))
    (check,) = [result for result in judge({"some": silent})["some"].checks if result.id == "rdma.gpu_memory"]
    assert check.status == "unknown" and "no file p2p" in check.message


@pytest.mark.parametrize("name", [*HARMLESS, *(f"healthy {machine}" for machine in (NDV4, P4D, P5, "roce"))])
def test_what_is_harmless_fails_nothing(judged: dict[str, Judged], name: str) -> None:
    wrong = [c for c in judged[name].checks if c.id.startswith("rdma.") and c.status in ("fail", "unknown")]
    assert wrong == []
    assert failing(judged[name]) == set()


@pytest.mark.parametrize(
    ("flavour", "kernel", "modules", "status"),
    [
        ("open", "6.8.0-1024-azure", "nvidia", "pass"),
        ("open", "5.4.0-1100-azure", "nvidia", "fail"),
        ("open", "5.12.0", "nvidia", "pass"),
        ("proprietary", "6.8.0-1024-azure", "nvidia", "fail"),
        ("proprietary", "6.8.0-1024-azure", "nvidia_peermem", "pass"),
        ("open", "rolling", "nvidia_peermem", "unknown"),
    ],
)  # fmt: skip
def test_network_cards_reach_gpu_memory(flavour: str, kernel: str, modules: str, status: str) -> None:
    texts = healthy(NDV4) | {"kernel.txt": kernel + "\n", "modules.txt": f"{modules} 16384 0 - Live 0x0 (O)\n"}
    verdict = judge({"n": Case(bundle(texts), replace(expected(NDV4), kernel_modules=flavour))})["n"]
    assert next(c.status for c in verdict.checks if c.id == "peermem.loaded") == status


def test_every_check_of_this_area_is_red_once() -> None:
    known = {check.id for check in declared() if check.id.startswith("rdma.")} | OTHERS
    assert known - {check for _, _, check in FAULTS.values()} == {
        "peermem.loaded",
        "rdma.modules",
        "rdma.driver",
        "rdma.mtu",
        "rdma.carrier",
        "rdma.integrity",
        "rdma.optics",
        "rdma.qos",
        "rdma.loopback",
        "rdma.ber",
        "rdma.transceivers",
    }


def test_every_ceiling_is_one_that_a_check_reads() -> None:
    rows = {name for name in load().ceilings if name.startswith(("rdma.", "efa."))}
    assert rows == {f"rdma.{name}" for name in COUNTERS} | {"efa.rx_drops", "rdma.spread", "rdma.ber"}


def test_a_healthy_document_is_read_whole() -> None:
    devices = parse(json.dumps(rdma(load().machine(NDV4))))
    assert len(devices) == 8
    assert {(d.firmware, d.card, d.numa, d.pcie_width, d.uverbs) for d in devices} == {
        ("28.39.1002", "MT4129", 0, 16, True)
    }
    assert {(p.state, p.rate_gbps, p.lid, p.full_member) for d in devices for p in d.ports} == {
        ("ACTIVE", 200.0, 23, True)
    }
    assert {round(d.pcie_gbps or 0) for d in devices} == {round(16 * LANE_GBPS[32.0])}


def test_a_document_of_something_else_is_unreadable() -> None:
    for text in (
        "",
        "[]",
        "{}",
        '{"devices": []}',
        '{"devices": {"mlx5_0": 3}}',
        '{"devices": {"a": {"ports": {"x": {}}}}}',
    ):
        with pytest.raises(Unreadable):
            parse(text)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(["state", "lid", "pkeys", "gids", "gid_types", "counters", "rate"]), json_values)
def test_no_value_costs_a_traceback(key: str, value: Any) -> None:
    document = rdma(load().machine(NDV4))
    first(document)["ports"]["1"][key] = value
    first(document)[key] = value
    with contextlib.suppress(Unreadable):
        parse(json.dumps(document))


@settings(max_examples=80, deadline=None)
@given(json_values)
def test_any_json_is_read_or_refused(value: Any) -> None:
    for text in (json.dumps(value), json.dumps({"devices": value}), json.dumps({"devices": {"x": value}})):
        with contextlib.suppress(Unreadable):
            parse(text)


def test_a_bundle_put_together_by_hand_can_t_have_it() -> None:
    texts = {name: text for name, text in healthy(NDV4).items() if name != "rdma.json"}
    cases = {"by hand": Case(replace(bundle(texts), collected=None, received=None), expected(NDV4))}
    cases["by the probe"] = Case(bundle(texts), expected(NDV4))
    status = {name: {c.id: c.status for c in verdict.checks}["rdma.lid"] for name, verdict in judge(cases).items()}
    assert status == {"by hand": "skip", "by the probe": "unknown"}
