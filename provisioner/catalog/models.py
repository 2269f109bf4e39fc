"""What is known of machines and GPUs: frozen models over catalog/data/*.yaml.

Units: MiB for GPU memory, GiB for host memory, Gbit/s for networks, GB/s for NVLink (both directions together),
decimal GB for local disks. Every row carries the place where it was read in `source`.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

ProviderName = Literal["aws", "alicloud", "azure", "tencent", "baremetal"]


class Row(BaseModel):
    """A row of the catalogue: immutable, and no key that nobody declared."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class NVLink(Row):
    """Links between the GPUs of one node. `topology` is none for a lone GPU or plain PCIe."""

    generation: int | str | None
    links_per_gpu: int = Field(ge=0)
    gbps_per_link: float = Field(ge=0)
    nvswitch_count: int = Field(ge=0)
    topology: Literal["nvswitch", "mesh", "bridge", "none"]


class Network(Row):
    """Ports for training traffic; `rate_gbps` is Gbit/s of one port."""

    kind: Literal["efa", "infiniband", "ethernet", "eri", "roce", "none"]
    ports: int = Field(ge=0)
    rate_gbps: float = Field(ge=0)
    cards: int = Field(ge=0)
    total_gbps: float | None = None


class LocalNVMe(Row):
    count: int = Field(ge=0)
    size_gb: float = Field(ge=0)


class Gpu(Row):
    """A GPU product. `product_names`: every spelling that nvidia-smi or rocm-smi has been seen to print."""

    model: str
    product_names: tuple[str, ...]
    memory_mib: int = Field(gt=0)
    arch: str
    compute_capability: str
    mig: bool
    ecc: bool
    open_kernel_modules: Literal["impossible", "default", "required", "n/a"]
    memory_source: str
    pcie_gen: int
    source: str = ""

    @property
    def vendor(self) -> Literal["nvidia", "amd"]:
        return "amd" if self.open_kernel_modules == "n/a" else "nvidia"


class Machine(Row):
    """One machine type as the catalogue knows it (keys are explained at the head of machines.yaml)."""

    name: str
    provider: ProviderName
    gpu_model: str
    gpu_count: int = Field(gt=0)
    gpu_memory_mib: int = Field(gt=0)
    gpu_arch: str
    compute_capability: str
    nvlink: NVLink
    topo_peer_cell: str | tuple[str, ...] | None
    topology: str | None = None
    fabric_manager_required: bool
    network: Network
    local_nvme: LocalNVMe
    vcpus: int = Field(gt=0)
    memory_gib: float = Field(gt=0)
    numa_nodes: int | None
    mig_capable: bool
    notes: str
    source: tuple[str, ...]
    unverified_fields: tuple[str, ...]
    placement_cluster: bool = False
    frontend_gbps: float | None = None
    bmc: str | None = None
    pcie_host_link: str | None = None
    retired: str | None = None
