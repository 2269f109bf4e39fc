"""The order of an upgrade with actions that only write down what they do: canary, batches, rollback, a kill at every
single step."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

from provisioner.common.errors import GpuprovError
from provisioner.common.paths import ClusterPaths
from provisioner.lifecycle import rollout
from provisioner.lifecycle.upgrade import journal as upgrade_journal
from provisioner.lifecycle.upgrade import order
from provisioner.lifecycle.upgrade.command import batch_size
from provisioner.lifecycle.upgrade.journal import Journal

OLD, NEW = "old", "new"


class Killed(BaseException):
    """The machine that gpuprov runs on lost power."""


@dataclass
class Fleet:
    """Nodes as they really are, and what was done to them. `breaks`: nodes that are not good with NEW; `lost`: with
    nothing any more; `refuses`: hooks that fail, as "drain node" or "resume node"."""

    runs: dict[str, str]
    breaks: frozenset[str] = frozenset()
    lost: frozenset[str] = frozenset()
    refuses: frozenset[str] = frozenset()
    installed: dict[str, str] = field(default_factory=dict)
    drained: set[str] = field(default_factory=set)
    log: list[str] = field(default_factory=list)
    alarms: list[str] = field(default_factory=list)
    calls_left: int | None = None
    """Calls until the lights go out."""

    def __post_init__(self) -> None:
        self.installed = dict(self.runs)

    def step(self) -> None:
        if self.calls_left is not None:
            if self.calls_left == 0:
                raise Killed
            self.calls_left -= 1

    def drain(self, nodes: Sequence[str], begun: Collection[str] = ()) -> dict[str, str]:
        self.step()
        self.log.append(f"drain {' '.join(nodes)}")
        bad = {name: "jobs run on it" for name in nodes if f"drain {name}" in self.refuses}
        self.drained |= set(nodes) - set(bad)
        self.step()
        return bad

    def resume(self, nodes: Sequence[str]) -> dict[str, str]:
        self.step()
        self.log.append(f"resume {' '.join(nodes)}")
        bad = {name: "no such node" for name in nodes if f"resume {name}" in self.refuses}
        self.drained -= set(nodes) - set(bad)
        self.step()
        return bad

    def move(self, desired: Mapping[str, str]) -> dict[str, str]:
        self.step()
        assert set(desired) <= self.drained, "a node that was not drained was touched"
        self.log.append(" ".join([f"move {next(iter(desired.values()))}", *desired]))
        for name, release in desired.items():
            self.installed[name] = release
            self.step()
        return {
            name: "gpu.count: 7 instead of 8"
            for name, release in desired.items()
            if name in self.lost or (release == NEW and name in self.breaks)
        }

    def record(self, nodes: Sequence[str], release: str) -> None:
        self.step()
        self.runs |= dict.fromkeys(nodes, release)

    def keep_out(self, name: str, reason: str) -> None:
        self.step()
        assert name in self.drained and reason

    def report_event(self, kind: str, message: str, node: str | None = None) -> None:
        if kind in ("failed", "warning"):
            self.alarms.append(f"{node}: {message}" if node else message)


def names(count: int) -> list[str]:
    return [f"n-{i}" for i in range(count)]


def fleet(count: int, **how: Any) -> Fleet:
    return Fleet(dict.fromkeys(names(count), OLD), **{k: frozenset(v) for k, v in how.items()})


def journal(nodes: Fleet, *, batch: int = 2, first: Sequence[str] = ("n-0",)) -> Journal:
    begun = Journal()
    order.begin(begun, NEW, nodes.runs, first=first, batch=batch)
    return begun


def go(nodes: Fleet, state: Journal, save: Callable[[], None] = lambda: None, canaries: int = 1) -> Journal:
    order.run(state, nodes, save, canaries=canaries)
    return state


def test_the_canary_goes_first_then_batches() -> None:
    nodes = fleet(6)
    done = go(nodes, journal(nodes))
    assert [line for line in nodes.log if line.startswith("move")] == [
        "move new n-0", "move new n-1 n-2", "move new n-3 n-4", "move new n-5",
    ]  # fmt: skip
    assert done.phase == "done"
    assert set(nodes.runs.values()) == {NEW}
    assert nodes.drained == set()
    assert nodes.alarms == []


def test_each_node_is_drained_moved_and_resumed_in_that_order() -> None:
    nodes = fleet(2)
    go(nodes, journal(nodes, batch=1))
    assert nodes.log == ["drain n-0", "move new n-0", "resume n-0", "drain n-1", "move new n-1", "resume n-1"]


def test_two_canaries_and_one_of_choice() -> None:
    nodes = fleet(5)
    go(nodes, journal(nodes, first=["n-3", "n-1"]), canaries=2)
    assert nodes.log[1] == "move new n-3 n-1"


def test_a_bad_canary_is_brought_back_and_nothing_else_is_touched() -> None:
    nodes = fleet(6, breaks=names(6))
    done = go(nodes, journal(nodes))
    assert nodes.log == ["drain n-0", "move new n-0", "move old n-0", "resume n-0"]
    assert (done.phase, done.reason) == ("rolled-back", "n-0: gpu.count: 7 instead of 8")
    assert done.failed == {NEW: done.reason}
    assert nodes.installed == nodes.runs == dict.fromkeys(names(6), OLD)
    assert done.at("waiting") == names(6)[1:]


def test_the_first_bad_batch_is_brought_back_whole_and_those_before_it_stay() -> None:
    nodes = fleet(6, breaks=["n-3"])
    done = go(nodes, journal(nodes))
    assert done.phase == "rolled-back"
    assert {n for n, r in nodes.runs.items() if r == NEW} == {"n-0", "n-1", "n-2"}
    assert done.at("rolled-back") == ["n-3", "n-4"]
    assert done.nodes["n-4"].reason == "in one batch with n-3"
    assert done.at("waiting") == ["n-5"]
    assert "n-5" not in " ".join(nodes.log)
    assert nodes.drained == set()


def test_on_request_all_that_moved_are_brought_back_in_batches() -> None:
    nodes = fleet(6, breaks=["n-3"])
    state = journal(nodes)
    state.rollback_all = True
    done = go(nodes, state)
    assert set(nodes.runs.values()) == set(nodes.installed.values()) == {OLD}
    assert nodes.log[-6:] == [
        "drain n-0 n-1",
        "move old n-0 n-1",
        "resume n-0 n-1",
        "drain n-2",
        "move old n-2",
        "resume n-2",
    ]
    assert done.at("moved") == []


def test_asked_for_later_too() -> None:
    nodes = fleet(4, breaks=["n-3"])
    done = go(nodes, journal(nodes, batch=1))
    done.rollback_all, done.phase = True, "rolling-back"
    go(nodes, done)
    assert set(nodes.runs.values()) == {OLD}


def test_a_node_that_does_not_let_itself_be_drained_is_left_alone() -> None:
    nodes = fleet(4, refuses=["drain n-0", "drain n-2"])
    done = go(nodes, journal(nodes))
    assert done.phase == "done"
    assert nodes.runs == {"n-0": OLD, "n-1": NEW, "n-2": OLD, "n-3": NEW}
    assert done.nodes["n-0"].reason == "could not be drained: jobs run on it"
    assert nodes.log[:3] == ["drain n-0", "drain n-1", "move new n-1"], "the next one is the canary"
    assert len(nodes.alarms) == 2


def test_one_that_does_not_on_the_way_back_keeps_the_new_lock() -> None:
    nodes = fleet(4, breaks=["n-3"])
    state = journal(nodes, batch=1)
    state.rollback_all = True
    nodes.refuses = frozenset()
    original = nodes.move

    def move(desired: Mapping[str, str]) -> dict[str, str]:
        nodes.refuses = frozenset({"drain n-1"})
        return original(desired)

    nodes.move = move  # type: ignore[method-assign]
    state.nodes["n-1"].step = "moved"
    nodes.runs["n-1"] = nodes.installed["n-1"] = NEW
    done = go(nodes, state)
    assert done.phase == "rolled-back"
    assert nodes.runs == {"n-0": OLD, "n-1": NEW, "n-2": OLD, "n-3": OLD}
    assert done.nodes["n-1"].step == "moved"
    assert "could not be drained" in done.nodes["n-1"].reason


def test_a_node_that_is_not_put_back_into_service_stops_everything() -> None:
    nodes = fleet(4, refuses=["resume n-0"])
    state = journal(nodes)
    with pytest.raises(rollout.Stopped, match="n-0: proven, but not put back"):
        go(nodes, state)
    assert (state.phase, state.nodes["n-0"].step) == ("moving", "proven")
    assert nodes.runs["n-1"] == OLD
    nodes.refuses = frozenset()
    assert go(nodes, state).phase == "done"
    assert state.nodes["n-0"].reason == ""
    assert nodes.log.count("move new n-0") == 1, "it was proven; it is not moved again"


def test_a_node_that_is_good_with_neither_lock_stays_out_of_service_and_is_named() -> None:
    nodes = fleet(3, lost=["n-0"])
    done = go(nodes, journal(nodes))
    assert (done.phase, done.nodes["n-0"].step) == ("rolled-back", "stuck")
    assert nodes.drained == {"n-0"}
    assert any(line.startswith("n-0: could not be rolled back") for line in nodes.alarms)


def test_nodes_that_are_out_of_service_come_first_in_the_next_upgrade_and_are_drained_again() -> None:
    nodes = fleet(4, lost=["n-0"])
    state = go(nodes, journal(nodes))
    nodes.lost, nodes.log[:] = frozenset(), []
    order.begin(state, "newer", nodes.runs, first=["n-1"], batch=4)
    done = go(nodes, state)
    assert nodes.log[:3] == ["drain n-0", "move newer n-0", "resume n-0"]
    assert done.phase == "done"
    assert set(nodes.runs.values()) == {"newer"}


SCENARIOS: dict[str, dict[str, Any]] = {
    "good": {},
    "bad canary": {"breaks": names(5)},
    "bad batch": {"breaks": ["n-4"]},
    "bad batch, all back": {"breaks": ["n-4"], "all": True},
    "one not drained": {"refuses": ["drain n-2"]},
}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_killed_at_every_step_it_goes_on_and_ends_as_if_it_had_not_been(scenario: str, tmp_path: Path) -> None:
    """What counts at the end: what is installed, what is written down, who is in service."""
    how = dict(SCENARIOS[scenario])
    everything = how.pop("all", False)
    paths = ClusterPaths(tmp_path / "cluster.yaml", "told", sandbox=True)
    paths.root.mkdir(parents=True)

    def attempt(nodes: Fleet, *, begin: bool) -> Journal:
        state = journal(nodes) if begin else upgrade_journal.load(paths)
        if begin:
            state.rollback_all = everything
            state.save(paths)
        order.run(state, nodes, lambda: state.save(paths), canaries=1)
        return state

    uninterrupted = fleet(5, **how)
    reference = asdict(attempt(uninterrupted, begin=True))
    moments = 0
    while True:
        nodes = fleet(5, **how)
        nodes.calls_left = moments
        try:
            attempt(nodes, begin=True)
        except Killed:
            nodes.calls_left = None
            attempt(nodes, begin=False)
        else:
            break
        assert (nodes.runs, nodes.installed, nodes.drained) == (
            uninterrupted.runs,
            uninterrupted.installed,
            uninterrupted.drained,
        ), moments
        assert json.loads((paths.root / "upgrade.json").read_text()) == reference, moments
        moments += 1
    assert moments > 5


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"nodes": 7}', '{"nodes": {}, "phase": "flying"}', '{"nodes": {"a": {}}}']
)
def test_a_damaged_journal_is_refused(text: str, tmp_path: Path) -> None:
    """Taken for none, nodes would stay out of service and nobody would know."""
    paths = ClusterPaths(tmp_path / "cluster.yaml", "told", sandbox=True)
    paths.root.mkdir(parents=True)
    (paths.root / "upgrade.json").write_text(text)
    with pytest.raises(GpuprovError, match="is damaged"):
        upgrade_journal.load(paths)


@pytest.mark.parametrize(
    ("batch", "nodes", "size"),
    [("25%", 16, 4), ("25%", 3, 1), ("50%", 5, 2), ("100%", 7, 7), (3, 100, 3), ("1%", 10, 1)],
)
def test_the_size_of_a_batch(batch: int | str, nodes: int, size: int) -> None:
    assert batch_size(batch, nodes) == size
