"""What `up` and `down` ask, of machines that they create and of those that exist already."""

from __future__ import annotations

from pathlib import Path

import pytest

from provisioner.cli import lifecycle
from provisioner.common.paths import private_dir
from provisioner.lifecycle.node_changes import NodeChanges
from provisioner.lifecycle.session import Cluster, open_cluster
from provisioner.rundir import fleet
from provisioner.rundir.fleet import Node
from tests.support.plans import plan

FILE = """
name: vision
sites:
  ohio: {provider: aws, region: us-east-2}
  rack: {provider: baremetal, method: ssh, user: ops, hosts: {'dgx[01-02]': {group: own}}}
groups:
  train: {machine: p4d.24xlarge, count: 2, site: ohio}
  own: {machine: dgx-a100-40gb, count: 2, site: rack}
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    (tmp_path / "cluster.yaml").write_text(FILE)
    opened = open_cluster(tmp_path / "cluster.yaml", sandbox=False)
    private_dir(opened.paths.root)
    rows = (("train-0", "ohio"), ("own-0", "rack"), ("old-0", "rack"), ("late-0", "ohio"))
    fleet.save(
        opened.paths, [Node(name, name[:-2], site, "x", name, "", "10.0.0.7", "10.0.0.7") for name, site in rows]
    )
    return opened


@pytest.mark.parametrize(
    ("changes", "question"),
    [
        (NodeChanges(create=("train-0", "own-0")), "Create 1 p4d.24xlarge; configure 1 dgx-a100-40gb"),
        (NodeChanges(recreate=("train-0", "own-0")), "Recreate train-0; take another machine for own-0"),
        (NodeChanges(remove=("old-0", "late-0")), "Give back old-0; remove late-0"),
        (NodeChanges(remove=("lost-0", "gone-0"), sites={"lost-0": "rack"}), "Give back lost-0; remove gone-0"),
        (NodeChanges(change=("train-0",)), "Change train-0"),
        (NodeChanges(total=1), "Change no machine, but what they share"),
    ],
)
def test_hosts_of_ones_own_are_told_apart(cluster: Cluster, changes: NodeChanges, question: str) -> None:
    desired = plan(cluster.spec)
    created = [
        (group, f"1 {group.machine.name}") for group in desired.groups if {*group.node_names()} & {*changes.create}
    ]
    assert lifecycle._intended(cluster, desired, changes, created) == question


@pytest.mark.parametrize(
    ("names", "question"),
    [
        (["train-0", "own-0", "old-0"], "Remove train-0 and undo gpuprov's changes on own-0, old-0"),
        (["own-0"], "Undo gpuprov's changes on own-0"),
        (["train-0"], "Remove train-0"),
        ([], "Remove all remaining resources"),
    ],
)
def test_down_undoes_what_it_has_changed_on_hosts(cluster: Cluster, names: list[str], question: str) -> None:
    assert lifecycle._removal(cluster, names) == question
