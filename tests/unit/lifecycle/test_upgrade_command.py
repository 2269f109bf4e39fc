"""`gpuprov upgrade` from the file to the journal, with hands that only write down: who is moved, in which batches, what
goes on where a call before was stopped, and what is refused."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from provisioner.common.errors import Exit, GpuprovError, ProviderError
from provisioner.common.events import Event
from provisioner.common.paths import private_dir
from provisioner.lifecycle import rollout
from provisioner.lifecycle.machines import Made
from provisioner.lifecycle.quarantine import book as quarantine_book
from provisioner.lifecycle.quarantine.book import OURS, Book, Entry
from provisioner.lifecycle.rollout import Place
from provisioner.lifecycle.session import Cluster, open_cluster
from provisioner.lifecycle.upgrade import actions, command
from provisioner.lifecycle.upgrade import journal as upgrade_journal
from provisioner.lifecycle.upgrade.actions import NodeActions
from provisioner.lifecycle.upgrade.command import Options, Upgrade, batch_size, document, summary, upgrade
from provisioner.lifecycle.upgrade.journal import Journal
from provisioner.machines.base import Planned
from provisioner.rundir import fleet
from provisioner.rundir.release import Ledger, identity
from provisioner.stack import lockfile
from provisioner.stack.models import Lock
from provisioner.verify.results import CheckResult, NodeReport, Report
from tests.unit.lifecycle.test_declined import contents
from tests.unit.lifecycle.test_release import FILE, NODES, STACK, cluster, lock, newer, node

__all__ = ["cluster"]

OLD, NEW = lock(), lock(newer())
NAMES = [item.name for item in NODES]


@dataclass
class World:
    """`lock`: what cluster.yaml wants. `calls`: what is done to nodes; `bad`: nodes that are not good with NEW;
    `sick`: nodes that are not healthy before."""

    lock: Lock = NEW
    calls: list[str] = field(default_factory=list)
    bad: set[str] = field(default_factory=set)
    sick: dict[str, str] = field(default_factory=dict)
    stuck: set[str] = field(default_factory=set)
    """Nodes that cannot be put back into service."""
    asked: list[tuple[list[str], int, list[str]]] = field(default_factory=list)
    agrees: bool = True

    def confirm(self, moving: dict[str, list[str]], batch: int, first: list[str]) -> bool:
        self.asked.append((list(moving), batch, first))
        return self.agrees


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    test_world = World()

    class Hands(NodeActions):
        def drain(self, nodes: Sequence[str], begun: Collection[str] = ()) -> dict[str, str]:
            test_world.calls.append(f"drain {' '.join(nodes)}")
            return {}

        def resume(self, nodes: Sequence[str]) -> dict[str, str]:
            test_world.calls.append(f"resume {' '.join(nodes)}")
            return dict.fromkeys(test_world.stuck & set(nodes), "the hook failed")

        def move(self, desired: Mapping[str, str]) -> dict[str, str]:
            releases = set(desired.values())
            test_world.calls.append(f"move {' '.join(desired)}")
            return dict.fromkeys(test_world.bad & set(desired), "bad") if releases == {identity(NEW)} else {}

        def verify(self, desired: Mapping[str, str]) -> dict[str, str]:
            test_world.calls.append(f"verify {' '.join(desired)}")
            return {name: reason for name, reason in test_world.sick.items() if name in desired}

    monkeypatch.setattr(command, "NodeActions", Hands)
    monkeypatch.setattr(command, "_offer", lambda *_: test_world.calls.append("offer"))
    monkeypatch.setattr(command.locking, "current", lambda *_, **__: test_world.lock)
    return test_world


def run(cluster: Cluster, world: World, **options: Any) -> Upgrade:
    return upgrade(cluster, None, Options(**options), confirm=world.confirm)  # type: ignore[arg-type]


def proven(cluster: Cluster) -> None:
    Ledger(cluster.paths).record(NODES, OLD)


def steps(cluster: Cluster) -> dict[str, str]:
    return {name: entry.step for name, entry in upgrade_journal.load(cluster.paths).nodes.items()}


def test_the_canary_is_moved_first_and_then_the_others_in_batches(cluster: Cluster, world: World) -> None:
    proven(cluster)
    done = run(cluster, world, batch=1)
    assert world.calls == [
        "offer", "verify train-0 train-1 train-2",
        "drain train-0", "move train-0", "resume train-0",
        "drain train-1", "move train-1", "resume train-1",
        "drain train-2", "move train-2", "resume train-2",
    ]  # fmt: skip
    assert world.asked == [(NAMES, 1, ["train-0"])]
    assert (done.ok, done.exit, done.runs) == (True, Exit.OK, dict.fromkeys(NAMES, identity(NEW)))
    assert set(done.drivers.values()) == {"595.91.07"}
    assert done.seconds >= 0.0 and summary(done) == "3 of 3 nodes moved"
    assert {file.stem for file in (cluster.paths.root / "locks").iterdir()} == {identity(OLD), identity(NEW)}


def test_a_lock_that_no_node_runs_any_more_goes_with_the_next_upgrade(cluster: Cluster, world: World) -> None:
    proven(cluster)
    run(cluster, world)
    world.lock = third = lock(newer().model_copy(update={"driver": "600.1.1"}))
    run(cluster, world)
    assert {file.stem for file in (cluster.paths.root / "locks").iterdir()} == {identity(NEW), identity(third)}


def test_the_outcome_is_an_event_and_a_document(cluster: Cluster, world: World) -> None:
    proven(cluster)
    events: list[Event] = []
    cluster.events.subscribe(events.append)
    done = run(cluster, world)
    last = [event for event in events if event.stage == "upgrade"][-1]
    assert (last.kind, last.message) == ("done", "3 of 3 nodes moved")
    actual = document(cluster, done).to_json()
    assert actual["nodes"][0] == {
        "name": "train-0", "step": "moved", "reason": "", "lock": identity(NEW), "driver": "595.91.07"
    }  # fmt: skip
    assert {key: actual[key] for key in ("cluster", "sandbox", "ok", "to", "phase", "message")} == {
        "cluster": "told", "sandbox": True, "ok": True, "to": identity(NEW), "phase": "done",
        "message": "3 of 3 nodes moved",
    }  # fmt: skip


def test_nothing_is_moved_where_a_person_declines(cluster: Cluster, world: World) -> None:
    proven(cluster)
    world.agrees = False
    done = run(cluster, world)
    assert (done.declined, done.exit, world.calls, steps(cluster)) == (True, Exit.OK, [], {})
    assert summary(done) == "nothing was moved"


@pytest.mark.parametrize("fails", [False, True], ids=["no", "no terminal"])
def test_a_declined_upgrade_leaves_every_file_as_it_was(
    cluster: Cluster, world: World, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> bool:
        raise GpuprovError("confirmation required: stdin is not a terminal")

    proven(cluster)
    cluster.paths.run_lock.touch()
    files = contents(cluster.file.parent)
    with monkeypatch.context() as patch:
        patch.setattr(world, "confirm", fail if fails else lambda *_: False)
        with pytest.raises(GpuprovError) if fails else contextlib.nullcontext():
            run(cluster, world)
    assert contents(cluster.file.parent) == files
    assert run(cluster, world).ok
    assert lockfile.read(cluster.paths.lock_file) == NEW, "the lock is written once a person has said yes"


def test_nothing_is_moved_where_every_node_runs_the_lock(cluster: Cluster, world: World) -> None:
    Ledger(cluster.paths).record(NODES, NEW)
    Journal(phase="done", nodes={"train-0": Place("a", "moved")}, reason="x").save(cluster.paths)
    done = run(cluster, world)
    assert (done.nothing, done.exit, world.asked, world.calls) == (True, Exit.OK, [], [])
    assert upgrade_journal.load(cluster.paths) == Journal(to=identity(NEW))
    assert summary(done) == "every node runs the current lock"
    assert {row["step"] for row in document(cluster, done).to_json()["nodes"]} == {"unchanged"}


def test_a_bad_canary_is_brought_back_and_the_release_refused_from_then_on(cluster: Cluster, world: World) -> None:
    proven(cluster)
    world.bad = {"train-0"}
    done = run(cluster, world)
    assert (done.ok, done.exit) == (False, Exit.CHECK_FAILED)
    assert steps(cluster) == {"train-0": "rolled-back", "train-1": "waiting", "train-2": "waiting"}
    assert summary(done) == "rolled back: train-0: bad"
    with pytest.raises(GpuprovError, match="this release was rolled back on this cluster: train-0: bad") as caught:
        run(cluster, world)
    assert "--again" in caught.value.hint
    world.bad = set()
    assert run(cluster, world, again=True).ok
    assert upgrade_journal.load(cluster.paths).failed == {}


def test_nodes_that_were_moved_before_a_bad_batch_stay_or_go_back_on_request(cluster: Cluster, world: World) -> None:
    proven(cluster)
    world.bad = {"train-1"}
    done = run(cluster, world, batch=1)
    assert steps(cluster) == {"train-0": "moved", "train-1": "rolled-back", "train-2": "waiting"}
    assert summary(done) == "rolled back: train-1: bad; 1 node stays on the new lock"
    world.asked.clear()
    back = run(cluster, world, rollback_all=True)
    assert "train-0" in world.asked[0][0]
    assert steps(cluster)["train-0"] == "rolled-back"
    assert back.runs == dict.fromkeys(NAMES, identity(OLD))


def test_nothing_is_rolled_back_where_nothing_was_moved(cluster: Cluster, world: World) -> None:
    proven(cluster)
    with pytest.raises(GpuprovError, match="nothing to roll back: no node was moved"):
        run(cluster, world, rollback_all=True)


def test_a_finished_upgrade_is_rolled_back_on_request(cluster: Cluster, world: World) -> None:
    proven(cluster)
    run(cluster, world)
    done = run(cluster, world, rollback_all=True)
    assert set(steps(cluster).values()) == {"rolled-back"}
    assert upgrade_journal.load(cluster.paths).failed == {identity(NEW): "rolled back on request"}
    assert summary(done) == "rolled back: rolled back on request"


def stopped(cluster: Cluster, world: World) -> Upgrade:
    """An upgrade that stopped after its canary, which could not be put back into service."""
    proven(cluster)
    world.stuck = {"train-0"}
    done = run(cluster, world, batch=1)
    world.stuck = set()
    world.calls.clear()
    world.asked.clear()
    return done


def test_an_upgrade_that_stopped_goes_on_where_it_was(cluster: Cluster, world: World) -> None:
    done = stopped(cluster, world)
    assert (done.ok, summary(done)) == (False, f"stopped: train-0: {rollout.NOT_RESUMED}the hook failed")
    assert run(cluster, world, batch=2).ok
    assert world.asked == [(NAMES, 2, ["train-1"])]
    batch = "train-1 train-2"
    assert world.calls[2:] == ["resume train-0", f"drain {batch}", f"move {batch}", f"resume {batch}"]


def test_nodes_that_were_moved_are_recorded_again_where_the_ledger_is_older(cluster: Cluster, world: World) -> None:
    stopped(cluster, world)
    moved = upgrade_journal.load(cluster.paths).at("proven", "moved")
    proven(cluster)
    run(cluster, world)
    ledger = Ledger(cluster.paths)
    assert moved and {ledger.of(node) for node in NODES if node.name in moved} == {identity(NEW)}


def test_an_upgrade_that_stopped_keeps_its_batch(cluster: Cluster, world: World) -> None:
    stopped(cluster, world)
    run(cluster, world)
    assert world.asked[0][1] == 1


def test_a_way_back_that_was_asked_for_while_nodes_are_moved_comes_after_them(cluster: Cluster, world: World) -> None:
    stopped(cluster, world)
    run(cluster, world, rollback_all=True)
    assert upgrade_journal.load(cluster.paths).rollback_all


def test_another_lock_begins_anew_with_nodes_that_are_out_of_service_first(cluster: Cluster, world: World) -> None:
    stopped(cluster, world)
    journal = upgrade_journal.load(cluster.paths)
    journal.nodes["train-2"].step = "drained"
    journal.save(cluster.paths)
    world.lock = lock(newer().model_copy(update={"nccl": "2.0"}))
    assert run(cluster, world).ok
    assert list(steps(cluster)) == ["train-0", "train-2", "train-1"]
    assert set(world.calls) >= {"drain train-0 train-2", "drain train-1"}


def test_an_upgrade_whose_lock_was_taken_back_before_anything_moved_is_over(cluster: Cluster, world: World) -> None:
    proven(cluster)
    Journal(identity(NEW), "moving", nodes={name: Place(identity(OLD)) for name in NAMES}).save(cluster.paths)
    world.lock = OLD
    assert run(cluster, world).nothing


@pytest.mark.parametrize("desired", [OLD, NEW])
def test_a_node_that_is_out_of_service_and_not_recorded_is_in_quarantine_when_another_upgrade_begins(
    cluster: Cluster, world: World, desired: Lock
) -> None:
    """applied.json was lost: only the first node is recorded again."""
    Ledger(cluster.paths).record(NODES[:1], NEW)
    steps_by_name: dict[str, Any] = {"train-0": "moved", "train-1": "proven", "train-2": "waiting"}
    nodes = {name: Place(identity(OLD), step) for name, step in steps_by_name.items()}
    Journal("another", "moving", nodes=nodes).save(cluster.paths)
    world.lock = desired
    assert run(cluster, world).ok
    entries = quarantine_book.load(cluster.paths).nodes
    assert {name: (entry.id, entry.owner, entry.drained) for name, entry in entries.items()} == {
        "train-1": (NODES[1].id, OURS, False)
    }
    assert "train-1" not in upgrade_journal.load(cluster.paths).nodes


def test_a_way_back_goes_on_whatever_cluster_yaml_wants_now(cluster: Cluster, world: World) -> None:
    proven(cluster)
    nodes = {"train-0": Place(identity(OLD), "failed", "bad"), "train-1": Place(identity(OLD))}
    Ledger(cluster.paths).keep(NEW)
    Journal(identity(NEW), "rolling-back", reason="bad", nodes=nodes).save(cluster.paths)
    run(cluster, world)
    assert world.asked == [(["train-0"], 1, ["train-1"])]
    assert "move train-0" in world.calls and not any(call.startswith("verify") for call in world.calls)
    assert steps(cluster) == {"train-0": "rolled-back", "train-1": "waiting"}


def test_a_node_that_no_machine_has_any_more_is_left_out(cluster: Cluster, world: World) -> None:
    proven(cluster)
    nodes = {name: Place(identity(OLD)) for name in ("old-0", *NAMES)}
    Journal(identity(NEW), "moving", nodes=nodes).save(cluster.paths)
    run(cluster, world)
    assert list(steps(cluster)) == NAMES


# who is left out


def test_a_node_that_was_never_verified_is_left_to_up(cluster: Cluster, world: World) -> None:
    Ledger(cluster.paths).record(NODES[:2], OLD)
    events: list[Event] = []
    cluster.events.subscribe(events.append)
    assert run(cluster, world).runs["train-2"] is None
    assert list(steps(cluster)) == ["train-0", "train-1"]
    assert [e.node for e in events if e.message.startswith("never verified")] == ["train-2"]


def test_a_fleet_that_was_never_verified_is_not_upgraded(cluster: Cluster, world: World) -> None:
    with pytest.raises(GpuprovError, match="no node of this fleet was ever verified"):
        run(cluster, world)


def test_nodes_that_run_the_lock_already_have_no_part(cluster: Cluster, world: World) -> None:
    Ledger(cluster.paths).record(NODES[:1], NEW)
    Ledger(cluster.paths).record(NODES[1:], OLD)
    done = run(cluster, world)
    assert list(steps(cluster)) == ["train-1", "train-2"]
    assert [row["step"] for row in document(cluster, done).to_json()["nodes"]] == ["unchanged", "moved", "moved"]


def test_a_node_in_quarantine_is_left_out_unless_it_is_named(cluster: Cluster, world: World) -> None:
    proven(cluster)
    entry = Entry("i-train-1", "ada", "loud fan", "2026-01-31T12:00:00Z")
    Book({"train-1": entry}).save(cluster.paths)
    done = run(cluster, world)
    skipped = upgrade_journal.load(cluster.paths).nodes["train-1"]
    assert (skipped.step, skipped.reason, done.ok) == ("left", "in quarantine by ada: loud fan", False)
    run(cluster, world, canary="train-1")
    assert steps(cluster)["train-1"] == "moved"


def test_a_node_that_is_not_healthy_before_is_left_out(cluster: Cluster, world: World) -> None:
    proven(cluster)
    world.sick = {"train-1": "gpu.count: 7"}
    events: list[Event] = []
    cluster.events.subscribe(events.append)
    run(cluster, world)
    skipped = upgrade_journal.load(cluster.paths).nodes["train-1"]
    assert (skipped.step, skipped.reason) == ("left", "unhealthy before: gpu.count: 7")
    messages = [(e.kind, e.message, e.node) for e in events if e.stage == "upgrade"]
    assert ("started", "verifying 3 nodes before the upgrade", None) in messages
    assert ("warning", "skipped: unhealthy before: gpu.count: 7", "train-1") in messages


# canaries and batches


TWO = """
name: told
sites: {here: {provider: aws, region: us-east-1}}
groups: {train: {machine: p4d.24xlarge, count: 2}, infer: {machine: p4d.24xlarge, count: 2}}
upgrade: {canary: 1, batch: 100%}
"""


@pytest.fixture
def groups(cluster: Cluster) -> Cluster:
    cluster.file.write_text(TWO)
    opened = open_cluster(cluster.file, sandbox=True)
    nodes = [node(name) for name in ("train-0", "train-1", "infer-0", "infer-1")]
    fleet.save(opened.paths, nodes)
    Ledger(opened.paths).record(nodes, two(OLD))
    return opened


def two(item: Lock) -> Lock:
    stack = item.groups["train"]
    return Lock(request={}, simulated=True, groups={"train": stack, "infer": stack})


def test_each_group_has_a_canary_and_the_others_follow_at_once(groups: Cluster, world: World) -> None:
    world.lock = two(NEW)
    run(groups, world)
    moves = [call.split()[1:] for call in world.calls if call.startswith("move")]
    assert [sorted(names) for names in moves] == [["infer-0", "train-0"], ["infer-1", "train-1"]]


def test_a_canary_that_is_named_is_the_only_one(groups: Cluster, world: World) -> None:
    world.lock = two(NEW)
    with pytest.raises(GpuprovError, match="trian-0"):
        run(groups, world, canary="trian-0")
    run(groups, world, canary="infer-1")
    assert next(call for call in world.calls if call.startswith("move")) == "move infer-1"


def test_a_canary_that_is_no_node_is_refused_where_nothing_is_to_move(groups: Cluster, world: World) -> None:
    world.lock = two(OLD)
    assert run(groups, world).nothing
    with pytest.raises(GpuprovError, match="trian-0"):
        run(groups, world, canary="trian-0")


def test_a_canary_that_runs_the_lock_already_is_refused(cluster: Cluster, world: World) -> None:
    Ledger(cluster.paths).record(NODES[:1], NEW)
    Ledger(cluster.paths).record(NODES[1:], OLD)
    with pytest.raises(GpuprovError, match="train-0 runs the new lock already"):
        run(cluster, world, canary="train-0")


@pytest.mark.parametrize(
    ("batch", "nodes", "size"), [(3, 10, 3), ("25%", 10, 2), ("5%", 10, 1), ("100%", 3, 3), (0, 5, 1)]
)
def test_a_batch_is_a_number_or_a_share_of_the_nodes(batch: int | str, nodes: int, size: int) -> None:
    assert batch_size(batch, nodes) == size


# what is refused


def test_machines_have_to_be_those_of_cluster_yaml(cluster: Cluster, world: World) -> None:
    proven(cluster)
    fleet.save(cluster.paths, NODES[:2])
    with pytest.raises(GpuprovError, match=r"the machines are not those of cluster\.yaml"):
        run(cluster, world)
    fleet.save(cluster.paths, [])
    with pytest.raises(GpuprovError, match="there is no fleet yet"):
        run(cluster, world)


@pytest.mark.parametrize(
    ("stopped", "phase", "step", "ok"),
    [("", "done", "moved", True), ("x", "done", "moved", False), ("", "moving", "moved", False),
     ("", "done", "left", False)],
)  # fmt: skip
def test_an_upgrade_is_fine_once_every_node_had_its_turn(stopped: str, phase: Any, step: Any, ok: bool) -> None:
    journal = Journal("b", phase, nodes={"a": Place("a", "moved"), "b": Place("a", step)})
    assert Upgrade(Path(), journal, stopped=stopped).ok == ok


# the mirror of a sandbox


@dataclass
class Site:
    planned: Planned

    def plan(self, _: object) -> Planned:
        return self.planned


def offered(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, planned: Planned, result: Made
) -> Callable[[], None]:  # fmt: skip
    proven(cluster)
    monkeypatch.setattr(command.machines, "of_site", lambda *_: Site(planned))
    monkeypatch.setattr(command.machines, "make", lambda *_: result)
    return lambda: command._offer(cluster, NEW, NODES, None, Path())  # type: ignore[arg-type]


def test_a_sandbox_gets_the_packages_of_both_locks(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    offered(cluster, monkeypatch, Planned("here", add=1, destroy=1), Made(NODES, {}, {}))()


@pytest.mark.parametrize("planned", [Planned("here", add=2), Planned("here", change=1)])
def test_a_sandbox_whose_machines_are_missing_is_refused(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, planned: Planned
) -> None:
    with pytest.raises(GpuprovError, match="some are missing or must change"):
        offered(cluster, monkeypatch, planned, Made(NODES, {}, {}))()


@pytest.mark.parametrize("kind", ["failed", "partly"])
def test_a_mirror_that_could_not_be_made_stops_the_upgrade(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    result = Made(NODES, {}, {})._replace(**{kind: {"here": ProviderError("no mirror")}})
    with pytest.raises(ProviderError, match="no mirror"):
        offered(cluster, monkeypatch, Planned("here"), result)()


def test_machines_that_were_replaced_meanwhile_stop_the_upgrade(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = [*NODES[:2], node("train-2", "i-other")]
    with pytest.raises(GpuprovError, match="machines were replaced meanwhile"):
        offered(cluster, monkeypatch, Planned("here"), Made(other, {}, {}))()


def test_a_real_fleet_has_no_mirror(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cluster, "sandbox", False)
    offered(cluster, monkeypatch, Planned("here", add=9), Made([], {}, {}))()


# hands


@pytest.fixture
def hands(cluster: Cluster) -> NodeActions:
    proven(cluster)
    return NodeActions(cluster, NODES, Path("/runs/1"))


def hooks(monkeypatch: pytest.MonkeyPatch, *refuse: str) -> list[str]:
    """Commands that fail for "step node"."""
    called: list[str] = []

    def call(_: object, step: str, nodes: Sequence[Any], action: str, reasons: object) -> dict[str, str]:
        called.extend(f"{step} {item.name} for {action}" for item in nodes)
        return {item.name: f"{step} failed" for item in nodes if f"{step} {item.name}" in refuse}

    monkeypatch.setattr(actions.hooks, "call", call)
    return called


def test_a_node_that_could_not_be_drained_is_put_back_at_once(
    hands: NodeActions, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = hooks(monkeypatch, "drain train-1")
    assert hands.drain(["train-0", "train-1"]) == {"train-1": "drain failed"}
    assert called == ["drain train-0 for upgrade", "drain train-1 for upgrade", "resume train-1 for upgrade"]
    assert hands.quarantined() == {}


def test_a_node_that_cannot_be_put_back_either_is_in_quarantine(
    hands: NodeActions, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooks(monkeypatch, "drain train-1", "resume train-1")
    hands.drain(["train-1"])
    entry = hands.quarantined()["train-1"]
    assert (entry.id, entry.owner, entry.reason) == ("i-train-1", OURS, "drain failed; resume failed")
    assert entry.level == hands.cluster.spec.verify.level


def test_a_node_that_may_be_half_moved_is_not_put_back_where_it_could_not_be_drained(
    hands: NodeActions, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = hooks(monkeypatch, "drain train-1")
    hands.drain(["train-1"], ["train-1"])
    assert called == ["drain train-1 for upgrade"]
    entry = hands.quarantined()["train-1"]
    assert (entry.owner, entry.reason) == (OURS, "an upgrade had begun to move it; drain failed")
    assert not entry.drained, "cluster.yaml has no drain command"


@pytest.fixture
def draining(tmp_path: Path) -> NodeActions:
    """With a drain command in cluster.yaml."""
    (tmp_path / "cluster.yaml").write_text(f'{FILE}hooks: {{drain: "true"}}\n')
    opened = open_cluster(tmp_path / "cluster.yaml", sandbox=True)
    private_dir(opened.paths.root)
    return NodeActions(opened, NODES, tmp_path)


def test_what_is_kept_out_where_there_is_a_drain_command_is_taken_for_drained(draining: NodeActions) -> None:
    draining.keep_out("train-1", "it could not be put back")
    assert draining.quarantined()["train-1"].drained


def test_a_node_that_may_be_half_moved_is_not_recorded_as_drained_where_that_failed(
    draining: NodeActions, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooks(monkeypatch, "drain train-1")
    draining.drain(["train-1"], ["train-1"])
    assert not draining.quarantined()["train-1"].drained


def test_an_upgrade_that_ends_without_its_machines_keeps_out_what_may_be_in_service(draining: NodeActions) -> None:
    places = {"train-0": Place("a", "drained"), "train-1": Place("a", "proven"), "train-2": Place("a", "draining")}
    actions.end_without_machines(Journal("b", "moving", nodes=places), draining)
    drained = {name: entry.drained for name, entry in draining.quarantined().items()}
    assert drained == {"train-0": True, "train-1": False, "train-2": False}


def test_a_node_in_quarantine_that_could_not_be_drained_stays_out_of_service(
    hands: NodeActions, monkeypatch: pytest.MonkeyPatch
) -> None:
    Book({"train-1": Entry("i-train-1", "ada", "x", "now")}).save(hands.cluster.paths)
    called = hooks(monkeypatch, "drain train-1")
    hands.drain(["train-1"])
    assert called == ["drain train-1 for upgrade"]
    assert quarantine_book.load(hands.cluster.paths).nodes["train-1"].owner == "ada"


def test_nodes_are_put_back_but_for_those_that_a_person_keeps(
    hands: NodeActions, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = {"train-0": Entry("i-train-0", "ada", "x", "now"), "train-1": Entry("i-train-1", OURS, "y", "now")}
    Book(entries).save(hands.cluster.paths)
    called = hooks(monkeypatch, "resume train-2")
    assert hands.resume(NAMES) == {"train-2": "resume failed"}
    assert called == ["resume train-2 for upgrade", "resume train-1 for upgrade"]
    assert list(hands.quarantined()) == ["train-0"]


def judged(*bad: str, slower: bool = False) -> Report:
    fine = CheckResult("gpu.count", "fatal", "pass", "replace", "a GPU is missing")
    lost = CheckResult("gpu.count", "fatal", "fail", "replace", "a GPU is missing", message="7 instead of 8")
    rows = [NodeReport(n, "train", "here", "p4d.24xlarge", True, (lost if n in bad else fine,)) for n in NAMES]
    return Report(tuple(rows), {}, 0.0)


@pytest.fixture
def proofs(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """`bad`: nodes that the checks condemn; what the proof was given."""
    proof: dict[str, Any] = {"bad": set(), "settled": []}

    def prove(_: object, subjects: Sequence[Any], nodes: Sequence[Any], **how: Any) -> Report:
        proof["subjects"], proof["how"] = [item.name for item in subjects], how
        report = judged(*proof["bad"])
        names = {item.name for item in subjects}
        return Report(tuple(row for row in report.nodes if row.name in names), {}, 0.0)

    monkeypatch.setattr(actions.verifying, "prove", prove)
    monkeypatch.setattr(actions.verifying, "settle", lambda *_, **how: proof["settled"].append(how))
    monkeypatch.setattr(actions.baselines, "slower", lambda row: "busbw" if row.name == "train-0" else "")
    return proof


def test_nodes_are_verified_with_the_release_that_they_are_held_to(hands: NodeActions, proofs: dict[str, Any]) -> None:
    events: list[Event] = []
    hands.cluster.events.subscribe(events.append)
    proofs["bad"] = {"train-1"}
    assert hands.verify(dict.fromkeys(NAMES[:2], identity(OLD))) == {"train-1": "gpu.count: 7 instead of 8"}
    assert (proofs["subjects"], proofs["how"]) == (NAMES[:2], {"workdir": Path("/runs/1")})
    assert proofs["settled"] == [{"quarantining": False}], "the upgrade has its own nodes out of service"
    assert [(e.kind, e.message, e.node) for e in events if e.stage == "upgrade"] == [
        ("warning", "slower than its baseline: busbw", "train-0")
    ]


def test_nodes_are_moved_where_the_roles_run_the_checks_pass_and_nothing_differs(
    hands: NodeActions, proofs: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    differs = [SimpleNamespace(message=f"d{n}", mended=n != 1) for n in range(6)]
    result = SimpleNamespace(
        configured=("train-0", "train-1"), failed={"train-1": "a task failed"},
        subjects=[SimpleNamespace(name=name) for name in NAMES], drift={"train-1": differs[:1], "train-2": differs},
        clean=lambda name: name == "train-0",
    )  # fmt: skip
    calls: list[Any] = []
    monkeypatch.setattr(actions.configuring, "reconcile", lambda *arguments: calls.append(arguments) or result)
    events: list[Event] = []
    hands.cluster.events.subscribe(events.append)
    Ledger(hands.cluster.paths).keep(NEW)
    actual = hands.move(dict.fromkeys(NAMES, identity(NEW)))
    assert actual == {"train-1": "a task failed", "train-2": "d0; d2; d3"}
    assert proofs["subjects"] == ["train-0", "train-2"], "roles that broke off leave nothing to verify"
    ((_, nodes, releases, run_dir),) = calls
    assert (nodes, run_dir) == (NODES, Path("/runs/1"))
    assert {release.id for release in releases.values()} == {identity(NEW)}
    assert ("done", "2 nodes configured") in [(e.kind, e.message) for e in events if e.stage == "configure"]


def test_nothing_is_verified_where_the_roles_broke_off_everywhere(
    hands: NodeActions, proofs: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    result = SimpleNamespace(
        configured=(), failed={"train-0": "x"}, subjects=[SimpleNamespace(name="train-0")], drift={"train-0": ()},
        clean=lambda _: False,
    )  # fmt: skip
    monkeypatch.setattr(actions.configuring, "reconcile", lambda *_: result)
    assert hands.move({"train-0": identity(OLD)}) == {"train-0": "x"}
    assert "subjects" not in proofs


def test_what_a_node_runs_is_recorded_by_its_machine(hands: NodeActions) -> None:
    ledger = Ledger(hands.cluster.paths)
    new = ledger.keep(NEW)
    hands._ledger = ledger
    hands.record(["train-1"], new)
    assert [Ledger(hands.cluster.paths).of(item) for item in NODES] == [identity(OLD), new, identity(OLD)]


# the journal


@pytest.mark.parametrize(
    ("journal", "runs", "reported"),
    [
        (Journal("b", "moving", nodes={"a": Place("a", "drained", "x")}), "a", {"step": "drained", "reason": "x"}),
        (Journal("b", "moving", nodes={"a": Place("a", "moved")}), "b", {"step": "moved", "reason": ""}),
        (Journal("b", "done", nodes={"a": Place("a", "moved")}), "b", None),
        (Journal("b", "done", nodes={"a": Place("a", "moved")}), "a", {"step": "moved", "reason": ""}),
        (Journal("b", "done", nodes={"a": Place("a", "left", "x")}), "b", {"step": "left", "reason": "x"}),
        (Journal("b", "moving", nodes={}), "a", None),
    ],
)
def test_status_says_of_a_node_what_is_not_well(journal: Journal, runs: str, reported: dict[str, str] | None) -> None:
    state = upgrade_journal.upgrade_state(journal, "a", runs)
    assert (state.to_json() if state else None) == reported


@pytest.mark.parametrize(
    "text",
    [
        '{"nodes": {"a": {"source": "a", "step": "gone"}}}',
        '{"nodes": {}, "phase": "gone"}',
        '{"nodes": {"a": {"source": 7}}}',
        '{"nodes": {"a": {"source": "a", "reason": 7}}}',
        '{"nodes": {}, "batch": "1"}',
        '{"nodes": {}, "batch": true}',
        '{"nodes": {}, "to": 7}',
        '{"nodes": {}, "failed": {"a": 7}}',
        '{"nodes": {}, "failed": 7}',
        '{"nodes": 7}',
        '{"nodes": {"a": 7}}',
        '{"nodes": {}, "more": 1}',
        "{}",
        "[]",
        "{",
    ],
)
def test_a_damaged_journal_is_refused(cluster: Cluster, text: str) -> None:
    (cluster.paths.root / "upgrade.json").write_text(text)
    with pytest.raises(GpuprovError, match="is damaged"):
        upgrade_journal.load(cluster.paths)


def test_locks_that_an_upgrade_needs_are_named(cluster: Cluster) -> None:
    Journal("b", nodes={"a": Place("a"), "b": Place("")}).save(cluster.paths)
    assert upgrade_journal.needs(cluster) == {"a", "b"}
    assert STACK.driver


# what is written down while it goes on


def test_the_journal_is_written_before_anything_is_done(
    cluster: Cluster, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    proven(cluster)
    written_steps: list[dict[str, str]] = []
    monkeypatch.setattr(command, "_offer", lambda *_: written_steps.append(steps(cluster)))
    run(cluster, world)
    assert written_steps == [dict.fromkeys(NAMES, "waiting")]


@pytest.mark.parametrize("step", ["waiting", "moved"])
def test_only_a_node_that_waits_is_left_out_for_its_quarantine(hands: NodeActions, step: Any) -> None:
    Book({"train-1": Entry("i-train-1", "ada", "loud fan", "now")}).save(hands.cluster.paths)
    events: list[Event] = []
    hands.cluster.events.subscribe(events.append)
    journal = Journal("b", "moving", nodes={"train-1": Place("a", step)})
    actions.leave_the_quarantined(journal, hands, None)
    is_skipped = step == "waiting"
    assert journal.nodes["train-1"].step == ("left" if is_skipped else step)
    assert upgrade_journal.load(hands.cluster.paths) == journal, "it is written"
    assert [(e.kind, e.message, e.node) for e in events] == (
        [("warning", "skipped: in quarantine by ada: loud fan", "train-1")] if is_skipped else []
    )


def test_where_no_node_waits_none_is_verified(hands: NodeActions, proofs: dict[str, Any]) -> None:
    journal = Journal("b", "moving", nodes={"train-1": Place(identity(OLD), "moved")})
    events: list[Event] = []
    hands.cluster.events.subscribe(events.append)
    actions.leave_the_bad(journal, hands)
    assert ("subjects" in proofs, events) == (False, [])


def test_a_node_that_is_left_out_for_its_health_is_written_down(hands: NodeActions, proofs: dict[str, Any]) -> None:
    proofs["bad"] = {"train-1"}
    journal = Journal("b", "moving", nodes={name: Place(identity(OLD)) for name in NAMES})
    actions.leave_the_bad(journal, hands)
    written = upgrade_journal.load(hands.cluster.paths)
    assert {name: entry.step for name, entry in written.nodes.items()} == {
        "train-0": "waiting", "train-1": "left", "train-2": "waiting"
    }  # fmt: skip


def test_what_the_command_line_leaves_out_is_cluster_yamls() -> None:
    options = Options()
    assert (options.batch, options.canary, options.rollback_all, options.again) == (None, None, False, False)
    done = Upgrade(Path(), Journal())
    assert (done.declined, done.nothing, done.stopped, done.seconds) == (False, False, "", 0.0)
    assert Upgrade(Path(), Journal(phase="moving"), nothing=True).ok


def test_the_time_is_that_of_this_call(cluster: Cluster, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    Ledger(cluster.paths).record(NODES, NEW)
    moments = iter([100.0, 102.345])
    monkeypatch.setattr(command.time, "monotonic", lambda: next(moments, 102.345))
    assert run(cluster, world).seconds == 2.3


def test_an_upgrade_of_a_fleet_that_was_resized_is_refused(cluster: Cluster, world: World) -> None:
    stopped(cluster, world)
    fleet.save(cluster.paths, [*NODES, replace(NODES[0], name="train-9")])
    with pytest.raises(GpuprovError, match="an upgrade is in progress"):
        run(cluster, world)


def test_a_node_of_the_upgrade_that_nodes_json_lost_is_taken_in_first(cluster: Cluster, world: World) -> None:
    stopped(cluster, world)
    fleet.save(cluster.paths, NODES[:2])
    with pytest.raises(GpuprovError, match="the machines are not those of") as refused:
        run(cluster, world)
    assert "gpuprov up" in refused.value.hint
