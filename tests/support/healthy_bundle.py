"""Bundles of healthy nodes, made of real captures where there are some, and the lock that they obey.

`healthy(machine)` gives name → text for every file of a bundle; a test breaks one of them and sees what fails.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from provisioner.catalog import load
from provisioner.catalog.models import Gpu, Machine
from provisioner.common.levels import Level
from provisioner.spec.groups import Group
from provisioner.stack.models import Image, Package, Stack
from provisioner.verify.bundle import Bundle, Output
from provisioner.verify.checks.monitoring import NEEDED
from provisioner.verify.expectations import Expected, expect
from tests.support.healthy_fabric import fabric_json
from tests.support.healthy_gpu import BOOT, ERRORS, MODULES, driver_files, lspci, nvlink_errors
from tests.support.healthy_host import NOW, host_files
from tests.support.healthy_load import load_files
from tests.support.healthy_perftest import SFP, ib_switches_json, loopback_json, mlxlink_json, roce_qos_json

CAPTURES = Path(__file__).parents[1] / "unit" / "verify" / "captures"
DRIVER, CUDA, NCCL, KERNEL = "580.173.02", "13.0", "2.27.7", "6.8.0-1024-aws"
FABRIC_LOG = """\
[Feb 25 2025 13:55:02] [ERROR] [tid 1799] detected NVSwitch non-fatal error 12028 on fid 0, before the start below
[Feb 25 2025 13:59:40] [INFO] [tid 1803] Fabric Manager version 580.173.02 is running with the following configuration
[Feb 25 2025 13:59:45] [INFO] [tid 1808] multicast group 0 is freed.
"""
SLOWED = (
    "<clocks_event_reasons_counters><clocks_event_reasons_counters_hw_therm_slowdown>7 us"
    "</clocks_event_reasons_counters_hw_therm_slowdown></clocks_event_reasons_counters></gpu>"
)
DIGEST = "sha256:" + "ab" * 32
REFERENCE = "nvcr.io/nvidia/pytorch:25.10-py3"
PULL = f"nvcr.io/nvidia/pytorch@{DIGEST}"
FRAMEWORK = {"torch": "2.9.0a0+145a3a7bda", "cuda": "13.0", "nccl": "2.27.7", "python": "3.12.3"}
LOCKED_IMAGE = Image(reference=REFERENCE, digest=DIGEST, pull=PULL, torch="2.9", cuda=CUDA, nccl=NCCL, python="3.12")
ALL = ("p4d.24xlarge", "dgx-h100", "Standard_ND96asr_v4", "p3dn.24xlarge", "workstation-rtx4090", "amd-mi300x-node")


def capture(path: str) -> str:
    return (CAPTURES / path).read_bytes().decode()


def stack(machine: str) -> Stack:
    row = load().machine(machine)
    if load().gpu(row.gpu_model).vendor != "nvidia":
        return Stack(os="ubuntu-24.04",
                     **dict.fromkeys(("driver", "driver_branch", "kernel_modules", "fabric_manager"), None),
                     **dict.fromkeys(("cuda_driver", "cuda_toolkit", "nccl", "dcgm", "dcgm_exporter"), None),
                     container_toolkit=None)  # fmt: skip
    packages = [
        ("libnccl2", f"{NCCL}-1+cuda13.0"),
        ("nvidia-open", f"{DRIVER}-0ubuntu1"),
        ("cuda-toolkit-13-0", "13.0.2-1"),
    ]
    packages += [("nvidia-fabricmanager", f"{DRIVER}-1")] if row.fabric_manager_required else []
    packages += [("nvlsm", "2025.06.5-1")] if row.subnet_manager_required else []
    return Stack(
        os="ubuntu-24.04",
        driver=DRIVER,
        driver_branch="580",
        kernel_modules="proprietary" if load().gpu(row.gpu_model).open_kernel_modules == "impossible" else "open",
        fabric_manager=DRIVER if row.fabric_manager_required else None,
        efa="1.47.0" if row.network.kind == "efa" else None,
        cuda_driver=CUDA,
        cuda_toolkit="13.0",
        nccl=NCCL,
        dcgm="4.4.2",
        dcgm_exporter="4.4.2-4.7.1",
        container_toolkit="1.18.1",
        packages=(*(Package(name=n, version=v, repository="cuda", part="driver") for n, v in packages),
                  Package(name="pciutils", version="1:3.9.0-4", part="driver")),
        images=(LOCKED_IMAGE,),
    )  # fmt: skip


def expected(machine: str, level: Level = "standard", group: Group | None = None) -> Expected:
    catalog = load()
    row = catalog.machine(machine)
    return expect(
        row, catalog.gpu(row.gpu_model), stack(machine), group or Group(machine=machine), catalog, level=level,
        image="pytorch 20260131-031500",
    )  # fmt: skip


def bundle(texts: dict[str, str | Output]) -> Bundle:
    files = {name: Output(text, rc=0) if isinstance(text, str) else text for name, text in texts.items()}
    return Bundle(files=files, collected=NOW, seconds=1.0, received=NOW + 0.2)


def nth(machine: str, number: int) -> dict[str, str | Output]:
    """The texts of one of several healthy nodes: its GPUs, its names and its readings are its own."""
    texts = healthy(machine)
    host = json.loads(str(texts["host.json"])) | {"hostname": f"node-{number}"}
    host["files"] |= {"etc/machine-id": f"{number:032x}", "etc/ssh/ssh_host_ed25519_key.pub": f"ssh-ed25519 A{number}"}
    texts["host.json"] = json.dumps(host)
    serial = f"{1650000000000 + number * 16}"[:-1]
    for index, name in enumerate(sorted(name for name in texts if name.startswith("nvidia-smi"))):
        text = re.sub("<serial>.{12}", f"<serial>{serial}", str(texts[name]))
        texts[name] = re.sub(
            r"<(gpu_temp|sm_clock|instant_power_draw|average_power_draw)>(\d+)",
            # Up to three more, each reading another: no two nodes are equally warm.
            lambda m, n=number + index: f"<{m[1]}>{int(m[2]) + (n * 7 + m.start() * 13) % 4}",  # type: ignore[misc]
            text,
        )
    for name in [name for name in texts if name.startswith(("nvidia-smi", "nvlink", "dcgm-exporter"))]:
        texts[name] = re.sub(r"\bGPU-\d{4}(?=\d{4}-)", f"GPU-{number:04x}", str(texts[name]))
    texts["load.json"] = re.sub(
        r'((?:_gbps|tflops|tflops_last|samples_per_s)\\?": )(\d+(?:\.\d+)?)',
        lambda m: f"{m[1]}{float(m[2]) * (1 + (number * 7 + m.start()) % 11 / 2000):.3f}",
        str(texts["load.json"]),
    )
    for name in [name for name in texts if name.startswith("dmesg")]:
        texts[name] = re.sub(r"(?m)^\[ *(\d+)\.(\d\d)", lambda m: f"[{m[1]:>5}.{number % 90 + 10}", str(texts[name]))
    return texts


def healthy(machine: str) -> dict[str, str | Output]:
    """The texts of a healthy node of that type, which the caller may change."""
    row = load().machine(machine)
    gpu = load().gpu(row.gpu_model)
    entry = _TEXTS.get(machine)
    if entry is None or entry[0] is not row or entry[1] is not gpu:
        if len(_TEXTS) >= CACHED:
            _TEXTS.clear()
        entry = _TEXTS[machine] = row, gpu, _texts(row, gpu)
    return {**entry[2]}


CACHED = 64
"""Machine types whose texts are kept, half a MB each."""
_TEXTS: dict[str, tuple[Machine, Gpu, Mapping[str, str | Output]]] = {}
"""Machine type → its rows of the catalogue, for which a test may put others, and the texts that were made of them."""


def _texts(row: Machine, gpu: Gpu) -> dict[str, str | Output]:
    machine = row.name
    texts: dict[str, str | Output] = {
        "dmesg.txt": BOOT + capture("dmesg/kmsg-no-xid.txt"),
        "dmesg-before.txt": BOOT,
        "dmesg-errors.txt": ERRORS,
        "lspci.txt": lspci(row),
        "packages.txt": "".join(f"{p.name}\t{p.version}\tii \n" for p in stack(machine).packages)
        + f"linux-image-{KERNEL}\t6.8.0-1024.26\tii \n",
        "holds.txt": "".join(f"{p.name}\n" for p in stack(machine).packages) + f"linux-image-{KERNEL}\n",
        "kernel.txt": f"{KERNEL}\n",
        "image.json": '{"build": "20260131-031500", "gpuprov": "0.1.0", "image": "pytorch", "target": "p4d"}\n',
        "os-release.txt": capture("os_release/ubuntu-24.04.txt"),
        "dgx-release.txt": "",
        "modules.txt": MODULES,
        "services.txt": "",
        "maintenance.json": '{"status": 200, "name": "node-0", "text": "[]"}',
        **host_files(row, DRIVER),
    }
    if row.network.kind in ("infiniband", "roce"):
        texts["ibstat.txt"] = ibstat(row)
    if row.network.kind in ("infiniband", "roce", "efa"):
        if row.network.kind != "efa":
            texts["ibv_devinfo.txt"] = ibv_devinfo(row)
        texts["rdma.json"] = json.dumps(rdma(row))
    if row.network.kind == "infiniband" and not load().provider(row.provider).virtual:
        texts["ib-switches.json"] = ib_switches_json(row)
    if row.network.kind == "roce":
        texts["roce-qos.json"] = roce_qos_json(row)
    if not load().provider(row.provider).virtual:
        texts["ethtool-modules.json"] = SFP.read_text(encoding="utf-8")
    if row.network.kind in ("infiniband", "roce"):
        texts["nic-loopback.json"] = loopback_json(row)
        if not load().provider(row.provider).virtual:
            texts["mlxlink.json"] = mlxlink_json(row)
    if row.network.kind != "ethernet":
        texts["fabric.json"] = fabric_json(row)
    if gpu.vendor == "none":
        return texts
    limit = load().nccl_limit(row)
    reached = max(231.72, limit.threshold + 10 if limit else 0.0)
    texts["all_reduce.txt"] = capture("nccl_tests/a100-8gpu-1node.txt").replace("231.72", f"{reached:.2f}")
    if gpu.vendor == "amd":
        return texts | load_files(row, texts) | {"rocm-smi.json": rocm(row)}
    texts |= driver_files(row, DRIVER) | {
        "nvlink-errors.txt": nvlink_errors(row),
        "nvidia-smi.xml": smi_xml(row).replace("</gpu>", SLOWED if machine == "dgx-h100" else "</gpu>"),
        "topo.txt": topo(row),
        "nvlink.txt": nvlink(row),
        "dcgm-exporter.prom": exporter(row.gpu_count, gpu.product_names[0]),
        "dcgmi-diag.json": diag(),
        "nccl-ras.txt": "",
        "dcgmi-health.json": '{"body": {"Overall Health": {"value": "Healthy"}}, "header": ["Health Monitor Report"]}',
        "container-images.json": json.dumps({"Id": "sha256:11", "RepoTags": [REFERENCE], "RepoDigests": [PULL]}),
        "framework.json": json.dumps(
            {
                "images": [
                    {
                        "reference": REFERENCE,
                        "rc": 0,
                        "output": "NVIDIA banner\n" + json.dumps(FRAMEWORK | {"gpus": row.gpu_count}),
                    }
                ]
            }
        ),
    }
    if row.fabric_manager_required:
        texts["fabricmanager.txt"] = capture("systemd/running-8xh100-vm.txt")
        texts["fabricmanager.log"] = FABRIC_LOG
    if row.network.kind == "efa":
        entry = capture("fi_info/fi_info-g6-1nic.txt")
        texts["fi_info.txt"] = "".join(entry.replace("rdmap47s0", f"rdmap{47 + i}s0") for i in range(row.network.ports))
    return texts | load_files(row, texts)


def smi_xml(row: Machine) -> str:
    """nvidia-smi -q -x of the machine: one captured A100, once for each GPU, under its own address, name and memory."""
    gpu = load().gpu(row.gpu_model)
    root = ElementTree.fromstring(capture("nvidia_smi/a100-sxm-40gb-1gpu-570.xml"))
    captured_gpu = root.find("gpu")
    assert captured_gpu is not None
    root.remove(captured_gpu)
    for path, value in {"driver_version": DRIVER, "cuda_version": CUDA, "attached_gpus": str(row.gpu_count)}.items():
        put(root, path, value)
    for i in range(row.gpu_count):
        element = copy.deepcopy(captured_gpu)
        address = f"{i + 1:08X}:00:00.0"
        element.set("id", address)
        put(element, "pci/pci_bus_id", address)
        put(element, "uuid", f"GPU-{i:08d}-0000-0000-0000-000000000000")
        put(element, "product_name", gpu.product_names[0])
        put(element, "fb_memory_usage/total", f"{row.gpu_memory_mib} MiB")
        put(element, "bar1_memory_usage/total", f"{2 ** row.gpu_memory_mib.bit_length()} MiB")
        put(element, "serial", f"165{i:010d}")
        put(element, "minor_number", str(i))
        put(element, "gsp_firmware_version", DRIVER)
        put(element, "pci/pci_gpu_link_info/pcie_gen/max_link_gen", str(gpu.pcie_gen))
        if row.nvlink.topology == "nvswitch" and gpu.arch in ("hopper", "blackwell"):
            put(element, "fabric/state", "Completed")
            put(element, "fabric/status", "Success")
        if not gpu.ecc:
            put(element, "ecc_mode/current_ecc", "Disabled")
            put(element, "ecc_mode/pending_ecc", "Disabled")
        if not gpu.mig:
            put(element, "mig_mode/current_mig", "N/A")
            put(element, "mig_mode/pending_mig", "N/A")
        root.append(element)
    for element in root.iter("gpu"):  # as the probe sends it
        for clocks in element.findall("supported_clocks"):
            element.remove(clocks)
    return '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">\n' + ElementTree.tostring(
        root, "unicode"
    )


def put(element: ElementTree.Element, path: str, value: str) -> None:
    child = element.find(path)
    assert child is not None, path
    child.text = value


def edit(xml: str, gpu: int, **values: str) -> str:
    """Change elements of one GPU: `a__b="x"` sets a/b."""
    root = ElementTree.fromstring(xml)
    for path, value in values.items():
        put(root.findall("gpu")[gpu], path.replace("__", "/"), value)
    return ElementTree.tostring(root, "unicode")


def without_gpu(xml: str, gpu: int) -> str:
    """nvidia-smi of a node whose GPU is gone: one element and one attached GPU less."""
    root = ElementTree.fromstring(xml)
    root.remove(root.findall("gpu")[gpu])
    put(root, "attached_gpus", str(len(root.findall("gpu"))))
    return ElementTree.tostring(root, "unicode")


def topo(row: Machine, remaining: list[int] | None = None) -> str:
    """The matrix of the machine, or of those of its GPUs that are left, renumbered as the tool does."""
    cells = load().topology(row)
    slots = remaining if remaining is not None else list(range(row.gpu_count))
    nics = row.network.ports if row.network.kind in ("infiniband", "roce") else 0
    columns = [f"GPU{n}" for n in range(len(slots))] + [f"NIC{n}" for n in range(nics)]
    lines = ["\t" + "\t".join(columns) + "\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID"]
    for n, i in enumerate(slots):
        values = [" X " if i == j else min(cells[min(i, j), max(i, j)]) for j in slots]
        values += ["PXB" if k == i * nics // row.gpu_count else "SYS" for k in range(nics)]
        lines.append(f"GPU{n}\t" + "\t".join(values) + "\t0-23,48-71\t0\t\tN/A")
    nic_names = [f"  NIC{n}: {name}" for n, name in enumerate(row.rdma_devices[:nics])]
    legend = "\nNIC Legend:\n\n" + "\n".join(nic_names) + "\n" if nic_names else ""
    return "\n".join(lines) + "\n\nLegend:\n\n  X    = Self\n" + legend


def nvlink(row: Machine, active: dict[int, int] | None = None, remaining: list[int] | None = None) -> str:
    """nvidia-smi nvlink -s; `active` says of which GPU how many links are up."""
    links_per_gpu = load().nvlinks_per_gpu(row)
    rate, lines = row.nvlink.gbps_per_link / 2, []
    for n, i in enumerate(remaining if remaining is not None else range(row.gpu_count)):
        lines.append(f"GPU {n}: NVIDIA X (UUID: GPU-{i:08d}-0000-0000-0000-000000000000)")
        up = (active or {}).get(i, links_per_gpu[i])
        lines += [f"\t Link {k}: {f'{rate:g} GB/s' if k < up else '<inactive>'}" for k in range(links_per_gpu[i])]
        lines += [] if links_per_gpu[i] else ["Device does not have or support Nvlink"]
    return "\n".join(lines) + "\n"


def diag(**hardware: str) -> str:
    """What -r 3 prints: the captured tests of software, and those that work a GPU by DCGM 3's names (dcgm_fields,
    NvvsJsonStrings.h); `targeted_power="Skip"` changes one of them."""
    document = json.loads(capture("dcgmi_diag/diag-r1-json-dcgm3-pass.json"))
    states = dict.fromkeys(("pcie", "gpu_memory", "diagnostic", "targeted_stress", "targeted_power"), "Pass") | hardware
    tests = [
        {"name": name.replace("_", " ").title(), "results": [{"gpu_ids": "0", "status": s}]}
        for name, s in states.items()
    ]
    document["DCGM GPU Diagnostic"]["test_categories"].append({"category": "Stress", "tests": tests})
    return json.dumps(document)


def exporter(gpus: int, model: str) -> str:
    lines = ["# HELP DCGM_FI_DEV_GPU_TEMP GPU temperature (in C).", "# TYPE DCGM_FI_DEV_GPU_TEMP gauge"]
    for i in range(gpus):
        labels = f'gpu="{i}",UUID="GPU-{i:08d}-0000-0000-0000-000000000000",device="nvidia{i}",modelName="{model}"'
        lines.append(f'DCGM_FI_DEV_GPU_TEMP{{{labels},DCGM_FI_DRIVER_VERSION="{DRIVER}"}} 31')
        lines += [f"{name}{{{labels}}} 31" for name in NEEDED if name != "DCGM_FI_DEV_GPU_TEMP"]
        lines.append(f"DCGM_FI_DEV_XID_ERRORS{{{labels}}} 0")
    return "\n".join(lines) + "\n"


def ibstat(row: Machine) -> str:
    block = capture("ibstat/h100-ib-3-eth-down.txt").split("CA '")[1]
    names = row.rdma_devices or [f"mlx5_{i}" for i in range(row.network.ports)]
    body = block.replace("Rate: 400", f"Rate: {row.network.rate_gbps:g}")
    body = body.replace("InfiniBand", "Ethernet") if row.network.kind == "roce" else body
    return "".join("CA '" + body.replace("mlx5_0", name, 1) for name in names)


def rdma(row: Machine) -> dict[str, Any]:
    """What the probe writes of /sys/class/infiniband."""
    kind, names = row.network.kind, row.rdma_devices or [f"rdma{i}" for i in range(row.network.ports)]
    layer = {"infiniband": "InfiniBand", "roce": "Ethernet", "efa": "Unspecified"}[kind]
    port: dict[str, Any] = {
        "state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": f"{row.network.rate_gbps:g} Gb/sec (4X)",
        "link_layer": layer, "lid": "0x17", "sm_lid": "0x1", "pkeys": ["0xffff", "0x0000"],
        "gids": {"0": "fe80:0000:0000:0000:0015:5dff:fe34:11eb"}, "gid_types": {"0": "IB/RoCE v1"},
        "counters": {"symbol_error": "0", "link_downed": "1", "link_error_recovery": "0", "port_rcv_errors": "0",
                     "local_link_integrity_errors": "0", "excessive_buffer_overrun_errors": "0"},
    }  # fmt: skip
    if kind == "roce":
        port["gids"]["3"], port["gid_types"]["3"] = "0000:0000:0000:0000:0000:ffff:0a00:0005", "RoCE v2"
    if kind == "efa":
        port |= {"pkeys": [], "lid": "0x0", "sm_lid": "0x0", "counters": {"rx_drops": "0", "rx_bytes": "17"}}
    speed = "64.0 GT/s PCIe" if row.network.rate_gbps > 400 else "32.0 GT/s PCIe"
    device = {
        "fw_ver": "0.0.0.0" if kind == "efa" else "28.39.1002", "hca_type": "MT4129", "board_id": "MT_0000000838",
        "device/numa_node": "0", "device/current_link_speed": speed, "device/current_link_width": "16",
        "device/max_link_width": "16", "ports": {"1": port},
    }  # fmt: skip
    device |= {"device/p2p": "NVIDIA"} if kind == "efa" else {}
    if kind != "efa":
        device["net"] = {"net0": {"operstate": "up"}}
    devices = {name: json.loads(json.dumps(device)) for name in names}
    for name, address in zip(names, row.rdma_pci, strict=False):
        devices[name]["pci"] = address
    return {"devices": devices, "uverbs": list(names), "drivers": {}}


def ibv_devinfo(row: Machine) -> str:
    names = row.rdma_devices or [f"rdma{i}" for i in range(row.network.ports)]
    port = (
        "\t\tport:\t1\n\t\t\tstate:\t\t\tPORT_ACTIVE (4)\n\t\t\tmax_mtu:\t\t4096 (5)\n\t\t\tactive_mtu:\t\t4096 (5)\n"
    )
    return "".join(
        f"hca_id:\t{name}\n\ttransport:\t\t\tInfiniBand (0)\n\tphys_port_cnt:\t\t\t1\n{port}\n" for name in names
    )


def rocm(row: Machine) -> str:
    gpu = load().gpu(row.gpu_model)
    card = json.loads(capture("rocm_smi/mi100-4gpu-rocm602.json"))["card0"]
    cards = {
        f"card{i}": card
        | {
            "PCI Bus": f"0000:{i:02X}:00.0",
            "XGMI Error count": "0",
            "Unique ID": f"0x{i + 1:016x}",
            "Card series": gpu.product_names[0],
            "VRAM Total Memory (B)": str(row.gpu_memory_mib * 1024 * 1024),
        }
        for i in range(row.gpu_count)
    }
    return json.dumps(cards | {"system": {"Driver version": "6.10.5"}})
