"""Which nodes are proven with the lock that they are held to, and whose change of size waits for an upgrade's end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from provisioner.common.errors import GpuprovError
from provisioner.common.paths import private_dir
from provisioner.lifecycle import configuring
from provisioner.lifecycle.rollout import Place
from provisioner.lifecycle.session import Cluster, open_cluster
from provisioner.lifecycle.upgrade import journal as upgrade_journal
from provisioner.lifecycle.upgrade.journal import Journal
from provisioner.rundir import fleet, node_state
from provisioner.rundir.fleet import Node
from provisioner.rundir.release import Ledger, identity, release_of
from provisioner.stack.models import Lock, Stack
from tests.support.plans import planned_group

FILE = """
name: vision
sites:
  virginia: {provider: aws, region: us-east-1}
  ohio: {provider: aws, region: us-east-2}
groups:
  train: {machine: p4d.24xlarge, count: 2, site: virginia}
  infer: {machine: p4d.24xlarge, count: 1, site: ohio}
"""
STACK = planned_group("p4d.24xlarge").stack


def node(name: str, site: str) -> Node:
    return Node(name, name.rpartition("-")[0], site, "p4d.24xlarge", f"i-{name}", "", "203.0.113.7", "10.0.0.7")


TRAIN = [node("train-0", "virginia"), node("train-1", "virginia")]
INFER = [node("infer-0", "ohio")]


def lock(stack: Stack = STACK) -> Lock:
    return Lock(request={}, simulated=True, groups={"train": stack, "infer": stack})


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    (tmp_path / "cluster.yaml").write_text(FILE)
    opened = open_cluster(tmp_path / "cluster.yaml", sandbox=True)
    private_dir(opened.paths.root)
    fleet.save(opened.paths, [*TRAIN, *INFER])
    return opened


@pytest.mark.parametrize(("ok", "proven"), [(True, {"train-0"}), (False, set()), (None, set())])
def test_a_node_is_proven_only_while_its_last_verdict_is_healthy(
    cluster: Cluster, ok: bool | None, proven: set[str]
) -> None:
    Ledger(cluster.paths).record(TRAIN[:1], lock())
    node_state.note_stage(cluster.paths, "verified", ["train-0"], ok=ok)
    node_state.note_stage(cluster.paths, "verified", ["train-1"], ok=True)
    releases = dict.fromkeys(("train-0", "train-1"), release_of(cluster.spec, lock()))
    assert configuring.proven(cluster, TRAIN, releases) == proven


def test_a_node_without_a_verdict_is_not_proven(cluster: Cluster) -> None:
    Ledger(cluster.paths).record(TRAIN, lock())
    releases = dict.fromkeys(("train-0", "train-1"), release_of(cluster.spec, lock()))
    assert configuring.proven(cluster, TRAIN, releases) == set()


def test_a_node_that_was_proven_with_another_lock_is_not_proven(cluster: Cluster) -> None:
    Ledger(cluster.paths).record(TRAIN, lock(STACK.model_copy(update={"nccl": "2.0"})))
    node_state.note_stage(cluster.paths, "verified", ["train-0", "train-1"], ok=True)
    releases = dict.fromkeys(("train-0", "train-1"), release_of(cluster.spec, lock()))
    assert configuring.proven(cluster, TRAIN, releases) == set()


def upgrading(cluster: Cluster) -> None:
    journal = Journal(to=identity(lock()), phase="moving", nodes={"train-0": Place("0" * 12)})
    journal.save(cluster.paths)


@pytest.mark.parametrize(
    ("nodes", "resized"),
    [
        ([*TRAIN, *INFER], {}),
        ([TRAIN[0], *INFER], {"virginia": "train-1"}),
        ([*TRAIN, node("train-2", "virginia"), *INFER], {"virginia": "train-2"}),
        (TRAIN, {"ohio": "infer-0"}),
        ([*TRAIN, *INFER, node("infer-1", "ohio")], {"ohio": "infer-1"}),
    ],
)
@pytest.mark.parametrize("sites", [["virginia"], ["ohio"], ["virginia", "ohio"]])
def test_during_an_upgrade_a_site_keeps_its_size_whatever_others_have(
    cluster: Cluster, nodes: Sequence[Node], resized: dict[str, str], sites: list[str]
) -> None:
    fleet.save(cluster.paths, nodes)
    upgrade_journal.refuse_resized(cluster, sites)
    upgrading(cluster)
    refused = [name for site, name in resized.items() if site in sites]
    if not refused:
        upgrade_journal.refuse_resized(cluster, sites)
        return
    with pytest.raises(GpuprovError, match="an upgrade is in progress") as caught:
        upgrade_journal.refuse_resized(cluster, sites)
    assert refused[0] in caught.value.hint
    lost = {node.name for node in nodes} <= {node.name for node in (*TRAIN, *INFER)}
    assert caught.value.hint.startswith("`gpuprov upgrade" if lost else "take the change of"), "`upgrade` goes on"


# after a rollback


NEW = STACK.model_copy(update={"nccl": "2.0"})


def rolled_back(cluster: Cluster) -> None:
    Journal(phase="rolled-back", failed={identity(lock(NEW)): "bad"}).save(cluster.paths)


def nccl(cluster: Cluster) -> dict[str, str]:
    """Node → the NCCL that it is held to."""
    releases = upgrade_journal.assign(cluster, [*TRAIN, *INFER], lock(NEW))
    return {name: str(release.lock.groups["train"].nccl) for name, release in releases.items()}


def test_a_new_machine_gets_what_most_of_the_fleet_runs_after_a_rollback(cluster: Cluster) -> None:
    third = STACK.model_copy(update={"nccl": "1.0"})
    Ledger(cluster.paths).record(TRAIN, lock())
    Ledger(cluster.paths).record(INFER, lock(third))
    assert set(nccl(cluster).values()) == {str(STACK.nccl), "1.0"}
    rolled_back(cluster)
    fleet.save(cluster.paths, [*TRAIN, *INFER])
    Ledger(cluster.paths).record([*TRAIN, node("infer-0", "ohio")], lock())
    assert nccl(cluster) == dict.fromkeys(("train-0", "train-1", "infer-0"), str(STACK.nccl))


def test_a_node_that_runs_another_release_is_held_to_that_after_a_rollback(cluster: Cluster) -> None:
    third = STACK.model_copy(update={"nccl": "1.0"})
    Ledger(cluster.paths).record(TRAIN, lock())
    Ledger(cluster.paths).record(INFER, lock(third))
    rolled_back(cluster)
    assert nccl(cluster) == {"train-0": str(STACK.nccl), "train-1": str(STACK.nccl), "infer-0": "1.0"}


def test_a_group_that_the_fleets_lock_does_not_have_gets_the_new_lock_after_a_rollback(cluster: Cluster) -> None:
    Ledger(cluster.paths).record(TRAIN, Lock(request={}, simulated=True, groups={"train": STACK}))
    rolled_back(cluster)
    assert nccl(cluster)["infer-0"] == "2.0"


def test_a_fleet_of_which_nothing_was_proven_gets_the_new_lock_after_a_rollback(cluster: Cluster) -> None:
    rolled_back(cluster)
    assert nccl(cluster) == dict.fromkeys(("train-0", "train-1", "infer-0"), "2.0")


def test_an_upgrade_that_never_was_is_done() -> None:
    journal = Journal()
    assert (journal.batch, journal.rollback_all, journal.busy) == (1, False, False)


def test_nodes_without_a_machine_are_left_out_of_an_upgrade() -> None:
    journal = Journal(nodes={"train-0": Place("a"), "gone-0": Place("a")})
    journal.forget(TRAIN)
    assert list(journal.nodes) == ["train-0"]
