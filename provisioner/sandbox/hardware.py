"""hardware.json: what a healthy node of a machine type has, for the simulated tools to read.

Counts, names, links, ports and cells come from the catalogue; what a product prints beside them from products.yaml.
Serial numbers, UUIDs and GUIDs follow from the node's name, so that the same node is the same hardware every time.
"""

from __future__ import annotations

import hashlib
import uuid
from functools import cache
from importlib.resources import files
from typing import Any

from provisioner.catalog import Catalog
from provisioner.catalog.models import Gpu, Machine
from provisioner.catalog.providers import Provider
from provisioner.common import yaml_text
from provisioner.sandbox.mig_layout import mig_layout
from provisioner.sandbox.performance import between, reaches
from provisioner.sandbox.root_disk import root_disk
from provisioner.sandbox.sources import variant

Json = dict[str, Any]


@cache
def products() -> Json:
    text = files("provisioner.sandbox").joinpath("products.yaml").read_bytes()
    document: Json = yaml_text.load(text)
    return document


def hardware(machine: Machine, gpu: Gpu, node: str, catalog: Catalog) -> Json:
    """The node as JSON. Units: MiB, W, MHz, °C, Gbit/s for ports, GB/s one way for an NVLink, bytes for disks."""
    numa = machine.numa_nodes or 1
    gpus = [_gpu(machine, gpu, node, index, numa, catalog) for index in range(machine.gpu_count)]
    provider = catalog.provider(machine.provider)
    nics = _nics(machine, provider, node, numa)
    efa = _efa(machine, numa)
    disks = _disks(machine, provider, node)
    switches = _switches(machine, gpu)
    return {
        "simulated": "by gpuprov",
        "node": node,
        "machine": machine.name,
        "vendor": gpu.vendor,
        "driver": {"loaded": None, "library": None},
        "gpus": gpus,
        "topology": _cells(machine, catalog),
        "nics": nics,
        "efa": efa,
        "root_disk": root_disk(provider, f"SIM{_number(12, node, machine.name, 'root'):012d}"),
        "disks": disks,
        "switches": switches,
        "pci": [
            *(_pci(gpus, gpu) if gpus else [HOST_BRIDGE]),
            *switches,
            *(_nic_pci(nic) for nic in nics),
            *efa_pci(efa),
            *(_disk_pci(d) for d in disks),
        ],
        "numa_nodes": numa,
        "vcpus": machine.vcpus,
        "memory_gib": machine.memory_gib,
        "cloud": provider.virtual,
        "unsourced": list(machine.basis.unverified),
        "fabric_manager": {
            "required": needs_manager(machine),
            "subnet_manager": machine.subnet_manager_required,
            "broken": False,
        },
        "exporter": {"broken": False},
        "reaches": reaches(machine, gpu, catalog),
        "between": between(machine, gpu, catalog),
        "nvidia_smi": {"hangs": False},
        "kernel_log": _kernel_log(machine, gpus),
    }


def needs_manager(machine: Machine) -> bool:
    """Whether the node itself has NVSwitches: where its row has none, the host of a virtual machine keeps them, and
    fabric manager has nothing to do in it."""
    return machine.fabric_manager_required and machine.nvlink.nvswitch_count > 0


def _derive(*parts: object) -> bytes:
    return hashlib.sha256("/".join(map(str, parts)).encode()).digest()


def _number(count: int, *parts: object) -> int:
    digits: int = 10**count
    return int.from_bytes(_derive(*parts)[:8], "big") % digits


def _slot(machine: Machine, arch: str, index: int) -> str:
    slots = products()["slots"]
    known = slots.get(f"{machine.provider}-{arch}") or slots.get(machine.provider) or slots["other"]
    listed: list[str] = known if machine.gpu_count <= len(known) else slots["other"]
    return listed[index]


def _product(gpu: Gpu, catalog: Catalog) -> Json:
    """What nvidia-smi or amd-smi prints of a product beside what the catalogue has. A product without a row prints what
    one of the same architecture does, a card like a card, a module like a module."""
    rows: dict[str, Json] = products()["amd" if gpu.vendor == "amd" else "products"]
    if gpu.model in rows:
        return rows[gpu.model]
    names = {known.model: known for known in catalog.gpus()}
    alike = [model for model in rows if names[model].arch == gpu.arch]
    same_form = [model for model in alike if (names[model].nvlinks is None) == (gpu.nvlinks is None)]
    like = (same_form or alike or list(rows))[0]
    return rows[like] | {"chip": f"[{gpu.product_names[0].removeprefix('NVIDIA ')}]", "source": f"as {like}"}


def _gpu(machine: Machine, gpu: Gpu, node: str, index: int, numa: int, catalog: Catalog) -> Json:
    domain, bus, device = _slot(machine, gpu.arch, index).split(":")
    slot_fields = {
        "index": index,
        "pci": f"0000{domain}:{bus}:{device}.0",
        "uuid": "GPU-" + str(uuid.UUID(bytes=_derive(node, machine.name, "gpu", index)[:16], version=4)),
        "serial": f"165{_number(10, node, machine.name, 'serial', index):010d}",
        "name": gpu.product_names[0],
        "model": gpu.model,
        "memory_mib": machine.gpu_memory_mib,
        "numa": index * numa // machine.gpu_count,
        "present": True,
        "lost": False,
    }
    if gpu.vendor == "amd":
        return slot_fields | {"product": _product(gpu, catalog)}
    product = _product(gpu, catalog)
    links = machine.nvlink.links_per_gpu if product.get("link") else 0
    active = catalog.nvlinks_per_gpu(machine)[index] if links else 0
    # A rack's switches (GB200) are served from outside of the node.
    served = needs_manager(machine) or machine.imex_required
    fabric = served and gpu.arch in ("hopper", "blackwell")
    return slot_fields | {
        "arch": gpu.arch,
        "architecture": products()["architectures"][gpu.arch],
        "compute_capability": gpu.compute_capability,
        "kernel_modules": gpu.open_kernel_modules,
        "pci_device_id": product["device"],
        "product": product,
        "pcie": {"gen": gpu.pcie_gen, "width": 16},
        "ecc": {
            "supported": gpu.ecc,
            "mode": "Enabled" if gpu.ecc else "Disabled",
            "volatile": {"sram": 0, "dram": 0},
            "aggregate": {"sram": 0, "dram": 0},
        },
        "remap": {"correctable": 0, "uncorrectable": 0, "pending": False, "failure": False},
        "mig": mig_layout(gpu),
        "persistence": None,
        "links": [{"active": i < active} for i in range(links)],
        "fabric": {
            "state": "Completed" if fabric else "N/A",
            "status": "Success" if fabric else "N/A",
            "needs_manager": needs_manager(machine),
        },
        "virtualised": catalog.provider(machine.provider).virtual,
    }


def _cells(machine: Machine, catalog: Catalog) -> list[list[str]]:
    size = machine.gpu_count
    cells = [["X"] * size for _ in range(size)]
    for (i, j), cell in catalog.layout(machine).items():
        cells[i][j] = cells[j][i] = cell
    return cells


def _nics(machine: Machine, provider: Provider, node: str, numa: int) -> list[Json]:
    network = machine.network
    if network.kind not in ("infiniband", "roce"):
        return []
    adapters = products()["adapters"]
    adapter = adapters[max(rate for rate in adapters if rate <= max(56, network.rate_gbps))]
    names = machine.rdma_devices or tuple(f"mlx5_{i}" for i in range(network.ports))
    places = [provider.adapter_slot.format(nth=i + 1, bus=0x18 + 8 * i) for i in range(len(names))]
    slots = machine.rdma_pci or places
    link = {} if provider.virtual else {"pcie": adapter["pcie"]}  # a virtual function shows none
    return [
        {
            "name": name,
            "kind": network.kind,
            "adapter": adapter,
            "guid": f"{_number(16, node, machine.name, 'guid', name):016x}"[-16:].rjust(16, "0"),
            "state": "Active",
            "physical_state": "LinkUp",
            "rate_gbps": network.rate_gbps,
            "lid": 100 + _number(3, node, machine.name, "lid", name),
            "link_layer": "InfiniBand" if network.kind == "infiniband" else "Ethernet",
            "slot": slots[i],
            "numa": i * numa // len(names),
            **link,
        }
        for i, name in enumerate(names)
    ]


def _efa(machine: Machine, numa: int) -> list[Json]:
    if machine.network.kind != "efa":
        return []
    names = machine.rdma_devices or tuple(f"efa_{i}" for i in range(machine.network.ports))
    return [
        {
            "name": name,
            "slot": f"0000:{0x10 + i // 8:02x}:{0x10 + i % 8:02x}.0",
            "numa": i * numa // len(names),
            "p2p": variant("efa.p2p", "driver"),
        }
        for i, name in enumerate(names)
    ]


def _disks(machine: Machine, provider: Provider, node: str) -> list[Json]:
    model = provider.local_disk
    return [
        {
            "name": f"nvme{i + 1}n1",
            "bytes": int(machine.local_nvme.size_gb * 10**9) // 512 * 512,
            "model": model,
            "serial": f"SIM{_number(12, node, machine.name, 'disk', i):012d}",
            "slot": f"0000:{0xE0 + i % 16:02x}:{i // 16:02x}.0",
        }
        for i in range(machine.local_nvme.count)
    ]


def _pci_row(slot: str, code: str, kind: str, name: str, ids: tuple[str, str], revision: str) -> Json:
    vendor, device = ids
    return {
        "slot": slot,
        "class": code,
        "class_name": kind,
        "name": name,
        "vendor": vendor,
        "device": device,
        "revision": revision,
    }


def _pci(gpus: list[Json], gpu: Gpu) -> list[Json]:
    rows = []
    for item in gpus:
        product = item["product"]
        slot = item["pci"][4:].lower()
        if gpu.vendor == "amd":
            name = f"Advanced Micro Devices, Inc. [AMD/ATI] {product['chip']}"
            rows.append(
                _pci_row(
                    slot, "1200", "Processing accelerators", name, ("1002", product["device"]), product["revision"]
                )
            )
            continue
        code, kind = product.get("class") or ("0302", "3D controller")
        device = product["device"][:4].lower()
        rows.append(
            _pci_row(slot, code, kind, f"NVIDIA Corporation {product['chip']}", ("10de", device), product["revision"])
        )
    return rows


def _switches(machine: Machine, gpu: Gpu) -> list[Json]:
    known = products()["switches"].get(gpu.arch)
    if known is None:
        return []
    return [
        _pci_row(
            f"0000:{0x05 + i:02x}:01.0",
            "0680",
            "Bridge",
            f"NVIDIA Corporation {known['name']}",
            ("10de", known["device"]),
            "a1",
        )
        for i in range(machine.nvlink.nvswitch_count)
    ]


HOST_BRIDGE = _pci_row(
    "0000:00:00.0", "0600", "Host bridge", "Intel Corporation 440FX - 82441FX PMC", ("8086", "1237"), ""
)
"""What a machine without GPUs shows on the PCI bus at least."""


def _nic_pci(nic: Json) -> Json:
    code, kind = ("0207", "Infiniband controller") if nic["kind"] == "infiniband" else ("0200", "Ethernet controller")
    return _pci_row(
        nic["slot"],
        code,
        kind,
        f"Mellanox Technologies {nic['adapter']['name']}",
        ("15b3", nic["adapter"]["device"]),
        "",
    )


def efa_pci(efa: list[Json]) -> list[Json]:
    """PCI rows of Elastic Fabric Adapters."""
    name = "Amazon.com, Inc. Elastic Fabric Adapter (EFA)"
    return [_pci_row(item["slot"], "0200", "Ethernet controller", name, ("1d0f", "efa1"), "") for item in efa]


def _disk_pci(disk: Json) -> Json:
    return _pci_row(disk["slot"], "0108", "Non-Volatile memory controller", disk["model"], ("144d", "a80a"), "")


def _kernel_log(machine: Machine, gpus: list[Json]) -> list[Json]:
    """Lines of a boot without faults, among them some that look alarming and are not."""
    lines = [
        (
            0.0,
            "notice",
            f"Linux version 6.1.0-gpuprov-sandbox (simulated kernel log of a {machine.name}, made by gpuprov)",
        ),
        (0.41, "info", f"smpboot: Allowing {machine.vcpus} CPUs, 0 hotplug CPUs"),
        (1.2, "info", "pcieport 0000:00:1c.0: AER: enabled with IRQ 24"),
    ]
    for i, gpu in enumerate(gpus):
        lines.append((1.5 + i / 100, "info", f"pci {gpu['pci'][4:].lower()}: BAR 1: assigned"))
    for i in range(machine.local_nvme.count):
        lines.append((2.0 + i / 100, "info", f"nvme nvme{i + 1}: pci function simulated"))
    lines.append((3.1, "warn", "systemd[1]: Configuration file is marked world-inaccessible. This has no effect."))
    return [{"at": at, "level": level, "text": text} for at, level, text in lines]
