"""`up` after something went wrong: whom it has drained, what stands, what is recorded."""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from provisioner.common.errors import Exit, GpuprovError, ProviderError
from provisioner.lifecycle import diff, down, hooks, machines, verifying
from provisioner.lifecycle.node_changes import NodeChanges
from provisioner.lifecycle.quarantine import actions as quarantine
from provisioner.lifecycle.session import Cluster, open_cluster
from provisioner.lifecycle.subjects import subjects_of
from provisioner.lifecycle.up import up
from provisioner.machines.base import Action, Planned
from provisioner.plan.models import Plan
from provisioner.rundir import fleet, node_state
from provisioner.rundir.fleet import Node
from provisioner.rundir.release import identity, release_of
from provisioner.verify import report as reports
from tests.unit.lifecycle import test_up
from tests.unit.lifecycle.test_up import FILE, NAMES, World, applied, run_up, stages

world = test_up.world
HOOKS = "hooks: {drain: 'true', resume: 'true'}\n"


@pytest.fixture
def hooked(monkeypatch: pytest.MonkeyPatch) -> Hooked:
    calls = Hooked()
    monkeypatch.setattr(hooks, "call", calls.call)
    return calls


class Hooked:
    """Hooks that were called, and those that fail: "drain NODE" or "resume NODE"."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.fails: set[str] = set()

    def call(self, _: Cluster, step: str, nodes: Sequence[Node], *__: Any) -> dict[str, str]:
        self.calls += [f"{step} {node.name}" for node in nodes]
        return {node.name: "a job runs" for node in nodes if f"{step} {node.name}" in self.fails}


def sized(folder: Path, count: int, more: str = HOOKS) -> Cluster:
    (folder / "cluster.yaml").write_text(FILE.replace("count: 2", f"count: {count}") + more)
    return open_cluster(folder / "cluster.yaml", sandbox=True)


def recreate(monkeypatch: pytest.MonkeyPatch, world: World, name: str) -> None:
    """Terraform makes the machine of this node anew."""
    original: Any = machines.of_site

    class Recreating(original):  # type: ignore[misc]
        def plan(self, plan: Plan) -> Planned:
            return Planned(self.site, add=1, destroy=1, actions=(Action("replace", f"machine of {name}", name),))

        def apply(self, plan: Plan, planned: Planned) -> list[Node]:
            del world.machines[name]
            return list(super().apply(plan, planned))

    monkeypatch.setattr(machines, "of_site", Recreating)


def test_a_node_that_was_drained_to_be_recreated_is_put_back_when_its_new_machine_is_proven(
    tmp_path: Path, world: World, hooked: Hooked, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = sized(tmp_path, 2)
    run_up(cluster)
    recreate(monkeypatch, world, "train-1")
    assert run_up(cluster).exit == Exit.OK
    assert [node.id for node in cluster.nodes()] == ["i-1", "i-3"]
    assert hooked.calls == ["drain train-1", "resume train-1"]
    assert quarantine.quarantined_nodes(cluster) == {}


def test_a_node_whose_new_machine_is_bad_stays_drained_and_in_quarantine(
    tmp_path: Path, world: World, hooked: Hooked, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = sized(tmp_path, 2)
    run_up(cluster)
    recreate(monkeypatch, world, "train-1")
    world.bad = {"train-1"}
    assert run_up(cluster).exit == Exit.CHECK_FAILED
    assert "resume train-1" not in hooked.calls
    assert "train-1" in quarantine.quarantined_nodes(cluster)


def test_where_one_cannot_be_drained_none_is_removed_and_all_are_put_back(
    tmp_path: Path, world: World, hooked: Hooked
) -> None:
    """The one whose drain command failed may be drained all the same."""
    run_up(sized(tmp_path, 3))
    hooked.fails = {"drain train-2"}
    with pytest.raises(GpuprovError, match="train-2: a job runs") as caught:
        run_up(sized(tmp_path, 1))
    assert "no machine was removed" in caught.value.hint
    cluster = sized(tmp_path, 3)
    assert [node.name for node in cluster.nodes()] == ["train-0", "train-1", "train-2"]
    assert hooked.calls == ["drain train-1", "drain train-2", "resume train-1", "resume train-2"]
    assert quarantine.quarantined_nodes(cluster) == {}


def test_a_node_that_is_not_put_back_either_is_in_quarantine_until_it_is_proven(
    tmp_path: Path, world: World, hooked: Hooked
) -> None:
    run_up(sized(tmp_path, 3))
    hooked.fails = {"drain train-2", "resume train-1"}
    with pytest.raises(GpuprovError, match="train-2: a job runs"):
        run_up(sized(tmp_path, 1))
    cluster = sized(tmp_path, 3)
    assert set(quarantine.quarantined_nodes(cluster)) == {"train-1"}
    hooked.fails, hooked.calls = set(), []
    assert run_up(cluster).exit == Exit.OK  # the count was put back, and a verdict looked at them
    assert hooked.calls == ["resume train-1"]
    assert quarantine.quarantined_nodes(cluster) == {}


class Throttled:
    """Makes every apply fail before anything is done."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        original: Any = machines.of_site

        class Site(original):  # type: ignore[misc]
            def apply(self, *_: Any) -> list[Node]:
                raise ProviderError("terraform apply failed: throttled", where="site here")

        monkeypatch.setattr(machines, "of_site", Site)


def test_a_machine_that_a_failed_run_did_not_remove_is_still_known(
    tmp_path: Path, world: World, hooked: Hooked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs on and costs: status, its price, the question of `down` and the next `up` name it."""
    run_up(sized(tmp_path, 2))
    cluster = sized(tmp_path, 1)
    with monkeypatch.context() as patch:
        Throttled(patch)
        with pytest.raises(ProviderError, match="2 machines of the cluster stand now"):
            run_up(cluster)
    assert [node.name for node in cluster.nodes()] == NAMES
    assert down.recorded_nodes(cluster) == NAMES
    assert diff.compare(cluster).unwanted == ("train-1",)
    cluster = sized(tmp_path, 2)
    world.configured.clear()
    assert run_up(cluster).exit == Exit.OK
    assert world.configured == [], "it is proven, and no role runs on it for a new one"


def test_machines_are_known_again_after_nodes_json_was_removed(tmp_path: Path, world: World) -> None:
    """As the hint of a damaged nodes.json says: Terraform's state has them."""
    cluster = sized(tmp_path, 2, "")
    run_up(cluster)
    cluster.paths.nodes.write_text("[{")
    with pytest.raises(GpuprovError, match="is damaged") as caught:
        cluster.nodes()
    assert "remove it and run `gpuprov up`" in caught.value.hint
    cluster.paths.nodes.unlink()
    larger, questions = sized(tmp_path, 3, ""), list[NodeChanges]()

    def decline(_: Plan, changes: NodeChanges) -> bool:
        questions.append(changes)
        return False

    up(larger, None, confirm=decline)  # type: ignore[arg-type]
    assert [changes.create for changes in questions] == [("train-2",)], "nobody is asked whether the others are created"
    assert {stage for stage, _ in stages(larger).values()} == {"verified"}
    world.sold_out, world.configured = 2, []
    with pytest.raises(ProviderError, match="2 machines of the cluster stand now"):
        run_up(larger)
    assert [(node.name, node.id) for node in larger.nodes()] == [("train-0", "i-1"), ("train-1", "i-2")]
    assert [node.name for node in machines.settled(larger)] == NAMES, "neither is one that the failed run has made"
    assert applied(larger) == dict.fromkeys(NAMES, identity(world.lock))


def test_a_machine_that_left_the_file_while_nodes_json_was_away_is_named_and_drained(
    tmp_path: Path, world: World, hooked: Hooked, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_up(sized(tmp_path, 2))
    cluster = sized(tmp_path, 1)
    cluster.paths.nodes.unlink()
    original: Any = machines.of_site

    class Removing(original):  # type: ignore[misc]
        def plan(self, _: Plan) -> Planned:
            return Planned(self.site, destroy=1, actions=(Action("delete", "machine of train-1", "train-1"),))

    monkeypatch.setattr(machines, "of_site", Removing)
    assert run_up(cluster).exit == Exit.OK
    assert hooked.calls == ["drain train-1"]


def test_a_node_that_was_proven_is_recorded_before_it_is_put_into_service(
    tmp_path: Path, world: World, hooked: Hooked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next run would load it, or boot it again, beside the jobs that it has by then."""
    cluster = sized(tmp_path, 2)

    def full(*_: Any, **__: Any) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device", "report.html")

    with monkeypatch.context() as patch:
        patch.setattr(reports, "write", full)
        run = run_up(cluster)
    assert (run.healthy, run.page) == (True, None)
    assert applied(cluster) == dict.fromkeys(NAMES, identity(world.lock))

    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(verifying, "settle", killed)
        with pytest.raises(KeyboardInterrupt):
            run_up(sized(tmp_path, 3))
    assert applied(sized(tmp_path, 3)) == dict.fromkeys([*NAMES, "train-2"], identity(world.lock))


def test_a_verdict_is_noted_for_the_machine_that_was_judged_and_for_no_other_of_its_name(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While `verify` looks, `replace` makes train-1 anew and is killed before it proves it."""
    cluster = sized(tmp_path, 2, "quarantine: {automatic: false}\n")
    run_up(cluster)
    prove = verifying.prove

    def slow(cluster: Cluster, *arguments: Any, **how: Any) -> Any:
        report = prove(cluster, *arguments, **how)
        first, second = cluster.nodes()
        new = Node("train-1", second.group, second.site, second.machine, "i-99", "", "203.0.113.9", "10.0.0.9")
        fleet.save(cluster.paths, [first, new])
        node_state.note_stage(cluster.paths, "made", ["train-1"])
        return report

    def subjects(cluster: Cluster, nodes: Sequence[Node]) -> Sequence[Any]:
        releases: Mapping[str, Any] = {node.name: release_of(cluster.spec, world.lock) for node in nodes}
        return list(subjects_of(cluster, nodes, releases))

    monkeypatch.setattr(verifying, "prove", slow)
    monkeypatch.setattr(verifying, "subjects_of", subjects)
    verifying.verify_fleet(cluster, diff.compare(cluster))
    assert stages(cluster) == {"train-0": ("verified", True), "train-1": ("made", None)}
    assert applied(cluster)["train-1"] is None
