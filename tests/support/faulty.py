"""Faults injected into the sandbox's nodes: what a verdict has to say of them, and what it says otherwise.

Each node of a fleet has another fault at the same time, so that one verdict proves as many as there are nodes.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from provisioner.sandbox import containers, faults
from provisioner.verify.registry import declared
from tests.support.sandbox_cluster import SandboxCluster, failing, wrongs

FAULTS = int(os.environ.get("GPUPROV_TEST_FAULTS", "12"))
"""How many of a machine type are tried; `GPUPROV_TEST_FAULTS=1000` for all."""
P4D = "p4d.24xlarge"
"""What test_faults.py has every fault of."""
EVERYWHERE = ("gpu-lost", "nvlink-down", "xid-79", "ecc-uncorrectable", "row-remap-pending", "wrong-driver")
ELSEWHERE = {"ib-card-slow", *(() if Path("/proc/mdstat").exists() else ("raid-degraded",))}
"""Faults that these sandboxes can't show: a slow card slows its only partner's rail too (test_job_environment.py has
it); the array's needs a kernel with md below the nodes."""
CHECKS = {check.id: check for check in declared()}


def machines(sandbox_cluster: SandboxCluster) -> dict[str, str]:
    """Node → machine type."""
    return {
        n["name"]: n["machine"]
        for n in sandbox_cluster.run("status", sandbox_cluster.file, "--offline", "--json").json["nodes"]
    }


def possible(machine: str) -> list[str]:
    """Faults of one node that make a check fail; those between nodes are test_fabric.py's."""
    names = [f.name for f in faults.list_faults(machine) if not f.check.startswith("fabric.") and not f.moment]
    return [name for name in names if name not in ELSEWHERE]


def some(known: Sequence[str]) -> list[str]:
    """Always the same of them; all where FAULTS says so."""
    return random.Random(5).sample(known, min(FAULTS, len(known)))


def check_of(fault: str) -> str:
    return faults.find_fault(fault).check


def containers_of(sandbox_cluster: SandboxCluster) -> dict[str, str]:
    return {name: containers.find_node(sandbox_cluster.root, name).name for name in machines(sandbox_cluster)}


def batches(fault_sets: Sequence[tuple[str, ...]], size: int) -> Iterator[Sequence[tuple[str, ...]]]:
    for start in range(0, len(fault_sets), size):
        yield fault_sets[start : start + size]


def level_of(injected: Iterable[str]) -> str:
    """The lowest level at which they can be found."""
    levels = {CHECKS[check_of(fault)].level for fault in injected}
    return max(levels, key=("quick", "standard", "stress").index)


def visible(injected: Iterable[str]) -> set[str]:
    """The checks that fail with these faults on one node: those that no other one explains."""
    checks = {check_of(fault) for fault in injected}
    return {check for check in checks if not checks & set(CHECKS[check].follows)}


def at_unverified_limits(verdict: dict[str, Any], node: str) -> set[str]:
    """The checks of a node that fail at an unverified limit."""
    (node_document,) = (candidate for candidate in verdict["nodes"] if candidate["name"] == node)
    return {
        id
        for check in node_document["checks"]
        if "(unverified:" in check["message"]
        for id in check.get("parts", [check["id"]])
    }


def on_all(do: Callable[[str], object], nodes: Iterable[str]) -> None:
    """On all nodes at once; each takes a second, most of it waiting."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(do, nodes))


def tried(
    sandbox_cluster: SandboxCluster, container_by_node: dict[str, str], faults_by_node: dict[str, tuple[str, ...]]
) -> list[str]:
    """What a verdict says otherwise than it should with these faults on these nodes, and none on the others."""

    def inject(node: str) -> None:
        node_faults = faults_by_node.get(node, ())
        gpus = (3, 6) if len(node_faults) > 1 else (None, None)
        faults.leave_only(container_by_node[node], zip(node_faults, gpus, strict=False))

    on_all(inject, container_by_node)
    level = level_of(fault for injected in faults_by_node.values() for fault in injected)
    verdict, wrong = sandbox_cluster.verify("--level", level), []
    failing_by_node = failing(verdict.json)
    for node, injected in faults_by_node.items():
        failing_checks = failing_by_node.pop(node, set())
        # What only warns for want of evidence explains no other check: the group's own comparison stands beside it.
        failing_checks -= {
            id
            for id in failing_checks - visible(injected)
            if at_unverified_limits(verdict.json, node) & set(CHECKS[id].follows)
        }
        if failing_checks != visible(injected):
            wrong.append(f"{'+'.join(injected)} on {node}: {sorted(failing_checks)}, not {sorted(visible(injected))}")
    wrong += [f"{faults_by_node}: {node} failed {sorted(ids)} too" for node, ids in failing_by_node.items()]
    fatal = False
    for check in (check for node in verdict.json["nodes"] for check in node["checks"] if check["status"] == "fail"):
        order = ("info", "warn", "fatal").index
        declared = max((CHECKS[id].severity for id in check.get("parts", [check["id"]])), key=order)
        lowered = "warn" if "(unverified:" in check["message"] else declared
        if check["severity"] != min(lowered, declared, key=order):
            wrong.append(f"{faults_by_node}: {check['id']} is {check['severity']}")
        fatal |= check["severity"] == "fatal"
    # A quarantine of the fault before stays until the level that found it has passed; a warning does not end it.
    quarantined = any(node.get("quarantine") for node in verdict.json["nodes"])
    if verdict.status != int(fatal or quarantined):
        condemned = [c["id"] for node in verdict.json["nodes"] for c in node["checks"]
                     if c["severity"] == "fatal" and c["status"] in ("fail", "unknown")]  # fmt: skip
        wrong.append(f"{faults_by_node}: exit status {verdict.status}, by {', '.join(condemned)}")
    return wrong


def try_faults(sandbox_cluster: SandboxCluster, fault_sets: Sequence[tuple[str, ...]], nodes: Sequence[str]) -> None:
    assert sandbox_cluster.first is not None
    assert sandbox_cluster.first.status == 0, (sandbox_cluster.first.stderr, wrongs(sandbox_cluster.first))
    container_by_node, wrong = {name: of for name, of in containers_of(sandbox_cluster).items() if name in nodes}, []
    try:
        for batch in batches(sorted(fault_sets, key=level_of), len(nodes)):
            faults_by_node = dict(zip(nodes, batch, strict=False))
            wrong += tried(sandbox_cluster, container_by_node, faults_by_node)
    finally:
        on_all(lambda node: faults.clear(container_by_node[node]), nodes)
    assert not wrong, "\n".join(wrong)
    well = sandbox_cluster.verify("--level", "standard")  # quick does not load a node, as one that lost a GPU has to be
    assert well.status == 0, (wrongs(well), [node.get("quarantine") for node in well.json["nodes"]])
    assert failing(well.json) == {}


def try_own_faults(sandbox_cluster: SandboxCluster) -> None:
    """The faults that a p4d can't have, and those that look different on each generation (EVERYWHERE)."""
    nodes = machines(sandbox_cluster)
    victim = list(nodes)[-1]
    alike = [node for node, machine in nodes.items() if machine == nodes[victim]]
    names = [name for name in possible(nodes[victim]) if name not in possible(P4D) or name in EVERYWHERE]
    try_faults(sandbox_cluster, [(name,) for name in some(names)], alike)
