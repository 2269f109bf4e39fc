"""Alerts on the host, from node_exporter: disks that fill up or turn read-only, a RAID without a disk, processes that
are killed for memory.

Names of metrics are those of node_exporter 1.3 and later (collectors filesystem, mdadm, vmstat).
"""

from __future__ import annotations

from collections.abc import Iterator

from provisioner.monitoring.fleet import WatchedFleet, WatchedGroup
from provisioner.monitoring.models import NODE_JOB, AlertRule, RuleGroup, Series
from provisioner.monitoring.rules.series import LONG_S, VERIFY, constant, on_node, samples, select, up

MISSING = "NodeHostMetricsMissing"
AVAILABLE, SIZE, READ_ONLY = (
    "node_filesystem_avail_bytes",
    "node_filesystem_size_bytes",
    "node_filesystem_readonly",
)
KILLS = "node_vmstat_oom_kill"
LOCAL = "~ext[234]|xfs|btrfs|zfs|f2fs"
"""File systems on disks of the node. A share of all nodes would alert on each of them."""
ALMOST_FULL, FILLING, HOURS = 0.05, 0.2, 4
"""Free share; free share and hours until none is left: judgement, as in github prometheus/node_exporter,
docs/node-mixin."""
JUDGEMENT = "judgement"


def rule_group(fleet: WatchedFleet) -> RuleGroup | None:
    """None where cluster.yaml has no group."""
    if not fleet.groups:
        return None
    group = fleet.groups[0]
    rules = (*_disks(fleet, group), *_memory(fleet, group), _absence(fleet, group))
    return RuleGroup(f"gpuprov-host-{fleet.cluster}", rules)


def _disks(fleet: WatchedFleet, group: WatchedGroup) -> Iterator[AlertRule]:
    def on_disk(metric: str, values: str) -> Series:
        return on_node(fleet, group, metric, values, device="/dev/nvme0n1p1", fstype="ext4", mountpoint="/")

    size = on_disk(SIZE, constant(100e9))
    free = f"{select(fleet, AVAILABLE, fstype=LOCAL)} / {select(fleet, SIZE, fstype=LOCAL)}"
    writable = f"{select(fleet, READ_ONLY, fstype=LOCAL)} == 0"  # a data set that nobody writes to may be full
    at = "{{ $labels.node }}: {{ $labels.mountpoint }}"
    yield AlertRule(
        name="NodeDiskAlmostFull",
        expr=f"{free} < {ALMOST_FULL} and {writable}",
        pending="15m",
        severity="ticket",
        summary=f"{at} has {{{{ $value | humanizePercentage }}}} of its space left",
        description="Jobs fail where they write, and so do logs and checks.",
        doc='runbook "storage.full"',
        command=VERIFY,
        basis=JUDGEMENT,
        firing=(size, on_disk(AVAILABLE, constant(2e9)), on_disk(READ_ONLY, constant(0))),
        silent=(size, on_disk(AVAILABLE, constant(2e9)), on_disk(READ_ONLY, constant(1))),
        fires_at_s=1020,
        twin=MISSING,
    )
    predicted = f"predict_linear({select(fleet, AVAILABLE, fstype=LOCAL)}[6h], {HOURS * 3600})"
    yield AlertRule(
        name="NodeDiskFilling",
        expr=f"{predicted} < 0 and {free} < {FILLING} and {writable}",
        pending="30m",
        severity="page",
        summary=f"{at} is full within {HOURS} hours, at the rate of the last 6 hours",
        description="Somebody writes more than there is room for: checkpoints, a core dump, a log. Find it with `du`.",
        doc='runbook "storage.full"',
        command="gpuprov exec FILE --node {{ $labels.node }} sudo du -xh --max-depth=2 {{ $labels.mountpoint }}",
        basis=JUDGEMENT,
        firing=(size, on_disk(AVAILABLE, f"15e9-5e7x{samples(7200)}"), on_disk(READ_ONLY, constant(0))),
        # one large file, after which nothing grows
        silent=(size, on_disk(AVAILABLE, f"21e9x40 17e9x{samples(LONG_S)}"), on_disk(READ_ONLY, constant(0))),
        fires_at_s=2400,
        twin=MISSING,
    )
    yield AlertRule(
        name="NodeDiskReadOnly",
        expr=f"{select(fleet, READ_ONLY, fstype=LOCAL, mountpoint='/')} == 1",
        pending="2m",
        severity="page",
        summary="{{ $labels.node }}: its root file system is read-only",
        description="The kernel has stopped writing after an error of the disk. The kernel log has the reason.",
        doc='runbook "storage.readonly"',
        command=VERIFY,
        firing=(on_disk(READ_ONLY, constant(1)),),
        silent=(on_disk(READ_ONLY, constant(0)),),
        fires_at_s=240,
        twin=MISSING,
    )
    yield AlertRule(
        name="NodeRaidDiskFailed",
        # A node without a RAID has no such series, and nothing tells which nodes must have one.
        expr=f"{select(fleet, 'node_md_disks', state='failed')} > 0",
        pending="2m",
        severity="page",
        summary="{{ $labels.node }}: {{ $value }} disks of {{ $labels.device }} have failed",
        description="Scratch is striped over all local disks: without one of them its files are lost.",
        doc='runbook "storage.raid"',
        command=VERIFY,
        firing=(on_node(fleet, group, "node_md_disks", constant(1), device="md127", state="failed"),),
        silent=(on_node(fleet, group, "node_md_disks", constant(0), device="md127", state="failed"),),
        fires_at_s=240,
        twin=MISSING,
    )


def _memory(fleet: WatchedFleet, group: WatchedGroup) -> Iterator[AlertRule]:
    yield AlertRule(
        name="NodeKilledForMemory",
        expr=f"increase({select(fleet, KILLS)}[15m]) > 0",
        pending="0s",
        severity="ticket",
        summary="{{ $labels.node }}: the kernel has killed a process for its memory",
        description="Memory of the node, or of the cgroup of a job, ran out. A job has lost a process, and may hang.",
        doc='runbook "log.oom"',
        command=VERIFY,
        firing=(on_node(fleet, group, KILLS, f"0x{samples(300)} 1x{samples(LONG_S)}"),),
        silent=(on_node(fleet, group, KILLS, constant(3)),),
        fires_at_s=420,
        twin=MISSING,
    )


def _absence(fleet: WatchedFleet, group: WatchedGroup) -> AlertRule:
    node_up, kills = up(fleet, group), on_node(fleet, group, KILLS, constant(0))
    size = on_node(fleet, group, SIZE, constant(1e9), fstype="ext4", mountpoint="/")
    both = f"({select(fleet, SIZE)} and on (cluster, node) {select(fleet, KILLS)})"
    return AlertRule(
        name=MISSING,
        expr=f"{select(fleet, 'up', job=NODE_JOB)} == 1 unless on (cluster, node) {both}",
        pending="5m",
        severity="ticket",
        summary="{{ $labels.node }}: node_exporter answers without its disks, or without counters of the kernel",
        description="Its collectors filesystem or vmstat are off, or fail: alerts on the host cannot fire.",
        doc='monitoring "What each node needs"',
        command="gpuprov exec FILE --node {{ $labels.node }} sudo journalctl -u gpuprov-node-exporter -n 50",
        firing=(node_up, size),
        silent=(node_up, size, kills),
        fires_at_s=360,
        counts_nan=True,
    )
