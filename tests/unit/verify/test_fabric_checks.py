"""What is made of fabric.json: the parser on what it may meet, and each check red by one changed verdict alone."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provisioner.catalog import load
from provisioner.spec.groups import Group
from provisioner.verify.bundle import Bundle, Output
from provisioner.verify.parsers import Unreadable
from provisioner.verify.parsers.fabric import STATES, parse
from provisioner.verify.pytest_runner import Case, Judged
from tests.support.healthy_bundle import bundle, expected, healthy
from tests.support.healthy_fabric import FABRIC_CHECKS, fabric_json
from tests.support.judging import judge

GB200 = "p6e-gb200.36xlarge"
P4D, NDV4, GEN3, ERDMA, ETHERNET = (
    "p4d.24xlarge",
    "Standard_ND96asr_v4",
    "p3dn.24xlarge",
    "ecs.ebmgn7ex.32xlarge",
    "p3.8xlarge",
)


def pair(works: bool = True, reason: str = "", partner: str = "train-1", **values: Any) -> dict[str, Any]:
    return {"partner": partner, "good": works, "why": reason, "gbps": 44.0, "transports": {"NET/IB+GDR": 32}} | values


@dataclass(frozen=True)
class Fault:
    """A verdict that is otherwise healthy has these values; then `fails` alone fails."""

    fails: str
    says: str
    values: dict[str, Any]


SOCKETS = {"transports": {"P2P": 96, "NET/Socket": 32}}
FAULTS = {
    "at fault": Fault("fabric.pairs", "with train-1: no end within 180 s", {
        "state": "fault", "why": "with train-1: no end within 180 s, in its part 'all_reduce'",
        "pairs": [pair(False, "no end within 180 s"), pair(False, "no end within 180 s", "train-2")], "ring": None,
    }),
    "nobody can tell": Fault("fabric.pairs", "nothing tells which", {
        "state": "undecided", "why": "with train-1: 12 GB/s; nothing tells which", "pairs": [pair(False, "12 GB/s")],
        "nodes": 2, "ring": None,
    }),
    "sockets": Fault("fabric.transport", "32 channels over sockets", {
        "state": "fault", "why": "with train-1: 32 channels over sockets", "wrong_way": True, "ring": None,
        "pairs": [pair(False, "32 channels over sockets", **SOCKETS), pair(False, "", "train-2", **SOCKETS)],
    }),
    "a bad path": Fault("fabric.path", "with train-2: 12 GB/s", {
        "paths": ["train-2"], "pairs": [pair(), pair(False, "12 GB/s", "train-2", gbps=12.0)],
    }),
    "a bad ring": Fault("fabric.ring", "train-0, train-1, train-2: no end within 188 s", {
        "ring": {"nodes": ["train-0", "train-1", "train-2"], "good": False, "why": "no end within 188 s"},
    }),
}  # fmt: skip
NOT_TESTED = {"alone": "skip", "busy": "skip", "untested": "unknown"}
JOINED = [m.name for m in load().machines() if expected(m.name).fabric]


def case(name: str, text: str | None, level: str = "stress", **values: Any) -> Case:
    texts = healthy(name)
    texts.pop("fabric.json", None)
    return Case(bundle(texts | ({"fabric.json": text} if text is not None else {})), expected(name, level, **values))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def judged() -> dict[str, Judged]:
    row = load().machine(P4D)
    cases = {name: case(P4D, fabric_json(row, **fault.values)) for name, fault in FAULTS.items()}
    cases |= {f"healthy {name}": case(name, fabric_json(load().machine(name))) for name in (P4D, NDV4, GEN3)}
    for state in NOT_TESTED:
        cases[state] = case(P4D, json.dumps({"state": state, "why": f"it was {state}"}))
    cases["two nodes"] = case(P4D, fabric_json(row, nodes=2, ring=None, pairs=[pair()]))
    silent = pair(transports={})
    cases["NCCL is silent"] = case(P4D, fabric_json(row, pairs=[silent, {**silent, "partner": "train-2"}]))
    cases["ethernet"] = case(ETHERNET, fabric_json(load().machine(ETHERNET)))
    together = Group(machine=ETHERNET, placement="cluster")
    cases["ethernet, close together"] = case(ETHERNET, fabric_json(load().machine(ETHERNET)), group=together)
    cases["not written"] = case(P4D, None)
    cases["level standard"] = case(P4D, None, "standard")
    cases["level quick"] = case(P4D, None, "quick")
    limits: dict[str, Any] = {"state": "fault", "why": "slow", "ring": None, "floor_gbps": 35.0, "usual_gbps": 44.0}
    slow = fabric_json(row, **limits, pairs=[pair(False, "slow", gbps=30.0)])
    for name, bad in {
        "one of them over sockets": [
            pair(False, "slow", gbps=30.0),
            pair(False, "slow", "train-2", gbps=30.0, **SOCKETS),
        ],
        "a hundredth": [pair(False, "slow", gbps=0.3)],
        "a hundredth of the others": [pair(False, "slow", gbps=36.0)],
    }.items():
        typical_gbps = 3600.0 if name == "a hundredth of the others" else 44.0
        text = fabric_json(row, **limits | {"usual_gbps": typical_gbps}, pairs=bad)
        cases[name] = case(P4D, text)
    cases["slow p4d"], cases["slow p4de"] = case(P4D, slow), case("p4de.24xlarge", slow)
    cases["nothing moved"] = case(
        GB200, fabric_json(load().machine(GB200), **limits, pairs=[pair(False, "x", gbps=None)])
    )
    cases["slow where nobody knows the network"] = case(
        GB200, fabric_json(load().machine(GB200), **limits, pairs=[pair(False, "slow", gbps=30.0)])
    )
    foreign = {"nvidia-smi.xml": Output(str(healthy(P4D)["nvidia-smi.xml"]))}
    cases["of other hands"] = Case(Bundle(files=foreign), expected(P4D, "stress"))
    return judge(cases)


def states(verdict: Judged) -> dict[str, str]:
    return {check.id: check.status for check in verdict.checks if check.id in FABRIC_CHECKS}


def ids(verdict: Judged, status: str) -> set[str]:
    return {check.id for check in verdict.checks if check.status == status}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_by_its_check_alone(judged: dict[str, Judged], name: str) -> None:
    fault, verdict = FAULTS[name], judged[name]
    assert ids(verdict, "fail") == {fault.fails}
    assert any(fault.says in check.message for check in verdict.checks if check.id == fault.fails)


def test_every_check_has_a_red_input() -> None:
    assert {fault.fails for fault in FAULTS.values()} == FABRIC_CHECKS


def test_a_pair_that_is_only_slow_condemns_where_the_limit_was_measured(judged: dict[str, Judged]) -> None:
    checks_by_name = {
        name: next(c for c in judged[f"slow {name}"].checks if c.id == "fabric.pairs") for name in ("p4d", "p4de")
    }
    assert {name: (check.status, check.severity) for name, check in checks_by_name.items()} == {
        "p4d": ("fail", "warn"), "p4de": ("fail", "fatal"),
    }  # fmt: skip
    assert checks_by_name["p4d"].message == "slow (unverified: fabric)"


def test_a_pair_in_which_nothing_moved_condemns_where_the_network_is_unverified(judged: dict[str, Judged]) -> None:
    checks_by_name = {
        name: next(c for c in judged[name].checks if c.id == "fabric.pairs")
        for name in ("nothing moved", "slow where nobody knows the network")
    }
    assert {name: (check.status, check.severity) for name, check in checks_by_name.items()} == {
        "nothing moved": ("fail", "fatal"), "slow where nobody knows the network": ("fail", "warn"),
    }  # fmt: skip


@pytest.mark.parametrize("name", ["one of them over sockets", "a hundredth", "a hundredth of the others"])
def test_a_pair_that_is_broken_whatever_the_limit_condemns(judged: dict[str, Judged], name: str) -> None:
    (failure,) = (c for c in judged[name].checks if c.status == "fail")
    assert (failure.id, failure.severity) == ("fabric.pairs", "fatal")


@pytest.mark.parametrize("name", [P4D, NDV4, GEN3])
def test_a_healthy_node_passes_them_all(judged: dict[str, Judged], name: str) -> None:
    assert set(states(judged[f"healthy {name}"]).values()) == {"pass"}


@pytest.mark.parametrize(("state", "status"), NOT_TESTED.items())
def test_what_was_not_tested_says_why(judged: dict[str, Judged], state: str, status: str) -> None:
    assert set(states(judged[state]).values()) == {status}
    assert {c.message for c in judged[state].checks if c.id in FABRIC_CHECKS} == {f"it was {state}"}


OWN = "fabric.own_cards"


def unreached(pairs: list[dict[str, Any]] | None = None, *, state: str = "ran", waits: bool = True) -> str:
    document: dict[str, Any] = {"state": "unreached", "why": "train-0: a job is using the GPUs", "awaits_proof": waits}
    cards = {
        "own_cards": {"state": state, "why": "" if state == "ran" else "ib_write_bw is not installed", "pairs": pairs}
    }
    return json.dumps(document | (cards if pairs is not None else {}))


def ring(**rates: float | None) -> list[dict[str, Any]]:
    """Eight cards, each with the one before it; `rates` of mlx5_ibN as a sender."""
    return [
        {"sender": f"mlx5_ib{i}", "receiver": f"mlx5_ib{(i - 1) % 8}", "gbps": rates.get(f"ib{i}", 197.0),
         "why": "Failed status 12" if rates.get(f"ib{i}", 1.0) is None else ""}
        for i in range(8)
    ]  # fmt: skip


def by_nccl(reason: str = "", gbps: float | None = 44.0) -> str:
    cards = {"state": "ran", "why": reason, "pairs": [], "busbw_gbps": gbps}
    return json.dumps({**json.loads(unreached()), "own_cards": cards})


UNREACHED: dict[str, tuple[str, str, str, str, str]] = {
    "a new machine": (P4D, unreached(), "fatal", "skip", ""),
    "a proven machine": (P4D, unreached(waits=False), "warn", "skip", ""),
    "NCCL works over own cards": (P4D, by_nccl(), "warn", "pass", "not through the path to another node"),
    "NCCL fails over own cards": (P4D, by_nccl("train-9: RuntimeError: x", None), "fatal", "fail", "RuntimeError: x"),
    "NCCL goes over sockets": (P4D, by_nccl("32 channels over sockets"), "fatal", "fail", "32 channels over sockets"),
    "own cards work": (NDV4, unreached(ring()), "warn", "pass", ""),
    "a card is lame": (NDV4, unreached(ring(ib3=80.0, ib4=80.0)), "fatal", "fail", "mlx5_ib3: "),
    "a rail is apart": (NDV4, unreached(ring(ib5=None)), "fatal", "fail", "mlx5_ib5 to mlx5_ib4: Failed status 12"),
    "all rails are apart": (NDV4, unreached(ring(**{f"ib{i}": None for i in range(8)})), "fatal", "unknown",
                            "rails may be apart"),
    "no perftest": (NDV4, unreached([], state="absent"), "fatal", "unknown", "ib_write_bw is not installed"),
    "no perftest, proven": (NDV4, unreached([], state="absent", waits=False), "warn", "unknown", "ib_write_bw"),
}  # fmt: skip
"""Machine, fabric.json; the severity of fabric.pairs, which is unknown; the status of own cards, and its message."""


@pytest.fixture(scope="module")
def met_nobody() -> dict[str, Judged]:
    cases = {name: case(machine, text, "standard") for name, (machine, text, *_) in UNREACHED.items()}
    borrowed = {"borrowed": ["train-1"], "nodes": 2, "ring": None, "pairs": [pair()]}
    cases["borrowed"] = case(NDV4, fabric_json(load().machine(NDV4), **borrowed))
    cases["a job came"] = case(NDV4, unreached([], state="busy"), "standard")
    return judge(cases)


def result(verdict: Judged, id: str) -> tuple[str, str, str]:
    (check_result,) = (check for check in verdict.checks if check.id == id)
    return check_result.status, check_result.severity, check_result.message


@pytest.mark.parametrize("name", UNREACHED)
def test_what_was_not_reached_is_unknown_and_condemns_where_it_can_be_proven_later(
    met_nobody: dict[str, Judged], name: str
) -> None:
    _, _, severity, cards, message = UNREACHED[name]
    verdict = met_nobody[name]
    for id in ("fabric.pairs", "fabric.transport"):
        status, weight, reason = result(verdict, id)
        assert (status, weight) == ("unknown", severity)
        assert reason.endswith("train-0: a job is using the GPUs")
        assert reason.startswith("measured between the node's own cards, not through") == (cards == "pass")
    status, weight, reason = result(verdict, OWN)
    assert (status, weight, message in reason) == (cards, "warn", True)
    assert any(check.condemns for check in verdict.checks) == (severity == "fatal")


def test_rates_between_own_cards_warn_as_unverified(met_nobody: dict[str, Judged]) -> None:
    _, _, message = result(met_nobody["a card is lame"], OWN)
    assert message.endswith("not through the path to another node (unverified: rdma between cards)")
    assert result(met_nobody["a job came"], OWN)[0] == "skip"


def test_a_pass_names_the_node_that_was_borrowed(met_nobody: dict[str, Judged]) -> None:
    verdict = met_nobody["borrowed"]
    assert result(verdict, "fabric.pairs") == ("pass", "fatal", "measured with train-1, borrowed for it and not judged")
    (pairs,) = (check for check in verdict.checks if check.id == "fabric.pairs")
    assert pairs.actual == ["train-1 (borrowed): 44 GB/s"]
    assert "borrowed nodes alone" in result(verdict, "fabric.ring")[2]
    assert result(verdict, OWN)[0] == "skip"


def test_a_machine_whose_elastic_rdma_nobody_installs_is_ethernet() -> None:
    """NCCL goes over sockets there, and no check wants RDMA of it."""
    want = expected(ERDMA, "stress")
    assert (want.network, want.fabric, want.gpudirect, want.rdma_devices) == ("ethernet", "", False, ())
    texts = healthy(ERDMA) | {"fabric.json": fabric_json(load().machine(P4D)).replace("AWS Libfabric+GDR", "Socket")}
    results = judge({"one": Case(bundle(texts), want)})["one"].checks
    assert [check.id for check in results if check.condemns] == []
    assert {check.status for check in results if check.id in FABRIC_CHECKS} == {"skip"}


def test_what_does_not_apply_is_skipped_and_what_is_not_known_unknown(judged: dict[str, Judged]) -> None:
    assert states(judged["two nodes"])["fabric.ring"] == "skip"
    assert states(judged["NCCL is silent"]) == dict.fromkeys(FABRIC_CHECKS, "pass") | {"fabric.transport": "unknown"}
    assert set(states(judged["ethernet"]).values()) == {"skip"}
    together = states(judged["ethernet, close together"])
    assert together == dict.fromkeys(FABRIC_CHECKS, "pass") | {"fabric.transport": "skip"}
    assert set(states(judged["not written"]).values()) == {"unknown"}
    standard = states(judged["level standard"])
    assert standard == dict.fromkeys(FABRIC_CHECKS, "skip") | {"fabric.pairs": "unknown", "fabric.transport": "unknown"}
    assert set(states(judged["level quick"]).values()) == {"skip"}
    assert set(states(judged["of other hands"]).values()) == {"skip"}


def test_a_machine_for_jobs_of_several_nodes_has_a_network_for_them() -> None:
    assert {"p4d.24xlarge", "Standard_ND96asr_v4", "dgx-h100"} <= set(JOINED)
    assert not {"p3.8xlarge", "g5.xlarge", "workstation-rtx4090", ERDMA} & set(JOINED)
    from provisioner.spec.groups import GpuOptions, NetworkOptions

    assert expected(P4D, group=Group(machine=P4D, gpu=GpuOptions(mig="1g.5gb"))).fabric == ""
    assert expected(P4D, group=Group(machine=P4D, network=NetworkOptions(rdma=False))).fabric == ""
    assert expected("g5.48xlarge").fabric == "rdma"
    assert not expected("g5.48xlarge").gpudirect
    assert expected(P4D).gpudirect


@pytest.mark.parametrize("text", ["", "[]", "{}", "nothing", '{"state": "ran"}', '{"state": "fine", "pairs": [{}]}',
                                  '{"state": "fine", "ring": {"nodes": []}}'])  # fmt: skip
def test_what_is_no_verdict_is_unreadable(text: str) -> None:
    with pytest.raises(Unreadable):
        parse(text)


def test_a_rate_that_is_no_number_is_none() -> None:
    fabric = parse(
        '{"state": "fine", "pairs": [{"partner": "b", "good": true, "gbps": NaN, "transports": {"NET/IB": "x"}}]}'
    )
    assert (fabric.pairs[0].gbps, fabric.pairs[0].transports) == (None, ())


VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(STATES),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=8,
)
KEYS = st.sampled_from(
    ["state", "why", "nodes", "pairs", "paths", "ring", "partner", "good", "transports", "floor_gbps"]
)


@given(
    st.dictionaries(KEYS, VALUES | st.dictionaries(KEYS, VALUES) | st.lists(st.dictionaries(KEYS, VALUES)), max_size=8)
)
@settings(max_examples=150, deadline=None)
def test_the_parser_reads_or_refuses_and_never_breaks(document: dict[str, Any]) -> None:
    with contextlib.suppress(Unreadable):
        assert parse(json.dumps(document)).state in STATES
