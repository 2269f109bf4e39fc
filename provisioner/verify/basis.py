"""What each expected value rests on, and how a failing check comes to know it.

A value that follows from the catalogue's row of a machine type has the weakest basis of the keys that it is made of
(FROM_ROW). Checks do not ask for it: they are given `watched(expected)`, which notes each unverified value that is
read, and check_runner lowers a failure after such a reading to a warning that names them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from provisioner.verify.check import NEEDS_MACHINE, Skipped, Unknown, seen

if TYPE_CHECKING:
    from provisioner.catalog.models import Basis, Gpu, Machine
    from provisioner.verify.expectations import Expected

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


class _Watched:
    """An Expected whose unverified values are noted when they are read, and that ends a check which asks for what
    follows from a machine type that nobody named: how many GPUs there must be decides whether a node is healthy."""

    __slots__ = ("_expected", "_unknown", "_unverified")

    def __init__(self, expected: Expected, unverified: frozenset[str]) -> None:
        self._expected, self._unverified, self._unknown = expected, unverified, frozenset(expected.unknown)

    def __getattr__(self, name: str) -> Any:
        if name == "gpu_count" and name in self._unknown:
            raise Unknown(NEEDS_MACHINE, action="none")
        if name in self._unknown:
            raise Skipped(NEEDS_MACHINE)
        if name in self._unverified:
            seen.unverified.add(name)
        return getattr(self._expected, name)


def watched(expected: Expected) -> Expected:
    """What a check is given: reading an unverified value of it is noted in check.seen; Skipped or Unknown for one that
    is not known."""
    unverified = frozenset(field for field, basis in expected.basis.items() if basis == "unverified")
    return cast("Expected", _Watched(expected, unverified)) if unverified or expected.unknown else expected
