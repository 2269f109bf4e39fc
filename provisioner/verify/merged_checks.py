"""Checks that are reported under one name: one cause, or one kind of repair, has one voice.

Each part is judged by itself, with its own files and causes (check.py); `merge` is the step after results.blame. Only
checks that condemn nobody are parts: what condemns is named by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from provisioner.common.text import counted
from provisioner.verify.check import ACTIONS, Severity
from provisioner.verify.results import CheckResult, Status


@dataclass(frozen=True, slots=True)
class MergedCheck:
    """`says` is the sentence where several parts fail; where one does, its own is shown. `parts`: ids of checks."""

    id: str
    says: str
    parts: tuple[str, ...]


MERGED = (
    MergedCheck(
        "amd.mixed",
        "The GPUs of the node are not alike in firmware, VBIOS or memory: a board was changed.",
        ("amd.firmware", "amd.vbios", "amd.memory_vendor"),
    ),
    MergedCheck(
        "bmc.health",
        "The BMC warns of a part of the machine: fans, supplies, temperatures, or what it calls its health.",
        ("bmc.health", "bmc.conditions", "bmc.temperatures", "bmc.fans", "bmc.supplies"),
    ),
    MergedCheck(
        "bmc.power",
        "The machine is not on as it should be, or the site draws more than its budget.",
        ("bmc.power", "bmc.power_budget"),
    ),
    MergedCheck(
        "bmc.settings",
        "A setting of the BMC or the BIOS is not what GPU work needs, or was left behind.",
        ("bmc.bios", "bmc.boot_override", "bmc.virtual_media"),
    ),
    MergedCheck(
        "dcgm.warning",
        "DCGM warns of a GPU and condemns none: watch it.",
        ("dcgm.health_warning", "dcgm.diag_warning"),
    ),
    MergedCheck(
        "fleet.differs",
        "The node differs from its group in firmware, BIOS, kernel or board. Finish what was begun or undo it.",
        (
            "fleet.vbios", "fleet.inforom", "fleet.nic_firmware", "fleet.nic_board", "fleet.transceivers",
            "fleet.firmware", "fleet.bios", "fleet.bios_settings", "fleet.dgx_os", "fleet.kernel", "fleet.cmdline",
            "fleet.cpu_model", "fleet.memory", "rdma.firmware", "rdma.transceivers",
        ),
    ),
    MergedCheck(
        "fleet.names",
        "Names or keys of the node are not its own, or lead elsewhere: nodes are taken for each other.",
        ("fleet.host_keys", "fleet.hostname", "fleet.machine_id", "host.hostname"),
    ),
    MergedCheck(
        "fleet.network_differs",
        "The node's network is set up in another way than that of its group.",
        (
            "fleet.mtu", "fleet.link_speed", "fleet.links", "fleet.rdma_mtu", "fleet.gid_index", "fleet.pkeys",
            "fleet.ipoib", "fleet.device_names", "fleet.topology",
        ),
    ),
    MergedCheck(
        "gpu.heat",
        "GPUs are hotter than they should be. Look at fans, filters and air flow.",
        ("gpu.temperature", "gpu.memory_temperature", "fleet.hot", "load.temperature", "load.temperature_spread"),
    ),
    MergedCheck(
        "gpu.identity",
        "Two GPUs have one name, serial number or device: what picks GPUs by it takes the wrong one.",
        ("gpu.uuids_unique", "gpu.serials_unique", "gpu.minor_numbers", "amd.unique_ids"),
    ),
    MergedCheck(
        "gpu.memory_wear",
        "GPU memory has mended errors, more than healthy memory has: watch it.",
        ("gpu.ecc_corrected", "gpu.page_retirements", "gpu.remap_bank"),
    ),
    MergedCheck(
        "gpu.settings",
        "Clocks, power limit or a mode of the GPUs is not the default: somebody has set it.",
        ("gpu.clocks", "gpu.compute_mode", "gpu.power_limit", "gpu.pending_modes"),
    ),
    MergedCheck(
        "host.busy",
        "Somebody works on the node, or works it, outside of any job that is known here.",
        ("host.load", "host.users", "gpu.utilization", "gpu.processes"),
    ),
    MergedCheck(
        "host.clock",
        "The node's clock is not kept as it should be: logs, certificates and timeouts go wrong.",
        ("host.time_sync", "host.time_offset", "host.clock", "host.clocksource", "fleet.clock"),
    ),
    MergedCheck(
        "host.memory_corrected",
        "Memory errors were corrected, more than healthy memory has: watch the module.",
        ("host.memory_corrected", "log.machine_check_corrected"),
    ),
    MergedCheck(
        "host.next_boot",
        "The next boot will not come up as this one, or a reboot is due. Reboot in a pause, and verify.",
        (
            "host.reboot_required", "host.kernel_next", "driver.vermagic", "driver.headers", "driver.signature",
            "driver.kernels", "kernel.hold",
        ),
    ),
    MergedCheck(
        "host.resources",
        "The node runs short of memory, processes or open files, or processes hang in the kernel.",
        ("host.memory_free", "host.fragmentation", "host.zombies", "host.dstate", "host.pids", "host.file_handles"),
    ),
    MergedCheck(
        "host.settings",
        "Settings of the node are not as `gpuprov up` left them. `gpuprov up` sets them again.",
        (
            "host.governor", "host.thp", "host.numa_balancing", "host.hugepages", "host.map_count", "host.shm",
            "host.swap", "host.environment", "limits.nofile", "limits.nproc", "limits.stack",
            "container.live_restore", "container.cgroup", "container.storage", "driver.params", "gpu.persistence",
        ),
    ),
    MergedCheck(
        "log.kernel",
        "The kernel complained of tasks, storage or memory in the last day.",
        ("log.hung_task", "log.soft_lockup", "log.io_timeout", "log.network_fs", "log.oom"),
    ),
    MergedCheck(
        "log.network",
        "A network card or its link complained in the kernel log in the last day.",
        ("log.nic_warning", "log.link_flap", "log.nic_power", "log.nic_register"),
    ),
    MergedCheck(
        "log.pcie",
        "PCIe errors or a narrow link are in the kernel log of the last day.",
        ("log.pcie_uncorrected", "log.pcie_corrected", "log.pcie_link_limited", "log.iommu_fault"),
    ),
    MergedCheck(
        "net.reach",
        "The node does not reach names or package sources that it needs.",
        ("net.lookup", "net.sources", "host.dns"),
    ),
    MergedCheck(
        "packages.drift",
        "Packages are not as `gpuprov up` left them (held, sources, upgrades, unfinished).",
        ("packages.held", "packages.unattended", "packages.sources", "packages.unfinished"),
    ),
    MergedCheck(
        "pcie.affinity",
        "GPUs, network cards and memory are not near each other as the machine type has them.",
        ("gpu.numa_affinity", "gpu.nic_affinity", "host.numa", "ib.rails"),
    ),
    MergedCheck(
        "pcie.replay",
        "PCIe transfers are repeated: a link that is going bad. Watch it under load.",
        ("gpu.pcie_replay", "load.pcie_replay", "amd.pcie_replay"),
    ),
    MergedCheck(
        "pcie.settings",
        "PCIe ACS or the IOMMU is on where GPUs talk to each other directly: transfers take a detour.",
        ("pcie.acs", "pcie.iommu"),
    ),
    MergedCheck(
        "rdma.counters",
        "A port of the network for training counts errors or lost links. Look at cable and switch port.",
        ("rdma.errors", "rdma.carrier", "efa.drops"),
    ),
    MergedCheck(
        "rdma.setup",
        "The network for training is not set up as it should be. `gpuprov up` sets up what is the node's.",
        ("rdma.driver", "rdma.gid_index", "rdma.modules", "rdma.mtu", "rdma.pkeys_alike", "rdma.ports"),
    ),
    MergedCheck(
        "security.policy",
        "The node is more open than it has to be. It works; close what nobody needs.",
        (
            "security.ssh_root", "security.ssh_password", "security.root_password", "security.hostengine_exposed",
            "security.exporter_exposed", "security.open_ports", "cloud.metadata_token", "bmc.password",
        ),
    ),
    MergedCheck(
        "speed.clock",
        "GPUs run at lower clocks or power at work than they should. Look at power limits and cooling.",
        ("load.clock", "load.pstate", "load.power", "baseline.clock"),
    ),
    MergedCheck(
        "speed.compute",
        "Matrix products are slower than those of the node's other GPUs, its group or its own record.",
        ("load.compute", "load.sustained", "fleet.slow_compute", "baseline.compute"),
    ),
    MergedCheck(
        "speed.host_copy",
        "Copies between host and GPU are slower than in the group or the fleet's own record.",
        ("fleet.slow_host_copy", "baseline.host_copy"),
    ),
    MergedCheck(
        "speed.memory",
        "GPU memory is slower than that of the node's other GPUs, its group or its own record.",
        ("load.memory", "fleet.slow_memory", "baseline.memory"),
    ),
    MergedCheck(
        "speed.scratch",
        "Scratch is slower than its disks, its group or the fleet's own record. Look for one slow disk.",
        (
            "storage.bandwidth", "storage.latency", "fleet.slow_scratch", "baseline.scratch_iops",
            "baseline.scratch_read", "baseline.scratch_write",
        ),
    ),
    MergedCheck(
        "speed.training",
        "The reference model trains slower than in the group or in the fleet's own record.",
        ("fleet.slow_training", "baseline.training"),
    ),
    MergedCheck(
        "storage.space",
        "A file system of the system is nearly full.",
        ("storage.root_space", "storage.inodes"),
    ),
    MergedCheck(
        "storage.wear",
        "A disk is worn, or counts errors of its medium. Replace it in a pause.",
        ("storage.nvme_wear", "storage.media_errors"),
    ),
)  # fmt: skip

ORDER: tuple[Status, ...] = ("fail", "note", "unknown", "pass", "skip")
"""The status of the first of these that a part has is that of all."""


@cache
def by_id() -> dict[str, MergedCheck]:
    return {merged.id: merged for merged in MERGED}


@cache
def by_part() -> dict[str, MergedCheck]:
    """The check under whose name each part is reported."""
    return {part: merged for merged in MERGED for part in merged.parts}


def reported(check: str) -> str:
    """The name under which a check is reported."""
    return by_part()[check].id if check in by_part() else check


class Merger:
    """Merges the results of a fleet's nodes: what is the same of many is merged once, and stays one object."""

    def __init__(self) -> None:
        self._notes: dict[int, tuple[CheckResult, CheckResult]] = {}
        self._merged: dict[tuple[int, ...], tuple[list[CheckResult], CheckResult]] = {}
        """By the ids of what was given, which is kept with what came of it: no other object has its id then."""

    def merge(self, results: Iterable[CheckResult]) -> list[CheckResult]:
        """Results as they are reported: what only informs and has something to say is a note, and parts are one result
        where the first of them stands."""
        merged, parts_by_check = by_part(), dict[str, list[CheckResult]]()
        for number, original in enumerate(results):
            result = self._note(original) if original.severity == "info" and original.status == "fail" else original
            check = merged.get(result.id)
            parts_by_check.setdefault(check.id if check else f"{number} {result.id}", []).append(result)
        return [self._merge_parts(parts) if parts[0].id in merged else parts[0] for parts in parts_by_check.values()]

    def _note(self, result: CheckResult) -> CheckResult:
        if id(result) not in self._notes:
            self._notes[id(result)] = result, replace(result, status="note", action="none")
        return self._notes[id(result)][1]

    def _merge_parts(self, parts: list[CheckResult]) -> CheckResult:
        key = tuple(map(id, parts))
        if key not in self._merged:
            self._merged[key] = parts, _merged(by_part()[parts[0].id], parts)
        return self._merged[key][1]


def merge(results: Iterable[CheckResult]) -> list[CheckResult]:
    """Of one node (Merger.merge)."""
    return Merger().merge(results)


def _merged(check: MergedCheck, parts: Sequence[CheckResult]) -> CheckResult:
    status = min((part.status for part in parts), key=ORDER.index)
    deciding = [part for part in parts if part.status == status]
    telling = deciding if status in ("fail", "unknown", "note") else []
    notes = [part for part in parts if part.status == "note"] if status == "fail" else []
    severity: Severity = "info" if all(part.severity == "info" for part in deciding) else "warn"
    alone = deciding[0] if len(deciding) == 1 and not notes else None
    messages = dict.fromkeys(part.message or part.says for part in telling)
    return CheckResult(
        check.id,
        severity,
        status,
        max((part.action for part in deciding), key=ACTIONS.index),
        alone.says if alone is not None and telling else check.says,
        alone.expected if alone is not None else {part.id: part.expected for part in telling} or None,
        alone.actual if alone is not None else _actual(telling, notes),
        "; ".join(messages) + (f" ({counted(len(notes), 'note')} beside it)" if notes else "")
        if telling
        else _common(parts),
        next((part.unread for part in deciding if part.unread), ""),
        deciding[0].explained_by if all(part.explained_by for part in deciding) else "",
        parts=tuple(part.id for part in telling),
    )


def _actual(telling: Sequence[CheckResult], notes: Sequence[CheckResult]) -> dict[str, Any] | None:
    """What each part saw; of a note what it says."""
    actual_by_part = {part.id: part.actual for part in telling} | {part.id: part.message or part.says for part in notes}
    return actual_by_part or None


def _common(parts: Sequence[CheckResult]) -> str:
    """The reason that all have, of what was skipped; that a higher level would answer a part; else nothing."""
    messages = {part.message for part in parts}
    return next((part.message for part in parts if part.later), messages.pop() if len(messages) == 1 else "")
