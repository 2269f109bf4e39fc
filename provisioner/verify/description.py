"""A healthy machine's outputs → the description of its type for `machines:` of cluster.yaml."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

from provisioner.catalog import Catalog, nvlinks
from provisioner.catalog.models import Gpu
from provisioner.common.errors import GpuprovError
from provisioner.verify.facts import Facts
from provisioner.verify.parsers.lsblk import local_disks
from provisioner.verify.products import printed_memory, products

CAPABILITIES = {"volta": "7.0", "turing": "7.5", "ampere": "8.6", "ada": "8.9", "hopper": "9.0", "blackwell": "12.0"}
"""Architecture → compute capability of its cards; those with HBM below. https://developer.nvidia.com/cuda-gpus"""
TOOLS = "nvidia-smi -q -x, or amd-smi; of a machine without GPUs lspci -Dnnx"
LEGAL_FORMS = ("inc", "corporation", "co", "ltd")
WITH_HBM = ((r"\bA(30|100|800)\b", "8.0"), (r"\bG?B[12]00\b", "10.0"), (r"\bG?B300\b", "10.3"))
"""Pattern of product names → theirs."""


@dataclass(frozen=True, slots=True)
class Described:
    """`machine`: keys of MachineDescription in their order; `notes`: what a person has to look at."""

    name: str
    machine: dict[str, Any]
    notes: tuple[str, ...]


def describe(facts: Facts, catalog: Catalog) -> Described:
    """The type of the machine that these outputs are of. Raises GpuprovError where the GPUs are not known or differ, or
    one of them is lost: what is described is expected of every node."""
    notes: list[str] = []
    model, count = ("", 0) if _has_no_gpu(facts) else _gpus(facts)
    row = _row(model, facts, catalog) if count else None
    machine: dict[str, Any] = {"gpus": count}
    if count:
        machine = {"gpu": row.model if row is not None else _gpu_block(model, facts, notes), **machine}
    else:
        notes.append("gpus: 0, because no GPU is on the PCI bus")
    on_board = row is not None and row.nvlinks is not None
    if count > 1 and facts.smi is not None and (nvlink := _nvlink(facts, count, notes, on_board=on_board)) is not None:
        machine["nvlink"] = nvlink
    network = _network(facts, notes if count else [])
    if network is not None:
        machine["network"] = network
    host = facts.host
    if host is not None and host.cpu is not None:
        machine["vcpus"] = host.cpu.processors
    if host is not None and host.memory is not None:
        machine["memory_gib"] = round(host.memory.total / 1024**2)
    if host is not None and host.numa_nodes:
        machine["numa_nodes"] = host.numa_nodes
    if facts.disks is not None and all(disk.told for disk in facts.disks):
        sizes = Counter(round((disk.size or 0) / 1e9) for disk in local_disks(facts.disks))
        size = sizes.most_common(1)[0][0] if sizes else 0
        machine["local_nvme"] = {"count": sizes[size], **({"size_gb": size} if size else {})}
        if len(sizes) > 1:
            notes.append(f"local NVMe disks of {len(sizes)} sizes: those of {size} GB are described")
    if any("aarch64" in text for text in (facts.kernel or "",)):
        machine["cpu"] = "arm64"
    absent = [key for key in ("vcpus", "memory_gib", "local_nvme") if key not in machine]
    if absent:
        notes.append(f"{', '.join(absent)}: not in the outputs, and not expected of a node")
    return Described(_name(facts, model, count), machine, tuple(notes))


def _has_no_gpu(facts: Facts) -> bool:
    """Whether the whole PCI bus was listed and has no GPU, and no driver lists one."""
    listed = facts.gpus_present or (facts.smi is not None and (facts.smi.gpus or facts.smi.unreachable))
    return not listed and facts.bus is not None and not facts.bus.excerpt and not facts.bus.gpus


def _gpus(facts: Facts) -> tuple[str, int]:
    """The one model of all GPUs, and their number."""
    smi = facts.smi
    if smi is not None and smi.excerpt:
        raise GpuprovError("the outputs list a part of the GPUs", hint="`nvidia-smi -q -x` lists all of them")
    lost = [gpu.index for gpu in smi.gpus if gpu.lost] if smi is not None else []
    if lost or (smi is not None and smi.unreachable):
        raise GpuprovError("a GPU of this machine is lost", hint="describe a healthy machine of the same type")
    models = [gpu.model for gpu in (smi.gpus if smi is not None else facts.rocm.gpus if facts.rocm else ())]
    names = {model for model in models if model}
    if not names:
        reason = facts.sources["nvidia-smi.xml"].reason if "nvidia-smi.xml" in facts.sources else ""
        because = f": {reason}" if reason else ""
        raise GpuprovError(f"the outputs list no GPU{because}", hint=TOOLS)
    if len(names) > 1:
        raise GpuprovError(f"the GPUs are of {len(names)} models: {', '.join(sorted(names))}")
    on_bus = len(facts.bus.gpus) if facts.bus is not None and not facts.bus.excerpt else len(models)
    if on_bus != len(models):
        raise GpuprovError(f"{len(models)} of {on_bus} GPUs answer", hint="describe a healthy machine of the same type")
    return names.pop(), len(models)


def _row(model: str, facts: Facts, catalog: Catalog) -> Gpu | None:
    """The product of the catalogue: by its name, and by its memory where two have one name."""
    vendor = "amd" if facts.smi is None else "nvidia"
    candidates = [row for row in catalog.gpus() if row.vendor == vendor]
    rows = products([model], candidates, memory_mib=printed_memory(facts))
    return rows[0] if len(rows) == 1 else None


def _gpu_block(model: str, facts: Facts, notes: list[str]) -> dict[str, Any]:
    """A product that the catalogue does not have."""
    gpu = facts.smi.gpus[0] if facts.smi is not None else None
    if gpu is None or not gpu.memory_mib or not gpu.architecture:
        raise GpuprovError(f"{model} is not in the catalogue, and the outputs do not tell its memory and architecture",
                           hint="`nvidia-smi -q -x` tells both")  # fmt: skip
    arch = gpu.architecture.split()[0].lower()
    if arch not in CAPABILITIES:
        raise GpuprovError(f"{model} is of architecture {gpu.architecture}, which gpuprov does not know")
    capability = next((version for pattern, version in WITH_HBM if re.search(pattern, model)), CAPABILITIES[arch])
    notes.append(f"compute_capability {capability} follows from the name; nvidia-smi --query-gpu=compute_cap prints it")
    return {
        "product_name": model,
        "memory_mib": gpu.memory_mib,
        "arch": arch,
        "compute_capability": capability,
        "ecc": gpu.ecc_mode == "Enabled",
    }


def _nvlink(facts: Facts, count: int, notes: list[str], *, on_board: bool) -> dict[str, Any] | None:
    """How the GPUs are linked, by the matrix of `nvidia-smi topo -m` and the links that are up. `on_board`: they are
    modules, not cards."""
    if facts.topo is None:
        notes.append("topo.txt (`nvidia-smi topo -m`) was not in the outputs: nvlink is derived from the GPUs")
        return None
    names = [f"GPU{index}" for index in range(count)]
    cells = [facts.topo.cells.get(row, {}).get(column) or "" for row in names for column in names if row != column]
    bonds = [nvlinks(cell) for cell in cells]
    if not any(bonds):
        return {"topology": "none"}
    active = [links.active for links in (facts.nvlinks or {}).values() if links.active]
    links = min(active) if active else max(sum(bonds) // count, 1)
    if all(bond == bonds[0] for bond in bonds) and (facts.bus is None or facts.bus.nvswitches or count > 4):
        return {"topology": "nvswitch", "links_per_gpu": bonds[0]}
    return {"topology": "mesh" if on_board or (all(bonds) and count > 2) else "bridge", "links_per_gpu": links}


def _network(facts: Facts, notes: list[str]) -> dict[str, Any] | None:
    """The fastest ports that are up, all of one kind; the others are taken to be for storage and management."""
    if facts.efa is not None and facts.efa.devices:
        devices = sorted(facts.efa.devices)
        notes.append("the rate of an EFA device is in no output: add network.rate_gbps")
        return {"kind": "efa", "ports": len(devices), "devices": devices}
    ports = [
        (device.name, port.rate_gbps, port.link_layer or "")
        for device in facts.rdma or ()
        for port in device.ports
        if port.up and port.rate_gbps
    ]
    if not ports:
        if facts.rdma is None:
            notes.append("the RDMA devices were not in the outputs: add network where nodes train together")
        return None
    rate, layer = max((rate, layer) for _, rate, layer in ports)
    training = sorted((name for name, *of in ports if of == [rate, layer]), key=_natural)
    other_ports = sorted({name for name, *_ in ports} - {*training}, key=_natural)
    if other_ports:
        notes.append(f"{', '.join(other_ports)}: slower or of another kind, taken to be for storage and management")
    kind = "infiniband" if layer.lower() == "infiniband" else "roce"
    return {"kind": kind, "ports": len(training), "rate_gbps": rate, "devices": training}


def _natural(name: str) -> tuple[str, int]:
    """mlx5_2 before mlx5_10."""
    digits = re.search(r"\d+$", name)
    return name[: digits.start()] if digits else name, int(digits[0]) if digits else 0


def _name(facts: Facts, model: str, count: int) -> str:
    """A name of the machine's maker and product, and its GPUs: dell-poweredge-r760xa-4x-l40s."""
    product = " ".join((facts.host.system or ())[:2]) if facts.host is not None else ""
    parts = [part for part in re.findall(r"[a-z0-9]+", product.lower()) if part not in LEGAL_FORMS]
    gpu = re.findall(r"[a-z0-9]+", model.lower().replace("nvidia", ""))
    gpu_parts = [f"{count}x", *gpu] if count else []
    return "-".join(dict.fromkeys([*parts[:4], *gpu_parts]))[:60].strip("-") or "without-gpus"
