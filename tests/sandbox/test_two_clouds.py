"""A group that goes from AWS to Azure (examples/two-clouds.yaml): machine type, stack and checks are Azure's then."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.sandbox_cluster import SandboxCluster, wrongs

pytestmark = [pytest.mark.sandbox, pytest.mark.slow]
TYPES = {"ohio": "p4d.24xlarge", "east": "Standard_ND96asr_v4"}


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[SandboxCluster]:
    with SandboxCluster.standing_example("two-clouds", tmp_path) as sandbox_cluster:
        yield sandbox_cluster


def test_without_capacity_at_aws_the_fleet_is_azures(fleet: SandboxCluster) -> None:
    fleet.run("sandbox", "fault", fleet.file, "ohio", "no-capacity")
    first = fleet.up()
    assert first.status == 0, [*wrongs(first), first.stderr[-2000:]]
    assert [(node["machine"], node["ok"]) for node in first.json["nodes"]] == [(TYPES["east"], True)]
    (choice,) = first.json["site_choices"]
    assert (choice["site"], choice["machines"], list(choice["refused"])) == ("east", TYPES, ["ohio"])

    fleet.run("sandbox", "clear", fleet.file)
    second = fleet.up()
    assert second.status == 0, [*wrongs(second), second.stderr[-2000:]]
    assert second.json["changes"] == {"resources": 0, "configured": 0}, "it stays where its machines are"
