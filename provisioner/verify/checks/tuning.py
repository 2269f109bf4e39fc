"""Kernel settings for long jobs, limits of sessions, and variables that slow every job down."""

from __future__ import annotations

from provisioner.verify.check import check, compare, fail, note, saw, skip, unknown
from provisioner.verify.checks.host import NEEDS, host_of, reported
from provisioner.verify.expectations import TUNED, Expected
from provisioner.verify.facts import Facts
from provisioner.verify.parsers.host_software import UNLIMITED

RDMA = ("efa", "infiniband", "roce")
UNTUNED = "gpuprov did not configure this machine"


@check(
    "host.swap",
    severity="warn",
    action="reconfigure",
    needs=NEEDS,
    applies=lambda e: not e.bare_metal,
    otherwise="gpuprov does not configure swap on this machine",
    says="Swap is on, which no cloud image brings: a job that is short of memory then crawls instead of ending.",
)
def test_swap(node: Facts) -> None:
    swaps = reported(host_of(node).swaps, "its swap")
    saw(expected="none", actual=list(swaps) or "none")
    if swaps:
        fail(f"swap on {', '.join(swaps)}")


@check(
    "host.governor",
    severity="warn",
    action="reconfigure",
    needs=NEEDS,
    lock="performance is what role base sets",
    without_lock="another governor is a note",
    says="Processors save power: data loading and NCCL's own threads are slower. Start gpuprov-tuning.",
)
def test_governor(node: Facts, expected: Expected) -> None:
    governors, desired = host_of(node).governors, (expected.tuned or TUNED)["governor"]
    if not governors:
        skip("no cpufreq governor here, as on most virtual machines")
    saw(expected=desired, actual=dict(governors))
    if set(governors) != {desired}:
        slow = ", ".join(f"{count} processors on {name}" for name, count in governors.items() if name != desired)
        fail(slow) if expected.tuned else note(slow)


@check(
    "host.thp",
    severity="warn",
    action="reconfigure",
    needs=NEEDS,
    applies=lambda e: e.tuned and "transparent_hugepage" in e.tuned,
    otherwise=UNTUNED,
    lock="always and madvise both have their users: which one is right is what role base sets",
    says="Transparent huge pages are not as the roles set them: programs may stall. Start gpuprov-tuning.",
)
def test_thp(node: Facts, expected: Expected) -> None:
    mode = host_of(node).huge_pages_mode
    if mode is None:
        skip("this kernel has no transparent huge pages")
    desired = (expected.tuned or {})["transparent_hugepage"]
    compare(desired, mode, f"transparent huge pages: {mode} instead of {desired}")


def _setting(node: Facts, expected: Expected, name: str) -> None:
    settings = host_of(node).settings
    if name not in settings:
        skip(f"this kernel has no {name.replace('/', '.')}")
    desired = int((expected.tuned or TUNED)[name])
    compare(desired, settings[name], f"{name.replace('/', '.')}: {settings[name]} instead of {desired}")


@check(
    "host.numa_balancing",
    severity="warn",
    action="reconfigure",
    needs=NEEDS,
    lock="off is what role base sets, the kernel's default is on",
    without_lock="on is a note",
    says="The kernel moves pages away from the cores that a job has pinned. Start gpuprov-tuning.",
)
def test_numa_balancing(node: Facts, expected: Expected) -> None:
    settings = host_of(node).settings
    if not expected.tuned and settings.get("kernel/numa_balancing"):
        note(f"kernel.numa_balancing is {settings['kernel/numa_balancing']}, the kernel's default")
    _setting(node, expected, "kernel/numa_balancing")


@check(
    "host.hugepages",
    severity="warn",
    action="reconfigure",
    needs=NEEDS,
    applies=lambda e: e.efa_huge_mib_per_cpu or (e.tuned and "vm/nr_hugepages" in e.tuned),
    otherwise=UNTUNED,
    lock="that no job wants huge pages is known of nodes that the roles have set up",
    without_lock="huge pages for EFA",
    says="Reserved huge pages take memory from jobs (start gpuprov-tuning), or EFA has fewer than it uses "
    "(reboot: efa-config reserves them at boot).",
)
def test_hugepages(node: Facts, expected: Expected) -> None:
    if expected.efa_huge_mib_per_cpu:
        _huge_pages_of_efa(node, expected.efa_huge_mib_per_cpu)
    else:
        _setting(node, expected, "vm/nr_hugepages")


EFA_LARGEST_PAGE_KIB = 16384
"""efa-config reserves no larger ones (awslabs/libfabric-ci-scripts#158)."""


def _huge_pages_of_efa(node: Facts, mib_per_cpu: int) -> None:
    host = host_of(node)
    page = reported(host.memory, "how much memory it has").huge_page_kib
    if page is None or "vm/nr_hugepages" not in host.settings:
        skip("this kernel has no huge pages")
    if page > EFA_LARGEST_PAGE_KIB:
        skip(f"one huge page is {page // 1024} MiB: EFA reserves none that large")
    processors, pages = reported(host.cpu, "its processors").processors, int(host.settings["vm/nr_hugepages"])
    needed = mib_per_cpu * 1024 * processors // page + 1
    saw(expected=f"{needed} or more", actual=pages)
    if pages < needed:
        fail(f"{pages} huge pages of {page} KiB, EFA uses {needed} with {processors} processors")


@check(
    "host.map_count",
    severity="warn",
    action="reconfigure",
    needs=NEEDS,
    applies=lambda e: e.tuned and "vm/max_map_count" in e.tuned,
    otherwise=UNTUNED,
    lock="the kernel's default is lower, and enough for many: more is what role base sets",
    says="A process may map fewer files than the roles allow: data loaders with many files fail. Start gpuprov-tuning.",
)
def test_map_count(node: Facts, expected: Expected) -> None:
    _setting(node, expected, "vm/max_map_count")


@check(
    "host.shm",
    severity="warn",
    action="reconfigure",
    needs=NEEDS,
    says="Shared memory is small: data loaders and NCCL pass their data through it and end with a bus error.",
)
def test_shm(node: Facts, expected: Expected) -> None:
    host = host_of(node)
    memory, shm = reported(host.memory, "how much memory it has"), host.at("/dev/shm")  # noqa: S108
    if host.space is None:
        unknown("df does not respond")
    share = expected.most["shm.missing_share"]
    saw(
        expected=f"{memory.total * (1 - share) / 2**20:.1f} GiB or more",
        actual=f"{shm.size / 2**30:.1f} GiB" if shm else "none",
    )
    if shm is None or shm.kind != "tmpfs":
        fail("/dev/shm is not mounted")  # noqa: S108
    if shm.size < memory.total * 1024 * (1 - share):
        fail(f"/dev/shm has {shm.size / 2**30:.1f} GiB, memory {memory.total / 2**20:.0f} GiB")  # noqa: S108


@check(
    "limits.memlock",
    severity="fatal",
    documented="NCCL Troubleshooting: ulimit -l; github aws-samples/awsome-distributed-training "
    "gpu-cluster-healthcheck",
    action="reconfigure",
    needs=NEEDS,
    applies=lambda e: e.network in RDMA and not e.simulated,
    otherwise="a machine without RDMA locks no memory to speak of, and a simulated node has this computer's limits",
    says="A session may not lock the memory that RDMA needs: NCCL ends with 'Cannot allocate memory'.",
)
def test_memlock(node: Facts, expected: Expected) -> None:
    limits = host_of(node).limits
    needed = expected.gpu_count * expected.memory_mib * 2**20
    low, session = [], limits.get("session")
    # Services that start jobs, where they are there: slurmd's children have its limits.
    for name in ("session", "slurmd"):
        memlock = limits[name].memlock if name in limits else None
        if memlock is not None and not all(limit == UNLIMITED or limit >= needed for limit in memlock):
            low.append(f"{name}: {memlock[0]} bytes (hard limit {memlock[1]})")
    saw(expected=f"unlimited, or all GPUs' memory ({needed} bytes)", actual=low or "enough")
    # Limits do not bind root; where the roles ran they hold for it all the same, and what is less was not set by them.
    if low and session is not None and session.user == "root" and expected.tuned is None and "slurmd" not in limits:
        skip("the probe ran as root, which limits do not bind: run it as the user that runs jobs")
    if low:
        fail("; ".join(low))
    if session is None or session.memlock is None:
        unknown("the node reports no limits")


FILES = 4096
"""Open files. The kernel's own hard limit, up to which programs raise theirs, and often too low: systemd gives 524288
since version 240 (github containerd/containerd#8924)."""


@check(
    "limits.nofile",
    severity="warn",
    action="reconfigure",
    needs=NEEDS,
    says="A session may open few files: data loaders and NCCL over TCP end with 'Too many open files'.",
)
def test_nofile(node: Facts) -> None:
    session = host_of(node).limits.get("session")
    files = reported(session.files if session else None, "its limits")
    saw(expected=f"more than {FILES}", actual=files[1])
    if files[1] != UNLIMITED and files[1] <= FILES:
        fail(f"at most {files[1]} open files")


@check(
    "limits.nproc",
    severity="warn",
    action="reconfigure",
    needs=NEEDS,
    applies=lambda e: not e.simulated,
    otherwise="a simulated node has this computer's limits",
    says="A session may start few processes: data loaders and compilers end with 'Resource temporarily unavailable'.",
)
def test_nproc(node: Facts, expected: Expected) -> None:
    session, minimum = host_of(node).limits.get("session"), int(expected.most["process.least"])
    processes = session.processes if session else None
    if (low := _below(processes, minimum, "or more")) is not None:
        fail(f"at most {low} processes", unverified=expected.unsupported("process.least"))


def _below(limit: tuple[int, int] | None, minimum: int, unit: str) -> int | None:
    """The soft limit of a session where it is lower than it should be."""
    if limit is None:
        skip("the session's limits do not name it (an older probe)")
    saw(expected=f"{minimum} {unit}", actual="unlimited" if limit[0] == UNLIMITED else limit[0])
    return limit[0] if limit[0] != UNLIMITED and limit[0] < minimum else None


STACK = 8 << 20
"""Bytes: what Linux gives every program (include/uapi/linux/resource.h, _STK_LIM). Less was set on purpose."""


@check(
    "limits.stack",
    severity="warn",
    action="reconfigure",
    needs=NEEDS,
    says="A session's programs have a smaller stack than Linux gives: compilers and numerical libraries crash.",
)
def test_stack(node: Facts) -> None:
    session = host_of(node).limits.get("session")
    if (low := _below(session.stack if session else None, STACK, "bytes or more")) is not None:
        fail(f"{low} bytes")


SLOWING = {
    "CUDA_LAUNCH_BLOCKING": "every kernel waits for the one before it",
    "NCCL_P2P_DISABLE": "GPUs talk through host memory instead of NVLink",
    "NCCL_SHM_DISABLE": "processes of one node talk over the network",
    "NCCL_IB_DISABLE": "NCCL uses TCP instead of RDMA",
    "NCCL_NET_GDR_LEVEL": "network cards may not reach GPU memory",
    "NCCL_DEBUG": "NCCL writes a log line for every call",
    "CUDA_VISIBLE_DEVICES": "GPUs are hidden from every job",
    "NVIDIA_VISIBLE_DEVICES": "GPUs are hidden from every container",
    "CUDA_DEVICE_WAITS_ON_EXCEPTION": "a program that fails waits for a debugger",
    "CUDA_ENABLE_COREDUMP_ON_EXCEPTION": "a program that fails writes its GPUs' memory to disk",
    "CUDA_ENABLE_USER_TRIGGERED_COREDUMP": "a pipe for each program waits for somebody to ask for a dump",
    "CUDA_INJECTION64_PATH": "a profiler is loaded into every program",
    "CUDA_PROFILE": "every program writes a profile",
    "COMPUTE_PROFILE": "every program writes a profile",
    "OPENCL_PROFILE": "every program writes a profile",
    "NSIGHT_CUDA_DEBUGGER": "every program is prepared for a debugger",
    "CUDBG_USE_LEGACY_DEBUGGER": "every program is prepared for a debugger",
    "CUDA_DEVICE_MAX_CONNECTIONS": "",
    "NCCL_ALGO": "",
    "NCCL_PROTO": "",
}
"""Variables that are for looking for a mistake, or for one job, with what they do to all (NVIDIA's NCCL and CUDA
documentation; github leptonai/gpud, bad environment variables); an empty text is no concern."""
HARMLESS = {"NCCL_DEBUG": ("", "WARN", "VERSION"), "CUDA_VISIBLE_DEVICES": (), "NVIDIA_VISIBLE_DEVICES": ("all",)}


@check(
    "host.environment",
    severity="warn",
    action="reconfigure",
    needs=NEEDS,
    applies=lambda e: e.gpu_count > 1,
    otherwise="needs at least two GPUs",
    says="/etc/environment sets a variable for every job that slows GPUs down or hides them. Take it out.",
)
def test_environment(node: Facts) -> None:
    environment = host_of(node).environment or {}
    wrong = []
    for name, value in environment.items():
        effect = SLOWING.get(name, "")
        zero = not name.endswith("VISIBLE_DEVICES") and value in ("", "0") and name != "NCCL_NET_GDR_LEVEL"
        if (
            effect
            and not zero
            and value not in HARMLESS.get(name, ())
            and (name != "NCCL_NET_GDR_LEVEL" or value in ("0", "LOC"))
        ):
            wrong.append(f"{name}={value}: {effect}")
    saw(expected="none of them", actual=wrong or "none of them")
    if wrong:
        fail("; ".join(wrong))
