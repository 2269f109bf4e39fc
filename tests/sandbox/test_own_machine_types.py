"""Servers that no catalogue lists: from their description to a proven fleet, and a fault of each is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.sandbox_cluster import SandboxCluster

pytestmark = [pytest.mark.sandbox, pytest.mark.slow]


def test_machines_that_no_catalogue_lists(tmp_path: Path) -> None:
    fleet = SandboxCluster.of_example("own-machines", tmp_path)
    try:
        first = fleet.up()
        assert first.status == 0, first.stderr
        assert {node["machine"] for node in first.json["nodes"]} == {"r760xa-4xl40s", "bench-2xa5500"}
        for node, fault in (("infer-0", "gpu-lost"), ("bench-0", "nvlink-down")):
            broken = fleet.run("sandbox", "fault", fleet.file, node, fault)
            assert broken.status == 0, broken.stderr
        verdict = fleet.verify()
        assert verdict.status == 1
        failed = {
            node["name"]: {c["id"] for c in node["checks"] if c["status"] == "fail"} for node in verdict.json["nodes"]
        }
        assert "gpu.count" in failed["infer-0"]
        assert "nvlink.links" in failed["bench-0"]
        bundle = tmp_path / "bundle"
        assert fleet.run("collect", fleet.file, "bench-0", "-o", bundle).status == 0
        offline = fleet.run(
            "verify", "--bundle", bundle, "--machines", fleet.file, "--machine", "bench-2xa5500", "--json"
        )
        assert offline.status == 1, offline.stderr
    finally:
        removed = fleet.down()
    assert json.loads(removed.stdout)["removed"] > 0
