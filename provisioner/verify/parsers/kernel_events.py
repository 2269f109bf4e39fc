"""What the kernel says in its log when something breaks: one row for each kind of message, in the words of its source.

A row is searched in one line and never anchored: stamps, levels and host names of every style may stand before it.
`but` takes lines out that say the same of nothing that matters. Sources: the messages' own format strings in the kernel
tree (drivers/pci/pcie/aer.c, arch/x86/kernel/cpu/mce, drivers/edac, kernel/hung_task.c, kernel/watchdog.c,
mm/oom_kill.c, block/blk-core.c, drivers/nvme/host, drivers/iommu, mlx5/core/health.c, amdgpu) and in NVIDIA's open GPU
kernel modules, from memory (unverified) where no capture shows them.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

from provisioner.verify.parsers.stamps import stamp

PCI = r"(?:[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?|[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])"
_ADDRESS = re.compile(rf"(?<![0-9a-zA-Z:.,]){PCI}(?![0-9a-zA-Z])")
_MCELOG = r"(?:^|\bmcelog(?:\[\d+\])?: )"
"""mcelog writes the words for bit 61 of MCi_STATUS on a line of their own (github andikleen/mcelog p4.c,
decode_mci), in a file, on a terminal or through syslog."""
_DISK = re.compile(r"\b(?:dev(?:ice)?:? |block |\()((?:nvme|sd|vd|xvd|dm-|md)[0-9a-z]{0,12})\b")


class Kind(NamedTuple):
    """`words`: a line without any of them is not even searched; a log has thousands of lines, a fleet thousands of
    logs."""

    name: str
    words: tuple[str, ...]
    pattern: re.Pattern[str]
    but: re.Pattern[str] | None = None


def _kind(name: str, keywords: tuple[str, ...], *patterns: str, but: str = "") -> Kind:
    return Kind(name, keywords, re.compile("|".join(patterns)), re.compile(but) if but else None)


KINDS: tuple[Kind, ...] = (
    _kind(
        "rm_init",
        ("NVRM", "nvidia: probe", "driver nvidia failed"),
        r"NVRM: .*\bRmInitAdapter failed",
        r"NVRM: .*rm_init_adapter failed",
        r"NVRM: The NVIDIA probe routine (?:failed|was not called for)",
        r"NVRM: No NVIDIA (?:graphics adapter|GPU|devices?) (?:probed|found)",
        r"NVRM: None of the NVIDIA (?:graphics )?(?:adapters|devices) were initialized",
        r"\bnvidia: probe of \S+ failed with error",
        r"\bnvidia \S+: probe with driver nvidia failed with error",  # Linux 6.12 and later
        r"NVRM: .*does not include the required GPU System Processor",
        r"NVRM: .*requires use of the NVIDIA open kernel modules",
        r"NVRM: BAR\d is 0M @ 0x0",
        r"NVRM:? .*Cannot initialize GSP firmware RM",  # branches 515 and 520 leave the colon away
        # github NVIDIA/open-gpu-kernel-modules#789, #1230, NVIDIA/nvtrust#77: what comes before it, or stays alone
        r"NVRM:? .*(?:failed to wait for GFW_?BOOT|unexpected WPR2 already up|\bkfsp\w+: Timed out waiting|"
        r"Timeout waiting for RISC-V to halt)",
    ),
    _kind(
        "gsp_timeout",
        ("NVRM",),
        r"NVRM: (?!Xid).*\b(?:rpcRecvPoll|_?issueRpcAndWait\w*|_?kgspRpcRecvPoll\w*)\b.*(?:time(?:d ?)?out|0x65|"
        r"failed)",
        r"NVRM: (?!Xid).*GSP\b.*\b(?:crash|panic|hang|halted|heartbeat .*(?:lost|timed out))",
        # kernel_gsp.c, _kgspIsHeartbeatTimedOut and _kgspLogRpcTimeout; github open-gpu-kernel-modules#1230
        r"NVRM: (?!Xid).*(?:\b[Hh]eartbeat timed out|\*{4,} GSP Timeout \*{4,})",
        # github scitix/sichek#51: no program can use the GPU any more, and there is no Xid
        r"NVRM: (?!Xid).*\bNV_ERR_RESET_REQUIRED\b",
        r"NVRM: .{0,20}\b[Uu][Vv][Mm]\b.* global fatal error|nvidia-uvm: .*[Ee]ncountered a global fatal error",
    ),
    _kind(
        "nvlink",
        ("nvidia-nvlink", "nvidia-nvswitch", "NVRM"),
        r"(?:nvidia-nvlink|nvidia-nvswitch\d*|NVRM: k?nvlink\w*|NVRM: .*NVLink).*"
        r"(?:\bfatal\b|[Tt]raining failed|failed to train|[Ll]ink failure|Fatal [Ee]rror)",
        # The fabric manager runs and every GPU says Completed and Success; only a reset of all GPUs helps.
        r"NVRM: .*(?:NV_ERR_FABRIC_STATE_OUT_OF_SYNC|NVLink fabric state cached by the driver is out of sync)",
        r"NVRM: knvlink\w+: (?:Failed to update Rx Detect Link mask|Getting peer\d+(?:'s)? postRxDetLinkMask failed)",
        but=r"SXid|Xid \(|non-fatal|Non-fatal",
    ),
    _kind("peermem", ("peermem",), r"nvidia[-_]peermem\b.*ERROR detected invalid context"),
    _kind("pcie_fatal_message", ("AER",), r"AER: (?:Multiple )?Uncorrect(?:ed|able) \(Fatal\)"),
    _kind(
        "pcie_fatal",
        ("AER", "PCIe Bus", "DPC"),
        r"PCIe Bus Error: severity=Uncorrect(?:ed|able) \(Fatal\)",
        r"pcieport \S+ DPC: containment event",
        r"AER: (?:device|subordinate device reset|broadcast).*recovery failed|AER: can't recover",
    ),
    _kind("pcie_uncorrected_message", ("AER",), r"AER: (?:Multiple )?Uncorrect(?:ed|able)(?! \(Fatal\))"),
    _kind("pcie_uncorrected", ("PCIe Bus",), r"PCIe Bus Error: severity=Uncorrect(?:ed|able)(?! \(Fatal\))"),
    _kind("pcie_corrected_message", ("AER",), r"AER: (?:Multiple )?Correct(?:ed|able) error"),
    _kind("pcie_corrected", ("PCIe Bus",), r"PCIe Bus Error: severity=Correct(?:ed|able)"),
    _kind(
        "machine_check_fatal",
        ("EDAC", "emory failure", "Hardware Error", "mce:", "panic", "ncorrected error"),
        r"\bEDAC \S+: \d+ UE\b",
        r"[Mm]emory failure: 0x[0-9a-f]+: (?:recovery action .*(?:Failed|Ignored)|already hardware poisoned|Killing)",
        r"\[Hardware Error\]: event severity: (?:fatal|recoverable)",
        # EPYC processors, as edac_mce_amd tells them
        r"\[Hardware Error\]: (?:Uncorrected, software|System Fatal error)",
        r"\[Hardware Error\]: CPU:\d+ .*MC\d+_STATUS\[[^\]]*\bUE\b",
        r"mce: Uncorrected hardware memory error",
        # MCi_STATUS is valid (bit 63) and uncorrected (61): Intel SDM 3B, 16.3.2.2
        r"\[Hardware Error\]: CPU \d+: Machine Check(?: Exception)?: .*[Bb]ank \d+: [abef][0-9a-f]{14,15}\b",
        r"[Kk]ernel panic - not syncing: .*[Mm]achine check",
        rf"{_MCELOG}Uncorrected error\s*$",
    ),
    _kind(
        "machine_check_corrected",
        ("EDAC", "Hardware Error", "Corrected error"),
        rf"{_MCELOG}Corrected error\s*$",
        r"\bEDAC \S+: \d+ CE\b",
        r"mce: \[Hardware Error\]: Machine check events logged",
        r"\[Hardware Error\]: event severity: corrected",
        r"\[Hardware Error\]: (?:Corrected|Deferred) error",
        but=r"EDAC \S+: 0 [CU]E\b",
    ),
    _kind(
        "oom",
        ("Out of memory", "oom-kill"),
        r"Out of memory: Kill(?:ed)? process",
        r"oom-kill:constraint=CONSTRAINT_(?:NONE|CPUSET|MEMORY_POLICY)",
        but=r"Memory cgroup out of memory",
    ),
    _kind(
        "oom_cgroup",
        ("Memory cgroup out of memory", "oom-kill"),
        r"Memory cgroup out of memory: Kill(?:ed)? process",
        r"oom-kill:constraint=CONSTRAINT_MEMCG",
    ),
    _kind("hung_task", ("blocked",), r"INFO: task \S+:\d+ (?:\S+ )?blocked (?:in I/O wait )?for more than \d+ seconds"),
    _kind(
        "hard_lockup",
        ("LOCKUP", "hard lockup"),
        r"[Ww]atchdog detected hard LOCKUP|Watchdog: .*hard LOCKUP|BUG: .*hard lockup",
    ),
    _kind(
        "soft_lockup",
        ("lockup", "rcu"),
        r"BUG: soft lockup - CPU#\d+ stuck",
        r"rcu: INFO: rcu_\w+ (?:self-)?detected (?:expedited )?stalls?",
        r"INFO: rcu_\w+ (?:self-)?detected stalls? on",
    ),
    _kind(
        "kernel_bug",
        ("BUG", "Oops", "protection fault", "panic"),
        r"\bkernel BUG at \S+:\d+!",
        r"BUG: unable to handle (?:kernel |page fault)",
        r"BUG: kernel NULL pointer dereference",
        r"\bOops: [0-9a-f#]+ ",
        r"general protection fault, (?:probably|maybe) for",
        r"Kernel panic - not syncing",
        but=r"machine check|Machine check",
    ),
    # __warn and __WARN_printf in kernel/panic.c and lib/bug.c, until Linux 6.17 and since; the function with its module
    # as %pS prints it. A WARN in the kernel's own code that the driver has called names no module: follow_pte, say
    # (github NVIDIA/open-gpu-kernel-modules#719), and those go by themselves with newer kernels.
    _kind(
        "driver_warning",
        ("WARNING: ",),
        r"WARNING: CPU: \d+ PID: \d+ at \S+:\d+ \S+ \[nvidia(?:[_-](?:uvm|peermem))?\]",
        r"WARNING: \S+:\d+ at \S+ \[nvidia(?:[_-](?:uvm|peermem))?\]",
    ),
    _kind(
        "io_error",
        ("rror", "nvme", "Disk failure", "orruption"),
        r"(?:blk_update_request: |print_req_error: )?\bI/O error, dev (?:nvme|sd|vd|xvd|dm-|md)",
        r"\bcritical (?:medium|target|space allocation) error, dev ",
        r"Buffer I/O error on dev(?:ice)? (?:nvme|sd|vd|xvd|dm-|md)",
        r"nvme nvme\d+: (?:controller is down|Device not ready; aborting|Removing after probe failure|"
        r"Disabling device after reset failure|frozen state error)",
        r"\bblock nvme\d+n\d+: no available path - failing I/O",  # drivers/nvme/host/multipath.c
        r"\bnvme \S+ Unable to change power state from \S+ to D0, device inaccessible",  # pci.c
        r"md/raid\S*: .*Disk failure on",
        r"EXT4-fs error \(device",
        r"XFS \(\S+\): (?:[Mm]etadata (?:I/O error|corruption)|[Cc]orruption (?:of|warning|detected))",
        r"BTRFS (?:error|critical) \(device",
    ),
    _kind(
        "io_timeout",
        ("nvme",),
        r"nvme nvme\d+: (?:I/O (?:tag )?\d+ .*timeout|Abort status: 0x[0-9a-f]*[1-9a-f])",
        r"\bblock nvme\d+n\d+: no usable path - requeuing I/O",
    ),
    _kind(
        "network_fs",
        ("nfs", "NFS", "lockd", "Lustre", "ceph"),
        # net/sunrpc/clnt.c, fs/nfs/nfs4proc.c, fs/lockd/clntproc.c, fs/nfs/write.c
        r"\bnfs: server \S+ not responding",
        r"NFS: .*(?:[Ll]ock reclaim failed|state manager .*failed)",
        r"lockd: (?:failed to reclaim lock|server \S+ not responding)",
        r"NFS: nfs\w* writeback .*(?:hang|error)",
        # lustre/ptlrpc: import.c
        r"Lustre: \S+ Connection to \S+ .*was lost",
        r"LustreError: .*(?:evicted|was evicted)",
        r"libceph: (?:mon|osd|mds)\d+ .*(?:session lost|socket closed|hunting)",
        r"\bceph: .*\bmds\d+ hung\b",  # fs/ceph/mds_client.c
    ),
    _kind(
        "fs_readonly",
        ("read-only", "readonly", "journal", "XFS"),
        r"Remounting filesystem read-only",
        r"Aborting journal on device",
        r"XFS \(\S+\): .*(?:Shutting down filesystem|xfs_do_force_shutdown|"
        r"Filesystem has been shut down|Log I/O Error)",
        r"BTRFS.*forced readonly",
    ),
    _kind(
        "segfault",
        ("segfault", "traps:"),
        r"\bsegfault at [0-9a-f]+ ip ",
        r"traps: \S+\[\d+\] (?:general protection|trap)",
    ),
    _kind(
        "nic",
        ("mlx", "ena ", "bnxt_en"),
        r"mlx[45]_\w+ .*device's health compromised",
        r"mlx[45]_\w+ .*(?:unrecoverable|Fatal error \d+ detected|handling bad device|"
        r"health recovery f(?:ailed|low aborted))",
        r"mlx[45]_\w+ .*timeout\. Will cause a leak of a command resource",
        r"mlx[45]_\w+ .*(?:firmware (?:fatal|internal) error|internal hardware error|irrecoverable)",
        r"\bmlx4_core .*Internal error detected",
        r"\bena \S+ .*(?:Keep alive watchdog timeout|[Dd]evice reset failed|Trigger reset is on)",
        r"\bbnxt_en \S+ .*Firmware not responding, status: 0x[0-9a-f]+",  # bnxt.c
        r"\bmlx[45]_\w+ \S+ Unable to change power state from \S+ to D0, device inaccessible",  # pci.c
    ),
    _kind(
        "nic_warning",
        ("mlx", "NETDEV", "efa ", "infiniband "),
        r"mlx[45]_\w+ .*(?:[Hh]igh [Tt]emperature|temperature warning|Bad or shorted cable|Cable error)",
        # mlx5/core/cmd.c: each command that got no answer keeps its entry, and there are 32
        r"mlx5_\w+ .*(?:failed to allocate command entry|canceled on out of queue timeout)",
        r"mlx5_\w+ .*\w+\(0x[0-9a-f]+\) (?:No done completion|Async, )?.*\btimeout\b(?!\. Will cause a leak)",
        # drivers/infiniband/hw/efa/efa_com.c, as ibdev_err prints it: driver, address, device
        r"\b(?:efa \S+ \S+|infiniband (?:rdmap|efa)\S+): (?:Failed to (?:submit|process) command|"
        r"Wait for completion \(\w+\) timeout|The device (?:didn't send any|sent a) completion)",
        # dev_watchdog in net/sched/sch_generic.c: until Linux 6.7; since then driver and device stand before it
        r"NETDEV WATCHDOG: (?:\S+ \((?:mlx5_core|mlx4_en|ena|bnxt_en|ice)\)|CPU: \d+): transmit queue \d+ timed out",
    ),
    _kind("nic_power", ("mlx5",), r"mlx5_\w+ .*[Dd]etected insufficient power on the PCIe slot"),
    # mlx5_cmd_check, later mlx5_cmd_out_err in drivers/net/ethernet/mellanox/mlx5/core/cmd.c
    _kind("nic_register", ("ACCESS_REG",), r"mlx5_\w+ .*: ACCESS_REG\(0x805\) op_mod\(0x[0-9a-f]+\) failed"),
    _kind(
        "iommu_fault",
        ("DMAR", "AMD-Vi", "arm-smmu"),
        r"DMAR: \[(?:DMA|INTR-REMAP)[^\]]*\].*(?:fault|Request device)",
        r"AMD-Vi: Event logged \[(?:IO_PAGE_FAULT|INVALID_DEVICE_REQUEST|"
        r"ILLEGAL_DEV_TABLE_ENTRY|DEV_TAB_HARDWARE_ERROR)",
        r"AMD-Vi: Completion-Wait loop timed out",
        r"arm-smmu-v3 \S+ event 0x[0-9a-f]+ received",
        but=r"\[Firmware Bug\]",
    ),
    _kind(
        "amd_ring_timeout",
        ("amdgpu", "VRAM is lost"),
        r"amdgpu.*\bring \S+ timeout",
        r"amdgpu.*GPU reset ?(?:begin|\(\d+\) failed|failed)",
        r"amdgpu.*qcm fence wait loop timeout expired",
        r"amdgpu.*(?:Failed to (?:reset|recover)|device lost|wedged(?!, but recovered))",  # drm_drv.c
        r"amdgpu.*MES (?:failed to respon(?:d to|se) msg=|might be in unrecoverable state)",  # mes_v11_0.c
        r"amdgpu.*SMU: I'm not done with your previous command",  # smu_cmn.c; github ROCm/ROCm#2196
        r"\bVRAM is lost due to GPU reset",
        but=r"GPU reset\(?\d*\)? succeeded",
    ),
    # smu_v11_0.c, smu_v13_0_6_ppt.c; github ROCm/ROCm#1468
    _kind("amd_throttle", ("amdgpu",), r"amdgpu.*thermal throttling temperature reached"),
    _kind(
        "amd_ras",
        ("amdgpu",),
        r"amdgpu.*\b[1-9]\d* (?:new )?uncorrectable hardware errors? detected",
        r"amdgpu.*uncorrectable hardware error ?\(ERREVENT_ATHUB_INTERRUPT\) detected",  # github ROCm/ROCm#1886
        r"amdgpu.*RAS records:\s*\d+ exceed threshold:\s*\d+",  # amdgpu_ras_eeprom.c
        r"amdgpu.*(?:RAS poison|poison consumption|poison is consumed|Poison is created|"
        r"[Ff]atal error (?:occurred|detected)|uncorrectable (?:ECC )?error|RMA threshold|reached bad page threshold|"
        r"Saved bad pages \d+ reaches threshold)",
        r"amdgpu.*socket: \d+,? die: \d+,? .*\b[1-9]\d* (?:new )?deferred hardware errors",
    ),
    _kind(
        "amd_init",
        ("amdgpu",),
        r"amdgpu.*(?:Fatal error during GPU init|amdgpu_device_ip_init failed|probe .*failed with error)",
        r"amdgpu.*\*ERROR\* [sh]w_init of IP block .*failed",
        # amdgpu_device.c, amdgpu_psp.c; github ROCm/amdgpu#183, ROCm/ROCm#2747, #2995
        r"amdgpu.*(?:resume of IP block .*failed|amdgpu_device_ip_resume failed)",
        r"amdgpu.*PSP (?:create ring|firmware loading) failed",
    ),
)
"""Every kind, in the order in which a line is tried; a line belongs to the first that it fits."""

LIMITED = re.compile(
    rf"(?:^|[^0-9a-fA-F:])({PCI}): ([0-9.]+) Gb/s available PCIe bandwidth, limited by .*? PCIe x([0-9]+) link at \S+"
    r" \(capable of ([0-9.]+) Gb/s with .*?PCIe x([0-9]+) link\)"
)
FLAP = re.compile(
    r"(?:^|[\s\]:;])((?:ib|eth|ens|eno|enp|enP|rdma|roce|mlx)[A-Za-z0-9_]{0,14}): "
    r"(?:lost carrier|Link down|NIC Link is Down)",
    re.I,
)
_WORDS = tuple(dict.fromkeys(keyword for kind in KINDS for keyword in kind.words))


@dataclass(frozen=True, slots=True)
class Event:
    """All lines of one kind about one device. `where` is a PCI address or a disk as printed, or "" where none is named;
    `text` is the end of the first of them; `last` the stamp of the last one (stamps.stamp), None where a line has none:
    nobody knows then when it was."""

    kind: str
    where: str
    count: int
    text: str
    last: float | None = None


def events(rows: list[str]) -> tuple[Event, ...]:
    """What is in the log, each kind and device once, in the order of first mention."""
    counts: dict[tuple[str, str], int] = {}
    texts: dict[tuple[str, str], str] = {}
    last: dict[tuple[str, str], float | None] = {}
    for index, keywords in sorted(_rows_with_words(rows).items()):
        row = rows[index]
        for kind, device, text in _messages(row, keywords):
            counts[kind, device] = counts.get((kind, device), 0) + 1
            texts.setdefault((kind, device), text)
            at = stamp(row)
            known_before = last.get((kind, device), at)
            last[kind, device] = at if at is None or known_before is None else max(at, known_before)
    # AER announces an error in one line and describes it in another: the description counts where there is one.
    described = {name for name, _ in counts}
    entries = []
    for (name, device), count in counts.items():
        plain = name.removesuffix("_message")
        if plain == name or plain not in described:
            entries.append(Event(plain, device, count, texts[name, device], last[name, device]))
    return tuple(entries)


def _rows_with_words(rows: list[str]) -> dict[int, tuple[str, ...]]:
    """Index of a row → those of _WORDS that are in it, in their order; rows without any are left out. Each word is
    looked for once in the whole log."""
    log_text = "\n".join(rows)
    ends = list(accumulate(len(row) + 1 for row in rows))
    by_row: dict[int, tuple[str, ...]] = {}
    for keyword in _WORDS:
        at = log_text.find(keyword)
        while at >= 0:
            index = bisect_right(ends, at)
            by_row[index] = (*by_row.get(index, ()), keyword)
            at = log_text.find(keyword, ends[index])
    return by_row


def known(row: str) -> bool:
    """Whether a row is of one of KINDS, or is a link that went down."""
    return (
        bool(_messages(row, tuple(keyword for keyword in _WORDS if keyword in row)))
        or FLAP.search(row) is not None
        or LIMITED.search(row) is not None
    )


@lru_cache(2048)
def _messages(row: str, keywords: tuple[str, ...]) -> tuple[tuple[str, str, str], ...]:
    """(kind, device, text) of each message in a row that has these of _WORDS. What stands in a log stands there again
    after the load."""
    messages = []
    for part, present in _apart(row, list(keywords)):
        for kind in _kinds_with(present):
            match = kind.pattern.search(part)
            if match is None or (kind.but is not None and kind.but.search(part)):
                continue
            messages.append((kind.name, _device_of(part, match.start()), plain_message(part)))
            break
    return tuple(messages)


CROWD = 16
"""Times that one message has a word of KINDS at most. Patterns start at each of them and look on to the end of the
line, so that a line of nothing else would take its length squared."""


@lru_cache(1024)
def _kinds_with(keywords: frozenset[str]) -> tuple[Kind, ...]:
    return tuple(kind for kind in KINDS if not keywords.isdisjoint(kind.words))


def _apart(row: str, keywords: list[str]) -> Iterator[tuple[str, frozenset[str]]]:
    """A row with those of the words that are in it, where any is; what crowds a word is taken for that many messages,
    each from that word on."""
    present = frozenset(keyword for keyword in keywords if keyword in row)
    if not present:
        return
    crowded = next((keyword for keyword in keywords if keyword in present and row.count(keyword) > CROWD), None)
    if crowded is None:
        yield row, present
        return
    for part in row.replace(crowded, "\n" + crowded).split("\n"):
        yield from _apart(part, [keyword for keyword in keywords if keyword != crowded or part.startswith(keyword)])


def _device_of(row: str, start: int) -> str:
    """The device that a line is about: the last PCI address before the message or the first in it, else a disk."""
    addresses = list(_ADDRESS.finditer(row[:start]))
    if addresses:
        return addresses[-1][0]
    if match := _ADDRESS.search(row, start):
        return match[0]
    disk = _DISK.search(row)
    return disk[1] if disk else ""


def plain_message(row: str) -> str:
    """The message without what stands before it."""
    text = re.sub(r"^.*?\bkernel: ", "", row)
    text = re.sub(
        r"^(?:<\d+>|\w+\s*:\w+\s*: |\d+,\d+,\d+,[^;]*;|\[(?:[^\[\]]|\[[^\]]*\])*\]\s*|\d{4}-\d\d-\d\dT\S+ )+", "", text
    )
    return text.strip()[:160]
