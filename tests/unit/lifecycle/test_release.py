"""Which lock a machine runs: remembered by machine, compared by what is installed, forgotten with the machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from provisioner.common.errors import GpuprovError
from provisioner.common.paths import private_dir
from provisioner.lifecycle.rollout import Place
from provisioner.lifecycle.session import Cluster, open_cluster
from provisioner.lifecycle.subjects import subjects_of
from provisioner.lifecycle.up import waiting
from provisioner.lifecycle.upgrade import journal as upgrade_journal
from provisioner.lifecycle.upgrade.journal import Journal
from provisioner.rundir import fleet
from provisioner.rundir.fleet import Node
from provisioner.rundir.release import ANOTHER_RELEASE, Ledger, changes, identity, same
from provisioner.stack import lockfile
from provisioner.stack.models import Component, Lock, Stack
from tests.support.plans import planned_group

FILE = """
name: told
sites: {here: {provider: aws, region: us-east-1}}
groups: {train: {machine: p4d.24xlarge, count: 3}}
"""
STACK = planned_group("p4d.24xlarge").stack


def lock(stack: Stack = STACK, *, simulated: bool = True) -> Lock:
    return Lock(request={}, simulated=simulated, groups={"train": stack})


def newer(stack: Stack = STACK) -> Stack:
    packages = tuple(
        p.model_copy(update={"version": p.version.replace("580.173.02", "595.91.07")}) for p in stack.packages
    )
    return stack.model_copy(update={"driver": "595.91.07", "driver_branch": "595", "packages": packages})


def node(name: str, machine: str = "") -> Node:
    return Node(
        name, name.rpartition("-")[0], "here", "p4d.24xlarge", machine or f"i-{name}", "", "203.0.113.7", "10.0.0.7"
    )


NODES = [node("train-0"), node("train-1"), node("train-2")]


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    (tmp_path / "cluster.yaml").write_text(FILE)
    test_cluster = open_cluster(tmp_path / "cluster.yaml", sandbox=True)
    private_dir(test_cluster.paths.root)
    fleet.save(test_cluster.paths, NODES)
    return test_cluster


def test_why_a_version_was_chosen_is_no_part_of_it() -> None:
    assert identity(lock()) == identity(
        lock(STACK.model_copy(update={"components": {"driver": Component(version="1", why="a better reason")}}))
    )
    assert identity(lock()) != identity(lock(newer()))


def test_a_sandboxs_digests_follow_from_this_machine_and_real_ones_do_not() -> None:
    other = STACK.model_copy(
        update={"images": tuple(i.model_copy(update={"digest": "sha256:f"}) for i in STACK.images)}
    )
    assert identity(lock()) == identity(lock(other))
    assert identity(lock(simulated=False)) != identity(lock(other, simulated=False))


def test_a_group_more_moves_nobody() -> None:
    more = Lock(request={}, simulated=True, groups={"train": STACK, "head": STACK})
    assert identity(more) != identity(lock())
    assert same(lock(), more, "train")
    assert not same(lock(), more, "head")


def test_a_machine_is_known_by_its_id(cluster: Cluster) -> None:
    release = identity(lock())
    Ledger(cluster.paths).record(NODES[:1], lock())
    assert Ledger(cluster.paths).of(NODES[0]) == release
    assert Ledger(cluster.paths).of(NODES[1]) is None
    assert Ledger(cluster.paths).of(replace(NODES[0], id="i-another")) is None
    assert Ledger(cluster.paths).lock(release) == lock()


def test_what_nobody_needs_is_forgotten(cluster: Cluster) -> None:
    ledger = Ledger(cluster.paths)
    ledger.record(NODES, lock())
    ledger.record(NODES[:1], lock(newer()))
    spare = ledger.keep(lock(STACK.model_copy(update={"nccl": "2.0"})))
    ledger.prune(NODES[:2], {spare})
    assert {f.stem for f in (cluster.paths.root / "locks").iterdir()} == {
        identity(lock()),
        identity(lock(newer())),
        spare,
    }
    ledger.prune(NODES[:1])
    assert {f.stem for f in (cluster.paths.root / "locks").iterdir()} == {identity(lock(newer()))}
    assert Ledger(cluster.paths).of(NODES[1]) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"nodes": 7}', '{"nodes": {"train-0": {}}}'])
def test_a_damaged_ledger_is_refused(text: str, cluster: Cluster) -> None:
    """Taken for none, the next `up` would move the whole fleet at once."""
    (cluster.paths.root / "applied.json").write_text(text)
    with pytest.raises(GpuprovError, match="is damaged"):
        Ledger(cluster.paths)


def test_a_lock_that_is_gone_is_refused(cluster: Cluster) -> None:
    """By what names it: applied.json, or the journal of an upgrade."""
    Ledger(cluster.paths).record(NODES[:1], lock())
    (file,) = (cluster.paths.root / "locks").iterdir()
    file.unlink()
    with pytest.raises(GpuprovError, match="which nodes run, is missing") as caught:
        Ledger(cluster.paths).lock(file.stem)
    assert f"remove {cluster.paths.root / 'applied.json'}" in caught.value.hint
    with pytest.raises(GpuprovError, match="an upgrade moves nodes, is missing") as caught:
        Ledger(cluster.paths).lock("0" * 12)
    assert f"remove {cluster.paths.root / 'upgrade.json'}" in caught.value.hint


def test_a_kept_lock_that_is_damaged_is_named_with_a_way_out(cluster: Cluster) -> None:
    ledger = Ledger(cluster.paths)
    ledger.record(NODES[:1], lock())
    (file,) = (cluster.paths.root / "locks").iterdir()
    file.write_text("version: 1\ngro")
    for read in (lambda: Ledger(cluster.paths).lock(file.stem), lambda: Ledger(cluster.paths).obsolete(lock())):
        with pytest.raises(GpuprovError, match="is damaged") as caught:
            read()
        assert caught.value.where == str(file)
        assert "remove it" in caught.value.hint and str(cluster.paths.root / "applied.json") in caught.value.hint


def test_a_kept_lock_that_was_edited_is_damaged(cluster: Cluster) -> None:
    """Its name is the digest of what it installs."""
    ledger = Ledger(cluster.paths)
    ledger.record(NODES[:1], lock())
    (file,) = (cluster.paths.root / "locks").iterdir()
    lockfile.write(file, lock(newer()))
    with pytest.raises(GpuprovError, match=f"is damaged: {ANOTHER_RELEASE}"):
        Ledger(cluster.paths).lock(file.stem)


def test_up_keeps_proven_nodes_on_their_lock_and_gives_new_ones_the_new_one(cluster: Cluster) -> None:
    Ledger(cluster.paths).record(NODES[:2], lock())
    newest = lock(newer())
    releases_by_node = upgrade_journal.assign(cluster, NODES, newest)
    assert [releases_by_node[n.name].stack("train").driver for n in NODES] == [STACK.driver, STACK.driver, "595.91.07"]
    changes_by_node = waiting(NODES, releases_by_node, newest)
    assert list(changes_by_node) == ["train-0", "train-1"]
    assert changes_by_node["train-0"][0] == f"driver {STACK.driver} → 595.91.07"
    assert [s.expected.driver for s in subjects_of(cluster, NODES, releases_by_node)] == [
        STACK.driver,
        STACK.driver,
        "595.91.07",
    ]
    assert [identity(other) for other in upgrade_journal.other_locks(cluster, newest)] == [identity(lock())]


def test_nobody_waits_where_nothing_changed(cluster: Cluster) -> None:
    Ledger(cluster.paths).record(NODES, lock())
    assert waiting(NODES, upgrade_journal.assign(cluster, NODES, lock()), lock()) == {}
    assert upgrade_journal.other_locks(cluster, lock()) == []


def test_a_replaced_machine_gets_what_the_fleet_runs_where_the_new_lock_was_rolled_back(cluster: Cluster) -> None:
    Ledger(cluster.paths).record(NODES, lock())
    replaced = [*NODES[:2], replace(NODES[2], id="i-another")]
    newest = lock(newer())
    Journal(to=identity(newest), phase="rolled-back", failed={identity(newest): "train-0: bad"}).save(cluster.paths)
    releases_by_node = upgrade_journal.assign(cluster, replaced, newest)
    assert {releases_by_node[n.name].stack("train").driver for n in replaced} == {STACK.driver}


@pytest.mark.parametrize("phase", ["moving", "rolling-back"])
def test_up_does_not_come_between_an_upgrade(phase: str, cluster: Cluster) -> None:
    journal = Journal(to="b", phase=phase, nodes={"train-0": Place("a", "moved"), "train-1": Place("a")})  # type: ignore[arg-type]
    journal.save(cluster.paths)
    with pytest.raises(GpuprovError, match=r"1 of 2 nodes moved") as caught:
        upgrade_journal.assign(cluster, NODES, lock())
    assert "gpuprov upgrade" in caught.value.hint


def test_what_changes_is_said_by_name() -> None:
    lines = changes(STACK, newer().model_copy(update={"images": ()}))
    assert lines[0] == f"driver {STACK.driver} → 595.91.07"
    assert f"without {STACK.images[0].reference}" in lines
    assert lines[-1].endswith("packages")
    assert changes(STACK, STACK) == []
