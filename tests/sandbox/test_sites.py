"""A fleet at three sites (examples/three-sites.yaml): one cloud has no machines, and the others do not wait for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.sandbox_cluster import SandboxCluster, wrongs

pytestmark = [pytest.mark.sandbox, pytest.mark.slow]
OTHERS = {"train-0": True, "desk-0": True}


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[SandboxCluster]:
    with SandboxCluster.standing_example("three-sites", tmp_path) as sandbox_cluster:
        yield sandbox_cluster


def test_a_site_without_machines_is_left_out_and_comes_with_the_next_run(fleet: SandboxCluster) -> None:
    fleet.run("sandbox", "fault", fleet.file, "shanghai", "no-capacity")
    first = fleet.up()
    assert first.status == 3, first.stderr
    assert "site shanghai failed, the others went on" in first.stderr
    assert "no capacity for infer" in first.json["failed"]["shanghai"]["message"]
    assert not first.json["ok"] and {node["name"]: node["ok"] for node in first.json["nodes"]} == OTHERS, wrongs(first)
    stage_by_node = {node["name"]: node["stage"] for node in fleet.run("status", fleet.file, "--json").json["nodes"]}
    assert stage_by_node == {"train-0": "verified", "desk-0": "verified", "infer-0": "not made"}

    fleet.run("sandbox", "clear", fleet.file)
    fleet.run("sandbox", "fault", fleet.file, "lab", "state-unsaved")
    second = fleet.up("--site", "shanghai")
    assert second.status == 0, [*wrongs(second), second.stderr[-2000:]]
    assert [node["name"] for node in second.json["nodes"]] == ["infer-0"]

    third = fleet.up()
    assert third.status == 0, [*wrongs(third), third.stderr[-2000:]]
    assert len(list(fleet.root.glob("sites/lab/errored.tfstate.saved-*"))) == 1, "it was written back first"
    assert third.json["changes"] == {"resources": 0, "configured": 0}
