"""What `status` says of nodes that are planned, made, proven and no longer wanted."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from provisioner.common.errors import GpuprovError
from provisioner.common.paths import private_dir
from provisioner.lifecycle import block_ends, machines
from provisioner.lifecycle.block_ends import ending
from provisioner.lifecycle.down import recorded_nodes
from provisioner.lifecycle.session import Cluster, open_cluster
from provisioner.lifecycle.status import status
from provisioner.rundir import fleet, node_state
from provisioner.rundir.fleet import Node
from tests.support import plans

FILE = """
name: told
sites: {here: {provider: aws, region: us-east-1}}
groups: {train: {machine: p4d.24xlarge, count: 3}}
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    (tmp_path / "cluster.yaml").write_text(FILE)
    return open_cluster(tmp_path / "cluster.yaml", sandbox=True)


def node(name: str) -> Node:
    return Node(name, name.rpartition("-")[0], "here", "p4d.24xlarge", f"i-{name}", "", "203.0.113.7", "10.0.0.7")


def test_before_anything_was_made(cluster: Cluster) -> None:
    document = status(cluster, ask=False).to_json()
    assert document["cluster"] == "told"
    assert document["sandbox"] is True
    assert document["report"] is None
    assert [(n["name"], n["stage"], n["ok"], n["address"]) for n in document["nodes"]] == [
        (f"train-{i}", "planned", None, None) for i in range(3)
    ]
    assert not cluster.paths.exists()


def test_every_kind_of_row(cluster: Cluster) -> None:
    private_dir(cluster.paths.root)
    fleet.save(cluster.paths, [node("train-0"), node("train-1"), node("train-7"), node("old-0")])
    node_state.note(
        cluster.paths,
        nodes={
            "train-0": {"stage": "verified", "ok": True},
            "train-7": {"stage": "verified", "ok": True},
            "gone-0": {"stage": "verified", "ok": True},
        },
        report="runs/x/report.html",
    )
    document = status(cluster, ask=False).to_json()
    assert [(n["name"], n["stage"], n["ok"], n["address"]) for n in document["nodes"]] == [
        ("train-0", "verified", True, "203.0.113.7"),
        ("train-1", "unknown", None, "203.0.113.7"),
        ("train-2", "planned", None, None),
        ("train-7", "unwanted", None, "203.0.113.7"),
        ("old-0", "unwanted", None, "203.0.113.7"),
    ]
    assert {n["site"] for n in document["nodes"]} == {"here"}
    assert document["report"] == str(cluster.paths.root / "runs/x/report.html")


def test_after_an_up_that_could_have_no_machine_they_are_planned_again(cluster: Cluster) -> None:
    private_dir(cluster.paths.root)
    plan = plans.plan(plans.cluster_spec("p4d.24xlarge", count=3))
    node_state.note_stage(cluster.paths, "making", [name for name, _ in plan.nodes()])
    empty = SimpleNamespace(site="here", existing_nodes=list)
    assert machines._record_incomplete(cluster, plan, [empty]) == ""  # type: ignore[list-item]
    assert [n["stage"] for n in status(cluster, ask=False).to_json()["nodes"]] == ["planned"] * 3


def test_an_unhealthy_node_is_told_as_such(cluster: Cluster) -> None:
    private_dir(cluster.paths.root)
    fleet.save(cluster.paths, [node("train-0")])
    node_state.note(cluster.paths, nodes={"train-0": {"stage": "unhealthy", "ok": False}})
    assert next((n["stage"], n["ok"]) for n in status(cluster, ask=False).to_json()["nodes"]) == ("unhealthy", False)


@pytest.mark.parametrize(
    ("intent", "expected"),
    [
        (None, ["train-0"]),
        ('{"nodes": {"train-0": {}, "train-1": {}, "new-0": {}}}', ["new-0", "train-0", "train-1"]),
        ("", ["train-0"]),
        ("{", ["train-0"]),
        ("{}", ["train-0"]),
        ("[]", ["train-0"]),
        ('{"nodes": 7}', ["train-0"]),
        ('{"nodes": null}', ["train-0"]),
    ],
)
def test_what_down_would_remove(intent: str | None, expected: list[str], cluster: Cluster) -> None:
    private_dir(cluster.paths.root)
    fleet.save(cluster.paths, [node("train-0")])
    if intent is not None:
        cluster.paths.intent.write_text(intent)
    assert recorded_nodes(cluster) == expected


def test_nothing_was_made(cluster: Cluster) -> None:
    assert recorded_nodes(cluster) == []


def test_the_end_of_a_block_is_told_and_warned_of() -> None:
    current_time = datetime(2026, 12, 1, 9, 0, tzinfo=UTC)
    ends = {
        "train": "2026-12-01T10:30:00Z",
        "infer": "2026-12-02T11:30:00Z",
        "old": "2026-12-01T08:59:00Z",
        "x": "soon",
    }
    train, infer, old = ending(ends, current_time)
    assert train.startswith("WARNING: train: its capacity block ends 2026-12-01T10:30:00Z (in 1 h 30 min)")
    assert infer.startswith("infer: ") and "(in 26 h 30 min)" in infer
    assert "(it is over)" in old


def test_nodes_are_told_when_their_block_ends_and_an_unanswered_question_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text(
        "name: vision\nsites: {here: {provider: aws, region: us-east-1}}\n"
        "groups: {train: {machine: p5.48xlarge, capacity: {kind: block, id: cr-0123456789abcdef0}}, "
        "infer: {machine: p4d.24xlarge}}\n"
    )
    cluster = open_cluster(tmp_path / "cluster.yaml", sandbox=False)
    private_dir(cluster.paths.root)
    assert block_ends.variables(cluster) == {"gpuprov_block_ends": {}}
    node_state.note(cluster.paths, ends=[["train", "2026-11-23T11:30:00Z"], ["gone", "2026-11-23T11:30:00Z"], "?"])
    assert block_ends.variables(cluster) == {"gpuprov_block_ends": {"train": "2026-11-23T11:00:00Z"}}

    class Silent:
        def ends(self, _: Any) -> dict[str, Any]:
            raise GpuprovError("when the block of train ends: no answer")

    cluster.providers.at("here").capacity = Silent()  # type: ignore[assignment]
    block_ends.note(cluster, SimpleNamespace(sites=lambda: ["here"]))  # type: ignore[arg-type]
    assert block_ends.noted(cluster) == {"train": "2026-11-23T11:30:00Z"}
