"""Faults of GPUs, NVLink, PCIe, the driver's files and the kernel log: rows like those of fault_list.py.

What nvidia-smi prints is replaced in its place (`printed`: path of the element → text), so that each is one cause.
"""

from __future__ import annotations

from provisioner.sandbox.fault_list import (
    INFINIBAND,
    Change,
    Fault,
    Json,
    _anywhere,
    _first_port,
    _gpus,
    _has_ecc,
    _has_links,
    _kind,
    _log,
    _nvidia,
)
from provisioner.sandbox.sources import variant

REASON = "clocks_event_reasons/clocks_event_reason_hw_"


def _shows_link(machine: Json) -> bool:
    """The kernel shows the PCIe links of its InfiniBand cards; a virtual function has none to show."""
    return any(nic["kind"] == "infiniband" and "pcie" in nic for nic in machine["nics"])


def _narrow_link(machine: Json, _gpu: int) -> None:
    speed, lanes, maximum = machine["nics"][0]["pcie"]
    machine["nics"][0]["pcie"] = [speed, str(int(lanes) // 2), maximum]


def _printed(**values: str) -> Change:
    """`a__b="x"`: the element a/b of one GPU reads x."""

    def change(machine: Json, gpu: int) -> None:
        elements = {path.replace("__", "/"): value for path, value in values.items()}
        machine["gpus"][gpu].setdefault("printed", {}).update(elements)

    return change


def _throttle(*reasons: str) -> Change:
    def change(machine: Json, gpu: int) -> None:
        for reason in reasons:
            machine["gpus"][gpu].setdefault("printed", {})[REASON + reason] = "Active"

    return change


def _at_first(*reasons: str) -> Change:
    """What the first nvidia-smi -q -x shows, and no later one."""

    def change(machine: Json, gpu: int) -> None:
        machine["gpus"][gpu]["at_first"] = {REASON + reason: "Active" for reason in reasons}

    return change


def _links(**values: object) -> Change:
    def change(machine: Json, gpu: int) -> None:
        machine["gpus"][gpu]["links"][0].update(values)

    return change


def _dcgm_readings(**values: int) -> Change:
    def change(machine: Json, gpu: int) -> None:
        machine["gpus"][gpu]["dcgm"] = values

    return change


def _power_limit(machine: Json, gpu: int) -> None:
    low = machine["gpus"][gpu]["product"]["power"][1]
    machine["gpus"][gpu].setdefault("printed", {})["gpu_power_readings/current_power_limit"] = f"{low:.2f} W"


def _same_serial(machine: Json, gpu: int) -> None:
    machine["gpus"][gpu]["serial"] = machine["gpus"][gpu - 1]["serial"]


def _dead(machine: Json, gpu: int) -> None:
    slot = machine["gpus"][gpu]["pci"][4:].lower()
    for row in machine["pci"]:
        if row["slot"] == slot:
            row["silent"] = True


def _switch_lost(machine: Json, _gpu: int) -> None:
    removed = machine["switches"].pop()
    machine["pci"] = [row for row in machine["pci"] if row["slot"] != removed["slot"]]


def _path_lost(machine: Json, gpu: int) -> None:
    other = (gpu + 1) % len(machine["gpus"])
    machine["topology"][gpu][other] = machine["topology"][other][gpu] = "SYS"


def _numa(machine: Json, gpu: int) -> None:
    machine["gpus"][gpu]["numa_printed"] = "N/A"


def _no_gpu_memory(machine: Json, _gpu: int) -> None:
    for card in machine["efa"]:
        card["p2p"] = variant("efa.p2p", "none")


def _amd(machine: Json) -> bool:
    return bool(machine["vendor"] == "amd")


def _several(machine: Json) -> bool:
    return _nvidia(machine) and len(machine["gpus"]) > 1 and all(gpu["arch"] != "blackwell" for gpu in machine["gpus"])


def _has_rows(machine: Json) -> bool:
    return _has_ecc(machine) and machine["gpus"][0]["product"]["banks"] is not None


def _has_numa(machine: Json) -> bool:
    known = ("p4d", "Standard_ND96", "dgx-a100", "dgx-h100")
    return _nvidia(machine) and machine["machine"].startswith(known)


def _has_switches(machine: Json) -> bool:
    return bool(machine["switches"]) and machine["gpus"][0]["arch"] in ("ampere", "hopper")


def _reads_temperature(machine: Json) -> bool:
    return _nvidia(machine) and "absolute" in machine["gpus"][0]["product"]["thresholds"]


def _across(machine: Json) -> bool:
    joined = _nvidia(machine) and machine["gpus"][0]["fabric"]["state"] != "N/A"
    return joined and not machine["fabric_manager"]["required"]


ACROSS = "NVLink switches outside the node"
NVLINK, ECC, ROWS = "NVLink", "GPUs with ECC", "GPUs that remap rows"
AER = "pcieport 0000:3a:00.0: AER: Uncorrected (Fatal) error received: 0000:3a:00.0"


def _xgmi(machine: Json, gpu: int) -> None:
    machine["gpus"][gpu]["xgmi_errors"] = 2


def _watched(machine: Json, gpu: int) -> None:
    message = f"GPU {gpu}'s NvLink link 2 is currently down. Check DCGM and system logs for errors."
    machine["gpus"][gpu]["watched"] = [("NVLINK system", "Failure", message)]


FAULTS: tuple[Fault, ...] = (
    Fault("dcgm-health", "DCGM's background watches see an NVLink fail that nvidia-smi shows up", "dcgm.health",
          _nvidia, "NVIDIA GPUs", _watched),
    Fault("xgmi-errors", "a link between AMD GPUs has had errors", "amd.xgmi",
          lambda m: _amd(m) and len(m["gpus"]) > 1, "several AMD GPUs", _xgmi),
    Fault("power-brake", "the power supply brakes one GPU", "gpu.power_brake",
          change=_throttle("slowdown", "power_brake_slowdown")),
    Fault("power-brake-moment", "the power supply brakes one GPU for a moment: verify looks again, and notes it",
          "gpu.power_brake", change=_at_first("slowdown", "power_brake_slowdown"), moment=True),
    Fault("thermal-slowdown", "one GPU is slowed down by heat", "gpu.throttle", change=_throttle("thermal_slowdown")),
    Fault("gpu-hot", "one GPU is a degree below its slowdown", "gpu.temperature", _reads_temperature,
          "a GPU that says its slowdown temperature", lambda m, g: _printed(temperature__gpu_temp=str(
              m["gpus"][g]["product"]["thresholds"]["absolute"][1] - 1) + " C")(m, g)),
    Fault("power-limit", "one GPU's power limit is set to the lowest", "gpu.power_limit", change=_power_limit),
    Fault("compute-mode", "one GPU takes no process", "gpu.compute_mode", change=_printed(compute_mode="Prohibited")),
    Fault("reset-required", "the driver wants one GPU reset", "gpu.reset_required",
          change=lambda m, g: m["gpus"][g].update(recovery="Reset")),
    Fault("serial-copied", "two GPUs show one serial number", "gpu.serials_unique", _several, "several GPUs",
          _same_serial),
    Fault("bus-dead", "one GPU answers no more on the PCI bus (registers read ff)", "gpu.bus_present", _gpus,
          "a GPU", _dead),
    Fault("row-bank-empty", "a memory bank of one GPU has no spare row left", "gpu.remap_bank", _has_rows, ROWS,
          _printed(remapped_rows__row_remapper_histogram__row_remapper_histogram_none="1 bank(s)")),
    Fault("sram-threshold", "one GPU had more SRAM errors than its maker accepts", "gpu.sram_threshold", _has_rows,
          ROWS, _printed(ecc_errors__aggregate__sram_threshold_exceeded="Yes")),
    Fault("channel-repair", "one GPU wants a reset to repair a memory channel", "gpu.repair_pending", _has_rows, ROWS,
          _printed(ecc_errors__channel_repair_pending="Yes")),
    Fault("memory-unrepairable", "one GPU has memory that no row remap mends", "gpu.remap", _has_rows, ROWS,
          _printed(ecc_errors__unrepairable_memory="Yes")),
    Fault("pages-retired", "one GPU has retired 61 pages", "gpu.retired_pages",
          lambda m: _nvidia(m) and m["gpus"][0]["arch"] == "volta", "GPUs that retire pages",
          _printed(retired_pages__multiple_single_bit_retirement__retired_count="61")),
    Fault("fabric-partition", "one GPU is in another partition of the NVLink switches", "gpu.fabric_health",
          lambda m: _nvidia(m) and m["gpus"][0]["fabric"]["state"] != "N/A", "GPUs that report their fabric",
          _printed(fabric__cliqueId="7")),
    Fault("switch-link-fault", "the kernel log has a fatal error of an NVSwitch", "nvswitch.sxid", _has_switches,
          "NVSwitches on the PCI bus",
          _log("nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 63 LTSSM Fault Up")),
    Fault("ecc-corrected", "one GPU corrects errors all the time", "gpu.ecc_corrected", _has_rows, ROWS,
          _printed(ecc_errors__aggregate__dram_correctable="31000000")),
    Fault("ecc-pending", "ECC of one GPU will be off after a reset", "gpu.pending_modes", _has_ecc, ECC,
          _printed(ecc_mode__pending_ecc="Disabled")),
    Fault("bar-small", "one GPU's BAR1 is 256 MiB", "gpu.bar_size", _has_switches, "GPUs behind NVSwitch",
          _printed(bar1_memory_usage__total="256 MiB")),
    Fault("numa-unknown", "the system does not know one GPU's NUMA node", "gpu.numa_affinity", _has_numa,
          "NUMA nodes that are known", _numa),
    Fault("nvlink-slow", "one NVLink of one GPU runs at half its rate", "nvlink.speed", _has_links, NVLINK,
          _links(speed="12.5")),
    Fault("nvlink-errors", "one NVLink of one GPU had to recover", "nvlink.errors", _has_links, NVLINK,
          _links(errors={"Recovery": 3})),
    Fault("nvlink-asymmetry", "one NVLink counts thousands of errors, its peers none", "nvlink.asymmetry", _has_links,
          NVLINK, _links(errors={"Replay": 48211, "CRC": 977})),
    Fault("nvswitch-lost", "one NVSwitch is gone from the PCI bus", "nvswitch.present", _has_switches,
          "NVSwitches on the PCI bus", _switch_lost),
    Fault("efa-gpu-memory", "EFA's driver does not reach GPU memory: an empty line for each device", "rdma.gpu_memory",
          lambda m: bool(m["efa"]) and _nvidia(m), "EFA", _no_gpu_memory),
    Fault("gsp-off", "one GPU runs without its system processor", "gpu.gsp_firmware",
          lambda m: _nvidia(m) and m["gpus"][0]["arch"] != "volta", "GPUs with a system processor",
          _printed(gsp_firmware_version="N/A")),
    Fault("device-node-lost", "/dev/nvidia0 is gone", "driver.dev_nodes",
          # a program that starts the driver makes it again, as nvidia-modprobe does
          break_=(("rm", "-f", "/dev/nvidia0"),),
          mend=(("sh", "-c", "test -e /dev/nvidia0 || mknod -m 666 /dev/nvidia0 c 195 0"),)),
    Fault("rm-init-failed", "the kernel log says that a GPU could not be started", "log.rm_init",
          change=_log("NVRM: GPU {pci}.0: RmInitAdapter failed! (0x25:0x65:1457)")),
    Fault("gsp-timeout", "the kernel log has a GSP timeout without an Xid", "log.gsp_timeout",
          change=_log("NVRM: _issueRpcAndWait: rpcRecvPoll timedout for fn 76!")),
    Fault("aer-fatal", "the kernel log has a fatal PCIe error", "log.pcie_aer", _anywhere, "a kernel", _log(AER)),
    Fault("memory-error", "the kernel log has an uncorrectable memory error of the host", "log.machine_check",
          _anywhere, "a kernel", _log("EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0")),
    Fault("memory-corrected", "the kernel log has corrected memory errors of the host", "log.machine_check_corrected",
          _anywhere, "a kernel", _log("EDAC MC1: 3 CE memory scrubbing error on CPU_SrcID#1_MC#1_Chan#0_DIMM#0")),
    Fault("io-error", "the kernel log has a read error of a disk", "log.io_error", _anywhere, "a kernel",
          _log("I/O error, dev nvme9n1, sector 1048576 op 0x0:(READ) flags 0x80700 phys_seg 4 prio class 2")),
    Fault("disk-readonly", "the kernel log says that a filesystem became read-only", "log.fs_readonly", _anywhere,
          "a kernel", _log("EXT4-fs (nvme9n1p1): Remounting filesystem read-only")),
    Fault("task-hung", "the kernel log says that a process stands still", "log.hung_task", _anywhere, "a kernel",
          _log("INFO: task kworker/u193:2:4711 blocked for more than 120 seconds.")),
    Fault("cpu-stuck", "the kernel log has a soft lockup", "log.soft_lockup", _anywhere, "a kernel",
          _log("watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python3:4711]")),
    Fault("out-of-memory", "the kernel killed a process for memory", "log.oom", _anywhere, "a kernel",
          _log("Out of memory: Killed process 4711 (python3) total-vm:904857600kB, anon-rss:804857600kB")),
    Fault("iommu-fault", "the kernel log has an IOMMU fault", "log.iommu_fault", _anywhere, "a kernel",
          _log("DMAR: [DMA Read NO_PASID] Request device [65:00.0] fault addr 0xdead000 [fault reason 0x06]")),
    Fault("dcgm-xid", "DCGM has seen Xid 48 on a GPU, and the kernel log begins after it", "dcgm.xid", _nvidia,
          "an NVIDIA GPU", _dcgm_readings(xid=48)),
    Fault("dcgm-rows", "DCGM has seen a row of GPU memory that could not be remapped", "dcgm.memory", _has_rows,
          "memory rows that are remapped", _dcgm_readings(remap_failure=1)),
    Fault("nic-health", "the kernel log says that a network card is broken", "log.nic", _anywhere, "a kernel",
          _log("mlx5_core 0000:18:00.0: poll_health:800:(pid 0): device's health compromised - reached miss count")),
    Fault("vbios-mixed", "one GPU has another VBIOS than its neighbours", "gpu.vbios", _several, "several GPUs",
          _printed(vbios_version="92.00.FF.00.01")),
    Fault("peer-access-cut", "the driver lets no data from one GPU's memory to another", "nvlink.peers",
          _has_switches, "GPUs behind NVSwitch", lambda m, g: m.update(p2p_cut=[g, (g + 1) % len(m["gpus"])])),
    Fault("path-lost", "two GPUs reach each other by PCIe alone", "nvlink.topology", _has_switches,
          "GPUs behind NVSwitch", _path_lost),
    Fault("fabric-not-joined", "one GPU has not joined its rack's NVLink domain", "gpu.fabric_state",
          _across, ACROSS, _printed(fabric__state="In Progress")),
    Fault("imex-stopped", "the IMEX service is stopped", "services.imex", _across, ACROSS,
          break_=(("systemctl", "stop", "nvidia-imex"),), mend=(("systemctl", "start", "nvidia-imex"),)),
    Fault("imex-node-lost", "a node of the IMEX domain is not ready", "services.imex_nodes", _across, ACROSS,
          lambda m, _: m.update(imex_node_lost=True)),
    Fault("imex-domain-down", "no IMEX daemon answers, the node's own neither", "services.imex_own", _across, ACROSS,
          lambda m, _: m.update(imex_domain_down=True)),
    Fault("imex-not-ready", "the node's own IMEX daemon is not ready, others are", "services.imex_own", _across, ACROSS,
          lambda m, _: m.update(imex_not_ready=True)),
    Fault("mig-on", "one GPU is in MIG mode, which cluster.yaml does not ask for", "gpu.mig",
          lambda m: _nvidia(m) and m["gpus"][0]["arch"] in ("ampere", "hopper") and bool(m["switches"]),
          "GPUs that know MIG", _printed(mig_mode__current_mig="Enabled", mig_mode__pending_mig="Enabled")),
    Fault("ib-partition", "the first InfiniBand port is a limited member of its partition", "rdma.pkey",
          _kind("infiniband"), INFINIBAND, _first_port(pkeys=["0x7fff"])),
    Fault("ib-pcie-narrow", "the PCIe link of the first InfiniBand card has lost half its lanes", "rdma.pcie",
          _shows_link, "InfiniBand on bare metal", _narrow_link),
    Fault("cpu-dead", "the kernel log has a hard lockup", "log.hard_lockup", _anywhere, "a kernel",
          _log("watchdog: Watchdog detected hard LOCKUP on cpu 17")),
    Fault("disk-late", "the kernel log says that a disk answered too late", "log.io_timeout", _anywhere, "a kernel",
          _log("nvme nvme9: I/O 12 QID 3 timeout, aborting")),
    Fault("nfs-silent", "the kernel log says that a server of NFS did not answer", "log.network_fs", _anywhere,
          "a kernel", _log("nfs: server 192.0.2.7 not responding, still trying")),
    Fault("kernel-strange", "the kernel log has an unknown error", "log.unknown", _anywhere, "a kernel",
          _log("frobnicator 0000:3a:00.0: the mailbox is inside out")),
    Fault("amd-ras", "the kernel log has uncorrectable errors of an AMD GPU", "amd.ras", _amd,
          "AMD GPUs", _log("amdgpu {pci}.0: amdgpu: 2 uncorrectable hardware errors detected in umc block")),
    Fault("amd-ring", "an AMD GPU stopped working on its queue", "amd.ring_timeout", _amd,
          "AMD GPUs", _log("amdgpu {pci}.0: [drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring comp_1.0.0 timeout")),
)  # fmt: skip
"""Every fault by name, in the order in which `gpuprov sandbox faults` lists them."""
