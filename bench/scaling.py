"""What one more node costs: by nodes that run the roles themselves, and by push; and both from far away."""

from __future__ import annotations

import json
import re
import resource
import sys
from dataclasses import dataclass

from bench.fleet import Fleet
from bench.measure import Failed, run
from bench.promises import Promise
from bench.verifying import AWAY_MS, far

FEW, MANY = 1, 16
MARGINAL_S, MARGINAL, TOTAL, FAR = 0.5, 0.25, 1.0, 1.2
PUSH = "\nconfigure: { push: true }\n"


@dataclass(frozen=True, slots=True)
class First:
    """A first `up`: seconds, and processor seconds of this machine and of its nodes together. `roles_s`: processor
    seconds of this machine for all roles once more, with nothing to do."""

    seconds: float
    control_s: float
    nodes_s: float
    roles_s: float

    @property
    def total_s(self) -> float:
        return self.control_s + self.nodes_s


def measure(many: int = MANY) -> list[Promise]:
    """A fleet of one node and one of `many`, made in both ways."""
    few = {method: _first(FEW, method)[0] for method in ("node", "push")}
    firsts, near_far = {}, {}
    for method in ("node", "push"):
        firsts[method], near_far[method] = _first(many, method, is_far=True)
    marginal = {method: (firsts[method].control_s - few[method].control_s) / (many - FEW) for method in firsts}
    roles = {method: (firsts[method].roles_s - few[method].roles_s) / (many - FEW) for method in firsts}
    numbers = {
        "few": {method: _numbers(first) for method, first in few.items()},
        "many": {method: _numbers(first) for method, first in firsts.items()},
        "configure_s_near_far": near_far,
    }
    node, push = firsts["node"], firsts["push"]
    near_s, away = near_far["node"]
    near_push, away_push = near_far["push"]
    return [
        Promise(
            "processor time of this machine for one more node, first `up`", f"at most {MARGINAL_S:g} s",
            f"{marginal['node']:.2f} s ({few['node'].control_s:.1f} s for {FEW}, {node.control_s:.1f} s for {many})",
            marginal["node"], MARGINAL_S, unit="s", numbers=numbers,
        ),
        Promise(
            "the same against push", f"at most {MARGINAL:g} ×", f"{marginal['node']:.2f} s against "
            f"{marginal['push']:.2f} s", marginal["node"] / marginal["push"], MARGINAL, numbers=numbers,
        ),
        Promise(
            "of it for the roles, with nothing to do, against push", f"at most {MARGINAL:g} ×",
            f"{roles['node']:.2f} s against {roles['push']:.2f} s", roles["node"] / roles["push"], MARGINAL,
            numbers=numbers,
        ),
        Promise(
            f"processor time of all machines, first `up` of {many}, against push", f"at most {TOTAL:.1f} ×",
            f"{node.total_s:.0f} s against {push.total_s:.0f} s ({node.seconds:.0f} s and {push.seconds:.0f} s long)",
            node.total_s / push.total_s, TOTAL, numbers=numbers,
        ),
        Promise(
            f"roles of {many} nodes with nothing to do, {AWAY_MS} ms away", f"at most {FAR:g} × as long as near",
            f"{away:.1f} s against {near_s:.1f} s; push {away_push:.1f} s against {near_push:.1f} s",
            away / near_s, FAR, numbers=numbers,
        ),
    ]  # fmt: skip


def _first(count: int, method: str, *, is_far: bool = False) -> tuple[First, tuple[float, float]]:
    """A first `up`, and the seconds that all roles take on these nodes after it: near and, with `is_far`, far."""
    with Fleet.of_example("aws-p4d", count) as fleet:
        if method == "push":
            fleet.file.write_text(fleet.file.read_text() + PUSH)
        fleet.warm_cache()
        previous_s = _children_s()
        seconds = run(fleet.up).seconds
        control_s, nodes_s = _children_s() - previous_s, _nodes_s(fleet.name)
        previous_s = _children_s()
        near_s, far_s = _roles_s(fleet, method), 0.0
        first = First(seconds, control_s, nodes_s, _children_s() - previous_s)
        if is_far:
            with far(fleet):
                far_s = _roles_s(fleet, method)
    return first, (near_s, far_s)


def _roles_s(fleet: Fleet, method: str) -> float:
    """Seconds of all roles on all nodes of the fleet."""
    return run([sys.executable, "-m", "bench.roles_once", str(fleet.file), method]).seconds


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _nodes_s(cluster: str) -> float:
    """Processor seconds of a cluster's nodes since they were made, by podman; its mirror is none."""
    listed = run(["podman", "ps", "--filter", f"label=gpuprov.cluster={cluster}", "--format", "{{.Names}}"]).stdout
    nodes = [name for name in listed.split() if ".mirror." not in name]
    rows = json.loads(run(["podman", "stats", "--no-stream", "--format", "json", *nodes]).stdout)
    if len(rows) != len(nodes):
        raise Failed(f"podman tells of {len(rows)} nodes, not of {len(nodes)}")
    return sum(duration(row["cpu_time"]) for row in rows)


def duration(text: str) -> float:
    """Go's "1m2.5s" in seconds."""
    units = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "µs": 1e-6, "us": 1e-6, "ns": 1e-9}
    parts = re.findall(r"([0-9.]+)(h|ms|m|s|µs|us|ns)", text)
    if "".join(number + unit for number, unit in parts) != text:
        raise ValueError(text)
    return sum(float(number) * units[unit] for number, unit in parts)


def _numbers(first: First) -> dict[str, float]:
    return {"seconds": first.seconds, "control_s": first.control_s, "nodes_s": first.nodes_s, "roles_s": first.roles_s}
