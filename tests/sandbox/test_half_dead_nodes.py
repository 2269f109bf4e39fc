"""Nodes that are half dead: the run ends, they are unknown with the reason, the others are judged."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.node_probe import namespace_of, probes
from tests.support.run_processes import until
from tests.support.sandbox_cluster import SandboxCluster, failing, wrongs

pytestmark = [pytest.mark.sandbox, pytest.mark.slow, pytest.mark.shares("p4d"), pytest.mark.begins(2)]

LOSS = "-m statistic --mode random --probability 0.03 -j DROP"
"""iptables: three packets of a hundred never arrive."""


def podman(*arguments: str) -> str:
    done = subprocess.run(["podman", *arguments], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.strip()


def container(sandbox_cluster: SandboxCluster, node: str) -> str:
    return next(name for name in sandbox_cluster.containers() if f"-{node}." in name)


@contextmanager
def frozen(name: str) -> Iterator[None]:
    """Its kernel takes connections, and nobody ever answers."""
    podman("pause", name)
    try:
        yield
    finally:
        podman("unpause", name)


@contextmanager
def losing_packets(name: str) -> Iterator[None]:
    inside = ["nsenter", "--net", "--target", podman("inspect", "--format", "{{.State.Pid}}", name), "iptables"]
    rules = [["INPUT", "-i", "eth0", *LOSS.split()], ["OUTPUT", "-o", "eth0", *LOSS.split()]]
    for rule in rules:
        subprocess.run([*inside, "-I", *rule], check=True, timeout=20)
    try:
        yield
    finally:
        for rule in rules:
            subprocess.run([*inside, "-D", *rule], check=True, timeout=20)


@contextmanager
def full(name: str, folder: str) -> Iterator[None]:
    """Not a byte fits into the folder."""
    podman("exec", name, "mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", folder)
    podman("exec", name, "sh", "-c", f"head -c 1M /dev/zero > {folder}/all 2>/dev/null || true")
    try:
        yield
    finally:
        podman("exec", name, "umount", folder)


def test_each_costs_itself_alone(p4d: SandboxCluster) -> None:
    names = {node: container(p4d, node) for node in ("train-1", "train-2", "train-3")}
    with frozen(names["train-1"]), losing_packets(names["train-2"]), full(names["train-3"], "/tmp"):
        verdict = p4d.verify()
    nodes = {node["name"]: node for node in verdict.json["nodes"]}
    assert verdict.status == 1
    assert {name for name, node in nodes.items() if node.get("error")} == {"train-1"}
    assert {check["status"] for check in nodes["train-1"]["checks"]} <= {"unknown", "skip"}
    assert nodes["train-0"]["ok"] and nodes["train-2"]["ok"], wrongs(verdict)
    assert set(failing(verdict.json)) <= {"train-3"}  # whatever is said of its /tmp, the node was looked at
    assert not any(check["status"] == "unknown" for check in nodes["train-3"]["checks"]), wrongs(verdict)
    well = p4d.verify()
    assert well.status == 0, wrongs(well)


def test_a_node_that_dies_half_way(p4d: SandboxCluster) -> None:
    namespace = namespace_of(container(p4d, "train-2"))
    running = p4d.start("verify", p4d.file)
    assert until(lambda: running.poll() is not None or probes(namespace)), "no probe in two minutes"
    assert running.poll() is None
    podman("kill", container(p4d, "train-2"))
    stdout, stderr = running.communicate(timeout=300)
    assert "Traceback" not in stderr
    assert running.returncode in (0, 1)  # it may have answered before it died
    second = p4d.verify()
    assert second.status == 1
    assert {n["name"] for n in second.json["nodes"] if n.get("error")} == {"train-2"}
    assert stdout
    back = p4d.up()
    assert back.status == 0, (back.stderr, wrongs(back))
