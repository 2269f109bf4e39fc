"""A node that finds no other one of its group in the run: whom it borrows, what it does alone, what is said of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from provisioner.common.events import Event, Events
from provisioner.verify import fabric_run
from provisioner.verify.bundle import Bundle, Output
from provisioner.verify.expectations import Expected
from provisioner.verify.fabric_run import FILE, LENT, Neighbours, fabric
from provisioner.verify.parsers.fabric import Fabric, parse
from provisioner.verify.parsers.perftest import CardPair, OwnCards
from provisioner.verify.request import ProbeRequest
from provisioner.verify.subject import Subject
from tests.support.healthy_bundle import expected, healthy
from tests.support.healthy_fabric import done, part
from tests.support.healthy_perftest import card
from tests.unit.verify.test_fabric_run import Nodes, subject

P4D, NDV4 = "p4d.24xlarge", "Standard_ND96asr_v4"
JOB = "a job is using the GPUs: python3 (pid 7)"


class Fleet(Nodes):
    """Nodes that also say whether they are idle (`busy`: node → why not, or None for no answer), and what their own
    cards reach with each other. `late`: neighbours to which a job comes after they were asked."""

    def __init__(
        self, want: Expected, *, busy: Mapping[str, str | None] | None = None, late: Sequence[str] = (),
        cards: dict[str, Any] | None = None, bad: Sequence[frozenset[str]] = (),
    ) -> None:  # fmt: skip
        super().__init__(self._part)
        self.want, self.busy, self.late, self.bad = want, busy or {}, late, bad
        self.cards = cards
        self.queried: list[str] = []
        self.alone: list[str] = []

    def _part(self, names: Sequence[str]) -> dict[str, dict[str, Any]]:
        if late := [name for name in names if name in self.late]:
            return {late[0]: {"state": "absent", "why": JOB}}
        if frozenset(names) in self.bad:
            return dict.fromkeys(names, done(rc=1, error="RuntimeError: a transfer timed out"))
        return {names[0]: part(self.want, len(names))}

    def collect(
        self, targets: Mapping[str, Any], requests: Mapping[str, ProbeRequest], **how: Any
    ) -> dict[str, Bundle]:
        parts = {name: (request.load or {}).get("alone") for name, request in requests.items()}
        if {*parts.values()} == {None}:
            return super().collect(targets, requests, **how)
        (kind,) = {*parts.values()}
        if kind == "own cards":
            self.alone += parts
            document = self.cards or {"state": "absent", "why": "ib_write_bw is not installed"}
            return {name: Bundle({FILE: Output(json.dumps(document), rc=0)}) for name in parts}
        self.queried += parts
        answers: dict[str, Bundle] = {}
        for name in parts:
            reason = self.busy.get(name, "")
            state = {"state": "busy", "why": reason} if reason else {"state": "idle"}
            text = Output(json.dumps(state), rc=0)
            answers[name] = Bundle(error="no answer within 60 s") if reason is None else Bundle({FILE: text})
        return answers


def run(
    monkeypatch: pytest.MonkeyPatch, fleet: Fleet, want: Expected, *candidates: str,
    event_log: list[Event] | None = None, subjects: Mapping[str, Subject] | None = None, **options: Any,
) -> Fabric:  # fmt: skip
    """What is told of train-9, which is verified alone."""
    monkeypatch.setattr(fabric_run, "collect", fleet.collect)
    node = subject("train-9", want)
    ready = [(subjects or {}).get(name) or subject(name, replace(want, level="standard")) for name in candidates]
    machine = want.machine
    bundles = {node.name: Bundle({"load.json": Output(str(healthy(machine)["load.json"]), rc=0)})}
    events = Events(event_log.append) if event_log is not None else Events()
    bundles_by_node = fabric(
        [node], bundles, events=events,
        neighbours=lambda _: Neighbours(ready, command="gpuprov verify fleet.yaml --node train-9", **options),
    )  # fmt: skip
    assert {*bundles_by_node} == {"train-9"}, "what is borrowed is not judged"
    return parse(bundles_by_node["train-9"].files[FILE].text)


@pytest.mark.parametrize(("level", "met"), [("standard", ["train-0"]), ("stress", ["train-0", "train-1"])])
def test_the_first_idle_neighbours_are_the_other_end(
    monkeypatch: pytest.MonkeyPatch, level: Any, met: list[str]
) -> None:
    fleet, events = Fleet(want := expected(P4D, level)), list[Event]()
    result = run(monkeypatch, fleet, want, "train-0", "train-1", "train-2", event_log=events)
    assert (result.state, result.ring, list(result.borrowed)) == ("fine", None, met)
    assert [pair.partner for pair in result.pairs] == met
    assert [{*requests_by_node} for requests_by_node in fleet.rounds] == [{name, "train-9"} for name in met]
    for requests in fleet.rounds:
        lent = {name: request.load["together"]["lent"] for name, request in requests.items() if request.load}
        assert lent == {name: name != "train-9" for name in requests}, "it is asked again when it is used"
    assert (
        len(
            {
                json.dumps(r.load["options"])
                for requests_by_node in fleet.rounds
                for r in requests_by_node.values()
                if r.load
            }
        )
        == 1
    )
    assert any("train-0 and train-1, proven and idle" in event.message for event in events)
    assert fleet.alone == []


def test_one_with_a_job_and_one_that_does_not_answer_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet(want := expected(P4D, "standard"), busy={"train-0": JOB, "train-1": None})
    result = run(monkeypatch, fleet, want, "train-0", "train-1", "train-2")
    assert (result.state, result.borrowed) == ("fine", ("train-2",))
    assert {name for requests_by_node in fleet.rounds for name in requests_by_node} == {"train-2", "train-9"}


def test_no_more_neighbours_are_asked_than_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet(want := expected(P4D, "standard"))
    names = [f"train-{i}" for i in range(100, 140)]
    assert run(monkeypatch, fleet, want, *names).borrowed == ("train-100",)
    assert fleet.queried == names[: fabric_run.IDLE_AT_ONCE]


def test_a_job_that_comes_to_a_neighbour_meanwhile_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet(want := expected(P4D, "standard"), late=["train-0"])
    result = run(monkeypatch, fleet, want, "train-0", "train-1")
    assert (result.state, result.borrowed) == ("fine", ("train-1",))


def test_a_node_that_works_with_neither_of_two_proven_ones_is_at_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [frozenset({"train-9", f"train-{i}"}) for i in range(LENT)]
    fleet = Fleet(want := expected(P4D, "standard"), bad=pairs)
    result = run(monkeypatch, fleet, want, "train-0", "train-1", "train-2")
    assert (result.state, {*result.borrowed}) == ("fault", {"train-0", "train-1"})
    assert "with train-0: " in result.why and "with train-1: " in result.why
    assert not any({"train-0", "train-1"} <= {*requests_by_node} for requests_by_node in fleet.rounds), (
        "neighbours do not meet each other"
    )


def test_with_one_neighbour_alone_nothing_tells_the_node_from_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet(want := expected(P4D, "standard"), bad=[frozenset({"train-9", "train-0"})])
    result = run(monkeypatch, fleet, want, "train-0")
    assert (result.state, "whether it is the node or the path" in result.why) == ("undecided", True)
    assert result.why.endswith("; `gpuprov verify fleet.yaml` judges its neighbours, too")


def test_a_path_to_one_of_two_neighbours_condemns_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet(want := expected(P4D, "stress"), bad=[frozenset({"train-9", "train-0"})])
    result = run(monkeypatch, fleet, want, "train-0", "train-1")
    assert (result.state, result.paths) == ("fine", ("train-0",))


@pytest.mark.parametrize(
    ("busy", "proven", "waits"),
    [({"train-0": JOB}, False, True), ({"train-0": JOB}, True, False), ({"train-0": None}, False, False)],
)
def test_without_an_idle_neighbour_it_is_unreached(
    monkeypatch: pytest.MonkeyPatch, busy: dict[str, str | None], proven: bool, waits: bool
) -> None:
    """A new machine waits for its proof while a proven neighbour lives that can give it."""
    fleet = Fleet(want := expected(P4D, "standard"), busy=busy)
    result = run(monkeypatch, fleet, want, "train-0", proven=proven, refused={"train-3": "in quarantine"})
    assert (result.state, result.awaits_proof) == ("unreached", waits)
    assert f"train-0: {busy['train-0'] or 'no answer within 60 s'}" in result.why
    assert "train-3: in quarantine" in result.why
    when = "is idle" if busy["train-0"] is not None else "is healthy and in service"
    assert f"`gpuprov verify fleet.yaml --node train-9` proves it once one of them {when}" in result.why
    assert [{*requests_by_node} for requests_by_node in fleet.rounds] == [{"train-9"}], "NCCL alone works EFA's cards"
    assert result.own_cards == OwnCards("ran", busbw_gbps=44.0)


@pytest.mark.parametrize(
    ("document", "cards"),
    [
        (part(expected(P4D), 1, transports={"NET/Socket": 32}), OwnCards("ran", "32 channels over sockets", (), 44.0)),
        (
            part(expected(P4D), 1, transports={"P2P": 96}),
            OwnCards("ran", "NCCL did not go over the network cards", (), 44.0),
        ),
        (done(rc=1, error="RuntimeError: x"), OwnCards("ran", "train-9: RuntimeError: x")),
        ({"state": "busy", "busy": [{"pid": 7, "name": "python3"}]}, OwnCards("absent", JOB)),
        ({"gone": "no answer within 225 s"}, OwnCards("absent", "no answer within 225 s")),
    ],
)
def test_what_nccl_says_of_a_nodes_own_cards(
    monkeypatch: pytest.MonkeyPatch, document: dict[str, Any], cards: OwnCards
) -> None:
    fleet = Fleet(want := expected(P4D, "standard"), busy={"train-0": JOB})
    fleet.rule = lambda names: {names[0]: document}
    result = run(monkeypatch, fleet, want, "train-0")
    assert (result.state, result.own_cards) == ("unreached", cards)
    (request,) = fleet.rounds[0].values()
    assert request.load is not None and request.load["together"]["nodes"] == 1


def test_a_neighbour_that_gets_a_job_at_the_last_moment_leaves_it_unreached(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet(want := expected(P4D, "standard"), late=["train-0"])
    result = run(monkeypatch, fleet, want, "train-0")
    assert (result.state, result.awaits_proof, f"train-0: {JOB}" in result.why) == ("unreached", True, True)


def test_another_image_or_no_address_makes_no_partner(monkeypatch: pytest.MonkeyPatch) -> None:
    want = expected(P4D, "standard")
    assert want.images is not None
    other = replace(want, images=tuple({**image, "pull": "registry/other@sha256:1"} for image in want.images))
    subjects = {"train-0": subject("train-0", other), "train-1": subject("train-1", want, address="")}
    fleet = Fleet(want)
    result = run(monkeypatch, fleet, want, "train-0", "train-1", subjects=subjects)
    assert (result.state, result.awaits_proof, fleet.queried) == ("unreached", False, [])
    assert "train-0: it runs another image; train-1: its address in the group's network is not known" in result.why


CARDS = {"state": "ran", "cards": [{**card(f"mlx5_ib{i}", 197.0), "to": f"mlx5_ib{i - 1}"} for i in range(1, 8)]}


def test_a_nodes_own_cards_are_worked_where_no_neighbour_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet(want := expected(NDV4, "standard"), busy={"train-0": JOB}, cards=CARDS)
    result = run(monkeypatch, fleet, want, "train-0")
    assert result.state == "unreached" and result.own_cards is not None and result.own_cards.measured
    assert result.own_cards.pairs[0] == CardPair("mlx5_ib1", "mlx5_ib0", 197.0)


def test_one_gpu_has_nobody_to_send_to(monkeypatch: pytest.MonkeyPatch) -> None:
    want = replace(expected(P4D, "standard"), gpu_count=1)
    fleet = Fleet(want, busy={"train-0": JOB})
    result = run(monkeypatch, fleet, want, "train-0")
    assert (result.state, result.own_cards, fleet.rounds) == ("unreached", None, [])


def test_own_cards_that_do_not_answer_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet(want := expected(NDV4, "standard"), busy={"train-0": JOB})
    monkeypatch.setattr(fabric_run, "own_cards_answer", lambda _: (_ for _ in ()).throw(ValueError("x")))
    result = run(monkeypatch, fleet, want, "train-0")
    assert result.own_cards is not None and result.own_cards.state == "absent"
    assert "the parser failed" in result.own_cards.why


def test_the_only_node_of_its_group_has_nobody_to_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (P4D, NDV4):
        fleet = Fleet(want := expected(name, "standard"), cards=CARDS)
        result = run(monkeypatch, fleet, want)
        assert (result.state, result.why) == ("alone", "its group has no other node")
        assert result.own_cards is not None and result.own_cards.measured


def fabric_by_node(
    monkeypatch: pytest.MonkeyPatch, subjects: Sequence[Subject], fleet: Fleet, borrowed: Neighbours | None
) -> dict[str, Fabric]:
    monkeypatch.setattr(fabric_run, "collect", fleet.collect)
    bundles = {node.name: Bundle({"load.json": Output(str(healthy(P4D)["load.json"]), rc=0)}) for node in subjects}
    neighbours = (lambda _: borrowed) if borrowed is not None else None
    verdicts = fabric(subjects, bundles, events=Events(), neighbours=neighbours)
    return {name: parse(bundle.files[FILE].text) for name, bundle in verdicts.items()}


def test_a_host_of_no_fleet_is_unreached_and_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    want = replace(expected(NDV4, "standard"), images=None, packages=None)
    fleet = Fleet(want, cards=CARDS)
    host = subject("ubuntu@dgx01", want, group="", site="", address="")
    (result,) = fabric_by_node(monkeypatch, [host], fleet, Neighbours()).values()
    assert (result.state, result.awaits_proof, result.own_cards is not None) == ("unreached", False, True)
    assert fabric_by_node(monkeypatch, [host], fleet, None)["ubuntu@dgx01"].state == "alone"


def test_without_an_image_that_can_run_between_nodes_a_group_is_unreached(monkeypatch: pytest.MonkeyPatch) -> None:
    bare = replace(expected(P4D, "standard"), images=())
    pair = [subject("train-0", bare), subject("train-1", bare)]
    assert {result.state for result in fabric_by_node(monkeypatch, pair, Fleet(bare), Neighbours()).values()} == {
        "unreached"
    }
    assert fabric_by_node(monkeypatch, pair[:1], Fleet(bare), Neighbours())["train-0"].state == "alone"
    asks = fabric_by_node(monkeypatch, pair[:1], Fleet(bare), Neighbours(refused={"train-1": "in quarantine"}))
    assert (asks["train-0"].state, asks["train-0"].why) == ("unreached", "no locked image has PyTorch")


def test_a_new_machine_waits_for_a_node_of_the_run_that_has_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    want = expected(P4D, "standard")
    busy = json.dumps({"state": "busy", "busy": [{"pid": 7, "name": "python3"}]})
    loads = {"train-8": busy, "train-9": str(healthy(P4D)["load.json"])}
    monkeypatch.setattr(fabric_run, "collect", Fleet(want).collect)
    bundles = fabric(
        [subject("train-8", want), subject("train-9", want)],
        {name: Bundle({"load.json": Output(text, rc=0)}) for name, text in loads.items()}, events=Events(),
        neighbours=lambda _: Neighbours(refused={"train-8": "verified in this run", "train-7": "in quarantine"}),
    )  # fmt: skip
    verdict = parse(bundles["train-9"].files[FILE].text)
    assert (verdict.state, verdict.awaits_proof) == ("unreached", True)
    assert "train-8: not tested: a job is using the GPUs: python3 (pid 7)" in verdict.why


def test_groups_with_several_nodes_borrow_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    want = expected(P4D, "standard")
    fleet = Fleet(want)
    results = fabric_by_node(
        monkeypatch, [subject("train-0", want), subject("train-1", want)], fleet, Neighbours([subject("x-1")])
    )
    assert {result.state for result in results.values()} == {"fine"}
    assert fleet.queried == []
