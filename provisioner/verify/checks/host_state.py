"""The machine around the GPUs at the moment of looking: memory in use, processes killed for it, clocks held down."""

from __future__ import annotations

from provisioner.verify.check import check, fail, saw, skip
from provisioner.verify.checks.host import NEEDS, host_of, told
from provisioner.verify.expectations import Expected
from provisioner.verify.facts import Facts


@check(
    "host.memory_free",
    severity="warn",
    action="reboot",
    needs=NEEDS,
    applies=lambda e: not e.simulated,
    otherwise="a rehearsed node shows this computer's memory",
    says="Much of the host's memory is in use although no job has the GPUs: something was left behind, or leaks.",
)
def test_memory_free(node: Facts, expected: Expected) -> None:
    memory = told(host_of(node).memory, "its memory")
    if any(gpu.processes for gpu in node.gpus or ()) or (node.load is not None and node.load.state == "busy"):
        skip("a job has the GPUs")
    available, most = told(memory.available, "how much of its memory is available"), expected.most["memory.used_share"]
    used = 1 - available / memory.total if memory.total else 0.0
    saw(expected=f"{most:.0%} in use at most", actual=f"{used:.0%} in use")
    if used > most:
        said = f"{used:.0%} of {memory.total / 2**20:.0f} GiB is in use, and no job has the GPUs"
        fail(said, unverified=expected.unsupported("memory.used_share"))


@check(
    "host.oom_kills",
    severity="info",
    action="none",
    needs=NEEDS,
    applies=lambda e: not e.simulated,
    otherwise="a rehearsed node shows this computer's kernel",
    says="The kernel killed processes for want of memory since boot, those of a container's limit too (oom_kill).",
)
def test_oom_kills(node: Facts) -> None:
    kills = told(host_of(node).oom_kills, "oom_kill of /proc/vmstat")
    saw(expected=0, actual=kills)
    if kills:
        fail(f"{kills} processes were killed since boot")


@check(
    "host.clock",
    severity="warn",
    action="vendor",
    needs=NEEDS,
    applies=lambda e: e.bare_metal and not e.simulated,
    otherwise="a virtual machine does not show the clocks of its processors",
    says="All processors stand far below their clock although they may not save power: heat or power holds them down.",
)
def test_clock(node: Facts) -> None:
    host = host_of(node)
    cpu = told(host.cpu, "its processors")
    if set(host.governors or ()) != {"performance"}:
        skip("the processors may save power: see host.governor")
    fastest = told(cpu.fastest_mhz, "the clock of its processors")
    saw(expected=f"one at {HELD_DOWN_MHZ} MHz or more", actual=f"{fastest:.0f} MHz at most")
    if fastest < HELD_DOWN_MHZ:
        fail(f"no processor runs above {fastest:.0f} MHz")


HELD_DOWN_MHZ = 1000
"""A processor that PROCHOT holds down stands at its lowest multiplier: 400 to 800 MHz (Intel SDM 3B, 15.8.1)."""
