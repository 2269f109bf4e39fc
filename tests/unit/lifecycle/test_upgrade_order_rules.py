"""The order of an upgrade in detail: who has a part in it, what is said of each step, and reasons."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Collection, Mapping, Sequence

import pytest

from provisioner.lifecycle import rollout
from provisioner.lifecycle.rollout import Place, Step
from provisioner.lifecycle.upgrade import order
from provisioner.lifecycle.upgrade.journal import Journal
from tests.unit.lifecycle.test_upgrade import NEW, OLD, Fleet, fleet, go, journal, names


class Told(Fleet):
    """A fleet that keeps each line for people."""

    def report_event(self, kind: str, message: str, node: str | None = None) -> None:
        self.alarms.append(f"{kind} {node or ''}: {message}")


def reported(nodes: Fleet) -> Told:
    return Told(nodes.runs, nodes.breaks, nodes.lost, nodes.refuses)


@pytest.mark.parametrize(("batch", "size"), [(0, 1), (1, 1), (2, 2)])
def test_a_batch_has_at_least_one_node(batch: int, size: int) -> None:
    begun = Journal(rollback_all=True, reason="an earlier one", phase="rolled-back")
    order.begin(begun, NEW, {"n-0": OLD}, first=["n-0"], batch=batch)
    assert (begun.batch, begun.to, begun.phase, begun.reason, begun.rollback_all) == (size, NEW, "moving", "", False)


@pytest.mark.parametrize("step", ["draining", "drained", "proven", "leaving", "failed", "back", "stuck"])
def test_nodes_that_an_unfinished_upgrade_left_out_of_service_come_first(step: Step) -> None:
    begun = Journal(nodes={"n-2": Place(OLD, step), "gone": Place(OLD, step), "n-1": Place(OLD, "left")})
    order.begin(begun, NEW, dict.fromkeys(names(3), OLD), first=["n-0"], batch=1)
    assert {name: entry.step for name, entry in begun.nodes.items()} == {
        "n-2": "draining", "n-0": "waiting", "n-1": "waiting"
    }  # fmt: skip
    assert list(begun.nodes) == ["n-2", "n-0", "n-1"]
    assert {name for name, entry in begun.nodes.items() if entry.begun} == ({"n-2"} if step != "draining" else set())
    resumed = Journal(nodes={"n-2": Place(OLD, "draining", begun=True)})
    order.begin(resumed, NEW, dict.fromkeys(names(3), OLD), first=["n-0"], batch=1)
    assert resumed.nodes["n-2"].begun, "it stays begun, however often the upgrade is called again"


def test_each_step_is_told() -> None:
    nodes = reported(fleet(3))
    go(nodes, journal(nodes))
    assert nodes.alarms == [
        "started : canary: n-0", "progress n-0: in service, moved",
        "started : batch: n-1, n-2", "progress n-1: in service, moved", "progress n-2: in service, moved",
    ]  # fmt: skip


def test_a_release_that_fails_is_told_with_the_first_bad_node_and_how_many_more() -> None:
    nodes = reported(fleet(3, breaks=["n-1", "n-2"]))
    state = go(nodes, journal(nodes))
    assert state.reason == "n-1: gpu.count: 7 instead of 8 (and 1 more)"
    assert state.failed == {NEW: state.reason}
    assert f"failed : the release failed: {state.reason}; rolling back" in nodes.alarms
    assert "started : rolling back n-1, n-2" in nodes.alarms
    assert go(reported(fleet(3, breaks=["n-0"])), journal(fleet(3))).reason == "n-0: gpu.count: 7 instead of 8"


def test_nodes_of_one_batch_with_a_bad_one_go_back_with_it() -> None:
    nodes = reported(fleet(3, breaks=["n-2"]))
    state = go(nodes, journal(nodes))
    assert {name: (entry.step, entry.reason) for name, entry in state.nodes.items()} == {
        "n-0": ("moved", ""), "n-1": ("rolled-back", "in one batch with n-2"),
        "n-2": ("rolled-back", "gpu.count: 7 instead of 8"),
    }  # fmt: skip


def test_a_node_that_cannot_be_brought_back_is_stuck_and_told() -> None:
    nodes = reported(fleet(2, lost=["n-0"]))
    state = go(nodes, journal(nodes))
    reason = "could not be rolled back: gpu.count: 7 instead of 8"
    assert (state.nodes["n-0"].step, state.nodes["n-0"].reason) == ("stuck", reason)
    assert f"failed n-0: {reason}" in nodes.alarms


def test_a_node_that_cannot_be_drained_is_left_out_and_told() -> None:
    nodes = reported(fleet(2, refuses=["drain n-0"]))
    state = go(nodes, journal(nodes))
    assert (state.nodes["n-0"].step, state.nodes["n-0"].reason) == ("left", f"{rollout.NOT_DRAINED}jobs run on it")
    assert f"warning n-0: skipped: {rollout.NOT_DRAINED}jobs run on it" in nodes.alarms


def test_a_node_that_is_put_back_at_last_has_no_reason_any_more() -> None:
    nodes = fleet(1, refuses=["resume n-0"])
    state = journal(nodes)
    with pytest.raises(rollout.Stopped, match=f"n-0: {rollout.NOT_RESUMED}no such node"):
        go(nodes, state)
    assert (state.nodes["n-0"].step, state.nodes["n-0"].reason) == ("proven", f"{rollout.NOT_RESUMED}no such node")
    nodes.refuses = frozenset()
    go(nodes, state)
    assert (state.nodes["n-0"].step, state.nodes["n-0"].reason) == ("moved", "")


def test_the_way_back_of_all_nodes_goes_in_batches_too() -> None:
    nodes = fleet(5)
    state = go(nodes, journal(nodes, batch=2))
    state.rollback_all, state.phase = True, "rolling-back"
    nodes.log.clear()
    go(nodes, state)
    assert [line for line in nodes.log if line.startswith("drain")] == ["drain n-0 n-1", "drain n-2 n-3", "drain n-4"]
    assert {entry.step for entry in state.nodes.values()} == {"rolled-back"}


# what is in the journal when something is done to nodes


class Written(Fleet):
    """A fleet that looks into the file before each step. `seen`: what was done, and the steps that were written."""

    written: Journal
    seen: list[tuple[str, dict[str, str]]]

    def look(self, action: str) -> None:
        self.seen.append((action, {name: entry.step for name, entry in self.written.nodes.items()}))

    def drain(self, nodes: Sequence[str], begun: Collection[str] = ()) -> dict[str, str]:
        self.look("drain")
        return super().drain(nodes, begun)

    def move(self, desired: Mapping[str, str]) -> dict[str, str]:
        self.look("move")
        return super().move(desired)

    def resume(self, nodes: Sequence[str]) -> dict[str, str]:
        self.look("resume")
        return super().resume(nodes)


def followed(nodes: Fleet, state: Journal) -> Written:
    """Run to the end with a journal that is copied whenever it is saved."""
    watched = Written(nodes.runs, nodes.breaks, nodes.lost, nodes.refuses)
    watched.written, watched.seen = copy.deepcopy(state), []

    def save() -> None:
        watched.written = copy.deepcopy(state)

    with contextlib.suppress(rollout.Stopped):
        go(watched, state, save)
    assert watched.written == state, "the end is written"
    return watched


def test_each_step_is_written_before_it_begins() -> None:
    nodes = fleet(2)
    assert followed(nodes, journal(nodes)).seen == [
        ("drain", {"n-0": "draining", "n-1": "waiting"}),
        ("move", {"n-0": "drained", "n-1": "waiting"}),
        ("resume", {"n-0": "proven", "n-1": "waiting"}),
        ("drain", {"n-0": "moved", "n-1": "draining"}),
        ("move", {"n-0": "moved", "n-1": "drained"}),
        ("resume", {"n-0": "moved", "n-1": "proven"}),
    ]


def test_each_step_of_the_way_back_is_written_before_it_begins() -> None:
    nodes = fleet(1, breaks=["n-0"])
    watched = followed(nodes, journal(nodes))
    assert [(action, written_steps["n-0"]) for action, written_steps in watched.seen] == [
        ("drain", "draining"), ("move", "drained"), ("move", "failed"), ("resume", "back")
    ]  # fmt: skip
    assert (watched.written.phase, watched.written.nodes["n-0"].step) == ("rolled-back", "rolled-back")


def test_the_way_back_of_a_moved_node_is_written_before_it_is_drained() -> None:
    nodes = fleet(1)
    state = go(nodes, journal(nodes))
    state.rollback_all, state.phase = True, "rolling-back"
    watched = followed(nodes, state)
    assert [(action, written_steps["n-0"]) for action, written_steps in watched.seen] == [
        ("drain", "leaving"), ("move", "failed"), ("resume", "back")
    ]  # fmt: skip


@pytest.mark.parametrize("step", ["draining", "leaving"])
def test_a_drain_that_was_cut_off_is_done_again(step: Step) -> None:
    nodes = fleet(1)
    state = journal(nodes)
    state.nodes["n-0"].step = step
    if step == "leaving":
        state.phase = "rolling-back"
    go(nodes, state)
    assert nodes.log[0] == "drain n-0"
    assert state.nodes["n-0"].step == ("moved" if step == "draining" else "rolled-back")


def test_a_stop_is_written() -> None:
    nodes = fleet(2, refuses=["resume n-0"])
    assert followed(nodes, journal(nodes)).written.nodes["n-0"].reason == f"{rollout.NOT_RESUMED}no such node"
