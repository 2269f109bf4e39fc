"""Every check: passes on a healthy node, fails on the fault that it names, and then it alone fails.

One table of faults; each is one broken text of an otherwise healthy node's bundle. All are judged in one run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from provisioner.catalog import load
from provisioner.spec.groups import GpuOptions, Group
from provisioner.verify.bundle import Bundle, Output
from provisioner.verify.pytest_runner import Case, Judged, judge
from provisioner.verify.registry import declared
from provisioner.verify.tools import FILES
from tests.support import judging
from tests.support.check_tables import DEFAULT, tables_of
from tests.support.healthy_bundle import (
    ALL,
    DIGEST,
    DRIVER,
    REFERENCE,
    bundle,
    capture,
    diag,
    edit,
    expected,
    healthy,
    nvlink,
    smi_xml,
    topo,
    without_gpu,
)

P4D, DGX, V100, NDV4 = "p4d.24xlarge", "dgx-h100", "p3dn.24xlarge", "Standard_ND96asr_v4"
Texts = dict[str, str | Output]


@dataclass(frozen=True)
class Fault:
    """`breaks` changes the texts of a healthy node; then exactly `fails` fail, `unknown` and `passes` at least."""

    machine: str
    breaks: Callable[[Texts], object]
    fails: set[str]
    unknown: set[str] = field(default_factory=set)
    passes: set[str] = field(default_factory=set)
    group: Group | None = None
    says: str = ""


def smi(gpu: int, **values: str) -> Callable[[Texts], object]:
    return lambda t: t.update({"nvidia-smi.xml": edit(str(t["nvidia-smi.xml"]), gpu, **values)})


def old_memory(errors: str, retired: str, pending: str) -> Callable[[Texts], object]:
    """GPU 3 had uncorrectable DRAM errors in its life, and speaks of retired pages, not of remapped rows."""
    return smi(
        3,
        ecc_errors__aggregate__dram_uncorrectable=errors,
        remapped_rows__remapped_row_unc="N/A",
        remapped_rows__remapped_row_pending="N/A",
        remapped_rows__remapped_row_failure="N/A",
        retired_pages__double_bit_retirement__retired_count=retired,
        retired_pages__pending_retirement=pending,
    )


def text(name: str, new: str | Output) -> Callable[[Texts], object]:
    return lambda t: t.update({name: new})


def both(*changes: Callable[[Texts], object]) -> Callable[[Texts], object]:
    return lambda t: [change(t) for change in changes]


def sub(name: str, old: str, new: str, count: int = 0) -> Callable[[Texts], object]:
    def change(texts: Texts) -> None:
        broken = re.sub(old, new, str(texts[name]), count=count)
        assert broken != texts[name], f"{old!r} is not in {name}"
        texts[name] = broken

    return change


def log(line: str) -> Callable[[Texts], object]:
    return lambda t: t.update({"dmesg.txt": f"{t['dmesg.txt']}\n{line}\n"})


def all_of(*changes: Callable[[Texts], object]) -> Callable[[Texts], object]:
    return lambda t: [change(t) for change in changes]


def lose(gpu: int, machine: str, links: dict[int, int] | None = None) -> Callable[[Texts], object]:
    """A GPU gone from the bus, as every tool then shows it."""
    row = load().machine(machine)
    remaining = [i for i in range(row.gpu_count) if i != gpu]
    return lambda t: t.update(
        {
            "nvidia-smi.xml": without_gpu(str(t["nvidia-smi.xml"]), gpu),
            "topo.txt": topo(row, remaining),
            "nvlink.txt": nvlink(row, links, remaining),
            "dcgm-exporter.prom": re.sub(rf'.*gpu="{gpu}".*\n', "", str(t["dcgm-exporter.prom"])),
        }
    )


XID = "[100.000001] NVRM: Xid (PCI:0000:03:00): {}, pid='<unknown>', name=<unknown>, {}"
HUNG = Output("", timed_out=True, seconds=30.0)
REFUSED = Output("", rc=7, error="[Errno 111] Connection refused")
MIG = Group(machine=P4D, gpu=GpuOptions(mig="1g.5gb"))
V100_PEERS = {1: 5, 2: 5, 3: 4, 4: 4}  # GPU 0 of the cube mesh has one link to 1 and 2, two to 3 and 4


def watched(state: str) -> str:
    """`dcgmi health -c -j` with one incident (dcgmi/Health.cpp, DcgmiOutput.cpp of NVIDIA/DCGM)."""
    system = {"overflow": ["link 2 is down"], "value": state}
    entity = {"children": {"Errors": {"children": {"NVLINK system": system}}}, "value": state}
    body = {"GPU": {"children": {"3": entity}}, "Overall Health": {"value": state}}
    return json.dumps({"body": body, "header": ["Health Monitor Report"]}, indent=3)


FAULTS: dict[str, Fault] = {
    # leptonai/gpud, its fabric manager component's test data
    "fabric manager logged an error": Fault(
        P4D,
        lambda t: t.update(
            {
                "fabricmanager.log": f"{t['fabricmanager.log']}[Feb 27 2025 15:10:02] [ERROR] [tid 12727] detected "
                + "NVSwitch non-fatal error 12028 on fid 0 on NVSwitch pci bus id 00000000:86:00.0 port 61\n"
            }
        ),
        {"nvswitch.fabric_log"},
        says="error 12028",
    ),
    "gpu lost": Fault(P4D, lose(5, P4D), {"gpu.count"}, passes={"nvlink.topology", "nvlink.links", "dcgm.exporter"}),
    "the only gpu lost": Fault(
        "workstation-rtx4090",
        all_of(lose(0, "workstation-rtx4090"), text("dcgm-exporter.prom", REFUSED)),
        {"gpu.count"},
        unknown={"dcgm.exporter"},
    ),
    "gpu lost, xid logged": Fault(
        P4D,
        all_of(lose(2, P4D), log(XID.format(79, "GPU has fallen off the bus."))),
        {"gpu.count"},
        passes={"gpu.xid", "nvlink.topology"},
        says="Xid 79",
    ),
    "gpu lost in a cube mesh": Fault(
        V100, lose(0, V100, V100_PEERS), {"gpu.count"}, unknown={"nvlink.links"}, passes={"nvlink.topology"}
    ),
    "gpu lost but listed": Fault(
        P4D, smi(3, fb_memory_usage__total="GPU is lost"), {"gpu.count"}, passes={"gpu.memory"}
    ),
    "gpu lost, other xid": Fault(
        P4D, all_of(lose(5, P4D), log(XID.format(48, "DBE").replace("0000:03", "0002:00"))), {"gpu.count", "gpu.xid"}
    ),
    "attached differs": Fault(P4D, sub("nvidia-smi.xml", "<attached_gpus>8", "<attached_gpus>7"), {"gpu.count"}),
    "no devices": Fault(P4D, text("nvidia-smi.xml", Output("No devices were found\n", rc=6)), {"gpu.count"}),
    "amd gpu lost": Fault("amd-mi300x-node", sub("rocm-smi.json", r'"card7": \{[^}]*\}, ', ""), {"gpu.count"}),
    "other model": Fault(
        P4D,
        smi(4, product_name="NVIDIA A100-SXM4-80GB", fb_memory_usage__total="81920 MiB"),
        {"gpu.model"},
        passes={"gpu.memory"},
        says="GPU 4 is NVIDIA A100-SXM4-80GB",
    ),
    "less memory": Fault(P4D, smi(1, fb_memory_usage__total="32768 MiB"), {"gpu.memory"}),
    "memory not said": Fault(P4D, smi(1, fb_memory_usage__total="N/A"), set(), unknown={"gpu.memory"}),
    "ecc off": Fault(P4D, smi(0, ecc_mode__current_ecc="Disabled"), {"gpu.ecc"}),
    "ecc dram now": Fault(P4D, smi(6, ecc_errors__volatile__dram_uncorrectable="1"), {"gpu.ecc"}),
    "ecc sram ever": Fault(P4D, smi(6, ecc_errors__aggregate__sram_uncorrectable_secded="2"), {"gpu.ecc"}),
    "ecc dram ever": Fault(P4D, smi(6, ecc_errors__aggregate__dram_uncorrectable="2"), {"gpu.ecc"}),
    "ecc dram mended": Fault(
        P4D,
        smi(6, ecc_errors__aggregate__dram_uncorrectable="2", remapped_rows__remapped_row_unc="1"),
        set(),
        passes={"gpu.ecc", "gpu.remap"},
    ),
    # V100 and T4 retire pages in place of remapping rows
    "ecc mended by a retired page": Fault(
        V100, old_memory("1", "1", "No"), {"gpu.page_retirements"}, passes={"gpu.ecc", "gpu.remap"}
    ),
    "ecc and no page retired": Fault(V100, old_memory("1", "0", "No"), {"gpu.ecc"}),
    "ecc and a page to be retired": Fault(V100, old_memory("1", "1", "Yes"), {"gpu.ecc", "gpu.remap"}),
    # A100 with MIG, drivers 510 to 590: the driver says neither of rows nor of pages
    "ecc and nothing of mending": Fault(P4D, old_memory("2", "N/A", "N/A"), set(), unknown={"gpu.ecc", "gpu.remap"}),
    "ecc correctable": Fault(P4D, smi(6, ecc_errors__volatile__dram_correctable="353"), set(), passes={"gpu.ecc"}),
    "remap pending": Fault(P4D, smi(2, remapped_rows__remapped_row_pending="Yes"), {"gpu.remap"}),
    "remap failure": Fault(P4D, smi(2, remapped_rows__remapped_row_failure="Yes"), {"gpu.remap"}),
    "xid before the boot": Fault(
        P4D,
        lambda t: t.update({"dmesg-before.txt": str(t["dmesg-before.txt"]) + XID.format(79, "off")}),
        {"gpu.xid_before"},
        passes={"gpu.xid", "gpu.xid_again"},
    ),
    "xid before the boot and after it": Fault(
        P4D,
        all_of(
            lambda t: t.update({"dmesg-before.txt": str(t["dmesg-before.txt"]) + XID.format(79, "off")}),
            log(XID.format(79, "GPU has fallen off the bus.")),
        ),
        {"gpu.xid_again"},
        unknown={"gpu.xid", "gpu.xid_before"},
        says="and again",
    ),
    "xid 79": Fault(P4D, log(XID.format(79, "GPU has fallen off the bus.")), {"gpu.xid"}, passes={"gpu.count"}),
    "xid 48": Fault(
        P4D, log(XID.format(48, "An uncorrectable double bit error (DBE)")), {"gpu.xid"}, passes={"gpu.ecc"}
    ),
    "xid 154 reset": Fault(
        P4D,
        log(XID.format(154, "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)")),
        {"gpu.xid"},
    ),
    "xid 154 over": Fault(
        P4D, log(XID.format(154, "action changed from 0x1 (GPU Reset Required) to 0x0 (None)")), set()
    ),
    "xids of applications": Fault(
        P4D,
        text("dmesg.txt", capture("dmesg/xid13-43-with-oom-noise.txt")),
        {"log.oom", "log.oom_cgroup", "gpu.xid_program"},
        passes={"gpu.xid"},
    ),
    "xid 63 and 94": Fault(
        P4D,
        all_of(log(XID.format(63, "Row Remapper")), log(XID.format(94, "Contained"))),
        {"gpu.xid_program"},
        passes={"gpu.xid"},
    ),
    "xid unheard of": Fault(P4D, log(XID.format(999, "news")), set(), unknown={"gpu.xid"}),
    "off the bus without xid": Fault(
        P4D, text("dmesg.txt", capture("dmesg/gpu-fallen-off-three-lines.txt")), {"gpu.xid"}
    ),
    "persistence off": Fault(P4D, smi(7, persistence_mode="Disabled"), {"gpu.persistence"}),
    "mig on": Fault(P4D, smi(0, mig_mode__current_mig="Enabled"), {"gpu.mig"}),
    "mig off": Fault(P4D, lambda t: None, {"gpu.mig"}, group=MIG),
    "lanes lost on bare metal": Fault(
        DGX, smi(0, pci__pci_gpu_link_info__link_widths__current_link_width="8x"), {"gpu.lanes"}
    ),
    "pcie narrow": Fault(P4D, smi(0, pci__pci_gpu_link_info__link_widths__current_link_width="8x"), {"gpu.pcie"}),
    "pcie idle": Fault(P4D, smi(0, pci__pci_gpu_link_info__pcie_gen__current_link_gen="1"), set(), passes={"gpu.pcie"}),
    "throttled": Fault(
        P4D, smi(0, clocks_event_reasons__clocks_event_reason_hw_thermal_slowdown="Active"), {"gpu.throttle"}
    ),
    "inforom": Fault(
        P4D, sub("nvidia-smi.xml", "$", "\nWARNING: infoROM is corrupted at gpu 0001:00:00.0", 1), {"gpu.inforom"}
    ),
    "topology": Fault(P4D, sub("topo.txt", "NV12", "SYS"), {"nvlink.topology"}, passes={"nvlink.links"}),
    "one pair": Fault(
        V100, lambda t: t.update({"topo.txt": str(t["topo.txt"]).replace("NV2", "NODE")}), {"nvlink.topology"}
    ),
    "topology one-sided": Fault(P4D, sub("topo.txt", "NV12", "SYS", 1), set(), unknown={"nvlink.topology"}),
    "matrix short": Fault(P4D, text("topo.txt", topo(load().machine(P4D), [0, 1, 2])), {"nvlink.topology"}),
    "nvlink down": Fault(
        P4D,
        lambda t: t.update({"nvlink.txt": nvlink(load().machine(P4D), {3: 11})}),
        {"nvlink.links"},
        passes={"nvlink.topology"},
        says="GPU 3 has 11 of 12",
    ),
    "nvlink down, cell follows": Fault(
        P4D,
        all_of(
            lambda t: t.update({"nvlink.txt": nvlink(load().machine(P4D), {3: 11})}), sub("topo.txt", "NV12", "NV11")
        ),
        {"nvlink.links"},
        unknown={"nvlink.topology"},
    ),
    "links all inactive": Fault(
        P4D,
        text("nvlink.txt", "".join(f"GPU {i}: A (UUID: x)\nNVML: all links are inActive\n" for i in range(8))),
        {"nvlink.links"},
    ),
    "links of a dead peer": Fault(
        V100, text("nvlink.txt", capture("nvlink/v100-7gpu-inactive.txt")), set(), {"nvlink.links"}
    ),
    "fabric manager dead": Fault(
        P4D,
        text("fabricmanager.txt", Output("     Active: inactive (dead) since Tue\n", rc=3)),
        {"nvswitch.fabric"},
        passes={"nvlink.links", "nvlink.topology"},
    ),
    "fabric manager failed": Fault(
        DGX, text("fabricmanager.txt", capture("systemd/failed-version-mismatch-journal.txt")), {"nvswitch.fabric"}
    ),
    "fabric manager absent": Fault(
        P4D,
        text("fabricmanager.txt", Output("", rc=4, error="Unit nvidia-fabricmanager.service could not be found.")),
        {"nvswitch.fabric"},
    ),
    "fabric not complete": Fault(DGX, smi(3, fabric__state="In Progress", fabric__status="N/A"), {"nvswitch.fabric"}),
    "sxid that is not fatal": Fault(
        P4D,
        log("[200.5] nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 22013, Non-fatal, Link 44 Minion Link DLREQ interrupt"),
        {"nvswitch.sxid_nonfatal"},
    ),
    "sxid without its severity": Fault(
        P4D,
        log("[200.5] nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 12028, Data {0x000001c0, 0x00bd5c8a, 0x00000500}"),
        {"nvswitch.sxid"},
    ),
    "sxid": Fault(
        DGX,
        log("[200.5] nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 63 LTSSM Fault Up"),
        {"nvswitch.sxid"},
    ),
    "nvidia-smi hangs": Fault(
        P4D,
        lambda t: t.update(dict.fromkeys(("nvidia-smi.xml", "topo.txt", "nvlink.txt"), HUNG)),
        {"driver.responds"},
        unknown={
            "gpu.count",
            "gpu.model",
            "gpu.ecc",
            "nvlink.topology",
            "nvlink.links",
            "driver.version",
            "nvswitch.fabric",
        },
        passes={"gpu.xid", "dcgm.exporter", "container.image"},
    ),
    "xml query hangs": Fault(
        P4D, text("nvidia-smi.xml", HUNG), {"driver.responds"}, unknown={"gpu.count"}, passes={"nvlink.topology"}
    ),
    "no driver": Fault(
        P4D,
        text(
            "nvidia-smi.xml",
            Output("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n", rc=9),
        ),
        {"driver.responds"},
        unknown={"gpu.count"},
    ),
    "nvidia-smi missing": Fault(P4D, text("nvidia-smi.xml", Output("", missing=True)), {"driver.responds"}),
    "driver and library differ": Fault(
        P4D,
        text(
            "nvidia-smi.xml",
            "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.159\n",
        ),
        {"driver.version"},
        unknown={"gpu.count", "cuda.version"},
        passes={"driver.responds"},
    ),
    "wrong driver": Fault(
        P4D,
        all_of(
            sub("nvidia-smi.xml", DRIVER, "570.148.08"),
            sub("nvidia-smi.xml", "<cuda_version>13.0", "<cuda_version>12.8"),
        ),
        {"driver.version"},
        unknown={"cuda.version"},
    ),
    "wrong cuda": Fault(P4D, sub("nvidia-smi.xml", "<cuda_version>13.0", "<cuda_version>13.1"), {"cuda.version"}),
    "wrong nccl": Fault(
        P4D, sub("packages.txt", "2.27.7-1", "2.28.3-1"), {"nccl.version"}, unknown={"packages.locked"}
    ),
    "nccl missing": Fault(P4D, sub("packages.txt", "libnccl2.*\n", ""), {"nccl.version"}),
    "package moved": Fault(P4D, sub("packages.txt", "13.0.2-1", "13.0.3-1"), {"packages.locked"}),
    "package removed": Fault(P4D, sub("packages.txt", "(cuda-toolkit.*)\tii ", r"\1\trc "), {"packages.locked"}),
    "not held": Fault(P4D, sub("holds.txt", "libnccl2\n", ""), {"packages.held"}),
    "another distribution": Fault(
        P4D,
        text("os-release.txt", capture("os_release/ubuntu-22.04.txt")),
        {"os.release"},
        says="Ubuntu 22.04.2 LTS (ubuntu-22.04) runs, the lock is for ubuntu-24.04",
    ),
    "of another image": Fault(
        P4D,
        sub("image.json", "20260131", "20260101"),
        {"image.build"},
        says="made of pytorch 20260101-031500, the lock names pytorch 20260131-031500",
    ),
    "of no image": Fault(P4D, text("image.json", ""), {"image.build"}, says="made of no golden image"),
    "kernel free": Fault(P4D, sub("holds.txt", "linux-image.*\n", ""), {"kernel.hold"}),
    "exporter dead": Fault(P4D, text("dcgm-exporter.prom", REFUSED), {"dcgm.exporter"}),
    "exporter slow": Fault(P4D, text("dcgm-exporter.prom", Output("", rc=28, error="timed out")), {"dcgm.exporter"}),
    "exporter misses a gpu": Fault(P4D, sub("dcgm-exporter.prom", '.*gpu="6".*\n', ""), {"dcgm.exporter"}),
    "exporter blank": Fault(P4D, sub("dcgm-exporter.prom", "} 31", "} 9223372036854775794"), {"dcgm.exporter"}),
    "exporter stale": Fault(P4D, sub("dcgm-exporter.prom", "} 31", "} 31 1699990000000"), {"dcgm.exporter"}),
    "diag failed": Fault(
        P4D, text("dcgmi-diag.json", capture("dcgmi_diag/diag-r1-json-dcgm4-gb10-fail.json")), {"dcgm.diag"}
    ),
    "persistence off, and DCGM tells it as well": Fault(
        P4D,
        both(
            smi(0, persistence_mode="Disabled"),
            text("dcgmi-diag.json", capture("dcgmi_diag/diag-r1-json-dcgm4-gb10-fail.json")),
        ),
        {"gpu.persistence"},
    ),
    "one test of nine, and eight skipped": Fault(
        P4D,
        sub("dcgmi-diag.json", '"Pass"', '"Skip"', 13),
        set(),
        unknown={"dcgm.diag"},
    ),
    "no power, stress or diagnostic plugin": Fault(
        P4D,
        text("dcgmi-diag.json", diag(diagnostic="Skip", targeted_stress="Skip", targeted_power="Skip")),
        set(),
        unknown={"dcgm.diag"},
    ),
    "no plugin but one of them": Fault(
        P4D,
        text("dcgmi-diag.json", diag(diagnostic="Skip", targeted_stress="Skip")),
        set(),
        passes={"dcgm.diag"},
    ),
    "diag warned": Fault(
        P4D,
        text("dcgmi-diag.json", diag(targeted_power="Warn")),
        {"dcgm.diag_warning"},
        passes={"dcgm.diag"},
        says="Targeted Power",
    ),
    "dcgm's watches": Fault(
        P4D, text("dcgmi-health.json", watched("Failure")), {"dcgm.health"}, says="GPU 3: NVLINK system: link 2 is down"
    ),
    "dcgm's watches warn": Fault(
        P4D, text("dcgmi-health.json", watched("Warning")), {"dcgm.health_warning"}, passes={"dcgm.health"}
    ),
    "no watch is set": Fault(
        P4D, text("dcgmi-health.json", "Error: Health watches not enabled. Please enable watches. \n"), set()
    ),
    "exporter without a field": Fault(P4D, sub("dcgm-exporter.prom", "DCGM_FI_DEV_FB_USED", "OTHER"), {"dcgm.fields"}),
    "exporter stands still": Fault(P4D, sub("dcgm-exporter.prom", r"(GPU_TEMP.*}) 31", r"\1 81"), {"dcgm.fields"}),
    "an xid that dmesg has lost": Fault(
        P4D, sub("dcgm-exporter.prom", r'(XID_ERRORS{gpu="3".*}) 0', r"\1 79"), {"dcgm.xid"}, says="GPU 3: Xid 79"
    ),
    "slow": Fault(P4D, sub("all_reduce.txt", r"2[23]\d\.\d\d", "112.00"), {"nccl.bandwidth"}),
    "wrong values": Fault(
        P4D, text("all_reduce.txt", capture("nccl_tests/mock-out-of-bounds-failed.txt")), {"nccl.bandwidth"}
    ),
    "cuda 802": Fault(
        DGX, text("all_reduce.txt", capture("nccl_tests/h100-cuda-system-not-yet-initialized.txt")), {"nccl.bandwidth"}
    ),
    "ib port down": Fault(
        NDV4,
        sub("ibstat.txt", "State: Active\n(.*)LinkUp\n(.*)Rate: 200", r"State: Down\n\1Disabled\n\2Rate: 10", 1),
        {"ib.ports"},
        passes={"ib.rate"},
    ),
    "ib port gone": Fault(NDV4, sub("ibstat.txt", r"(?s)CA 'mlx5_ib7'.*", ""), {"ib.ports"}, passes={"ib.rate"}),
    "ibstat broke off": Fault(NDV4, text("ibstat.txt", capture("ibstat/a100-ibpanic-exit255.txt")), {"ib.ports"}),
    "ib half rate": Fault(NDV4, sub("ibstat.txt", "Rate: 200", "Rate: 100", 1), {"ib.rate"}, passes={"ib.ports"}),
    "ib beside ethernet": Fault(
        DGX, text("ibstat.txt", capture("ibstat/h100-ib-3-eth-down.txt")), set(), passes={"ib.ports", "ib.rate"}
    ),
    "efa short": Fault(P4D, text("fi_info.txt", capture("fi_info/fi_info-g6-1nic.txt")), {"efa.devices"}),
    "efa none": Fault(
        P4D, text("fi_info.txt", Output("fi_getinfo: -61 (No data available)\n", rc=61)), {"efa.devices"}
    ),
    "image missing": Fault(
        P4D, text("container-images.json", "[]"), {"container.image"}, passes={"framework.versions"}
    ),
    "image of other content": Fault(
        P4D,
        all_of(
            sub("container-images.json", DIGEST, "sha256:" + "cd" * 32),
            sub("framework.json", "2.9.0a0", "2.8.0a0"),
        ),
        {"container.image"},
        unknown={"framework.versions"},
    ),
    "tag moved": Fault(
        P4D,
        text(
            "container-images.json",
            json.dumps({"Id": "sha256:1", "RepoTags": [], "RepoDigests": [f"a@{DIGEST}"]})
            + json.dumps({"Id": "sha256:2", "RepoTags": [REFERENCE], "RepoDigests": []}),
        ),
        {"container.image"},
    ),
    "docker down": Fault(
        P4D,
        text("container-images.json", Output("\n", rc=1, error="Cannot connect to the Docker daemon")),
        set(),
        unknown={"container.image"},
    ),
    "another module on disk": Fault(
        P4D, sub("host.json", r"580\.173\.02\\n", r"595.58.03\\n"), {"driver.loaded_is_installed"}
    ),
    "other torch": Fault(P4D, sub("framework.json", "2.9.0a0", "2.8.0a0"), {"framework.versions"}),
    "torch sees seven": Fault(P4D, sub("framework.json", r"gpus\\\": 8", r'gpus\\": 7'), {"framework.versions"}),
    "container does not run": Fault(
        P4D,
        text(
            "framework.json",
            json.dumps({"images": [{"reference": REFERENCE, "rc": 125, "output": "", "error": "no such image"}]}),
        ),
        set(),
        unknown={"framework.versions"},
    ),
}


def case(fault: Fault) -> Case:
    texts = healthy(fault.machine)
    fault.breaks(texts)
    return Case(bundle(texts), expected(fault.machine, "stress", fault.group))


def mutants() -> dict[str, Case]:
    """Each file of a p4d, and of an NDv4 what a p4d has not: absent, empty, garbage, cut, hung, of a missing tool."""
    cases = {}
    for machine in (P4D, NDV4):
        texts = healthy(machine)
        for name in texts if machine == P4D else sorted(set(texts) - set(healthy(P4D))):
            complete_text = str(texts[name])
            outputs: dict[str, Output | None] = {
                "absent": None,
                "empty": Output("", rc=1),
                "garbage": Output("\x00\xff<<{]\n" * 40, rc=0),
                "cut": Output(complete_text[: len(complete_text) // 2], truncated=True),
                "hung": Output(complete_text[: len(complete_text) // 2], timed_out=True, seconds=30.0),
                "missing": Output("", missing=True),
            }
            for kind, output in outputs.items():
                files = {k: v for k, v in bundle(texts).files.items() if k != name}
                if output is not None:
                    files[name] = output
                cases[f"{machine}/{name}/{kind}"] = Case(Bundle(files), expected(machine, "stress"))
    return cases


@pytest.fixture(scope="module")
def judged() -> dict[str, Judged]:
    cases = {f"healthy {machine}": Case(bundle(healthy(machine)), expected(machine, "stress")) for machine in ALL}
    return judge(cases | {name: case(fault) for name, fault in FAULTS.items()} | mutants())


def statuses(result: Judged) -> dict[str, str]:
    return {check.id: check.status for check in result.checks}


def ids(result: Judged, status: str) -> set[str]:
    return {id for id, value in statuses(result).items() if value == status}


@pytest.mark.parametrize("machine", ALL)
def test_a_healthy_node_fails_nothing_and_leaves_nothing_unknown(judged: dict[str, Judged], machine: str) -> None:
    result = judged[f"healthy {machine}"]
    assert [(c.id, c.message) for c in result.checks if c.status in ("fail", "unknown")] == []
    assert len(ids(result, "pass")) >= 3


@pytest.mark.parametrize("name", FAULTS)
def test_one_fault_fails_the_checks_that_name_it_and_no_other(judged: dict[str, Judged], name: str) -> None:
    fault, result = FAULTS[name], judged[name]
    assert ids(result, "fail") == fault.fails, [(c.id, c.message) for c in result.checks if c.status == "fail"]
    assert fault.unknown <= ids(result, "unknown")
    assert fault.passes <= ids(result, "pass")
    if fault.says:
        assert any(fault.says in c.message for c in result.checks if c.status == "fail")


def test_every_check_has_a_green_and_a_red_input(judged: dict[str, Judged]) -> None:
    known = {check.id for check in declared()}
    green = set().union(*(ids(judged[f"healthy {machine}"], "pass") for machine in ALL))
    red = set().union(*(fault.fails for fault in FAULTS.values()))
    alone = {id for id in known if tables_of(id) == [DEFAULT]}
    assert alone - green == set()
    assert alone - red == set()


@pytest.mark.parametrize("mutant", list(mutants()))
def test_no_check_passes_on_what_it_could_not_read(judged: dict[str, Judged], mutant: str) -> None:
    machine, name, _ = mutant.split("/")
    want = expected(machine, "stress")
    by_check = statuses(judged[mutant])
    for check in declared():
        reads = {want.gpu_file if need == "gpus" else need for need in check.needs} | OUTCOMES.get(check.id, set())
        if name in reads:
            assert by_check[check.id] != "pass", f"{check.id} passed"
    assert name in FILES


OUTCOMES = {
    "driver.responds": {"nvidia-smi.xml"},
    "driver.version": {"nvidia-smi.xml"},
    "gpu.xid_before": {"dmesg-before.txt"},
    "dcgm.exporter": {"dcgm-exporter.prom"},
}
"""Files whose missing is itself judged by a check, which therefore does not name them in `needs`."""


def condemned(judged: Judged) -> bool:
    return any(check.condemns or check.explained_by or check.lowered for check in judged.checks)


def test_judging_in_this_process_says_the_same(judged: dict[str, Judged]) -> None:
    """tests/support/judging.py, which the other files of this folder judge by."""
    cases = {name: case(FAULTS[name]) for name in [*FAULTS][::12]} | dict([*mutants().items()][::50])
    for name, verdict in judging.judge(cases).items():
        other = judged[name]
        assert {c.id: c for c in verdict.checks} == {c.id: c for c in other.checks}, name
        facts = (
            verdict.facts if condemned(other) else {"fabric": verdict.facts["fabric"]}
        )  # of more nodes than DETAILED
        assert (dict(facts), verdict.measures) == (dict(other.facts), other.measures), name


def test_a_node_without_any_output_is_not_healthy() -> None:
    result = judge({"silent": Case(Bundle(error="no answer within 20 s"), expected(P4D))})["silent"]
    assert ids(result, "pass") == set()
    assert any(c.condemns and "no answer within 20 s" in c.message for c in result.checks)


def test_the_level_decides_what_is_skipped() -> None:
    texts = healthy(P4D)
    for name in ("framework.json", "dcgmi-diag.json", "all_reduce.txt", "load.json"):
        del texts[name]
    want = expected(P4D, "standard")
    result = judge({"quick": Case(bundle(texts), replace(want, level="quick")), "standard": Case(bundle(texts), want)})
    started = {"framework.versions", "dcgm.diag", "nccl.bandwidth", "load.completes"}
    assert started <= ids(result["quick"], "skip")
    assert started <= ids(result["standard"], "unknown")


def test_a_real_h100_node_is_judged_healthy_where_it_was_captured() -> None:
    files = {
        "nvidia-smi.xml": "nvidia_smi/h100-sxm-8gpu-580.xml",
        "topo.txt": "topo/h100-8gpu-8nic-legend.txt",
        "dmesg.txt": "dmesg/kmsg-no-xid.txt",
        "ibstat.txt": "ibstat/h100-ib-3-eth-down.txt",
        "fabricmanager.txt": "systemd/running-8xh100-vm.txt",
        "dcgm-exporter.prom": "dcgm_exporter/h100-8gpu-580.txt",
    }
    texts: Texts = {name: capture(path) for name, path in files.items()}
    want = replace(expected(DGX), driver="580.105.08", system=None, images=None, nccl=None, packages=None, held=None)
    result = judge({"real": Case(bundle(texts), want)})["real"]
    assert ids(result, "fail") == set()
    # Unknown is what was not captured, and nothing else.
    silent = {check.id for check in declared() if {*check.needs, *check.reads} - {*files, "gpus"}}
    silent |= {"log.complete"}
    silent |= {"ib.rails"}  # it is no DGX, and its ports have other names
    assert {"nvlink.links"} <= ids(result, "unknown") <= silent


def test_the_sentences_are_whole_and_the_declarations_sound() -> None:
    known = {check.id for check in declared()}
    assert len(known) == len(declared())
    for check in declared():
        assert re.fullmatch(r"[a-z]+\.[a-z_]+", check.id)
        assert check.says.endswith(".")
        assert set(check.follows) <= known - {check.id}
        assert set(check.needs) <= {*FILES, "gpus"}


def test_smi_xml_of_the_support_code_is_what_the_parser_reads() -> None:
    assert smi_xml(load().machine(DGX)).count("<gpu ") == 8
    assert Path(__file__).parent.joinpath("captures").is_dir()
