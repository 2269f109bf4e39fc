"""`gpuprov monitoring test` on real nodes: real Prometheus, Alertmanager and node_exporter, simulated GPUs."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.support.prometheus import TOOLS
from tests.support.sandbox_cluster import SandboxCluster

pytestmark = [pytest.mark.sandbox]

CLUSTER = """\
name: {name}
sites: {{ ohio: {{ provider: aws, region: us-east-2 }} }}
monitoring: {{ prometheus: {{ at: external }}, health_check: {{ every: 5m }} }}
groups:
  train: {{ machine: p4d.24xlarge, count: 2 }}
"""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxCluster]:
    folder = tmp_path_factory.mktemp("watched")
    cluster = SandboxCluster(folder / "cluster.yaml", f"t-watch-{os.getpid() % 10_000}")
    cluster.file.write_text(CLUSTER.format(name=cluster.name))
    try:
        assert cluster.up().status == 0
        yield cluster
    finally:
        cluster.down()


def test_faults_fire_their_alerts_and_healthy_nodes_none(fleet: SandboxCluster) -> None:
    assert TOOLS.is_dir(), "run `make system-test`"
    done = fleet.run(
        "monitoring", "test", fleet.file, "--fault", "gpu-lost", "--fault", "exporter-dead", "--speed", "30", "--json"
    )
    assert done.status == 0, done.stderr
    assert done.json["healthy"] == []
    rows = {row["fault"]: row for row in done.json["faults"]}
    fired = {fault: {alert["alert"]: alert["hidden"] for alert in row["alerts"]} for fault, row in rows.items()}
    assert fired["gpu-lost"]["GpuMissing"] is False
    assert fired["gpu-lost"]["CheckGpuCount"] is True
    assert fired["exporter-dead"]["DcgmExporterDown"] is False
    assert fired["exporter-dead"]["CheckDcgmExporter"] is True
    assert {row["node"] for row in rows.values()} == {"train-0", "train-1"}
    assert [row["lasting"] for row in rows.values()] == [[], []]


def test_exporters_answer_on_the_private_address_alone(fleet: SandboxCluster) -> None:
    for node in ("train-0", "train-1"):
        done = fleet.run("exec", fleet.file, "--node", node, "ss", "-Htln")
        assert done.status == 0, done.stderr
        listening = {line.split()[3] for line in done.stdout.splitlines() if ":9100" in line or ":9400" in line}
        assert len(listening) == 2
        assert not any(address.startswith(("0.0.0.0", "*", "[::]")) for address in listening), listening


def test_the_timer_exports_the_counters_of_each_efa_device(fleet: SandboxCluster) -> None:
    command = "curl -s http://$(hostname -I | cut -d' ' -f1):9100/metrics | grep ^gpuprov_efa_"
    done = fleet.run("exec", fleet.file, "--node", "train-0", command)
    assert done.status == 0, done.stderr
    for counter in ("rx_bytes", "rx_drops", "unresponsive_remote_events"):
        assert done.stdout.count(f"gpuprov_efa_{counter}_total{{device=") == 4, done.stdout
