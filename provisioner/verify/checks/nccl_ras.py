"""What NCCL itself says of the job on the node, before the node is blamed for a job that stands still."""

from __future__ import annotations

from provisioner.common.text import few
from provisioner.verify.check import check, fail, saw, skip
from provisioner.verify.facts import Facts
from provisioner.verify.parsers.nccl_ras import Process


# A warning, and only on the node whose process is missing: a job that has died of its own is no fault of the machine.
@check(
    "nccl.ras",
    severity="warn",
    documented="docs.nvidia.com NCCL user guide, RAS: INCOMPLETE names the processes that do not answer; github "
    "ray-project/ray#64928",
    action="none",
    needs=("nccl-ras.txt",),
    vendor="nvidia",
    follows=("gpu.xid", "gpu.count", "log.oom", "log.oom_cgroup", "driver.responds"),
    says="NCCL cannot reach a process of the job on this node: it has died or hangs, and all others wait for it. Look "
    "at that process before the node is drained.",
)
def test_ras(node: Facts) -> None:
    assert node.nccl_ras is not None
    ras = node.nccl_ras
    if not ras.running:
        skip("no job with NCCL 2.24 or newer answers on this node")
    missing = [describe(process) for process in ras.missing]
    saw(
        expected="every process of the job answers NCCL",
        actual=few([*missing, f"status {', '.join(ras.statuses) or '?'}", *ras.errors], 6),
    )
    local_processes = [process for process in ras.missing if is_own(process, node)]
    if local_processes:
        fail(few([describe(process) for process in local_processes], 4))


def describe(process: Process) -> str:
    gpus = f" with GPU {process.gpus}" if process.gpus else ""
    return f"process {process.pid} on {process.node}{gpus} does not answer"


def is_own(process: Process, node: Facts) -> bool:
    """Whether it runs on this node; NCCL names nodes by address."""
    host = node.host
    return host is None or host.addresses is None or process.node in (*host.addresses, host.hostname)
