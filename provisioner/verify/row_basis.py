"""Which keys of a machine type's row each expected value follows from, and so what it rests on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from provisioner.catalog.models import Basis, Gpu, Machine

_NVSWITCH = ("nvlink.topology", "fabric_manager_required")
_PORTS = ("network.kind", "network.ports")
FROM_ROW: Mapping[str, tuple[str, ...]] = {
    "gpu_model": ("gpu_model",),
    "gpu_count": ("gpu_count",),
    "product_names": ("gpu_model", "gpu:product_names"),
    "memory_mib": ("gpu_model", "gpu_memory_mib"),
    "ecc": ("gpu_model", "gpu:ecc"),
    "mig_instances": ("gpu_model",),
    "gpus_per_serial": ("gpu_model", "gpu:gpus_per_serial"),
    "pcie_width": ("nvlink.topology",),
    "pcie_gen": ("gpu:pcie_gen", "nvlink.topology", "pcie_host_link"),
    "topology": ("topo_peer_cell",),
    "nvlinks_per_gpu": ("nvlink.links_per_gpu", "nvlink.topology"),
    "nvlink_generation": ("nvlink.generation",),
    "nvlink_gbps": ("nvlink.gbps_per_link", "nvlink.links_per_gpu"),
    "nvswitches": ("nvlink.nvswitch_count", "nvlink.generation", *_NVSWITCH),
    "switched": ("gpu_model", "nvlink.topology"),
    "large_bar": ("nvlink.topology",),
    "fabric_manager": ("fabric_manager_required",),
    "subnet_manager": ("fabric_manager_required", "nvlink.generation"),
    "nvlink_across": ("nvlink.generation", *_NVSWITCH),
    "module_params": ("nvlink.generation", *_NVSWITCH),
    "network": ("network.kind",),
    "ports": _PORTS,
    "rate_gbps": ("network.kind", "network.rate_gbps"),
    "rdma_devices": ("network.kind", "rdma_devices"),
    "rdma_pci": ("network.kind", "rdma_pci"),
    "rails": ("network.kind", "rdma_devices", "rails"),
    "efa": ("network.kind",),
    "fabric": ("network.kind",),
    "gpudirect": ("network.kind", "nvlink.topology"),
    "numa_nodes": ("numa_nodes",),
    "memory_gib": ("memory_gib",),
    "vcpus": ("vcpus",),
    "disk_gb": ("local_nvme.size_gb",),
    "local_nvme": ("local_nvme.count",),
    "scratch_gb": ("local_nvme.count", "local_nvme.size_gb"),
}
"""Fields of Expected → the keys of machines.yaml that they follow from (`gpu:` of its GPU's row in gpus.yaml)."""
WEAKEST: tuple[Basis, ...] = ("unverified", "user", "documented", "measured")


def keys_of(field: str, machine: Machine) -> tuple[str, ...]:
    """The keys that a field of one machine follows from: without NVSwitch links are counted pair by pair."""
    counted = field == "nvlinks_per_gpu" and machine.nvlink.topology in ("mesh", "bridge")
    return (*FROM_ROW[field], "topo_peer_cell") if counted else FROM_ROW[field]


def basis_of(machine: Machine, gpu: Gpu) -> dict[str, Basis]:
    """What each field of FROM_ROW rests on."""

    def of(key: str) -> Basis:
        row, name = (gpu, key[4:]) if key.startswith("gpu:") else (machine, key)
        return row.basis.of(name)

    return {field: min(map(of, keys_of(field, machine)), key=WEAKEST.index) for field in FROM_ROW}
