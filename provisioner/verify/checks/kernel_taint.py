"""What the kernel has gone through since boot: taint flags that outlive its log, and warnings in the driver's code."""

from __future__ import annotations

from dataclasses import dataclass

from provisioner.verify.check import check, fail, saw, skip
from provisioner.verify.checks.host import NEEDS, host_of
from provisioner.verify.checks.kernel_log import LOG, fail_on_lines
from provisioner.verify.facts import Facts


@dataclass(frozen=True, slots=True)
class Flag:
    """A bit of /proc/sys/kernel/tainted. `kinds` are the messages of the kernel's log (parsers/kernel_events.py) that
    report the same: where the log still has one, its own check judges it."""

    bit: int
    letter: str
    meaning: str
    kinds: tuple[str, ...]


FLAGS = (
    Flag(4, "M", "a processor reported a machine check", ("machine_check_fatal", "machine_check_corrected")),
    Flag(7, "D", "the kernel hit a bug of its own (oops) and went on", ("kernel_bug",)),
    Flag(14, "L", "a CPU was stuck in the kernel (soft lockup)", ("soft_lockup",)),
)
"""docs.kernel.org/admin-guide/tainted-kernels.html. Of W (a warning, bit 9) nothing is said: a healthy kernel warns of
its own code too. `log.driver_warning` judges those of the GPU's driver."""


# A warning: that it happened is known, not to what. Where the log still tells, log.machine_check condemns.
@check(
    "host.kernel_taint",
    severity="warn",
    documented="docs.kernel.org/admin-guide/tainted-kernels.html: the flags stay until the next boot",
    action="reboot",
    needs=NEEDS,
    says="The kernel has survived a machine check, an oops or a soft lockup since boot, and its log has lost it. "
    "Look into the BMC's event log and the journal, then reboot.",
)
def test_taint(node: Facts) -> None:
    tainted = host_of(node).settings.get("kernel/tainted")
    if tainted is None:
        skip("the node does not report its taint flags: an older probe, or a kernel without /proc/sys/kernel/tainted")
    logged = {event.kind for event in node.log.events} if node.log is not None else set()
    flags = [flag for flag in FLAGS if tainted >> flag.bit & 1 and logged.isdisjoint(flag.kinds)]
    saw(
        expected="none of M, D, L that the log does not explain",
        actual=f"{tainted}: {', '.join(map(describe, flags)) or '-'}",
    )
    if flags:
        fail("; ".join(map(describe, flags)))


def describe(flag: Flag) -> str:
    return f"{flag.letter}: {flag.meaning}"


# A warning: where the driver has stopped answering, driver.responds condemns.
@check(
    "log.driver_warning",
    severity="warn",
    documented="github NVIDIA/open-gpu-kernel-modules#1333: after a WARNING in nv.c every call of NVML hangs; Linux "
    "kernel/panic.c",
    action="reboot",
    needs=LOG,
    vendor="nvidia",
    follows=("driver.responds", "gpu.count", "gpu.xid"),
    says="The kernel found the GPU driver in an invalid state (WARNING in the driver's code). A lock may stay "
    "taken, and nvidia-smi hangs later. Drain and reboot.",
)
def test_driver_warning(node: Facts) -> None:
    fail_on_lines(node, "driver_warning")
