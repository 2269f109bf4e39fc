"""The hands of the search: what is asked of each node, what is made of their parts, and what each verdict says."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from provisioner.catalog import load
from provisioner.common.events import Event, Events
from provisioner.spec.groups import Group
from provisioner.verify import fabric_run
from provisioner.verify.bundle import Bundle, Output
from provisioner.verify.expectations import Expected
from provisioner.verify.fabric_run import FILE, PORTS, Member, fabric, joint_result, wrong_way
from provisioner.verify.parsers.fabric import Fabric, parse
from provisioner.verify.request import ProbeRequest
from provisioner.verify.subject import Subject
from tests.support.healthy_bundle import expected, healthy
from tests.support.healthy_fabric import done, part
from tests.support.healthy_load import ran, result

P4D, RTX = "p4d.24xlarge", "workstation-rtx4090"
WANT = expected(P4D, "stress")
ERROR = "Traceback (most recent call last):\n  File x\nDistBackendError: NCCL error: remote process exited\n"
Rule = Callable[[Sequence[str]], Mapping[str, dict[str, Any]]]


class Nodes:
    """Nodes that answer the probe; `rule` says of a set's nodes what their parts are, where not all goes well."""

    def __init__(self, rule: Rule = lambda _names: {}) -> None:
        self.rule = rule
        self.rounds: list[dict[str, ProbeRequest]] = []
        self.deadlines: list[float] = []

    def collect(
        self, targets: Mapping[str, Any], requests: Mapping[str, ProbeRequest], **how: Any
    ) -> dict[str, Bundle]:
        assert how["parallel"] >= len(targets), "a set begins when all of its nodes do"
        self.rounds.append(dict(requests))
        self.deadlines.append(how["deadline_s"])
        sets: dict[tuple[str, int], list[str]] = {}
        for name, request in requests.items():
            assert request.load is not None
            together = request.load["together"]
            sets.setdefault((together["address"], together["port"]), []).append(name)
        bundles: dict[str, Bundle] = {}
        for names in sets.values():
            documents = self.rule(names)
            for index, name in enumerate(names):
                document = documents.get(name) or (part(WANT, len(names)) if index == 0 else done())
                error = document.get("gone")
                bundles[name] = Bundle(error=error) if error else Bundle({FILE: Output(json.dumps(document), rc=0)})
        return bundles


def subject(name: str, want: Expected = WANT, **values: Any) -> Subject:
    number = name.rpartition("-")[2]
    fields = {"group": name.partition("-")[0], "site": "lab", "machine": P4D, "address": f"10.0.0.{number}", **values}
    return Subject(name, source=("ssh", name), expected=want, **fields)


def own_load(machine: str = P4D, **changes: str) -> Bundle:
    """What a node gave alone."""
    texts = {"load.json": str(healthy(machine)["load.json"])} | changes
    return Bundle({name: Output(text, rc=0) for name, text in texts.items()})


def verdicts(
    monkeypatch: pytest.MonkeyPatch,
    nodes: Nodes,
    subjects: Sequence[Subject],
    bundles: Mapping[str, Bundle] | None = None,
    event_log: list[Event] | None = None,
    **how: float,
) -> dict[str, Fabric]:
    monkeypatch.setattr(fabric_run, "collect", nodes.collect)
    all_of = {s.name: own_load() for s in subjects} | dict(bundles or {})
    events = Events(event_log.append) if event_log is not None else Events()
    return {
        name: parse(bundle.files[FILE].text) for name, bundle in fabric(subjects, all_of, events=events, **how).items()
    }


def some(count: int, **values: Any) -> list[Subject]:
    return [subject(f"train-{i}", **values) for i in range(count)]


def test_healthy_nodes_are_fine_and_every_round_is_asked_for_as_a_set(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes, events = Nodes(), list[Event]()
    results = verdicts(monkeypatch, nodes, some(4), event_log=events)
    assert {verdict.state for verdict in results.values()} == {"fine"}
    assert all(
        verdict.ring and verdict.ring.nodes == ("train-0", "train-1", "train-2", "train-3")
        for verdict in results.values()
    )
    assert len(nodes.rounds) == 3  # two pairings and the ring
    for request in nodes.rounds[0].values():
        assert request.load is not None
        together = request.load["together"]
        assert list(request.files) == [FILE]
        assert (together["nodes"], together["port"] in PORTS) == (2, True)
        assert "TCPStore" in together["launcher"]
    first = [r.load["together"] for r in nodes.rounds[0].values() if r.load and r.load["together"]["node"] == 0]
    assert all(together["address"] == together["own"] for together in first)
    assert len({together["port"] for together in first} | {together["address"] for together in first}) > 2
    assert max(nodes.deadlines) < 300
    messages = [event.message for event in events]
    assert re.fullmatch(r"4 nodes in pairs and rings, at most \d+ rounds", messages[0])
    assert events[0].until is not None
    rounds = ["round 1: 2 pairs", "round 2: 2 pairs", "round 3: 1 ring of up to 4 nodes"]
    assert messages[1:] == [f"{messages[0]}; {turn}" for turn in rounds]


@pytest.mark.parametrize(("count", "rounds"), [(2, [1]), (4, [2]), (5, [2, 1])])
def test_level_standard_runs_each_node_in_one_pair_for_seconds(
    monkeypatch: pytest.MonkeyPatch, count: int, rounds: list[int]
) -> None:
    nodes = Nodes()
    results = verdicts(monkeypatch, nodes, some(count, want=expected(P4D, "standard")))
    assert {verdict.state for verdict in results.values()} == {"fine"} and len(results) == count
    assert {verdict.ring for verdict in results.values()} == {None}
    assert [len(requests) // 2 for requests in nodes.rounds] == rounds
    options = {json.dumps(r.load["options"]) for requests in nodes.rounds for r in requests.values() if r.load}
    assert options == {'{"budget": 10, "largest": 2}'}


def test_level_standard_finds_the_node_that_goes_over_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = {"P2P": 96, "NET/Socket": 32}
    nodes = Nodes(lambda names: {names[0]: part(WANT, len(names), transports=slow)} if "train-0" in names else {})
    results = verdicts(monkeypatch, nodes, some(4, want=expected(P4D, "standard")))
    assert {name: verdict.wrong_way for name, verdict in results.items() if verdict.state == "fault"} == {
        "train-0": True
    }


def test_nodes_that_up_has_looked_at_already_meet_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their bundles are given, and beside them how to reach them."""
    looked = [
        replace(node, source=own_load(), reach=("ssh", node.name)) for node in some(2, want=expected(P4D, "standard"))
    ]
    nodes = Nodes()
    assert {verdict.state for verdict in verdicts(monkeypatch, nodes, looked).values()} == {"fine"}
    assert [set(requests) for requests in nodes.rounds] == [{"train-0", "train-1"}]


def test_at_level_standard_a_group_without_rdma_and_a_saved_bundle_meet_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    together = expected("p3.8xlarge", "standard", group=Group(machine="p3.8xlarge", placement="cluster"))
    assert verdicts(monkeypatch, Nodes(), some(2, want=together)) == {}
    saved = [replace(node, source=own_load()) for node in some(2, want=expected(P4D, "standard"))]
    states = {verdict.state for verdict in verdicts(monkeypatch, Nodes(), saved).values()}
    assert states == {"alone"}


def test_a_node_that_works_with_nobody_is_at_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def rule(names: Sequence[str]) -> dict[str, dict[str, Any]]:
        if "train-2" not in names:
            return {}
        taken = dict.fromkeys(names, done(rc=1, error=ERROR))
        return taken | {"train-2": done(rc=1, error="RuntimeError: ibv_reg_mr failed: Cannot allocate memory")}

    results = verdicts(monkeypatch, Nodes(rule), some(5))
    assert {name for name, verdict in results.items() if verdict.state == "fault"} == {"train-2"}
    assert {results[name].state for name in results if name != "train-2"} == {"fine"}
    assert "train-2: RuntimeError: ibv_reg_mr failed" in results["train-2"].why
    assert [pair.good for pair in results["train-2"].pairs] == [False] * 3


def test_sockets_are_the_wrong_way_and_the_node_that_takes_it_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = {"P2P": 96, "NET/Socket": 32}
    nodes = Nodes(lambda names: {names[0]: part(WANT, len(names), transports=slow)} if "train-0" in names else {})
    results = verdicts(monkeypatch, nodes, some(4))
    assert {name: verdict.wrong_way for name, verdict in results.items() if verdict.state == "fault"} == {
        "train-0": True
    }
    assert "32 channels over sockets" in results["train-0"].why


def test_a_job_that_began_meanwhile_is_not_disturbed(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = {"state": "busy", "busy": [{"pid": 7, "name": "python3"}]}
    results = verdicts(monkeypatch, Nodes(lambda names: {n: busy for n in names if n == "train-1"}), some(4))
    assert (results["train-1"].state, {results[f"train-{i}"].state for i in (0, 2, 3)}) == ("busy", {"fine"})
    assert "python3 (pid 7)" in results["train-1"].why


def test_a_node_whose_program_hangs_does_not_pass_for_one_with_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = [0]

    def rule(names: Sequence[str]) -> dict[str, dict[str, Any]]:
        rounds[0] += "train-1" in names
        stuck = {"state": "busy", "busy": [{"pid": 7, "name": "python3"}]}
        if "train-1" not in names:
            return {}
        hung = dict.fromkeys(names, done(timed_out=True, rc=None, seconds=184.0))
        return hung if rounds[0] == 1 else {"train-1": stuck}

    verdict = verdicts(monkeypatch, Nodes(rule), some(4))["train-1"]
    assert verdict.state == "undecided"
    assert "no end within 184 s" in verdict.why and "a job is using the GPUs" in verdict.why


def test_a_node_that_goes_away_is_untested_and_the_others_are_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    unreachable = {"gone": "no answer within 225 s"}
    results = verdicts(monkeypatch, Nodes(lambda names: {n: unreachable for n in names if n == "train-1"}), some(4))
    assert (results["train-1"].state, results["train-1"].why) == ("untested", "no answer within 225 s")
    assert {results[f"train-{i}"].state for i in (0, 2, 3)} == {"fine"}


def test_who_meets_whom(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups among themselves; nobody that has not got through its own load, is busy, or was not asked for it."""
    nodes = Nodes()
    subjects = [
        *some(3), *(subject(f"infer-{i}") for i in range(2)), subject("lone-0"), subject("train-7", address=""),
        subject("train-3"), subject("train-4"), subject("train-5", expected(P4D, "quick")), subject("train-6"),
        subject("desk-0", expected(RTX, "stress"), machine=RTX),
    ]  # fmt: skip
    failed = json.dumps(done(rc=1, error="RuntimeError: x"))
    busy = json.dumps({"state": "busy", "busy": [{"pid": 7, "name": "python3"}]})
    bundles = {
        "train-3": own_load(**{"load.json": failed}), "train-4": own_load(**{"load.json": busy}),
        "train-6": Bundle(error="no answer"),
    }  # fmt: skip
    results = verdicts(monkeypatch, nodes, subjects, bundles)
    partners = {name: {pair.partner for pair in verdict.pairs} for name, verdict in results.items() if verdict.pairs}
    assert partners == {
        "train-0": {"train-1", "train-2"}, "train-1": {"train-0", "train-2"}, "train-2": {"train-0", "train-1"},
        "infer-0": {"infer-1"}, "infer-1": {"infer-0"},
    }  # fmt: skip
    states_of_unpaired = {name: verdict.state for name, verdict in results.items() if not verdict.pairs}
    assert states_of_unpaired == {"lone-0": "alone", "train-3": "untested", "train-4": "busy", "train-7": "untested"}
    assert {"train-5", "train-6", "desk-0"} & set(results) == set()


def test_a_node_that_lacks_a_gpu_meets_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its partners would be told of a bad path, and gpu.count has said whose fault it is."""
    short = ran(result(load().machine(P4D)) | {"ranks": 7})
    results = verdicts(monkeypatch, Nodes(), some(4), {"train-2": own_load(**{"load.json": short})})
    assert {results[f"train-{i}"].state for i in (0, 1, 3)} == {"fine"}
    assert results["train-2"].state == "untested"
    assert results["train-2"].why.startswith("only 7 of 8 GPUs took part in its own load")


def test_what_was_looked_at_alone_meets_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    saved = replace(subject("a"), source=own_load())
    host = replace(subject("b", group=""), source=own_load(), reach=("ssh", "b"))
    bare = subject("c", replace(WANT, images=()))
    results = verdicts(monkeypatch, Nodes(), [saved, host, bare])
    assert {name: (verdict.state, verdict.why) for name, verdict in results.items()} == {
        "b": ("alone", "verified alone, without the other nodes of its group"),
        "c": ("alone", "no locked image has PyTorch"),
    }


def test_many_nodes_take_turns_and_sets_stay_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fabric_run, "AT_ONCE", 5)
    nodes = Nodes()
    results = verdicts(monkeypatch, nodes, some(8))
    assert {verdict.state for verdict in results.values()} == {"fine"}
    assert [len(requests) for requests in nodes.rounds] == [4, 4, 4, 4, 8]


def test_after_its_time_no_further_round_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[Event] = []
    nodes = Nodes()
    results = verdicts(monkeypatch, nodes, some(4), event_log=events, total_s=-1.0)
    assert nodes.rounds == []
    assert {verdict.state for verdict in results.values()} == {"untested"}
    assert all("the time was up" in verdict.why for verdict in results.values())
    assert events[-1].kind == "warning"


MEMBERS = tuple(Member(f"train-{i}", ("ssh",), f"10.0.0.{i}", WANT) for i in range(2))


@pytest.mark.parametrize(
    ("first", "second", "ok", "reason"),
    [
        (part(WANT, 2), done(), True, ""),
        (part(WANT, 2, wrong=3), done(), False, "3 wrong values"),
        (part(WANT, 2, ranks=15), done(), False, "15 GPUs took part, 16 expected"),
        (part(WANT, 2), done(rc=1, error="RuntimeError: late"), False, "train-1: RuntimeError: late"),
        (done(timed_out=True, rc=None, seconds=184.0), done(timed_out=True, rc=None), False, "no end within 184 s"),
        (done(rc=1), done(rc=1), False, "exit status 1, without a word"),
        (done(rc=1, error=ERROR), done(rc=1, error="OSError: the cause"), False, "train-1: OSError: the cause"),
    ],
)
def test_what_the_parts_say_together(first: dict[str, Any], second: dict[str, Any], ok: bool, reason: str) -> None:
    came = {
        f"train-{i}": Bundle({FILE: Output(json.dumps(document), rc=0)}) for i, document in enumerate((first, second))
    }
    meeting = joint_result(MEMBERS, came)
    assert (meeting.ok, meeting.absent, meeting.gbps) == (ok, (), 44.0 if ok else None)
    assert reason in meeting.why


@pytest.mark.parametrize(
    ("bundle", "reason"),
    [
        (Bundle(error="no answer within 225 s"), "no answer within 225 s"),
        (Bundle({FILE: Output("", timed_out=True)}), "the probe gave no answer"),
        (Bundle({FILE: Output("{}", rc=0)}), "the probe gave no answer"),
        (Bundle({FILE: Output('{"state": "absent", "why": "no such image"}', rc=0)}), "no such image"),
        (
            Bundle({FILE: Output(json.dumps({"state": "busy", "busy": [{"pid": 7, "name": "x"}]}), rc=0)}),
            "a job is using the GPUs",
        ),
    ],
)
def test_who_did_not_take_part_is_no_witness(bundle: Bundle, reason: str) -> None:
    meeting = joint_result(
        MEMBERS, {"train-0": Bundle({FILE: Output(json.dumps(part(WANT, 2)), rc=0)}), "train-1": bundle}
    )
    assert meeting.absent == ("train-1",)
    assert reason in meeting.why


WAYS = {
    "p4d": (P4D, {"P2P": 96, "NET/AWS Libfabric+GDR": 32}, ""),
    "p4d without GPUDirect": (
        P4D,
        {"NET/AWS Libfabric": 30, "NET/AWS Libfabric+GDR": 2},
        "30 channels via NET/AWS Libfabric w",
    ),
    "p4d over sockets": (P4D, {"P2P": 96, "NET/Socket": 32}, "32 channels over sockets"),
    "an older EFA": ("p3dn.24xlarge", {"SHM": 4, "NET/AWS Libfabric": 32}, ""),
    "InfiniBand by a plugin": ("Standard_ND96asr_v4", {"NET/IBext_v8+GDR": 32}, ""),
    "a machine that could have eRDMA": ("ecs.ebmgn7ex.32xlarge", {"NET/Socket": 32}, ""),
    "silent": (P4D, {}, ""),
    "NVLink across": ("Standard_ND128isr_NDR_GB200_v6", {"P2P": 96}, ""),
    "Ethernet": (RTX, {"NET/Socket": 8}, ""),
}


@pytest.mark.parametrize("name", WAYS)
def test_which_way_is_wrong(name: str) -> None:
    machine, transports, reason = WAYS[name]
    want = expected(machine)
    message = wrong_way(transports, rdma=want.fabric == "rdma", gpudirect=want.gpudirect)
    assert message.startswith(reason) and bool(message) == bool(reason)
