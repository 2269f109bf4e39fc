"""The machine around the GPUs at the moment of looking: memory in use, processes killed for it, clocks held down."""

from __future__ import annotations

from provisioner.verify.check import check, fail, saw, skip
from provisioner.verify.checks.host import NEEDS, host_of, reported
from provisioner.verify.expectations import Expected
from provisioner.verify.facts import Facts


@check(
    "host.memory_free",
    severity="warn",
    action="reboot",
    needs=NEEDS,
    applies=lambda e: not e.simulated,
    otherwise="a sandbox node shows this computer's memory",
    says="Much of the host's memory is in use although no job has the GPUs: something was left behind, or leaks.",
)
def test_memory_free(node: Facts, expected: Expected) -> None:
    memory = reported(host_of(node).memory, "its memory")
    if any(gpu.processes for gpu in node.gpus or ()) or (node.load is not None and node.load.state == "busy"):
        skip("a job has the GPUs")
    available, maximum = (
        reported(memory.available, "how much of its memory is available"),
        expected.most["memory.used_share"],
    )
    used = 1 - available / memory.total if memory.total else 0.0
    saw(expected=f"{maximum:.0%} in use at most", actual=f"{used:.0%} in use")
    if used > maximum:
        message = f"{used:.0%} of {memory.total / 2**20:.0f} GiB is in use, and no job has the GPUs"
        fail(message, unverified=expected.unsupported("memory.used_share"))


@check(
    "host.oom_kills",
    severity="info",
    action="none",
    needs=NEEDS,
    applies=lambda e: not e.simulated,
    otherwise="a sandbox node shows this computer's kernel",
    says="The kernel killed processes for want of memory since boot, those of a container's limit too (oom_kill).",
)
def test_oom_kills(node: Facts) -> None:
    kills = reported(host_of(node).oom_kills, "oom_kill of /proc/vmstat")
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
    says="A socket's processors stand far below their clock and may not save power: heat or power holds them down.",
)
def test_clock(node: Facts, expected: Expected) -> None:
    host = host_of(node)
    cpu = reported(host.cpu, "its processors")
    if set(host.governors or ()) != {"performance"}:
        skip("the processors may save power: see host.governor")
    fastest = {f"socket {name}": mhz for name, mhz in sorted(cpu.socket_mhz.items())}
    fastest = fastest or {"all": reported(cpu.fastest_mhz, "the clock of its processors")}
    clock_share = expected.most["cpu.clock_share"]
    minimum = max(HELD_DOWN_MHZ, (cpu.base_mhz or 0.0) * (1 - clock_share))
    saw(
        expected=f"one at {minimum:.0f} MHz or more in each socket",
        actual={k: f"{v:.0f} MHz" for k, v in fastest.items()},
    )
    if slow := {name: mhz for name, mhz in fastest.items() if mhz < minimum}:
        of = f" (base {cpu.base_mhz:.0f})" if cpu.base_mhz else ""
        message = "; ".join(f"{name}: no processor above {mhz:.0f} MHz" for name, mhz in slow.items())
        held_down = all(mhz < HELD_DOWN_MHZ for mhz in slow.values())
        fail(message + of, unverified=() if held_down else expected.unsupported("cpu.clock_share"))


@check(
    "host.time_offset",
    severity="warn",
    action="reconfigure",
    needs=NEEDS,
    follows=("host.time_sync", "host.clock_skew"),
    says="The clock is kept and yet off: the time server is far, or answers badly. Logs of nodes do not match.",
)
def test_offset(node: Facts, expected: Expected) -> None:
    offset, maximum = host_of(node).clock_offset, expected.most["clock.offset"]
    if offset is None:
        skip("chrony does not keep the clock")
    saw(expected=f"{maximum:g} s at most", actual=f"{offset:+.3f} s")
    if abs(offset) > maximum:
        fail(f"chrony holds the clock to be {offset:+.3f} s off")


@check(
    "host.users",
    severity="info",
    action="none",
    needs=NEEDS,
    applies=lambda e: e.tuned is not None,
    otherwise="gpuprov did not configure this machine",
    lock="on another machine the site's own people and services have accounts",
    says="People have processes on the node although no job has the GPUs. Look whose they are before a job comes.",
)
def test_users(node: Facts) -> None:
    host = host_of(node)
    if any(gpu.processes for gpu in node.gpus or ()) or (node.load is not None and node.load.state == "busy"):
        skip("a job has the GPUs")
    users = reported(host.processes, "its processes").users
    if users is None:
        skip("an older probe, which did not look whose processes they are")
    session = host.limits.get("session")
    other_users = {name: count for name, count in users.items() if session is None or name != session.user}
    saw(expected="nobody", actual=other_users or "nobody")
    if other_users:
        fail("; ".join(f"user {name} has {count} processes" for name, count in sorted(other_users.items())[:6]))


# A warning: role base waits for cloud-init and ends where it failed; what the roles need of it is theirs from then on.
@check(
    "host.cloud_init",
    severity="warn",
    action="reconfigure",
    needs=NEEDS,
    says="The first boot's own work ended with errors: users, mounts or packages of the user data may be missing.",
)
def test_cloud_init(node: Facts) -> None:
    host = host_of(node)
    errors, (stage, survived) = host.cloud_init, host.cloud_init_stage or (None, ())
    if errors is None and stage is None:
        skip("cloud-init has left no result")
    told_by = [*(errors or ()), *survived]
    saw(expected="done, no error", actual=told_by or stage or "done, no error")
    if stage is not None:
        fail(f"cloud-init has not finished: it is in {stage}")
    if told_by:
        fail(told_by[0])


@check(
    "host.load",
    severity="info",
    action="none",
    needs=NEEDS,
    says="More runs on the node than it has processors. On a node without a job, look at what it is.",
)
def test_load(node: Facts, expected: Expected) -> None:
    host = host_of(node)
    load, cpu = reported(host.load, "its load"), reported(host.cpu, "its processors")
    maximum = expected.most["load.per_processor"]
    idle = node.gpus is not None and not any(gpu.processes or gpu.utilization for gpu in node.gpus)
    if idle and not expected.simulated and node.load is not None and node.load.state != "busy":
        maximum = min(maximum, expected.most["load.idle_per_processor"])
    saw(expected=f"{maximum * cpu.processors:g} at most", actual=load)
    if load > maximum * cpu.processors:
        fail(f"a load of {load:g} on {cpu.processors} processors")


HELD_DOWN_MHZ = 1000
"""A processor that PROCHOT holds down stands at its lowest multiplier: 400 to 800 MHz (Intel SDM 3B, 15.8.1)."""
