"""How a node's GPUs work: performance state, clock, power and heat under load, alone and beside their neighbours."""

from __future__ import annotations

from statistics import median

from provisioner.verify.check import check, fail, saw, skip
from provisioner.verify.checks.load import LOAD, NEEDS
from provisioner.verify.checks.load_counters import working
from provisioner.verify.expectations import Expected
from provisioner.verify.facts import Facts

HELD = ("load.throttle", "gpu.throttle", "gpu.power_brake")
"""What explains a low clock."""
AT_WORK = ("P0", "P1", "P2")
"""Performance states of a GPU that computes: the driver keeps a GeForce at P2 for programs of CUDA."""


@check(
    "load.pstate",
    severity="warn",
    action="reboot",
    level="standard",
    needs=NEEDS,
    vendor="nvidia",
    follows=(LOAD, *HELD),
    says="A GPU stays in a low performance state while it works: its driver or its power supply holds it down. Reboot.",
)
def test_pstate(node: Facts, expected: Expected) -> None:
    states = {f"GPU {gpu.index}": gpu.pstate for gpu in working(node, expected) if gpu.pstate is not None}
    saw(expected=f"{AT_WORK[0]} to {AT_WORK[-1]}", actual=states)
    if not states:
        skip("nvidia-smi reports no performance state")
    if low := [f"{gpu} is in {state}" for gpu, state in states.items() if state not in AT_WORK]:
        fail("; ".join(low))


@check(
    "load.clock",
    severity="warn",
    action="reconfigure",
    level="standard",
    needs=NEEDS,
    vendor="nvidia",
    follows=(LOAD, *HELD, "gpu.clocks", "load.pstate"),
    says="A GPU works far below its highest clock, and neither heat nor power holds it: its clock was locked. "
    "`nvidia-smi -rgc` and `-rac` set it free.",
)
def test_clock(node: Facts, expected: Expected) -> None:
    clock_share = expected.most.get("load.clock_share", 1.0)
    # At its power limit a GPU runs as high as its work lets it.
    free = [gpu for gpu in working(node, expected) if gpu.power_capped is False and not gpu.throttle]
    clocks = {f"GPU {g.index}": (g.clock_sm_mhz, g.clock_max_mhz) for g in free if g.clock_sm_mhz and g.clock_max_mhz}
    clocks |= {f"memory of GPU {g.index}": (g.memory_clock_mhz, g.memory_clock_max_mhz) for g in free
               if g.memory_clock_mhz and g.memory_clock_max_mhz}  # fmt: skip
    saw(
        expected=f"{1 - clock_share:.0%} of the highest clock or more",
        actual={gpu: f"{mhz} of {top} MHz" for gpu, (mhz, top) in clocks.items()},
    )
    if not clocks:
        skip("every GPU that reports its clock is at its power limit")
    if low := [f"{gpu}: {mhz} of {top} MHz" for gpu, (mhz, top) in clocks.items() if mhz < top * (1 - clock_share)]:
        fail("; ".join(low), unverified=expected.unsupported("load.clock_share"))


def _draws(node: Facts, expected: Expected) -> dict[str, float]:
    """W, the most that each GPU was seen to draw under load."""
    sampled = {sample.index: sample.power_w for sample in node.samples or () if sample.power_w}
    draws = {
        g.index: max(g.power_draw_w or 0.0, sampled.get(g.index) or 0.0)
        for g in working(node, expected)
        if g.index in sampled or not sampled  # one look beside the others' highest of many says nothing
    }
    return {f"GPU {index}": watts for index, watts in draws.items() if watts}


@check(
    "load.power",
    severity="warn",
    action="vendor",
    level="standard",
    needs=NEEDS,
    vendor="nvidia",
    follows=(LOAD, *HELD, "load.clock", "load.pstate", "gpu.power_limit"),
    says="A GPU draws far less power than its neighbours at the same work, or than the work takes. It does less "
    "work, or its supply is weak.",
)
def test_power(node: Facts, expected: Expected) -> None:
    draws, spread = _draws(node, expected), expected.most.get("load.power_spread", 1.0)
    # A single look may fall into a pause between two products.
    sampled = {sample.index for sample in node.samples or () if sample.power_w}
    power_limits = {f"GPU {g.index}": g.power_limit_w for g in working(node, expected) if g.index in sampled}
    limits = {gpu: watts for gpu, watts in power_limits.items() if watts}
    share = 1 - expected.most.get("load.power_share", 1.0)
    if not draws:
        skip("no GPU reports its power")
    middle = median(draws.values())
    minimums = {gpu: max(middle * (1 - spread), limits.get(gpu, 0.0) * share) for gpu in draws}
    saw(
        expected={gpu: f"{watts:.0f} W or more" for gpu, watts in minimums.items()},
        actual={gpu: f"{watts:.0f} W" for gpu, watts in draws.items()},
    )
    if low := [f"{gpu}: {w:.0f} W, median {middle:.0f}" for gpu, w in draws.items() if w < middle * (1 - spread)]:
        fail("; ".join(low), unverified=expected.unsupported("load.power_spread"))
    if low := [
        f"{gpu}: {w:.0f} W of {limits[gpu]:.0f}" for gpu, w in draws.items() if w < limits.get(gpu, 0.0) * share
    ]:
        fail("; ".join(low), unverified=expected.unsupported("load.power_share"))


@check(
    "load.temperature_spread",
    severity="warn",
    action="vendor",
    level="standard",
    needs=NEEDS,
    vendor="nvidia",
    applies=lambda e: e.gpu_count > 1,
    otherwise="needs at least two GPUs",
    follows=(LOAD, "load.throttle", "load.temperature", "gpu.temperature"),
    says="A GPU gets far hotter than its neighbours at the same work: its heat sink, its fan or its coolant's way.",
)
def test_spread(node: Facts, expected: Expected) -> None:
    sampled = {sample.index: sample.temperature for sample in node.samples or ()}
    heat = {g.index: max(g.temperature or 0, sampled.get(g.index) or 0) for g in working(node, expected)}
    heat = {index: degrees for index, degrees in heat.items() if degrees}
    if len(heat) < 2:
        skip("fewer than two GPUs report their temperature")
    middle, maximum = median(heat.values()), expected.most.get("load.temperature_spread", float("inf"))
    saw(
        expected=f"{middle + maximum:g} °C at most",
        actual={f"GPU {i}": f"{degrees:g} °C" for i, degrees in heat.items()},
    )
    if hot := [
        f"GPU {i}: {degrees:g} °C, median {middle:g}" for i, degrees in heat.items() if degrees > middle + maximum
    ]:
        fail("; ".join(hot), unverified=expected.unsupported("load.temperature_spread"))
