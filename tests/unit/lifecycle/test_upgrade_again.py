"""`upgrade` on a fleet whose file, lock or size changed meanwhile: what it moves, and that it comes to an end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from provisioner.common.errors import Exit, GpuprovError
from provisioner.common.paths import private_dir
from provisioner.lifecycle import diff
from provisioner.lifecycle.rollout import Place
from provisioner.lifecycle.session import Cluster, open_cluster
from provisioner.lifecycle.upgrade import command
from provisioner.lifecycle.upgrade import journal as upgrade_journal
from provisioner.lifecycle.upgrade.actions import NodeActions
from provisioner.lifecycle.upgrade.command import Options, Upgrade
from provisioner.lifecycle.upgrade.journal import Journal
from provisioner.machines.providers import capacity
from provisioner.rundir import fleet
from provisioner.rundir.fleet import Node
from provisioner.rundir.release import Ledger, assigned_releases, identity
from provisioner.stack import lockfile
from tests.unit.lifecycle import test_up
from tests.unit.lifecycle.test_up import FILE, NAMES, World, applied, lock, run_up

world = test_up.world
OLD, NEW = lock(), lock("595.9")


class KilledError(BaseException):
    """The process is gone."""


@pytest.fixture(autouse=True)
def mirror(monkeypatch: pytest.MonkeyPatch) -> None:
    """Serves every lock."""
    monkeypatch.setattr(command, "_offer", lambda *_: None)


def sized(folder: Path, count: int) -> Cluster:
    (folder / "cluster.yaml").write_text(FILE.replace("count: 2", f"count: {count}"))
    return open_cluster(folder / "cluster.yaml", sandbox=True)


def upgrade(cluster: Cluster, questions: list[Any] | None = None, **options: bool) -> Upgrade:
    def confirm(moving: dict[str, list[str]], size: int, first: list[str]) -> bool:
        if questions is not None:
            questions.append((moving, size, first))
        return True

    return command.upgrade(cluster, None, Options(**options), confirm=confirm)  # type: ignore[arg-type]


def killed_before_the_first_drain(cluster: Cluster) -> None:
    def killed(*_: Any) -> None:
        raise KilledError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "leave_the_bad", killed)
        with pytest.raises(KilledError):
            upgrade(cluster)
    assert upgrade_journal.load(cluster.paths).phase == "moving"


def test_a_lock_that_was_taken_back_before_the_first_drain_moves_nobody(tmp_path: Path, world: World) -> None:
    cluster = sized(tmp_path, 2)
    run_up(cluster)
    world.lock = NEW
    killed_before_the_first_drain(cluster)
    world.lock = OLD  # cluster.yaml and cluster.lock are put back
    with pytest.raises(GpuprovError, match="an upgrade is in progress") as caught:
        run_up(cluster)
    assert "`gpuprov upgrade" in caught.value.hint
    questions: list[Any] = []
    done = upgrade(cluster, questions)
    assert (done.exit, done.nothing, questions) == (Exit.OK, True, [])
    assert command.summary(done) == "every node runs the current lock"
    assert applied(cluster) == dict.fromkeys(NAMES, identity(OLD))
    assert set(world.installed.values()) == {"580.1"}
    assert not upgrade_journal.load(cluster.paths).busy
    assert run_up(cluster).exit == Exit.OK


def test_a_third_lock_in_place_of_one_that_was_not_begun_is_what_nodes_move_to(tmp_path: Path, world: World) -> None:
    cluster = sized(tmp_path, 2)
    run_up(cluster)
    world.lock = NEW
    killed_before_the_first_drain(cluster)
    world.lock = lock("600.1")
    questions: list[Any] = []
    assert upgrade(cluster, questions).exit == Exit.OK
    assert questions[0][0] == {name: ["driver 580.1 → 600.1"] for name in NAMES}
    assert set(world.installed.values()) == {"600.1"}


def test_all_are_rolled_back_though_one_of_them_was_removed_since(tmp_path: Path, world: World) -> None:
    run_up(sized(tmp_path, 3))
    world.lock = NEW
    assert upgrade(sized(tmp_path, 3)).exit == Exit.OK
    cluster = sized(tmp_path, 2)
    assert run_up(cluster).exit == Exit.OK
    done = upgrade(cluster, rollback_all=True)
    assert (done.journal.phase, done.journal.at("rolled-back")) == ("rolled-back", NAMES)
    assert applied(cluster) == dict.fromkeys(NAMES, identity(OLD))
    assert not upgrade_journal.load(cluster.paths).busy
    assert set(upgrade_journal.load(cluster.paths).nodes) == set(NAMES)


def without_one(folder: Path) -> Cluster:
    """A group of three that may do without one (capacity.min), and does."""
    cluster = sized(folder, 3)
    run_up(cluster)
    fleet.save(cluster.paths, cluster.nodes()[:2])
    capacity.do_without(cluster.paths.site("here"), {"train": ["train-2"]})
    return cluster


def test_a_group_that_does_without_a_machine_is_upgraded(tmp_path: Path, world: World) -> None:
    cluster = without_one(tmp_path)
    world.lock = NEW
    done = upgrade(cluster)
    assert (done.exit, done.journal.at("moved")) == (Exit.OK, NAMES)
    assert diff.compare(cluster).absent == {}


def test_a_machine_that_is_done_without_is_no_change_of_size(tmp_path: Path, world: World) -> None:
    cluster = without_one(tmp_path)
    world.lock = NEW
    killed_before_the_first_drain(cluster)
    upgrade_journal.refuse_resized(cluster, ["here"])
    assert upgrade(cluster).exit == Exit.OK


def test_a_machine_that_was_lost_meanwhile_keeps_no_upgrade(tmp_path: Path, world: World) -> None:
    cluster = sized(tmp_path, 2)
    run_up(cluster)
    world.lock = NEW
    killed_before_the_first_drain(cluster)
    journal = upgrade_journal.load(cluster.paths)
    fleet.save(cluster.paths, cluster.nodes()[:1])
    with pytest.raises(GpuprovError, match="the machines are not those of"):
        upgrade(cluster)  # it is of the upgrade, and may be out of service
    del journal.nodes["train-1"]
    journal.save(cluster.paths)
    done = upgrade(cluster)
    assert (done.exit, done.journal.at("moved")) == (Exit.OK, ["train-0"])


def test_a_machine_that_is_missing_is_no_fleet_to_upgrade(tmp_path: Path, world: World) -> None:
    run_up(sized(tmp_path, 2))
    world.lock = NEW
    with pytest.raises(GpuprovError, match="the machines are not those of"):
        upgrade(sized(tmp_path, 3))


def big(folder: Path, nodes: int) -> tuple[Cluster, list[Node]]:
    cluster = sized(folder, nodes)
    machines = [
        Node(f"train-{number}", "train", "here", "p4d.24xlarge", f"i-{number}", "", "10.0.0.1", "10.0.0.1")
        for number in range(nodes)
    ]
    private_dir(cluster.paths.root)
    fleet.save(cluster.paths, machines)
    Ledger(cluster.paths).record(machines, OLD)
    return cluster, machines


def test_each_lock_is_parsed_once_and_not_once_for_each_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, machines = big(tmp_path, 500)
    target = Ledger(cluster.paths).keep(NEW)
    read, names = lockfile.read, list[str]()

    def counted(path: Path) -> Any:
        names.append(path.name)
        return read(path)

    monkeypatch.setattr(lockfile, "read", counted)
    journal = Journal()
    actions = NodeActions(cluster, machines, tmp_path)
    command._choose(actions, journal, NEW, target, machines, Options())
    assert names == [f"{identity(OLD)}.lock"]
    ledger = Ledger(cluster.paths)
    moving = command._moving(journal, ledger, machines)
    assert moving == {node.name: ["driver 580.1 → 595.9"] for node in machines}
    assert sorted(names[1:]) == sorted(f"{identity(release_lock)}.lock" for release_lock in (OLD, NEW))
    names.clear()
    releases = assigned_releases(cluster.spec, Ledger(cluster.paths), machines, NEW)
    assert {release.id for release in releases.values()} == {identity(OLD)}
    assert names == [f"{identity(OLD)}.lock"]
    names.clear()
    assert {ledger.lock(str(ledger.of(node))).groups["train"].driver for node in machines} == {"580.1"}
    assert names == []


def test_a_lock_that_was_pruned_is_not_had_from_memory(tmp_path: Path) -> None:
    cluster, machines = big(tmp_path, 2)
    ledger = Ledger(cluster.paths)
    release = ledger.keep(NEW)
    ledger.lock(release)
    ledger.prune(machines)
    with pytest.raises(GpuprovError, match="is missing"):
        ledger.lock(release)


def test_nodes_without_a_machine_leave_the_journal(tmp_path: Path) -> None:
    journal = Journal(nodes={"train-0": Place("a"), "train-1": Place("a", "moved")})
    nodes: Sequence[Node] = [Node("train-0", "train", "here", "p4d.24xlarge", "i-0", "", "10.0.0.1", "10.0.0.1")]
    journal.forget(nodes)
    assert journal.nodes == {"train-0": Place("a")}
