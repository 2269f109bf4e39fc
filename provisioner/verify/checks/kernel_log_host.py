"""What the kernel wrote in its log of the host: memory, disks, network cards, processes that stood still."""

from __future__ import annotations

from provisioner.common.text import counted
from provisioner.verify.check import check, fail, note, saw, unknown
from provisioner.verify.checks.kernel_log import LOG, fail_on_lines, is_recent
from provisioner.verify.expectations import Expected
from provisioner.verify.facts import Facts

WHOLE_LOG = 300
"""Lines from which on a text is taken for a whole kernel log; a boot alone writes about a thousand."""


@check(
    "log.machine_check",
    severity="fatal",
    documented="docs.kernel.org/admin-guide/ras.html; github mej/nhc check_hw_mcelog",
    action="replace",
    needs=LOG,
    says="The host's memory or CPU had an error that could not be corrected. Replace the node or the DIMM.",
)
def test_machine_check(node: Facts) -> None:
    fail_on_lines(node, "machine_check_fatal")


@check(
    "log.machine_check_corrected",
    severity="warn",
    action="vendor",
    needs=LOG,
    follows=("log.machine_check",),
    says="The host corrects errors of its memory or CPU. Note the DIMM; have it replaced when they go on.",
)
def test_machine_check_corrected(node: Facts, expected: Expected) -> None:
    assert node.log is not None
    maximum = expected.most["memory.corrected"]
    events = node.log.of("machine_check_corrected")
    recent = [event for event in events if is_recent(node, event)]
    saw(expected=f"{maximum:g} at most", actual=sum(event.count for event in events))
    text = "; ".join(f"{event.text} ({counted(event.count, 'time')})" for event in events[:3])
    if sum(event.count for event in recent) > maximum:
        fail(text)
    if events:
        note(text)


@check(
    "log.oom",
    severity="warn",
    action="none",
    needs=LOG,
    says="The host ran out of memory and the kernel killed a process. Look at what the job loads on this node.",
)
def test_oom(node: Facts) -> None:
    fail_on_lines(node, "oom", window=True)


@check(
    "log.oom_cgroup",
    severity="info",
    action="none",
    needs=LOG,
    says="A container or a job used up the memory that it is allowed, and the kernel killed a process in it. The node "
    "is not at fault: raise the limit or load less.",
)
def test_oom_cgroup(node: Facts) -> None:
    fail_on_lines(node, "oom_cgroup")


# A warning: it is over where the process went on. What hangs still is for driver.responds, storage.network and
# host.dstate to say.
@check(
    "log.hung_task",
    severity="warn",
    action="reboot",
    needs=LOG,
    follows=("driver.responds", "log.io_error", "log.gsp_timeout"),
    says="A process stood still in the kernel for minutes: a disk, a mount or a driver does not answer.",
)
def test_hung(node: Facts) -> None:
    fail_on_lines(node, "hung_task", window=True)


@check(
    "log.hard_lockup",
    severity="fatal",
    documented="docs.kernel.org/admin-guide/lockup-watchdogs.html: a CPU that takes no interrupts; github "
    "kubernetes/node-problem-detector, leptonai/gpud",
    action="reboot",
    needs=LOG,
    says="A CPU took no more interrupts: what ran on it is lost, and the kernel's state with it. Reboot; if it comes "
    "again, replace the node.",
)
def test_hard_lockup(node: Facts) -> None:
    fail_on_lines(node, "hard_lockup")


# A warning: a hypervisor that stops a virtual machine for a moment makes the same line.
@check(
    "log.soft_lockup",
    severity="warn",
    action="reboot",
    needs=LOG,
    follows=("log.hard_lockup",),
    says="A CPU was stuck in the kernel, or a virtual machine stood still. If it comes again, replace the node.",
)
def test_lockup(node: Facts) -> None:
    fail_on_lines(node, "soft_lockup", window=True)


@check(
    "log.kernel_bug",
    severity="warn",
    action="reboot",
    needs=LOG,
    says="The kernel hit a bug of its own (BUG, Oops) and went on: its state cannot be trusted. Reboot the node.",
)
def test_bug(node: Facts) -> None:
    fail_on_lines(node, "kernel_bug")


@check(
    "log.io_error",
    severity="fatal",
    documented="github leptonai/gpud, facebookresearch/gcm, aws/eks-node-monitoring-agent: an I/O error takes the node "
    "out; Linux block/blk-core.c",
    action="replace",
    needs=LOG,
    follows=("log.fs_readonly",),
    says="A disk failed to read or write, or its filesystem found damage. Look at the disk's SMART data; replace it.",
)
def test_io(node: Facts) -> None:
    fail_on_lines(node, "io_error")


@check(
    "log.io_timeout",
    severity="warn",
    action="vendor",
    needs=LOG,
    follows=("log.io_error", "log.fs_readonly", "storage.nvme_state"),
    says="An NVMe disk did not answer in time and was asked again, with success: watch it, it may be failing.",
)
def test_io_timeout(node: Facts) -> None:
    fail_on_lines(node, "io_timeout", window=True)


@check(
    "log.network_fs",
    severity="warn",
    action="reconfigure",
    needs=LOG,
    says="A server of NFS, Lustre or Ceph did not answer, or lost this node's locks: jobs stood still meanwhile. Look "
    "at the server and the network before it.",
)
def test_network_fs(node: Facts) -> None:
    fail_on_lines(node, "network_fs", window=True)


@check(
    "log.fs_readonly",
    severity="fatal",
    documented="github kubernetes/node-problem-detector FilesystemIsReadOnly; Linux fs/ext4/super.c, "
    "fs/xfs/xfs_fsops.c",
    action="replace",
    needs=LOG,
    says="A filesystem shut itself down or became read-only after errors: nothing can be written. Replace the disk.",
)
def test_readonly(node: Facts) -> None:
    fail_on_lines(node, "fs_readonly")


@check(
    "log.segfault",
    severity="info",
    action="none",
    needs=LOG,
    says="A program crashed on this node. A library that crashes on one node alone points to its memory.",
)
def test_segfault(node: Facts) -> None:
    fail_on_lines(node, "segfault")


@check(
    "log.nic",
    severity="fatal",
    documented="github NVIDIA/NVSentinel nic-health-monitor; Linux drivers/net/ethernet/mellanox/mlx5/core/health.c",
    action="vendor",
    needs=LOG,
    follows=("ib.ports", "efa.devices"),
    says="A network card is broken or stopped answering its driver. Reboot once; then replace it.",
)
def test_nic(node: Facts) -> None:
    fail_on_lines(node, "nic")


@check(
    "log.nic_warning",
    severity="warn",
    action="vendor",
    needs=LOG,
    follows=("log.nic", "ib.ports"),
    says="A network card warns of heat or of its cable, its queue stood still, or its firmware refused a command or "
    "did not answer. Look at air flow and transceiver; reboot where commands fail.",
)
def test_nic_warning(node: Facts) -> None:
    fail_on_lines(node, "nic_warning", window=True)


@check(
    "log.nic_power",
    severity="info",
    action="none",
    needs=LOG,
    says="A network card says that its slot may give too little power. Harmless where it runs at full rate.",
)
def test_nic_power(node: Facts) -> None:
    fail_on_lines(node, "nic_power")


@check(
    "log.nic_register",
    severity="info",
    action="none",
    needs=LOG,
    says="A network card refused to let one of its registers be read (ACCESS_REG): a tool asked what it does not have.",
)
def test_nic_register(node: Facts) -> None:
    fail_on_lines(node, "nic_register")


@check(
    "log.link_flap",
    severity="warn",
    action="vendor",
    needs=LOG,
    follows=("ib.ports",),
    says="A network link went down again and again. Reseat the cable, or change the transceiver or the switch port.",
)
def test_flap(node: Facts, expected: Expected) -> None:
    assert node.log is not None
    maximum = expected.most.get("link.flaps", float("inf"))
    saw(expected=f"{maximum:g} losses of carrier at most", actual=dict(node.log.flaps) or "none")
    many = [f"{name} lost its carrier {count} times" for name, count in node.log.flaps if count > maximum]
    if many:
        fail("; ".join(many))


@check(
    "log.iommu_fault",
    severity="warn",
    action="vendor",
    needs=LOG,
    follows=("gpu.xid",),
    says="The IOMMU stopped a device that reached for memory not its own. Update its driver or firmware.",
)
def test_iommu(node: Facts) -> None:
    fail_on_lines(node, "iommu_fault", window=True)


@check(
    "log.peermem",
    severity="info",
    action="none",
    needs=LOG,
    vendor="nvidia",
    says="nvidia-peermem freed memory of an ended process. Harmless: it shows that jobs crashed.",
)
def test_peermem(node: Facts) -> None:
    fail_on_lines(node, "peermem")


@check(
    "log.complete",
    severity="info",
    action="none",
    needs=LOG,
    says="The kernel log does not reach back to the boot: what happened before its first line is not seen here.",
)
def test_complete(node: Facts) -> None:
    assert node.log is not None
    saw(expected="from the boot on", actual="from the boot on" if node.log.from_boot else "begins later")
    if not node.log.from_boot and node.log.lines < WHOLE_LOG:
        unknown("the kernel log is an excerpt, by its length")
    if not node.log.from_boot:
        fail("the kernel's first line is no longer in the log")
