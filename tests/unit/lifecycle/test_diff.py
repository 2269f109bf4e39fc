"""What cluster.yaml wants beside what is there."""

from __future__ import annotations

from pathlib import Path

from provisioner.common.paths import private_dir
from provisioner.lifecycle.diff import ABSENT, absent_reports, compare
from provisioner.lifecycle.session import Cluster, open_cluster
from provisioner.machines.providers import capacity
from provisioner.rundir import fleet
from provisioner.rundir.fleet import Node

FILE = """
name: fast
sites: {here: {provider: aws, region: us-east-1}}
groups: {train: {machine: p4d.24xlarge, count: 3, capacity: {min: 2}}}
"""


def recorded_cluster(folder: Path, *names: str) -> Cluster:
    (folder / "cluster.yaml").write_text(FILE)
    cluster = open_cluster(folder / "cluster.yaml", sandbox=False)
    private_dir(cluster.paths.root)
    nodes = [Node(n, n.rpartition("-")[0], "here", "p4d.24xlarge", f"i-{n}", "", "203.0.113.7", "") for n in names]
    fleet.save(cluster.paths, nodes)
    return cluster


def test_what_is_there_wanted_and_not_wanted_any_more(tmp_path: Path) -> None:
    cluster = recorded_cluster(tmp_path, "train-0", "train-7", "old-0")
    difference = compare(cluster)
    assert [node.name for node in difference.present] == ["train-0"]
    assert difference.absent == {"train-1": "train", "train-2": "train"}
    assert difference.unwanted == ("train-7", "old-0")
    reports = absent_reports(cluster, difference)
    assert [(r.name, r.group, r.site, r.machine, r.ok, r.why) for r in reports] == [
        (name, "train", "here", "p4d.24xlarge", False, ABSENT) for name in ("train-1", "train-2")
    ]


def test_what_an_up_did_without_is_not_absent(tmp_path: Path) -> None:
    cluster = recorded_cluster(tmp_path, "train-0", "train-1")
    capacity.do_without(private_dir(cluster.paths.root / "sites" / "here"), {"train": ["train-2"]})
    assert compare(cluster).absent == {}


def test_nothing_is_there(tmp_path: Path) -> None:
    cluster = recorded_cluster(tmp_path)
    assert list(compare(cluster).absent) == ["train-0", "train-1", "train-2"]
