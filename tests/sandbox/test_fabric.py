"""Several nodes at work, on four that are up: they meet over TCP, and a fault is found on its nodes alone."""

from __future__ import annotations

import pytest

from provisioner.sandbox import containers, faults
from tests.support.sandbox_cluster import SandboxCluster, failing, wrongs

pytestmark = [pytest.mark.sandbox, pytest.mark.shares("p4d"), pytest.mark.begins(2)]

GIVEN: dict[str, tuple[dict[str, str], dict[str, set[str]], int]] = {
    "two nodes": (
        {"train-1": "fabric-slow", "train-0": "fabric-sockets"},
        {"train-1": {"fabric.pairs"}, "train-0": {"fabric.transport"}},
        1,
    ),
    "a path": ({"train-2": "cable-dead"}, {"train-0": {"fabric.path"}, "train-2": {"fabric.path"}}, 0),
}
"""Node → its fault; what fails; exit status. A path is told of both its ends, and is a warning."""

UNSEEN = {"fabric.rails", "fabric.rail_lost", "fabric.cards_used", "fabric.own_cards"}
"""EFA's cards are worked by NCCL alone, simulated ports count no data, and no node was alone."""


def test_healthy_nodes_meet_and_nothing_is_left_on_them(p4d: SandboxCluster) -> None:
    verdict = p4d.verify("--level", "stress")
    assert (verdict.status, failing(verdict.json)) == (0, {}), wrongs(verdict)
    for node in verdict.json["nodes"]:
        states = {check["id"]: check["status"] for check in node["checks"] if check["id"].startswith("fabric.")}
        assert {id for id, status in states.items() if status != "pass"} <= UNSEEN, (node["name"], states)
        ring = next(check for check in node["checks"] if check["id"] == "fabric.ring")
        assert ring["actual"].startswith("4 nodes")
    listing = p4d.run("exec", p4d.file, "--sandbox", "--", "sudo", "docker", "ps", "--all", "--quiet")
    assert [line for line in listing.stdout.splitlines() if line.strip()] == []


@pytest.mark.parametrize("case", ["two nodes", pytest.param("a path", marks=pytest.mark.slow)])
def test_a_fault_between_nodes_is_found_on_its_nodes_alone(p4d: SandboxCluster, case: str) -> None:
    fault_by_node, fails, status = GIVEN[case]
    container_by_node = {node: containers.find_node(p4d.root, node).name for node in fault_by_node}
    try:
        for node, fault in fault_by_node.items():
            faults.inject(container_by_node[node], fault)
        verdict = p4d.verify("--level", "stress")
    finally:
        for container in container_by_node.values():
            faults.clear(container)
    assert failing(verdict.json) == fails, wrongs(verdict)
    assert verdict.status == status


@pytest.fixture
def proven(p4d: SandboxCluster) -> SandboxCluster:
    """What other tests have left in quarantine is put back by a healthy verdict."""
    well = p4d.verify("--level", "stress")
    assert well.status == 0, wrongs(well)
    return p4d


def test_a_node_that_is_looked_at_alone_borrows_neighbours_or_works_its_own_cards(proven: SandboxCluster) -> None:
    verdict = proven.verify("--level", "stress", "--node", "train-3")
    assert verdict.status == 0, wrongs(verdict)
    (node,) = verdict.json["nodes"]
    checks = {check["id"]: check for check in node["checks"]}
    pairs = checks["fabric.pairs"]
    assert (node["name"], pairs["status"]) == ("train-3", "pass")
    assert [row.partition(":")[0] for row in pairs["actual"]] == ["train-0 (borrowed)", "train-1 (borrowed)"]
    assert (checks["fabric.transport"]["status"], checks["fabric.ring"]["status"]) == ("pass", "skip")

    processes = "/run/gpuprov-sandbox/processes.json"
    job = f'echo \'[{{"gpu": 0, "pid": 1, "name": "python3"}}]\' > {processes}'
    other_containers = [proven.container(node) for node in ("train-0", "train-1", "train-2")]
    try:
        for container in other_containers:
            containers.execute(container, "sh", "-c", job, deadline=60)
        verdict = proven.verify("--node", "train-3")
    finally:
        for container in other_containers:
            containers.execute(container, "rm", "-f", processes, deadline=60)
    checks = {check["id"]: check for check in verdict.json["nodes"][0]["checks"]}
    assert verdict.status == 0, wrongs(verdict)
    assert checks["fabric.pairs"]["status"] == "unknown"
    assert "train-1: a job is using the GPUs: python3 (pid 1)" in checks["fabric.pairs"]["message"]
    assert checks["fabric.own_cards"]["status"] == "pass"
