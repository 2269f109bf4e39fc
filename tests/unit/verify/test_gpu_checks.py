"""Checks of GPUs, NVLink, PCIe, driver and kernel log: each red on the fault that it names, and then it alone."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from provisioner.catalog import load
from provisioner.spec.groups import GpuOptions, Group
from provisioner.verify.bundle import Bundle, Output
from provisioner.verify.expectations import Expected
from provisioner.verify.pytest_runner import Case, Judged
from provisioner.verify.registry import declared
from tests.support.healthy_bundle import DRIVER, bundle, capture, edit, expected, healthy, nvlink, topo, without_gpu
from tests.support.healthy_gpu import GPU_CHECKS, imex, nvlink_errors
from tests.support.judging import judge

P4D, DGX, V100, B200, GB200 = "p4d.24xlarge", "dgx-h100", "p3dn.24xlarge", "dgx-b200", "p6e-gb200.36xlarge"
AMD, RTX = "amd-mi300x-node", "workstation-rtx4090"
DEAD = "00:" + " ff" * 16
"""What `lspci -x` shows of a device that does not answer."""
Texts = dict[str, str | Output]
Change = Callable[[Texts], object]


@dataclass(frozen=True)
class Fault:
    """Exactly `fails` fail; `unknown` and `passes` at least."""

    machine: str
    breaks: Change
    fails: set[str]
    unknown: set[str] = field(default_factory=set)
    passes: set[str] = field(default_factory=set)
    says: str = ""
    action: str = ""
    mig: str | None = None


def smi(gpu: int, **values: str) -> Change:
    return lambda t: t.update({"nvidia-smi.xml": edit(str(t["nvidia-smi.xml"]), gpu, **values)})


def sub(name: str, old: str, new: str, count: int = 0) -> Change:
    def change(texts: Texts) -> None:
        broken = re.sub(old, new, str(texts[name]), count=count)
        assert broken != texts[name], f"{old!r} is not in {name}"
        texts[name] = broken

    return change


def log(*lines: str) -> Change:
    return lambda t: t.update(
        {"dmesg.txt": str(t["dmesg.txt"]) + "\n" + "\n".join(f"[999.5] {x}" for x in lines) + "\n"}
    )


def element(gpu: int, text: str) -> Change:
    """An element more in one GPU."""

    def change(texts: Texts) -> None:
        parts = str(texts["nvidia-smi.xml"]).split("</gpu>")
        parts[gpu] += text
        texts["nvidia-smi.xml"] = "</gpu>".join(parts)

    return change


def links(wrong: dict[tuple[int, int], dict[str, int]]) -> Change:
    return lambda t: t.update({"nvlink-errors.txt": nvlink_errors(load().machine(P4D), wrong)})


def both(*changes: Change) -> Change:
    return lambda t: [change(t) for change in changes]


NVLINK = (
    "NVRM: Xid (PCI:0003:00:00): 74, pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 14({}, 0x0, "
    "0x0, 0x0, 0x0)"
)
DBE = "NVRM: Xid (PCI:0000:10:1c): 48, pid=1234, name=python3, DBE (double bit error)"
LOADED = "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.173.02  Release Build"
MMU = "NVRM: Xid (PCI:0003:00:00): 31, pid=4711, name=python3, MMU Fault"
CARD = "0000:18:00.0 Infiniband controller [0207]: Mellanox Technologies MT2910 Family [ConnectX-7] [15b3:1021]\n"
PROCESS = (
    "<processes><process_info><pid>4711</pid><type>C</type>"
    "<process_name>python3</process_name></process_info></processes>"
)
DEPRECATED = "Requested functionality has been deprecated"
NO_DRIVER = Output("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", rc=9)
LIMITED = (
    "pci 0003:00:00.0: 63.0 Gb/s available PCIe bandwidth, limited by {} link at 0000:15:01.0 "
    "(capable of 504.1 Gb/s with {})"
)
PAGES = "retired_pages__{}_retirement__retired_count"
OLD_PAGES = {PAGES.format("multiple_single_bit"): "2", PAGES.format("double_bit"): "61"}
BANK = "remapped_rows__row_remapper_histogram__row_remapper_histogram_"
AER = "pcieport 0000:3a:00.0: PCIe Bus Error: severity=Corrected, type=Data Link Layer, (Transmitter ID)"


def exported(row: str) -> Change:
    return lambda t: t.update({"dcgm-exporter.prom": f"{t['dcgm-exporter.prom']}{row}\n"})


def cut_up(*instances: int) -> Change:
    """Every GPU in MIG mode, with that many instances each."""

    def change(texts: Texts) -> None:
        text = str(texts["nvidia-smi.xml"])
        text = re.sub(r"(<(?:current|pending)_mig>)\w+", r"\1Enabled", text)
        counts = iter(instances)
        texts["nvidia-smi.xml"] = re.sub(
            r"<mig_devices>.*?</mig_devices>",
            lambda _: f"<mig_devices>{'<mig_device><index>0</index></mig_device>' * next(counts)}</mig_devices>",
            text,
            flags=re.S,
        )

    return change


FAULTS: dict[str, Fault] = {
    "instances on every GPU": Fault(P4D, cut_up(*[7] * 8), set(), passes={"gpu.mig_devices"}, mig="1g.5gb"),
    "a GPU without instances": Fault(
        P4D,
        cut_up(7, 7, 7, 0, 7, 7, 7, 7),
        {"gpu.mig_devices"},
        says="GPU 3 has 0; 7 of 1g.5gb are expected",
        mig="1g.5gb",
    ),
    "every GPU has instances for half of itself": Fault(
        P4D, cut_up(*[3] * 8), {"gpu.mig_devices"}, says="GPU 7 has 3; 7 of 1g.5gb are expected", mig="1g.5gb"
    ),
    "two VBIOS": Fault(P4D, smi(2, vbios_version="92.00.19.00.01"), {"gpu.vbios"}, says="92.00.19.00.01 on 1"),
    "two VBIOS of two kinds of board": Fault(
        P4D, smi(2, vbios_version="92.00.19.00.01", board_part_number="692-2G506-0202-003"), set()
    ),
    "busy without a process": Fault(P4D, smi(4, utilization__gpu_util="37 %"), {"gpu.utilization"}, says="GPU 4: 37 %"),
    "a page after a double-bit error": Fault(
        V100, smi(1, **{PAGES.format("double_bit"): "1"}), {"gpu.page_retirements"}, says="1 after double-bit ones"
    ),
    "eleven pages": Fault(
        V100, smi(1, **{PAGES.format("multiple_single_bit"): "11"}), {"gpu.page_retirements"}, says="11 pages"
    ),
    "ten pages": Fault(
        V100, smi(1, **{PAGES.format("multiple_single_bit"): "10"}), set(), passes={"gpu.page_retirements"}
    ),
    "an Xid of programs again and again on one GPU": Fault(
        P4D,
        lambda t: t.update(
            {"dmesg.txt": f"{t['dmesg.txt']}\n" + "".join(f"[{1000 + 90 * n}.5] {MMU}\n" for n in range(5))}
        ),
        {"gpu.xid_repeats"},
        unknown={"gpu.xid_program"},
        says="Xid 31 on 0003:00:00 in 5 minutes",
    ),
    "many lines of one Xid of a program": Fault(P4D, log(*[MMU] * 50), {"gpu.xid_program"}, passes={"gpu.xid_repeats"}),
    "an Xid of programs on two GPUs": Fault(
        P4D,
        log(*[f"NVRM: Xid (PCI:000{n}:00:00): 31, pid=4711, name=python3, MMU Fault" for n in (3, 4)] * 5),
        {"gpu.xid_program"},
        passes={"gpu.xid_repeats"},
    ),
    "a corrupted InfoROM, by its exit status": Fault(
        P4D,
        lambda t: t.update({"nvidia-smi.xml": Output(str(t["nvidia-smi.xml"]), rc=14)}),
        {"gpu.inforom"},
        says="exit status 14",
    ),
    "a device of another driver": Fault(
        P4D, sub("nvidia-dev.txt", "195, 5 ", "511, 5 "), {"driver.dev_nodes"}, says="/dev/nvidia5 has major 511"
    ),
    "narrow link of a card": Fault(
        DGX,
        both(
            sub("lspci.txt", r"\Z", CARD, 1),
            log(LIMITED.format("32.0 GT/s PCIe x8", "32.0 GT/s PCIe x16 link").replace("0003:00:00.0", "0000:18:00.0")),
        ),
        {"log.pcie_link_limited"},
    ),
    "readings that one GPU does not give": Fault(
        P4D,
        smi(3, gpu_power_readings__instant_power_draw="[Unknown Error]", fan_speed="ERR!"),
        {"gpu.readings"},
        says="GPU 3: 2 readings",
    ),
    "readings that no GPU gives": Fault(P4D, sub("nvidia-smi.xml", "<fan_speed>N/A", "<fan_speed>ERR!"), set()),
    "the exporter saw no remap fail": Fault(
        P4D,
        exported('DCGM_FI_DEV_ROW_REMAP_FAILURE{gpu="3",UUID="GPU-3"} 0'),
        set(),
        passes={"dcgm.memory"},
    ),
    "the exporter saw a remap fail": Fault(
        P4D,
        exported('DCGM_FI_DEV_ROW_REMAP_FAILURE{gpu="3",UUID="GPU-3"} 1'),
        {"dcgm.memory"},
        says="GPU 3: a row could not be remapped",
    ),
    "a lost GPU and a link of another that is down": Fault(
        P4D,
        both(
            lambda t: t.update({"nvidia-smi.xml": without_gpu(str(t["nvidia-smi.xml"]), 7)}),
            lambda t: t.update({"nvlink.txt": nvlink(load().machine(P4D), {3: 10}, remaining=list(range(7)))}),
            lambda t: t.update({"topo.txt": topo(load().machine(P4D), remaining=list(range(7)))}),
        ),
        {"gpu.count", "nvlink.links"},
    ),
    # identity and modes
    "one uuid twice": Fault(P4D, sub("nvidia-smi.xml", "GPU-00000003-", "GPU-00000004-"), {"gpu.uuids_unique"}),
    "one serial twice": Fault(P4D, smi(2, serial="1650000000001"), {"gpu.serials_unique"}),
    "boards of two GPUs": Fault(GB200, smi(1, serial="1650000000000"), set(), passes={"gpu.serials_unique"}),
    "no serials": Fault(RTX, smi(0, serial="N/A"), set()),
    "a minor number left out": Fault(P4D, smi(7, minor_number="8"), {"gpu.minor_numbers", "driver.dev_nodes"}),
    "dead on the bus": Fault(
        P4D, sub("lspci.txt", r"(0004:00:00.0.*)\(rev a1\)", r"\1(rev ff)"), {"gpu.bus_present"}, says="0004:00:00"
    ),
    "dead on the bus, its revision known": Fault(
        P4D, sub("lspci.txt", "(0004:00:00.0.*)", f"\\1\n{DEAD}"), {"gpu.bus_present"}, says="0004:00:00"
    ),
    "not on the bus": Fault(P4D, sub("lspci.txt", "0004:00:00.0.*\n", ""), {"gpu.bus_present"}, says="0004:00:00"),
    "compute mode": Fault(P4D, smi(1, compute_mode="Prohibited"), {"gpu.compute_mode"}),
    "ecc pending": Fault(P4D, smi(1, ecc_mode__pending_ecc="Disabled"), {"gpu.pending_modes"}),
    "mig pending": Fault(P4D, smi(1, mig_mode__pending_mig="Enabled"), {"gpu.pending_modes"}),
    "small BAR1": Fault(DGX, smi(1, bar1_memory_usage__total="256 MiB"), {"gpu.bar_size"}),
    "small BAR1 of a workstation": Fault(RTX, smi(0, bar1_memory_usage__total="256 MiB"), set()),
    "a job": Fault(P4D, element(0, PROCESS), {"gpu.processes"}),
    "memory without a process": Fault(
        P4D, smi(2, fb_memory_usage__used="30000 MiB"), {"gpu.processes"}, says="does not show"
    ),
    "on the bus without an answer": Fault(
        P4D,
        lambda t: t.update(
            {
                "nvidia-smi.xml": without_gpu(str(t["nvidia-smi.xml"]), 3),
                "topo.txt": topo(load().machine(P4D), [0, 1, 2, 4, 5, 6, 7]),
                "nvlink.txt": nvlink(load().machine(P4D), None, [0, 1, 2, 4, 5, 6, 7]),
            }
        ),
        {"gpu.count"},
        says="0004:00:00 without an answer",
    ),
    "no handle, and the others are listed": Fault(
        P4D,
        lambda t: t.update(
            {
                "nvidia-smi.xml": "Unable to determine the device handle for GPU3: 0004:00:00.0: Unknown Error\n"
                + without_gpu(str(t["nvidia-smi.xml"]), 3).replace("<attached_gpus>7", "<attached_gpus>8"),
                "topo.txt": topo(load().machine(P4D), [0, 1, 2, 4, 5, 6, 7]),
                "nvlink.txt": nvlink(load().machine(P4D), None, [0, 1, 2, 4, 5, 6, 7]),
            }
        ),
        {"gpu.count"},
        says="8 attached GPUs and lists 7; lost: 0004:00:00",
    ),
    "no handle": Fault(
        P4D,
        lambda t: t.update(
            {"nvidia-smi.xml": "Unable to determine the device handle for GPU0000:04:00.0: Unknown Error\n"}
        ),
        {"gpu.count"},
        unknown={"gpu.ecc", "driver.version"},
        says="lost: 0000:04:00",
    ),
    # heat, power, clocks
    "hot": Fault(P4D, smi(1, temperature__gpu_temp="86 C"), {"gpu.temperature"}),
    "hot and slowed": Fault(
        P4D,
        smi(1, temperature__gpu_temp="90 C", clocks_event_reasons__clocks_event_reason_hw_thermal_slowdown="Active"),
        {"gpu.throttle"},
        unknown={"gpu.temperature"},
    ),
    "hot memory": Fault(P4D, smi(1, temperature__memory_temp="94 C"), {"gpu.memory_temperature"}),
    "power limit": Fault(P4D, smi(1, gpu_power_readings__current_power_limit="250.00 W"), {"gpu.power_limit"}),
    "power brake": Fault(
        P4D,
        smi(
            1,
            clocks_event_reasons__clocks_event_reason_hw_power_brake_slowdown="Active",
            clocks_event_reasons__clocks_event_reason_hw_slowdown="Active",
        ),
        {"gpu.power_brake"},
        passes={"gpu.throttle"},
    ),
    "hardware slowdown": Fault(
        P4D, smi(1, clocks_event_reasons__clocks_event_reason_hw_slowdown="Active"), {"gpu.throttle"}
    ),
    "application clock": Fault(P4D, smi(1, applications_clocks__graphics_clock="705 MHz"), {"gpu.clocks"}),
    "no application clocks": Fault(
        P4D, sub("nvidia-smi.xml", "<graphics_clock>1095 MHz", f"<graphics_clock>{DEPRECATED}"), set()
    ),
    # memory
    "reset required": Fault(P4D, smi(1, gpu_recovery_action="Reset"), {"gpu.reset_required"}, action="reset"),
    "reboot required": Fault(P4D, smi(1, gpu_recovery_action="Reboot"), {"gpu.reset_required"}, action="reboot"),
    "reboot required, in NVIDIA's other word": Fault(
        P4D, smi(1, gpu_recovery_action="NODE_REBOOT"), {"gpu.reset_required"}, action="reboot"
    ),
    "system reboot required": Fault(
        P4D, smi(1, gpu_recovery_action="System Reboot"), {"gpu.reset_required"}, action="reboot"
    ),
    "bus reset": Fault(P4D, smi(1, gpu_recovery_action="Bus Reset"), {"gpu.reset_required"}, action="reboot"),
    "IMEX domain to recover": Fault(
        P4D, smi(1, gpu_recovery_action="Recover IMEX Domain"), {"gpu.reset_required"}, action="reconfigure"
    ),
    "an action that nobody knows": Fault(
        P4D, smi(1, gpu_recovery_action="Something Else"), {"gpu.reset_required"}, action="reboot"
    ),
    "drain and reset": Fault(
        P4D, smi(1, gpu_recovery_action="Drain and Reset"), {"gpu.reset_required"}, action="reset"
    ),
    "reset required, pending remap": Fault(
        P4D,
        smi(1, gpu_recovery_action="Reset", remapped_rows__remapped_row_pending="Yes"),
        {"gpu.remap"},
        unknown={"gpu.reset_required"},
    ),
    "reset required, older words": Fault(
        P4D,
        both(smi(1, gpu_recovery_action="N/A", gpu_reset_status__reset_required="Yes")),
        {"gpu.reset_required"},
    ),
    "retired pages": Fault(V100, smi(1, **OLD_PAGES), {"gpu.retired_pages"}, action="replace"),
    "sixty pages": Fault(
        V100,
        smi(1, **{**OLD_PAGES, PAGES.format("double_bit"): "58"}),
        {"gpu.page_retirements"},
        passes={"gpu.retired_pages"},
    ),
    "memory beyond repair": Fault(
        P4D,
        sub("nvidia-smi.xml", "</ecc_errors>", "<unrepairable_memory>Yes</unrepairable_memory></ecc_errors>", 1),
        {"gpu.remap"},
    ),
    "no spare row": Fault(P4D, smi(1, **{BANK + "none": "1 bank(s)"}), {"gpu.remap_bank"}),
    "many rows": Fault(P4D, smi(1, remapped_rows__remapped_row_unc="513"), {"gpu.remap_bank"}),
    "sram threshold": Fault(P4D, smi(1, ecc_errors__aggregate__sram_threshold_exceeded="Yes"), {"gpu.sram_threshold"}),
    "channel repair": Fault(
        P4D,
        sub("nvidia-smi.xml", "</ecc_errors>", "<channel_repair_pending>Yes</channel_repair_pending></ecc_errors>", 1),
        {"gpu.repair_pending"},
    ),
    "tpc repair": Fault(
        P4D,
        sub("nvidia-smi.xml", "</ecc_errors>", "<tpc_repair_pending>Yes</tpc_repair_pending></ecc_errors>", 1),
        {"gpu.repair_pending"},
    ),
    "nothing to repair": Fault(
        P4D,
        sub("nvidia-smi.xml", "</ecc_errors>", "<tpc_repair_pending>No</tpc_repair_pending></ecc_errors>"),
        set(),
        passes={"gpu.repair_pending"},
    ),
    "corrected in SRAM": Fault(P4D, smi(1, ecc_errors__aggregate__sram_correctable="10001"), {"gpu.ecc_corrected"}),
    "corrected in DRAM": Fault(P4D, smi(1, ecc_errors__aggregate__dram_correctable="20000001"), {"gpu.ecc_corrected"}),
    # PCIe
    "older generation": Fault(DGX, smi(1, pci__pci_gpu_link_info__pcie_gen__max_link_gen="4"), {"gpu.pcie_gen"}),
    "older generation in the cloud": Fault(P4D, smi(1, pci__pci_gpu_link_info__pcie_gen__max_link_gen="3"), set()),
    "replays": Fault(P4D, smi(1, pci__replay_counter="40000"), {"gpu.pcie_replay"}),
    "replays of a long life": Fault(
        P4D, both(*(smi(i, pci__replay_counter=str(106 + 9 * i)) for i in range(8))), set()
    ),
    "an NVLink with bad contacts": Fault(
        DGX,
        log(NVLINK.format("0x1000100, 0x0, 0x0")),
        {"gpu.xid"},
        says="(link 14: perhaps the link's contacts",
        action="vendor",
    ),
    "an NVLink of which nobody says more": Fault(
        DGX, log(NVLINK.format("0x0, 0x0, 0x10000")), {"gpu.xid"}, says="support wants to know where it", action="reset"
    ),
    "nouveau at the next boot": Fault(
        P4D, sub("host.json", r'"denied": \["nouveau", ', '"denied": ['), {"driver.nouveau_absent"}, says="no deny list"
    ),
    "AMD's pages that are not set aside": Fault(
        AMD,
        sub("host.json", r'"amd_pages": \{"card1": \[\]', '"amd_pages": {"card1": ["R", "P"]'),
        {"amd.bad_pages"},
        says="card1: 1 wait to be set aside",
        action="reset",
    ),
    "AMD's pages that can't be set aside": Fault(
        AMD,
        sub("host.json", r'"amd_pages": \{"card1": \[\]', '"amd_pages": {"card1": ["F", "P"]'),
        {"amd.bad_pages"},
        says="card1: 1 could not be",
        action="replace",
    ),
    "an Xid before the driver was loaded again": Fault(
        P4D, log(DBE, LOADED), {"gpu.xid_before"}, says="before the driver was loaded again: Xid 48 on"
    ),
    "an Xid before and after the driver was loaded again": Fault(
        P4D, log(DBE, LOADED, DBE), {"gpu.xid_again"}, says="loaded again and after it: Xid 48"
    ),
    "a GPU at the other socket": Fault(
        P4D,
        sub("topo.txt", "0-23,48-71\t0\t", "24-47,72-95\t1\t", 1),
        {"gpu.numa_affinity"},
        says="7 on node 0, 1 on node 1",
    ),
    "no NUMA node": Fault(P4D, sub("topo.txt", "0-23,48-71\t0\t", "0-95\tN/A\t", 1), {"gpu.numa_affinity"}),
    "rails mixed up": Fault(DGX, sub("topo.txt", r"(NIC1: )(mlx5_3)(\s+NIC2: )(mlx5_4)", r"\1\4\3\2"), {"ib.rails"}),
    "no card beside": Fault(DGX, sub("topo.txt", "(?m)^(GPU3.*)PXB", r"\1SYS"), {"gpu.nic_affinity"}),
    # NVLink
    "half rate": Fault(P4D, sub("nvlink.txt", "Link 3: 25 GB/s", "Link 3: 12.5 GB/s", 1), {"nvlink.speed"}),
    "one replay": Fault(P4D, links({(2, 5): {"Replay": 1}}), {"nvlink.errors"}),
    **{
        f"NVLink 5: {name}": Fault(P4D, links({(2, 5): {name: 1}}), {"nvlink.errors"})
        for name in ("Rx", "Rx remote", "Rx General", "Local link integrity", "Symbol", "Effective")
    },
    "NVLink 5: bits that FEC mended": Fault(P4D, links({(2, 5): {"FEC Errors - 0": 36140749276, "Raw": 82}}), set()),
    "crc flit": Fault(P4D, links({(2, 5): {"CRC Flit": 12}}), {"nvlink.errors"}),
    "one bad link": Fault(
        P4D, links({(2, 5): {"Replay": 20000}}), {"nvlink.asymmetry", "nvlink.errors"}, says="GPU 2 link 5"
    ),
    "one link that recovers": Fault(
        P4D, links({(2, 5): {"Recovery": 505}}), {"nvlink.recoveries", "nvlink.errors"}, says="GPU 2 link 5"
    ),
    "all links alike": Fault(
        P4D,
        links({(g, k): {"Replay": 400 + (g * 13 + k * 7) % 90} for g in range(8) for k in range(12)}),
        {"nvlink.errors"},
    ),
    "not in the rack's fabric": Fault(
        GB200, smi(1, fabric__state="In Progress", fabric__status="N/A"), {"gpu.fabric_state"}
    ),
    "bad route": Fault(
        DGX,
        sub("nvidia-smi.xml", "</bandwidth>", "</bandwidth><route_unhealthy>True</route_unhealthy>", 1),
        {"gpu.fabric_health"},
    ),
    "degraded fabric": Fault(DGX, smi(1, fabric__health__bandwidth="Degraded"), {"gpu.fabric_health"}),
    "two partitions": Fault(
        DGX,
        both(*(smi(i, fabric__cliqueId="0" if i else "1", fabric__clusterUuid="u") for i in range(8))),
        {"gpu.fabric_health"},
    ),
    "a switch less": Fault(P4D, sub("lspci.txt", "0000:c3.*\n", ""), {"nvswitch.present"}),
    "the IMEX domain is down": Fault(
        GB200,
        lambda t: t.update({"imex.json": imex(status="DOWN")}),
        {"services.imex_domain"},
        says="the domain is DOWN",
    ),
    "a node of the IMEX domain is not ready": Fault(
        GB200,
        lambda t: t.update({"imex.json": imex("10.0.3.18", "DEGRADED")}),
        {"services.imex_nodes"},
        says="10.0.3.18 is UNAVAILABLE; 10.0.3.17 to 10.0.3.18: INVALID",
        passes={"services.imex_own", "services.imex_domain"},
    ),
    "this node is not ready in the IMEX domain": Fault(
        GB200,
        lambda t: t.update({"imex.json": imex("10.0.3.17", "DEGRADED")}),
        {"services.imex_own"},
        says="10.0.3.17, this node, is UNAVAILABLE",
    ),
    "other nodes keep this one waiting in the IMEX domain": Fault(
        GB200,
        lambda t: t.update({"imex.json": imex("10.0.3.17", "DEGRADED", state="WAITING_FOR_PEERS")}),
        {"services.imex_own"},
        says="(unverified: that it is this node's own fault)",
    ),
    "this node reaches nobody in the IMEX domain": Fault(
        GB200,
        lambda t: t.update(
            {"imex.json": imex(status="DEGRADED", cut=[("10.0.3.17", "10.0.3.18"), ("10.0.3.17", "10.0.3.19")])}
        ),
        {"services.imex_own"},
        says="reaches none of 2 ready nodes, which reach each other: VERSION_MISMATCH",
    ),
    "another node reaches nobody in the IMEX domain": Fault(
        GB200,
        lambda t: t.update(
            {"imex.json": imex(status="DEGRADED", cut=[("10.0.3.18", "10.0.3.17"), ("10.0.3.18", "10.0.3.19")])}
        ),
        {"services.imex_nodes"},
        passes={"services.imex_own"},
    ),
    "two nodes of the IMEX domain that do not reach each other": Fault(
        GB200,
        lambda t: t.update(
            {"imex.json": imex(status="DEGRADED", hosts=("10.0.3.17", "10.0.3.18"), cut=[("10.0.3.17", "10.0.3.18")])}
        ),
        {"services.imex_nodes"},
        passes={"services.imex_own"},
    ),
    "an IMEX domain in which this node is not to be told": Fault(
        GB200,
        lambda t: t.update({"imex.json": imex(hosts=("compute-domain-daemon-0000", "compute-domain-daemon-0001"))}),
        set(),
        unknown={"services.imex_own"},
    ),
    "a daemon of another version": Fault(
        GB200,
        lambda t: t.update({"imex.json": capture("imex/version-mismatch-down.json").replace("10.0.0.1", "10.0.3.17")}),
        {"services.imex_own"},
        says="10.0.3.17, this node, is UNAVAILABLE",
    ),
    "an IMEX domain of eighteen nodes": Fault(
        GB200,
        lambda t: t.update(
            {"imex.json": capture("imex/p6e-18-nodes-up.txt").replace("172.31.50.44 ", "10.0.3.17    ")}
        ),
        set(),
        passes={"services.imex_own", "services.imex_domain", "services.imex_nodes"},
    ),
    "an IMEX without an answer": Fault(
        GB200,
        lambda t: t.update({"imex.json": Output("", timed_out=True, seconds=20.0)}),
        set(),
        unknown={"services.imex_own", "services.imex_domain", "services.imex_nodes"},
    ),
    "two GPUs that do not reach each other": Fault(
        P4D, sub("p2p.txt", r"(GPU3\t(?:OK\t){2})OK", r"\1NS", 1), {"nvlink.peers"}, says="GPU 3 to 2: NS"
    ),
    "an error of the kernel's that nobody knows": Fault(
        P4D,
        lambda t: t.update(
            {"dmesg-errors.txt": f"{t['dmesg-errors.txt']}[9.1] frobnicator 0000:3a:00.0: lost its mind\n"}
        ),
        {"log.unknown"},
        says="lost its mind",
    ),
    "no nvlsm runs": Fault(
        B200, sub("host.json", '"running": \\["nvlsm"\\]', '"running": []'), {"nvswitch.nvlsm"}, says="process nvlsm"
    ),
    "no ib_umad": Fault(B200, sub("modules.txt", "ib_umad.*\n", ""), {"nvswitch.nvlsm", "rdma.modules"}),
    # driver
    "proprietary": Fault(
        P4D,
        sub("nvidia-version.txt", "Open Kernel Module for x86_64", "x86_64 Kernel Module"),
        {"driver.module_flavour"},
    ),
    "half an upgrade": Fault(
        P4D,
        sub("packages.txt", r"\Z", "libnvidia-compute-580\t580.159.03-0ubuntu1\tii \n", 1),
        {"driver.loaded_is_installed"},
    ),
    "two versions run": Fault(P4D, sub("nvidia-version.txt", DRIVER, "580.95.05"), {"driver.loaded_is_installed"}),
    "a package of its own version": Fault(
        P4D, sub("packages.txt", r"\Z", "nvidia-modprobe\t610.43-1\tii \n", 1), set()
    ),
    "no uvm": Fault(P4D, sub("modules.txt", "nvidia_uvm 49.*\n", ""), {"driver.modules"}),
    "nouveau": Fault(
        P4D,
        both(sub("modules.txt", "^", "nouveau 3 1 - Live 0x0\n", 1), lambda t: t.update({"nvidia-smi.xml": NO_DRIVER})),
        {"driver.nouveau_absent"},
        unknown={"driver.responds", "gpu.count"},
    ),
    "parameter": Fault(GB200, sub("nvidia-params.txt", "Channel0: 1", "Channel0: 0"), {"driver.params"}),
    "no device node": Fault(P4D, sub("nvidia-dev.txt", ".*nvidia5\n", ""), {"driver.dev_nodes"}, says="/dev/nvidia5"),
    "a file for a device": Fault(
        P4D,
        sub("nvidia-dev.txt", "crw-rw-rw- 1 root root 508, 0 (.*nvidia-uvm)\n", r"-rw-r--r-- 1 root root 0 \1\n"),
        {"driver.dev_nodes"},
    ),
    "no GSP": Fault(P4D, smi(1, gsp_firmware_version="N/A"), {"gpu.gsp_firmware"}),
    # kernel log
    "RmInitAdapter": Fault(P4D, log("NVRM: GPU 0001:00:00.0: RmInitAdapter failed! (0x25:0x65:1457)"), {"log.rm_init"}),
    "RPC without an Xid": Fault(
        P4D, log("NVRM: _issueRpcAndWait: rpcRecvPoll timedout for fn 76!"), {"log.gsp_timeout"}
    ),
    "RPC with an Xid": Fault(
        P4D, lambda t: t.update({"dmesg.txt": capture("dmesg/h100-xid119-gsp-timeout.txt")}), {"gpu.xid"}
    ),
    # A lane of a GB200 that FEC still mends: thousands of such lines an hour at full speed.
    "an NVLink error that was mended": Fault(
        B200,
        log("NVRM: Xid (PCI:0000:1b:00): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008 0x00000001)"),
        {"log.nvlink"},
        passes={"gpu.xid"},
    ),
    "a mended and a fatal NVLink error": Fault(
        B200,
        log(
            "NVRM: Xid (PCI:0000:1b:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x00000000)",
            "NVRM: Xid (PCI:0000:1b:00): 149, NETIR_BER_EVENT Nonfatal XC0 i0 Link 03 (0x00086226 0x00000001)",
        ),
        {"gpu.xid"},
    ),
    # H100, driver 580: fabric manager active, all GPUs Completed and Success, NCCL's NVLS fails with error 802.
    "the driver's view of the fabric is out of date": Fault(
        DGX,
        log(
            "NVRM: nvCheckOkFailedNoLog: Check failed: NVLink fabric state cached by the driver is out of sync "
            "[NV_ERR_FABRIC_STATE_OUT_OF_SYNC] (0x00000089) returned from memoryfabricConstruct"
        ),
        {"log.nvlink"},
    ),
    "no mask of detected links": Fault(
        DGX, log("NVRM: knvlinkUpdatePostRxDetectLinkMask_IMPL: Failed to update Rx Detect Link mask!"), {"log.nvlink"}
    ),
    "training failed": Fault(
        P4D, log("NVRM: knvlinkTrainP2pLinksToActive_IMPL: Training failed on link 3"), {"log.nvlink"}
    ),
    "AER fatal": Fault(
        P4D, log("pcieport 0000:3a:00.0: AER: Uncorrected (Fatal) error received: 0000:3a:00.0"), {"log.pcie_aer"}
    ),
    "AER non-fatal": Fault(
        P4D,
        log("nvme 0000:5e:00.0: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer"),
        {"log.pcie_uncorrected"},
    ),
    "AER corrected, a flood": Fault(P4D, log(*[AER] * 11), {"log.pcie_corrected"}),
    "AER corrected, a few": Fault(
        P4D, log(*[AER, AER.replace("PCIe Bus Error: severity=Corrected", "AER: Corrected error received")] * 10), set()
    ),
    "narrow link": Fault(
        DGX, log(LIMITED.format("32.0 GT/s PCIe x2", "32.0 GT/s PCIe x16 link")), {"log.pcie_link_limited"}
    ),
    "narrow link of a virtual port": Fault(
        P4D, log(LIMITED.format("2.5 GT/s PCIe x1", "16.0 GT/s PCIe x16 link")), set()
    ),
    "EDAC UE": Fault(P4D, log("EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0"), {"log.machine_check"}),
    "GHES fatal": Fault(P4D, log("{1}[Hardware Error]: event severity: recoverable"), {"log.machine_check"}),
    "EDAC CE": Fault(P4D, log("EDAC MC1: 3 CE memory scrubbing error on CPU_SrcID#1"), {"log.machine_check_corrected"}),
    "MCE logged": Fault(
        P4D, log("mce: [Hardware Error]: Machine check events logged"), {"log.machine_check_corrected"}
    ),
    "out of memory": Fault(P4D, log("Out of memory: Killed process 4711 (python3) total-vm:1kB"), {"log.oom"}),
    "hung": Fault(P4D, log("INFO: task nvidia-smi:4711 blocked for more than 120 seconds."), {"log.hung_task"}),
    "soft lockup": Fault(
        P4D, log("watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python3:4711]"), {"log.soft_lockup"}
    ),
    "rcu stall": Fault(P4D, log("rcu: INFO: rcu_preempt self-detected stall on CPU"), {"log.soft_lockup"}),
    "oops": Fault(P4D, log("BUG: kernel NULL pointer dereference, address: 0000000000000008"), {"log.kernel_bug"}),
    "hard lockup": Fault(P4D, log("watchdog: Watchdog detected hard LOCKUP on cpu 17"), {"log.hard_lockup"}),
    "NFS": Fault(P4D, log("nfs: server 10.0.0.5 not responding, still trying"), {"log.network_fs"}),
    "NFS locks": Fault(P4D, log("NFS: __nfs4_reclaim_open_state: Lock reclaim failed!"), {"log.network_fs"}),
    "Lustre": Fault(
        P4D,
        log("Lustre: fs-MDT0000-mdc-ffff: Connection to fs-MDT0000 (at 10.0.0.5@tcp) was lost; in progress operations"),
        {"log.network_fs"},
    ),
    "nvme": Fault(P4D, log("nvme nvme3: I/O 12 QID 3 timeout, aborting"), {"log.io_timeout"}),
    "nvme gone": Fault(P4D, log("nvme nvme3: Device not ready; aborting reset, CSTS=0x1"), {"log.io_error"}),
    "io error": Fault(P4D, log("I/O error, dev nvme3n1, sector 8 op 0x0:(READ)"), {"log.io_error"}),
    "read-only": Fault(
        P4D,
        log(
            "EXT4-fs error (device nvme0n1p1): ext4_journal_check_start:83",
            "EXT4-fs (nvme0n1p1): Remounting filesystem read-only",
        ),
        {"log.fs_readonly"},
        unknown={"log.io_error"},
    ),
    "a job's memory": Fault(
        P4D, log("Memory cgroup out of memory: Killed process 4711 (python3) total-vm:104857600kB"), {"log.oom_cgroup"}
    ),
    "a program's Xid": Fault(
        P4D, log("NVRM: Xid (PCI:0000:9b:00): 94, pid=1234, name=python3, Contained ECC error"), {"gpu.xid_program"}
    ),
    "a switch's warning": Fault(
        P4D,
        log("nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Non-fatal, Link 44 Minion Link DLREQ interrupt"),
        {"nvswitch.sxid_nonfatal"},
    ),
    "segfault": Fault(
        P4D, log("python3[4711]: segfault at 8 ip 00007f sp 00007f error 4 in libnccl.so.2"), {"log.segfault"}
    ),
    "mlx5 health": Fault(
        DGX,
        log("mlx5_core 0000:18:00.0: poll_health:800:(pid 0): device's health compromised - reached miss count"),
        {"log.nic"},
    ),
    "mlx5 heat": Fault(
        DGX,
        log("mlx5_core 0000:18:00.0: Port module event[error]: module 0, Cable error, High Temperature"),
        {"log.nic_warning"},
    ),
    "mlx5 register": Fault(
        DGX,
        log(
            "mlx5_core 0000:18:00.0: mlx5_cmd_out_err:808:(pid 77): ACCESS_REG(0x805) op_mod(0x1) failed, status bad "
            "parameter(0x3), syndrome (0x15c356), err(-22)"
        ),
        {"log.nic_register"},
    ),
    "mlx5 power": Fault(
        DGX,
        log("mlx5_core 0000:18:00.0: mlx5_pcie_event:299: Detected insufficient power on the PCIe slot (27W)."),
        {"log.nic_power"},
    ),
    "flaps": Fault(DGX, log(*["mlx5_core 0000:18:00.0 ib0: Link down"] * 5), {"log.link_flap"}),
    "DMAR": Fault(
        P4D, log("DMAR: [DMA Read NO_PASID] Request device [65:00.0] fault addr 0xdead000"), {"log.iommu_fault"}
    ),
    "peermem": Fault(
        P4D, log("nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context"), {"log.peermem"}
    ),
    "the boot is lost": Fault(
        P4D, sub("dmesg.txt", r"(?s).*nvidia-nvswitch0: using MSI\n", "[9.0] x y\n" * 400), {"log.complete"}
    ),
    # AMD
    "ring": Fault(
        AMD,
        log("amdgpu 0000:0c:00.0: [drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring comp_1.0.0 timeout"),
        {"amd.ring_timeout"},
    ),
    "ras": Fault(
        AMD, log("amdgpu 0000:0c:00.0: amdgpu: 2 uncorrectable hardware errors detected in umc block"), {"amd.ras"}
    ),
    "amd heat": Fault(
        AMD,
        log("amdgpu 0000:29:00.0: WARN: GPU thermal throttling temperature reached, expect performance decrease. HBM."),
        {"amd.throttle"},
    ),
    # github ROCm/ROCm#1886
    "amd athub": Fault(
        AMD,
        log("amdgpu 0000:e3:00.0: amdgpu: uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT) detected!"),
        {"amd.ras"},
    ),
    "amd bad records": Fault(
        AMD,
        log("amdgpu 0000:e3:00.0: amdgpu: RAS records:8 exceed threshold:8, GPU will not be initialized."),
        {"amd.ras"},
    ),
    "amd memory lost": Fault(AMD, log("[drm] VRAM is lost due to GPU reset!"), {"amd.ring_timeout"}),
    "a GPU without power": Fault(
        P4D,
        log("nvidia 0000:10:1c.0: Unable to change power state from D3cold to D0, device inaccessible"),
        {"gpu.xid"},
    ),
    "amd init": Fault(AMD, log("amdgpu 0000:0c:00.0: amdgpu: Fatal error during GPU init"), {"amd.init"}),
    "partitions": Fault(AMD, sub("rocm-smi.json", r'("card7": )(\{[^}]*\})', r'\1\2, "card8": \2'), {"amd.partitions"}),
    "unique id twice": Fault(AMD, sub("rocm-smi.json", "0x0000000000000003", "0x0000000000000004"), {"amd.unique_ids"}),
    "memory makers": Fault(AMD, sub("rocm-smi.json", "samsung", "hynix", 1), {"amd.memory_vendor"}),
    "vbios": Fault(AMD, sub("rocm-smi.json", "113-D3431401-101", "113-D3431401-100", 1), {"amd.vbios"}),
    "xgmi errors": Fault(
        AMD,
        sub("rocm-smi.json", '"XGMI Error count": "0"', '"XGMI Error count": "2"', 1),
        {"amd.xgmi"},
    ),
    "amd firmware": Fault(
        AMD, sub("rocm-smi.json", '"MEC firmware version": "65"', '"MEC firmware version": "61"', 1), {"amd.firmware"}
    ),
    "amd replays": Fault(
        AMD, sub("rocm-smi.json", '"PCIe Replay Count": "0"', '"PCIe Replay Count": "5000"', 1), {"amd.pcie_replay"}
    ),
}


def want(fault: Fault) -> Expected:
    return expected(fault.machine, "stress", Group(machine=fault.machine, gpu=GpuOptions(mig=fault.mig)))


@pytest.fixture(scope="module")
def judged() -> dict[str, Judged]:
    cases = {}
    for name, fault in FAULTS.items():
        texts = healthy(fault.machine)
        fault.breaks(texts)
        cases[name] = Case(bundle(texts), want(fault))
    for machine in (DGX, B200, GB200, V100, P4D, AMD):
        cases[f"healthy {machine}"] = Case(bundle(healthy(machine)), expected(machine, "stress"))
    silent = {name: Output("", missing=True) for name in healthy(P4D)}
    cases["silent"] = Case(Bundle(silent), expected(P4D, "stress"))
    return judge(cases)


def ids(result: Judged, status: str) -> set[str]:
    return {check.id for check in result.checks if check.status == status}


@pytest.mark.parametrize("name", FAULTS)
def test_one_fault_fails_the_checks_that_name_it_and_no_other(judged: dict[str, Judged], name: str) -> None:
    fault, result = FAULTS[name], judged[name]
    wrong = [c for c in result.checks if c.status in ("fail", "note")]
    assert ids(result, "fail") | ids(result, "note") == fault.fails, [(c.id, c.message) for c in wrong]
    assert fault.unknown <= ids(result, "unknown")
    assert fault.passes <= ids(result, "pass")
    assert all(fault.says in c.message for c in wrong) or not fault.says
    assert all(c.action == fault.action for c in wrong if c.status == "fail") or not fault.action


def test_every_check_of_this_area_is_red_once_and_green_once(judged: dict[str, Judged]) -> None:
    red = set().union(*(fault.fails for fault in FAULTS.values()))
    assert GPU_CHECKS - red == {"amd.ecc"}  # test_pasted.py: no probe asks for it
    green = set().union(*(ids(result, "pass") for result in judged.values()))
    assert GPU_CHECKS - green == {"amd.ecc"}
    assert {c.id for c in declared()} >= GPU_CHECKS


def test_nothing_passes_where_nothing_was_read(judged: dict[str, Judged]) -> None:
    assert ids(judged["silent"], "pass") & GPU_CHECKS == set()


def test_every_ceiling_is_one_that_a_check_reads() -> None:
    rows = {n: v for n, v in load().ceilings.items() if not n.startswith(("rdma.", "efa."))}
    nothing = replace(expected(P4D), most={})
    assert set(rows) <= set(expected(P4D).most)
    assert nothing.most == {}
    assert all(limit >= 0 for limit in rows.values())
