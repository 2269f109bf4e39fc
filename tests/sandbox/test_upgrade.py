"""`gpuprov upgrade` on two nodes: a release that is not good is brought back, a killed upgrade goes on, and nobody is
moved by the way. One fleet, in the order of the tests."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.faulty import try_own_faults
from tests.support.run_processes import until
from tests.support.sandbox_cluster import Done, SandboxCluster, wrongs
from tests.support.terminal import answered

pytestmark = [pytest.mark.sandbox, pytest.mark.begins(4)]

OLD, NEW = "580.173.02", "595.91.07"
HOOKS = """
hooks:
  drain: 'echo "$GPUPROV_STEP $GPUPROV_NODE $GPUPROV_ADDRESS" >> hooks'
  resume: 'echo "$GPUPROV_STEP $GPUPROV_NODE $GPUPROV_ADDRESS" >> hooks'
upgrade:
  batch: 100%
monitoring:
  health_check: { every: 1h }
"""
EXPORTER = "sudo systemd-run --quiet --unit=node_exporter python3 -m http.server 9100 --bind 127.0.0.1 -d /var/lib"
"""What listens where node_exporter would, which is not gpuprov's to install."""


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxCluster]:
    """Two workstations, up and healthy with the old driver."""
    sandbox_cluster = SandboxCluster.of_example("rtx4090", tmp_path_factory.mktemp("desk"), count=2)
    sandbox_cluster.file.write_text(sandbox_cluster.file.read_text() + HOOKS)
    pin(sandbox_cluster, "580")
    try:
        sandbox_cluster.first = sandbox_cluster.up()
        sandbox_cluster.run("exec", sandbox_cluster.file, EXPORTER)
        yield sandbox_cluster
    finally:
        sandbox_cluster.down()


def pin(sandbox_cluster: SandboxCluster, branch: str) -> None:
    text = re.sub(r'^  driver: ".*"\n', "", sandbox_cluster.file.read_text(), flags=re.M)
    sandbox_cluster.file.write_text(re.sub(r"^stack:\n", f'stack:\n  driver: "{branch}"\n', text, flags=re.M))


def upgrade(sandbox_cluster: SandboxCluster, *arguments: object) -> Done:
    return sandbox_cluster.run("upgrade", sandbox_cluster.file, "--sandbox", "--yes", "--json", *arguments)


def status(sandbox_cluster: SandboxCluster) -> dict[str, dict[str, Any]]:
    document = sandbox_cluster.run("status", sandbox_cluster.file, "--json").json
    return {node["name"]: node for node in document["nodes"]}


def hooks(sandbox_cluster: SandboxCluster) -> list[str]:
    """What the hooks wrote down since the last look: step and node."""
    log = sandbox_cluster.file.parent / "hooks"
    lines = log.read_text().splitlines() if log.exists() else []
    log.unlink(missing_ok=True)
    addresses = {
        node["name"]: node["address"] for node in json.loads((sandbox_cluster.root / "nodes.json").read_text())
    }
    assert all(line.split()[2] == addresses[line.split()[1]] for line in lines)
    return [" ".join(line.split()[:2]) for line in lines]


def loaded(sandbox_cluster: SandboxCluster) -> dict[str, str]:
    """Node → the driver that nvidia-smi reports."""
    output = sandbox_cluster.run(
        "exec", sandbox_cluster.file, "nvidia-smi --query-gpu=driver_version --format=csv,noheader"
    ).stdout
    return dict(line.split(": ") for line in output.splitlines())


def test_the_fleet_is_there(desk: SandboxCluster) -> None:
    assert desk.first is not None
    assert desk.first.status == 0, (desk.first.stderr, wrongs(desk.first))
    assert {node["driver"] for node in status(desk).values()} == {OLD}
    nothing = upgrade(desk)
    assert nothing.status == 0
    assert {node["step"] for node in nothing.json["nodes"]} == {"unchanged"}
    assert hooks(desk) == []


@pytest.mark.slow
def test_faults_of_a_workstation_are_found(desk: SandboxCluster) -> None:
    """The example rtx4090 has its faults here, where there are two of it."""
    try_own_faults(desk)


def test_a_node_looks_at_itself(desk: SandboxCluster) -> None:
    """The timer of role health: the same checks on the node, as metrics."""
    look = "sudo systemctl start gpuprov-health.service && cat /var/lib/prometheus/node-exporter/gpuprov.prom"
    assert desk.run("ssh", desk.file, "box-0", "systemctl is-active gpuprov-health.timer").stdout == "active\n"
    well = desk.run("ssh", desk.file, "box-0", look).stdout.splitlines()
    assert "gpuprov_node_ok 1" in well, [line for line in well if line.endswith((" 0", " NaN"))]
    assert 'gpuprov_check{check="gpu.count",severity="fatal"} 1' in well
    assert desk.run("sandbox", "fault", desk.file, "box-0", "xid-79").status == 0
    bad = desk.run("ssh", desk.file, "box-0", look).stdout.splitlines()
    assert desk.run("sandbox", "clear", desk.file, "box-0", "xid-79").status == 0
    assert "gpuprov_node_ok 0" in bad
    assert 'gpuprov_check{check="gpu.xid",severity="fatal"} 0' in bad


def test_up_moves_nobody_to_another_lock(desk: SandboxCluster) -> None:
    pin(desk, "595")
    result = desk.up()
    assert result.status == 2
    assert set(result.json["waiting"]) == {"box-0", "box-1"}
    assert result.json["waiting"]["box-0"][0] == f"driver {OLD} → {NEW}"
    assert result.json["changes"]["configured"] == 0
    assert "gpuprov upgrade" in result.stderr
    assert set(loaded(desk).values()) == {OLD}
    planned = desk.run("plan", desk.file, "--sandbox", "--json").json["nodes"]
    assert all(node["waiting"] and node["drift"] == [] for node in planned)


def test_a_release_that_is_not_good_is_brought_back_from_the_canary(desk: SandboxCluster) -> None:
    hooks(desk)  # of the quarantine in which the faults before put a node
    assert desk.run("sandbox", "fault", desk.file, "box-1", f"bad-driver:{NEW}").status == 0
    assert status(desk)["box-1"]["drift"] == [], "with the old driver nothing is wrong"
    result = upgrade(desk, "--canary", "box-1")
    assert result.status == 1, result.stderr
    document = result.json
    assert (document["ok"], document["phase"]) == (False, "rolled-back")
    nodes = {node["name"]: node for node in document["nodes"]}
    assert nodes["box-1"]["step"] == "rolled-back"
    assert nodes["box-1"]["reason"].startswith("gpu.memory: ")
    assert nodes["box-0"]["step"] == "waiting"
    assert {node["driver"] for node in document["nodes"]} == {OLD}
    assert hooks(desk) == ["drain box-1", "resume box-1"]
    assert set(loaded(desk).values()) == {OLD}
    assert {name: node["drift"] for name, node in status(desk).items()} == {f"box-{i}": [] for i in range(2)}
    well = desk.verify()
    assert well.status == 0, wrongs(well)


def test_it_is_not_tried_again_by_itself(desk: SandboxCluster) -> None:
    result = upgrade(desk)
    assert result.status == 2
    assert "was rolled back on this cluster: box-1: " in result.stderr
    assert "--again" in result.stderr
    assert hooks(desk) == []


def test_killed_in_the_middle_it_goes_on_and_ends(desk: SandboxCluster) -> None:
    assert desk.run("sandbox", "clear", desk.file, "box-1", "bad-driver").status == 0
    process = desk.start("upgrade", desk.file, "--sandbox", "--yes", "--again")
    assert until(lambda: installing(desk) or process.poll() is not None, 900)
    assert process.poll() is None
    process.kill()
    process.communicate()
    half = status(desk)
    assert half["box-0"]["upgrade"] == {"step": "drained", "reason": ""}
    assert half["box-1"]["upgrade"]["step"] == "waiting"
    refused = desk.up()
    assert refused.status == 2
    assert "an upgrade is in progress" in refused.stderr
    ended, screen = answered(
        desk, "upgrade", desk.file, "--sandbox", question=f"Upgrade 2 nodes of {desk.name} (sandbox), first"
    )
    assert ended == 0, screen
    assert len(re.findall(rf"^box-\d: moved, driver {NEW}", screen, re.M)) == 2
    log = hooks(desk)
    assert log[:2] == ["drain box-0", "resume box-0"], "a node that was drained already is not drained again"
    assert log[2:] == ["drain box-1", "resume box-1"]
    assert set(loaded(desk).values()) == {NEW}
    assert all(node["drift"] == [] and node["upgrade"] is None for node in status(desk).values())
    second = desk.up()
    assert second.status == 0, second.stderr
    assert second.json["changes"] == {"resources": 0, "configured": 0}


def installing(sandbox_cluster: SandboxCluster) -> bool:
    """Whether the newest run has come to the driver's packages."""
    newest = max((sandbox_cluster.root / "runs").iterdir())
    events = newest / "events.jsonl"
    return events.exists() and "Keep other drivers off the GPUs" in events.read_text()
