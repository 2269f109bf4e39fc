"""The machine around the GPUs: memory, processors, clock, processes, how it came up."""

from __future__ import annotations

from typing import NoReturn, TypeVar

from provisioner.common.text import counted
from provisioner.verify.check import check, fail, note, saw, skip, unknown
from provisioner.verify.expectations import Expected
from provisioner.verify.facts import Facts
from provisioner.verify.parsers.host import Host

T = TypeVar("T")
NEEDS = ("host.json",)


def host_of(node: Facts) -> Host:
    assert node.host is not None  # `needs` saw to it
    return node.host


def reported(value: T | None, noun: str) -> T:
    """The value, or the check is unknown."""
    return value if value is not None else _silent(noun)


def _silent(noun: str) -> NoReturn:
    unknown(f"the node does not report {noun}")


@check(
    "host.memory",
    severity="fatal",
    documented="github Azure/azurehpc-health-checks, mej/nhc check_hw_physmem",
    action="vendor",
    needs=NEEDS,
    applies=lambda e: e.memory_gib is not None,
    otherwise="the catalogue has no memory size for this machine",
    says="The host has less memory than its kind: a module has failed. Jobs that fit elsewhere are killed here.",
)
def test_memory(node: Facts, expected: Expected) -> None:
    memory, expected_gib = reported(host_of(node).memory, "how much memory it has"), expected.memory_gib or 0.0
    have, share = memory.total / 2**20, expected.most["memory.missing_share"]
    saw(expected=f"{expected_gib:g} GiB, {share:.0%} less at most", actual=f"{have:.1f} GiB")
    if have < expected_gib * (1 - share):
        fail(f"{have:.1f} GiB of memory, {expected_gib:g} are expected")


@check(
    "host.cpus",
    severity="fatal",
    documented="AWS, Azure and vendors list the processors of a machine; github Azure/azurehpc-health-checks "
    "check_hw_cpuinfo",
    action="vendor",
    needs=NEEDS,
    applies=lambda e: e.vcpus is not None,
    otherwise="the catalogue has no number of processors for this machine",
    says="Processors are missing: a socket or cores are off, and the GPUs wait for their data.",
)
def test_cpus(node: Facts, expected: Expected) -> None:
    cpu, expected_cpus = reported(host_of(node).cpu, "its processors"), expected.vcpus or 0
    saw(expected=expected_cpus, actual=cpu.processors)
    # On one's own machine hyper-threading may be off on purpose: half of them, one on each core.
    half = expected.bare_metal and cpu.threads_per_core == 1 and cpu.processors * 2 >= expected_cpus
    if cpu.processors < expected_cpus and not half:
        fail(f"{cpu.processors} processors, {expected_cpus} are expected")


# A warning: a setting of the BIOS (NPS, SNC) changes the number, and jobs run on. What it costs is measured at level
# standard (load.host_copy).
@check(
    "host.numa",
    severity="warn",
    action="vendor",
    needs=NEEDS,
    applies=lambda e: e.verified("numa_nodes") and e.numa_nodes is not None,
    otherwise="no source says how many NUMA nodes this machine has",
    says="The host shows another number of NUMA nodes than its kind: processes run on cores far from their GPU.",
)
def test_numa(node: Facts, expected: Expected) -> None:
    nodes = reported(host_of(node).numa_nodes, "its NUMA nodes")
    saw(expected=expected.numa_nodes, actual=nodes)
    if nodes != expected.numa_nodes:
        fail(f"{nodes} NUMA nodes with processors, {expected.numa_nodes} are expected")


@check(
    "host.edac",
    severity="fatal",
    documented="docs.kernel.org/admin-guide/ras.html: ue_count; github leptonai/gpud",
    action="vendor",
    needs=NEEDS,
    applies=lambda e: e.bare_metal and not e.simulated,
    otherwise="memory errors (EDAC) are not visible in a virtual machine",
    says="Host memory had errors that could not be corrected: data may be wrong. Drain the node, replace the module.",
)
def test_edac(node: Facts) -> None:
    counts = host_of(node).memory_errors
    if counts is None:
        skip("no EDAC driver is loaded")
    saw(expected="0 uncorrected errors", actual=counts[1])
    if counts[1]:
        fail(f"{counts[1]} uncorrected errors since boot")


@check(
    "host.memory_corrected",
    severity="warn",
    action="vendor",
    needs=NEEDS,
    applies=lambda e: e.bare_metal and not e.simulated,
    otherwise="memory errors (EDAC) are not visible in a virtual machine",
    says="Host memory corrects errors all the time, which costs speed and announces worse. Replace the module in time.",
)
def test_memory_corrected(node: Facts, expected: Expected) -> None:
    counts, maximum = host_of(node).memory_errors, expected.most["memory.corrected"]
    if counts is None:
        skip("no EDAC driver is loaded")
    saw(expected=f"{maximum:g} corrected errors at most", actual=counts[0])
    if counts[0] > maximum:
        fail(f"{counts[0]} corrected errors since boot")


@check(
    "host.clock_skew",
    severity="fatal",
    documented="munge(7), RFC 4120: what is five minutes old is refused",
    action="reconfigure",
    says="The node's clock is minutes off: certificates, Slurm's munge and mounts refuse it. Set it, and look at NTP.",
)
def test_clock_skew(node: Facts, expected: Expected) -> None:
    maximum = expected.most["clock.skew"]
    if node.received is None and node.outputs:
        skip("the bundle does not record when it was collected (probe.json)")
    if node.collected is None or node.received is None:
        unknown(node.error or "the node's clock was not read")
    off = node.collected - node.received
    saw(expected=f"{maximum:g} s off at most", actual=f"{off:+.1f} s")
    if abs(off) > maximum:
        fail(f"the clock is {abs(off) / 60:.0f} minutes {'ahead' if off > 0 else 'behind'}")


@check(
    "host.time_sync",
    severity="warn",
    action="reconfigure",
    needs=NEEDS,
    says="Nothing keeps the node's clock: no time service is on, or it has not reached a server.",
)
def test_time_sync(node: Facts) -> None:
    host = host_of(node)
    if host.synchronised is None:
        skip("timedatectl does not respond")
    saw(expected="synchronised", actual="synchronised" if host.synchronised else "not synchronised")
    if not host.synchronised:
        fail("the clock is not synchronised" + ("" if host.time_service else ", and no time service is on"))


BEST_CLOCKS = ("tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "hyperv_clocksource", "arch_sys_counter", "xen")
"""Clock sources that a program reads without leaving its processor, or that are a hypervisor's own (xen)."""


@check(
    "host.clocksource",
    severity="warn",
    action="reboot",
    needs=NEEDS,
    applies=lambda e: not e.simulated,
    otherwise="a simulated node has this computer's clock",
    says="The kernel gave up the fast clock (often after an unstable TSC): every time stamp costs a microsecond.",
)
def test_clocksource(node: Facts) -> None:
    source = reported(host_of(node).clocksource, "its clock source")
    saw(expected=" or ".join(BEST_CLOCKS), actual=source)
    if source not in BEST_CLOCKS:
        fail(f"the kernel's clock is {source}")


RECENT_S = 7 * 86400
"""Seconds for which a crash or a hard power-off warns (judgement)."""


@check(
    "host.uptime",
    severity="warn",
    action="vendor",
    needs=NEEDS,
    says="The node went down without being shut down: power, a crash, or the host below it.",
)
def test_uptime(node: Facts) -> None:
    host = host_of(node)
    if not host.boots:
        skip("the node keeps no record of its boots (wtmp)")
    hard = []
    for previous, (kind, when) in zip((("", 0), *host.boots), host.boots, strict=False):
        if kind == "boot" and previous[0] == "boot" and when > (host.configured or 0):
            hard.append(when)
    saw(expected="no start without a shutdown before it", actual=len(hard))
    if hard:
        ago = (host.time - hard[-1]) / 3600
        text = f"{counted(len(hard), 'boot')} without a shutdown before, the last {max(0.0, ago):.1f} hours ago"
        if host.time - hard[-1] > RECENT_S:
            note(text)
        fail(text)


@check(
    "host.crash",
    severity="warn",
    action="vendor",
    needs=NEEDS,
    says="The kernel of this node crashed before and left a record. Keep it for the analysis, then remove it.",
)
def test_crash(node: Facts) -> None:
    host = host_of(node)
    records = reported(host.crashes, "what crashed kernels left")
    # What was there before the node was configured is not this fleet's.
    new = [path for path, when in records if host.configured is None or when > host.configured]
    saw(expected="no record", actual=new or "no record")
    if new:
        text = f"{', '.join(new[:3])}" + (f" and {len(new) - 3} more" if len(new) > 3 else "")
        if host.time - max(when for _, when in records) > RECENT_S:
            note(f"{text}, more than {RECENT_S // 86400} days ago")
        fail(text)


@check(
    "host.zombies",
    severity="warn",
    action="reboot",
    needs=NEEDS,
    says="Zombie processes pile up because their parent does not collect them. In the end no job can start.",
)
def test_zombies(node: Facts, expected: Expected) -> None:
    processes, maximum = reported(host_of(node).processes, "its processes"), expected.most["process.zombies"]
    saw(expected=f"{maximum:g} at most", actual=processes.zombies)
    if processes.zombies > maximum:
        oldest = max(processes.old_zombies, key=lambda z: z[1], default=("?", 0.0))
        fail(f"{processes.zombies} zombies, the oldest is {oldest[0]} of {oldest[1] / 3600:.1f} hours ago")


# A warning: a server of files that is away for a minute does the same. A driver that hangs, and a file system that does
# not come back, condemn by themselves (driver.responds, storage.shared, storage.network).
@check(
    "host.dstate",
    severity="warn",
    action="reboot",
    needs=NEEDS,
    follows=("driver.responds", "storage.shared", "storage.network"),
    says="Processes hang inside the kernel and cannot be ended: a disk, a mount or a driver does not answer.",
)
def test_dstate(node: Facts) -> None:
    stuck = reported(host_of(node).processes, "its processes").stuck
    saw(expected="none", actual=list(stuck) or "none")
    if stuck:
        fail(f"{len(stuck)} processes blocked in uninterruptible sleep: {', '.join(sorted(set(stuck))[:4])}")


@check(
    "host.pids",
    severity="warn",
    action="reboot",
    needs=NEEDS,
    says="Almost all process numbers are taken: soon nothing can be started any more.",
)
def test_pids(node: Facts, expected: Expected) -> None:
    host = host_of(node)
    processes = reported(host.processes, "its processes")
    maximum = reported(host.settings.get("kernel/pid_max"), "its pid_max") * expected.most["process.share"]
    saw(expected=f"{maximum:.0f} at most", actual=processes.count)
    if processes.count > maximum:
        fail(f"{processes.count} processes of {host.settings['kernel/pid_max']} (kernel.pid_max)")


@check(
    "host.file_handles",
    severity="warn",
    action="reboot",
    needs=NEEDS,
    says="Almost all file handles of the system are taken: soon no program can open a file or a connection.",
)
def test_file_handles(node: Facts, expected: Expected) -> None:
    settings = host_of(node).settings
    used, maximum = (
        reported(settings.get("fs/file-nr"), "its open files"),
        reported(settings.get("fs/file-max"), "its file-max"),
    )
    saw(expected=f"{maximum * expected.most['process.share']:.0f} at most", actual=used)
    if used > maximum * expected.most["process.share"]:
        fail(f"{used} of {maximum} file handles are open")
