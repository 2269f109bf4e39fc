"""`up` in detail: how a run ends, whom it drains, which nodes count as new, and what nodes are left on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from provisioner.common.errors import ConfigureError, Exit, GpuprovError, LockedError, ProviderError
from provisioner.common.events import Event
from provisioner.common.preflight import Finding
from provisioner.configure.run import Outcome
from provisioner.lifecycle import configuring, up, verifying
from provisioner.lifecycle.configuring import ReconcileResult
from provisioner.lifecycle.node_changes import NodeChanges
from provisioner.lifecycle.quarantine.book import OURS, Book, Entry
from provisioner.lifecycle.rollout import Place
from provisioner.lifecycle.session import Cluster
from provisioner.lifecycle.up import Run
from provisioner.lifecycle.upgrade import journal as upgrade_journal
from provisioner.lifecycle.upgrade.journal import Journal
from provisioner.rundir import fleet, node_state
from provisioner.rundir.release import Ledger, identity
from provisioner.stack.models import Lock
from provisioner.verify.results import Report
from tests.unit.lifecycle.test_release import NODES, STACK, cluster, lock, newer, node
from tests.unit.lifecycle.test_up import World, run_up, world
from tests.unit.lifecycle.test_up import cluster as file

__all__ = ["cluster", "file", "world"]


def heard(cluster: Cluster) -> list[Event]:
    events: list[Event] = []
    cluster.events.subscribe(events.append)
    return events


# how a run ends


def test_a_run_ends_with_what_failed_first() -> None:
    run = Run(Path(), healthy=True)
    assert run.exit == Exit.OK
    run.waiting = {"train-0": ["driver"]}
    assert run.exit == Exit.BAD_INPUT
    run.healthy = False
    assert run.exit == Exit.CHECK_FAILED
    run.partly = {"here": ProviderError("1 of 2")}
    assert run.exit == Exit.PROVIDER_FAILED
    run.failed = {"there": LockedError("held"), "here": ConfigureError("roles")}
    assert run.exit == Exit.LOCKED


def test_a_run_ends_with_its_verdict() -> None:
    report = Report((), {}, 0.0)
    verdict = verifying.Verdict(report, healthy=True, page=Path("/p"), rebooted=("train-0",))
    run = Run(Path())
    run.conclude(verdict)
    assert (run.report, run.page, run.healthy, run.rebooted) == (report, Path("/p"), True, ("train-0",))


def test_the_time_of_a_stage_adds_up(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([10.0, 12.5, 20.0, 21.0])
    monkeypatch.setattr(up.time, "monotonic", lambda: next(moments))
    run = Run(Path())
    for _ in range(2):
        with run.stage("terraform"):
            pass
    assert run.seconds == {"terraform": 3.5}


def test_what_sites_failed_with_is_written_down_however_the_run_ends(cluster: Cluster) -> None:
    node_state.note_stage(cluster.paths, "made", ["train-0"])
    run = Run(Path(), failed={"here": ProviderError("x"), "": ProviderError("all")})
    run.partly = {"there": ProviderError("y")}
    with pytest.raises(RuntimeError), up._noted(cluster, run, ["here", "there"]):
        raise RuntimeError
    assert node_state.load(cluster.paths).failed == {"here": "x", "there": "y"}
    with up._noted(cluster, Run(Path()), ["here"]):
        pass
    assert node_state.load(cluster.paths).failed == {"there": "y"}


# from the file on


def test_nothing_is_asked_for_what_is_refused_by_the_file(file: Cluster, world: World) -> None:
    for name in ("refuse_recipe", "refuse_unready"):

        def refuse(*_: object, reason: str = name) -> None:
            raise GpuprovError(reason)

        with pytest.MonkeyPatch.context() as patch, pytest.raises(GpuprovError, match=name):
            patch.setattr(up, name, refuse)
            run_up(file)
    assert world.machines == {}


def test_nothing_is_made_while_an_upgrade_is_in_progress(file: Cluster, world: World) -> None:
    run_up(file)
    world.machines.clear()
    fleet.save(file.paths, file.nodes()[:1])
    Journal(to="b", phase="moving", nodes={"train-0": Place("a")}).save(file.paths)
    with pytest.raises(GpuprovError, match="an upgrade is in progress"):
        run_up(file)
    assert world.machines == {}


def test_each_step_before_machines_are_made_is_done_once(
    file: Cluster, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    steps = [
        (up.preflight, "probe", {}), (up.block_ends, "note", None), (up.machines, "ask_again", None),
        (up.machines, "record_standing", None), (up, "_drain", None),
    ]  # fmt: skip
    for module, name, answer in steps:
        monkeypatch.setattr(module, name, lambda *_, n=name, a=answer: done.append(n) or a)
    run_up(file)
    assert done == ["probe", "ask_again", "record_standing", "note", "_drain"]
    assert Ledger(file.paths).lock(identity(world.lock)) == world.lock


def test_a_probe_that_finds_no_machine_stops_the_run(
    file: Cluster, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    actual = {"here": [Finding("blocks", "capacity", "none is left", "")]}
    monkeypatch.setattr(up.preflight, "probe", lambda *_: actual)
    with pytest.raises(ProviderError, match="capacity: none is left"):
        run_up(file)
    assert world.machines == {}


def test_a_site_that_moved_stops_the_run(file: Cluster, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def of_site(*_: object, **__: object) -> None:
        raise ProviderError("its machines are elsewhere")

    monkeypatch.setattr(up.machines, "of_site", of_site)
    with pytest.raises(ProviderError, match="its machines are elsewhere"):
        run_up(file)


def test_nobody_is_asked_where_nothing_changes(file: Cluster, world: World) -> None:
    run_up(file)
    assert run_up(file, yes=False).report is not None


# whom it drains


def drained(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, changes: NodeChanges, bad: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Node → reason of the nodes that are drained."""
    reason_by_node: dict[str, str] = {}

    def hold(_: object, nodes: Sequence[Any], reasons: Mapping[str, str], action: str) -> dict[str, str]:
        assert action == "up"
        reason_by_node.update({item.name: reasons[item.name] for item in nodes})
        return dict(bad or {})

    monkeypatch.setattr(up.quarantine, "hold", hold)
    monkeypatch.setattr(up.quarantine, "put_back", lambda *_: None)
    up._drain(cluster, changes)
    return reason_by_node


def test_nodes_that_do_work_are_drained_before_their_machines_end(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    Ledger(cluster.paths).record(NODES, lock())
    changes = NodeChanges(recreate=("train-0",), remove=("train-1",), change=("train-2",))
    assert drained(cluster, monkeypatch, changes) == {
        "train-0": "its machine is recreated by gpuprov up", "train-1": "removed by gpuprov up"
    }  # fmt: skip


def test_a_machine_that_was_never_proven_does_no_work(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    Ledger(cluster.paths).record(NODES[:1], lock())
    assert list(drained(cluster, monkeypatch, NodeChanges(remove=("train-0", "train-1")))) == ["train-0"]


@pytest.mark.parametrize("done", [True, False])
def test_a_node_in_quarantine_is_drained_only_where_it_is_not(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, done: bool
) -> None:
    Ledger(cluster.paths).record(NODES, lock())
    Book({"train-0": Entry("i-train-0", OURS, "x", "now", drained=done)}).save(cluster.paths)
    assert bool(drained(cluster, monkeypatch, NodeChanges(remove=("train-0",)))) != done


@pytest.mark.parametrize("done", [True, False])
def test_a_node_that_nodes_json_has_lost_is_drained_like_the_others(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, done: bool
) -> None:
    Ledger(cluster.paths).record(NODES, lock())
    fleet.save(cluster.paths, NODES[1:])
    Book({"train-0": Entry("i-train-0", OURS, "x", "now", drained=done)}).save(cluster.paths)
    names = [*drained(cluster, monkeypatch, NodeChanges(recreate=("train-0",), remove=("train-1",)))]
    assert sorted(names) == (["train-1"] if done else ["train-0", "train-1"])


def test_where_a_node_cannot_be_drained_no_machine_is_removed(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    Ledger(cluster.paths).record(NODES, lock())
    changes = NodeChanges(remove=("train-0", "train-1"))
    with pytest.raises(GpuprovError, match="train-0: jobs run") as caught:
        drained(cluster, monkeypatch, changes, {"train-0": "jobs run"})
    assert caught.value.hint.startswith("no machine was removed; run it again")


# new machines


def make_result(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, nodes: list[Any], changes: NodeChanges, resources: int = 1
) -> tuple[list[Any], set[str]]:
    def make(*_: object) -> tuple[list[Any], dict[str, GpuprovError], dict[str, GpuprovError]]:
        stages.update({name: row.stage for name, row in node_state.load(cluster.paths).nodes.items()})
        return nodes, {}, {}

    stages: dict[str, str] = {}
    monkeypatch.setattr(up.machines, "make", make)
    plan = SimpleNamespace(nodes=lambda: [(item.name, None) for item in NODES])
    remaining: Any = SimpleNamespace(plan=plan, leave=lambda *_: None)
    run = Run(Path())
    changes = replace(changes, total=resources)
    choices: Any = SimpleNamespace(leave=lambda *_: [])
    actual = up._make(cluster, run, remaining, [], changes, set(), choices, plan)  # type: ignore[arg-type]
    assert not isinstance(actual, up.Moved)
    assert {name for name, stage in stages.items() if stage == "making"} == (
        {*changes.create, *changes.recreate} if resources else set()
    )
    return actual


def stages(cluster: Cluster) -> dict[str, tuple[str, bool | None]]:
    return {name: (row.stage, row.ok) for name, row in node_state.load(cluster.paths).nodes.items()}


def test_a_machine_that_is_known_by_its_id_or_was_proven_is_not_new(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.save(cluster.paths, NODES[:1])
    Ledger(cluster.paths).record(NODES[1:2], lock())
    changes = NodeChanges(create=("train-1", "train-2"))
    nodes, fresh = make_result(cluster, monkeypatch, NODES, changes)
    assert (nodes, fresh) == (NODES, {"train-2"})
    assert stages(cluster) == {"train-1": ("made", None), "train-2": ("made", None)}


def test_another_machine_of_a_name_is_new(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    Ledger(cluster.paths).record(NODES, lock())
    _, fresh = make_result(
        cluster, monkeypatch, [node("train-0", "i-new"), *NODES[1:]], NodeChanges(recreate=("train-0",))
    )
    assert fresh == {"train-0"}


def test_a_machine_that_a_failed_apply_left_is_new(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    node_state.note_stage(cluster.paths, up.machines.INCOMPLETE, ["train-0"], ok=False)
    assert make_result(cluster, monkeypatch, NODES, NodeChanges(), 0)[1] == {"train-0"}


def test_nodes_that_did_not_come_to_be_are_missing_or_not_made(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.save(cluster.paths, NODES[:2])
    make_result(cluster, monkeypatch, NODES[:1], NodeChanges(), 0)
    assert stages(cluster) == {"train-1": ("missing", False), "train-2": ("not made", None)}


# what nodes are left on


def test_nodes_that_keep_an_older_lock_are_named_with_what_would_change(cluster: Cluster) -> None:
    Ledger(cluster.paths).record(NODES[:1], lock())
    desired = lock(newer())
    releases = upgrade_journal.assign(cluster, NODES, desired)
    Journal(phase="rolled-back", failed={identity(desired): "train-0: bad"}).save(cluster.paths)
    run, events = Run(Path()), heard(cluster)
    up._leave_waiting(cluster, run, NODES, releases, desired)
    assert list(run.waiting) == ["train-0"] and run.rolled_back == "train-0: bad"
    assert [(event.kind, event.node) for event in events if event.stage == "configure"] == [("log", "train-0")]
    assert "driver" in events[-1].message


def test_a_group_that_the_lock_does_not_have_waits_for_nothing(cluster: Cluster) -> None:
    Ledger(cluster.paths).record(NODES, lock())
    releases = upgrade_journal.assign(cluster, NODES, lock(newer()))
    other = Lock(request={}, simulated=True, groups={"head": STACK})
    assert up.waiting(NODES, releases, other) == {}


# roles


def reconcile_result(**changed: Any) -> ReconcileResult:
    return ReconcileResult([], {}, **changed)


def test_nodes_are_counted_by_whether_they_were_configured(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    result = reconcile_result(configured=("train-0", "train-1"), failed={"train-1": "x"})
    calls: list[Any] = []
    monkeypatch.setattr(configuring, "reconcile", lambda *arguments, **how: calls.append(how) or result)
    run, events = Run(Path()), heard(cluster)
    assert up.configure(cluster, run, NODES, {}, new={"train-0"}) is result
    assert (run.configured, calls) == (2, [{"new": {"train-0"}}])
    assert stages(cluster) == {"train-0": ("configured", None)}
    assert [(e.kind, e.message) for e in events if e.stage == "configure"] == [
        ("done", "2 nodes configured, 1 as locked")
    ]


def test_the_sites_on_which_roles_failed_are_told_apart() -> None:
    nodes = [node("train-0"), node("train-1")]

    nodes[1] = replace(nodes[1], site="there")
    outcomes = {"train-0": Outcome(failed=["base: no route"]), "train-1": Outcome()}
    failed = up.failed_roles(Run(Path()), nodes, reconcile_result(outcomes=outcomes))
    assert list(failed) == ["here"] and "train-0: base: no route" in str(failed["here"])
    assert up.failed_roles(Run(Path()), nodes, reconcile_result(outcomes={})) == {}


def test_a_node_is_clean_where_roles_mended_all_that_they_can() -> None:
    fixable, other = SimpleNamespace(mended=True), SimpleNamespace(mended=False)
    actual = ReconcileResult([], {"a": (other,), "b": (other, fixable), "c": ()}, failed={"c": "x"})  # type: ignore[dict-item]
    assert [actual.clean(name) for name in ("a", "b", "c", "d")] == [True, False, False, True]
