"""The search for a bad node or path, on fabrics that are made up: every fault of small groups, random ones of large."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import combinations
from math import ceil, log2

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provisioner.verify.fabric import AGAIN, ISOLATE, RING, Met, Search, Verdict, most_rounds

RATE, FLOOR = 40.0, 30.0
KINDS = ("fails", "slow", "sockets")
Pair = frozenset[str]


def names(count: int) -> list[str]:
    return [f"n{i}" for i in range(count)]


@dataclass
class Fabric:
    """What a set of nodes reaches: a node or a path in it that is bad spoils it."""

    nodes: dict[str, str] = field(default_factory=dict)
    paths: dict[Pair, str] = field(default_factory=dict)
    noise: float = 0.0
    gone: frozenset[str] = frozenset()
    wide: int = 10**6
    """Sets of more nodes than that fail."""
    at_random: random.Random = field(default_factory=lambda: random.Random(7))

    def run(self, nodes: tuple[str, ...]) -> Met:
        if away := tuple(node for node in nodes if node in self.gone):
            return Met(nodes, ok=False, why="no answer", absent=away)
        kinds = {kind for node, kind in self.nodes.items() if node in nodes}
        kinds |= {kind for path, kind in self.paths.items() if path <= set(nodes)}
        if "fails" in kinds or len(nodes) > self.wide:
            return Met(nodes, ok=False, why="NCCL failed")
        rate = RATE * (0.45 if "slow" in kinds else 1) * self.at_random.gauss(1, self.noise)
        return Met(nodes, ok=True, gbps=rate, why="over sockets", wrong_way="sockets" in kinds)


def search(count: int, fabric: Fabric, floor: float | None = None) -> dict[str, Verdict]:
    """The verdicts; every round is checked on the way."""
    search_state = Search(names(count), floor=floor)
    rounds = 0
    while sets := search_state.next_round():
        rounds += 1
        used = [node for nodes in sets for node in nodes]
        assert len(used) == len(set(used)), "a node can be in one set at a time"
        assert all(2 <= len(nodes) <= max(2, RING) for nodes in sets)
        search_state.report([fabric.run(nodes) for nodes in sets])
    assert rounds == search_state.asked <= most_rounds(count)
    return search_state.verdict()


def at_fault(verdicts: dict[str, Verdict]) -> set[str]:
    return {node for node, verdict in verdicts.items() if verdict.state == "fault"}


def paths(verdicts: dict[str, Verdict]) -> set[Pair]:
    return {frozenset({node, other}) for node, verdict in verdicts.items() for other in verdict.paths}


def states(verdicts: dict[str, Verdict], nodes: Iterable[str]) -> set[str]:
    return {verdicts[node].state for node in nodes}


@pytest.mark.parametrize("floor", [None, FLOOR])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", range(3, 11))
def test_every_single_bad_node_is_found_and_nobody_else(count: int, kind: str, floor: float | None) -> None:
    for bad in names(count):
        verdicts = search(count, Fabric({bad: kind}), floor)
        assert at_fault(verdicts) == {bad}
        assert states(verdicts, set(names(count)) - {bad}) == {"fine"}
        assert paths(verdicts) == set()
        assert verdicts[bad].wrong_way == (kind == "sockets")
        assert verdicts[bad].why.startswith("with n")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", range(3, 11))
def test_a_bad_path_accuses_no_node(count: int, kind: str) -> None:
    suspected_count = 0
    for first, second in combinations(names(count), 2):
        verdicts = search(count, Fabric(paths={frozenset({first, second}): kind}))
        assert states(verdicts, names(count)) == {"fine"}
        suspected = paths(verdicts)
        assert suspected <= {frozenset({first, second})}
        rings = {verdict.ring for verdict in verdicts.values() if verdict.ring_ok is False}
        # A path between two nodes that never met is the ring's to find, where it goes over it.
        assert suspected or all({first, second} <= set(ring) for ring in rings)
        assert suspected or rings or kind == "slow", (first, second)
        suspected_count += bool(suspected)
    assert suspected_count >= count if count > 3 else suspected_count == 3


@pytest.mark.parametrize("kinds", [("fails", "fails"), ("slow", "slow"), ("fails", "slow"), ("sockets", "fails")])
@pytest.mark.parametrize("count", range(4, 11))
def test_every_two_bad_nodes_are_found(count: int, kinds: tuple[str, str]) -> None:
    for pair in combinations(names(count), 2):
        verdicts = search(count, Fabric(dict(zip(pair, kinds, strict=True))), FLOOR)
        assert at_fault(verdicts) == set(pair)
        assert states(verdicts, set(names(count)) - set(pair)) == {"fine"}


@pytest.mark.parametrize("count", range(5, 11))
def test_two_slow_nodes_are_found_without_a_floor(count: int) -> None:
    for pair in combinations(names(count), 2):
        assert at_fault(search(count, Fabric(dict.fromkeys(pair, "slow")))) == set(pair)


@pytest.mark.parametrize("count", range(5, 9))
def test_a_bad_node_and_a_bad_path_at_once(count: int) -> None:
    for bad in names(count):
        for path in combinations(names(count), 2):
            verdicts = search(count, Fabric({bad: "fails"}, {frozenset(path): "fails"}), FLOOR)
            assert at_fault(verdicts) == {bad}, path
            assert paths(verdicts) <= {frozenset(path)}


@pytest.mark.parametrize("kind", KINDS)
def test_two_nodes_cannot_be_told_apart(kind: str) -> None:
    verdicts = search(2, Fabric({"n1": kind}), FLOOR)
    assert states(verdicts, names(2)) == {"undecided"}
    assert "nothing tells which" in verdicts["n0"].why
    assert states(search(2, Fabric(), FLOOR), names(2)) == {"fine"}
    assert states(search(1, Fabric()), names(1)) == {"untested"}


@pytest.mark.parametrize("count", range(3, 11))
def test_a_fabric_that_works_nowhere_accuses_nobody(count: int) -> None:
    verdicts = search(count, Fabric(dict.fromkeys(names(count), "fails")))
    assert states(verdicts, names(count)) == {"undecided"}
    assert "what they share" in verdicts["n0"].why
    all_but_one = search(count, Fabric(dict.fromkeys(names(count)[1:], "fails")))
    assert at_fault(all_but_one) == set()


@pytest.mark.parametrize("count", range(3, 11))
def test_a_node_that_goes_away_is_untested_and_its_partners_are_not_blamed(count: int) -> None:
    for away in names(count):
        verdicts = search(count, Fabric(gone=frozenset({away})))
        assert verdicts[away].state == "untested"
        assert "no answer" in verdicts[away].why
        assert states(verdicts, set(names(count)) - {away}) == {"fine"}


@pytest.mark.parametrize("count", range(3, 40, 4))
def test_every_node_meets_two_others_in_at_most_three_rounds(count: int) -> None:
    search_state, rounds = Search(names(count)), 0
    partners: dict[str, set[str]] = {node: set() for node in names(count)}
    while (sets := search_state.next_round()) and len(sets[0]) == 2 and rounds < 3:
        rounds += 1
        for first, second in sets:
            assert second not in partners[first]
            partners[first].add(second)
            partners[second].add(first)
        search_state.report([Fabric().run(nodes) for nodes in sets])
    assert {len(met_nodes) for met_nodes in partners.values()} == {2}


@given(st.integers(2, 60), st.integers(0, 2**32), st.sampled_from([0.0, 0.01, 0.03]), st.booleans())
@settings(max_examples=40, deadline=None)
def test_no_false_accusation_on_a_healthy_fabric_with_noise(count: int, seed: int, noise: float, floor: bool) -> None:
    verdicts = search(count, Fabric(noise=noise, at_random=random.Random(seed)), FLOOR if floor else None)
    assert states(verdicts, names(count)) == {"fine"}
    assert paths(verdicts) == set()
    assert {verdict.ring_ok for verdict in verdicts.values()} == ({True} if count > 2 else {None})


@given(st.integers(11, 120), st.integers(0, 2**32), st.sampled_from(KINDS), st.integers(1, 6))
@settings(max_examples=40, deadline=None)
def test_a_few_bad_nodes_of_many(count: int, seed: int, kind: str, faults: int) -> None:
    at_random = random.Random(seed)
    bad = set(at_random.sample(names(count), min(faults, count // 8 + 1)))
    verdicts = search(count, Fabric(dict.fromkeys(bad, kind), noise=0.02, at_random=at_random))
    assert at_fault(verdicts) == bad
    assert states(verdicts, set(names(count)) - bad) == {"fine"}
    assert paths(verdicts) == set()


@given(st.integers(3, 40), st.integers(0, 2**32), st.floats(0, 1), st.floats(0, 1))
@settings(max_examples=60, deadline=None)
def test_whatever_breaks_it_ends_and_accuses_on_evidence_alone(
    count: int, seed: int, nodes: float, some: float
) -> None:
    at_random = random.Random(seed)
    bad = {node: at_random.choice(KINDS) for node in names(count) if at_random.random() < nodes}
    broken = {
        frozenset(path): at_random.choice(KINDS) for path in combinations(names(count), 2) if at_random.random() < some
    }
    verdicts = search(count, Fabric(bad, broken, noise=0.05, at_random=at_random), FLOOR)
    fine_nodes = {node for node, verdict in verdicts.items() if verdict.state == "fine"}
    for node, verdict in verdicts.items():
        if verdict.state == "fault":
            assert len({meeting.partner(node) for meeting in verdict.bad} & fine_nodes) >= 2
            assert not verdict.good
    assert not fine_nodes & {node for node, kind in bad.items() if kind != "slow"}


def flaky(times: int) -> Callable[[tuple[str, ...]], Met]:
    """A fabric on which n0 and n2 do not work together so many times."""
    count = [0]

    def run(nodes: tuple[str, ...]) -> Met:
        count[0] += set(nodes) == {"n0", "n2"}
        spoilt = set(nodes) == {"n0", "n2"} and count[0] <= times
        return Met(nodes, ok=True, gbps=15.0) if spoilt else Met(nodes, ok=True, gbps=RATE)

    return run


@pytest.mark.parametrize(("times", "reported"), [(1, False), (2, True)])
def test_a_path_that_was_slow_once_is_tried_again(times: int, reported: bool) -> None:
    search_state, run = Search(names(4)), flaky(times)
    while sets := search_state.next_round():
        search_state.report([run(nodes) for nodes in sets])
    assert paths(search_state.verdict()) == ({frozenset({"n0", "n2"})} if reported else set())


@pytest.mark.parametrize("count", range(3, 9))
def test_a_node_that_was_slow_twice_is_tried_a_third_time(count: int) -> None:
    search_state, rounds = Search(names(count)), 0
    while sets := search_state.next_round():
        rounds += 1
        unlucky = rounds <= (3 if count % 2 else 2)
        search_state.report([Met(s, ok=True, gbps=15.0 if unlucky and "n1" in s else RATE) for s in sets])
    assert states(search_state.verdict(), names(count)) == {"fine"}
    # Both its pairs were tried again, unless it had met one of them a second time already.
    assert len(paths(search_state.verdict())) <= (count == 3)


@pytest.mark.parametrize(("first", "second", "smallest"), [("n0", "n20", 32), ("n3", "n4", 8), ("n30", "n31", 2)])
def test_a_ring_that_fails_is_halved_until_it_is_small(first: str, second: str, smallest: int) -> None:
    verdicts = search(32, Fabric(paths={frozenset({first, second}): "fails"}))
    assert {verdict.state for verdict in verdicts.values()} == {"fine"}
    assert paths(verdicts) == set()  # these two never met
    failed = {verdict.ring for verdict in verdicts.values() if verdict.ring_ok is False}
    assert [len(ring) for ring in failed] == [smallest]
    assert all({first, second} <= set(ring) for ring in failed)


def test_a_fabric_that_fails_only_when_wide_says_how_wide() -> None:
    verdicts = search(16, Fabric(wide=5))
    assert {len(verdict.ring) for verdict in verdicts.values() if verdict.ring_ok is False} == {8}
    assert {verdict.ring_ok for verdict in verdicts.values()} == {False}


def test_many_nodes_make_several_rings() -> None:
    verdicts = search(150, Fabric())
    assert {len(verdict.ring) for verdict in verdicts.values()} == {50}
    assert len({verdict.ring for verdict in verdicts.values()}) == 3


@pytest.mark.parametrize("count", [2, 3, 64, 65, 1000, 10_000])
def test_the_number_of_rounds_does_not_grow_with_the_nodes(count: int) -> None:
    assert most_rounds(count) <= 3 + ISOLATE + AGAIN + 1 + ceil(log2(RING))
