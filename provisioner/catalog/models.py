"""What is known of machines and GPUs: frozen models over catalog/data/*.yaml.

Units: MiB for GPU memory, GiB for host memory, Gbit/s for networks, GB/s for NVLink (both directions together),
decimal GB for local disks. Every row carries the place where it was read in `source`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

ProviderName = str
"""A folder of provisioner/machines/providers; data/providers.yaml has a row for each."""


class Row(BaseModel):
    """A row of the catalogue: immutable, and no key that nobody declared."""

    model_config = ConfigDict(frozen=True, extra="forbid")


Basis = Literal["measured", "documented", "user", "unverified"]
"""What a value, a limit or a check rests on: real output of a tool or a run on such a machine; what a vendor, a tool's
source or an operator of such machines has written; what the user's description of the machine says; none of these,
which warns and never condemns."""


class Evidence(Row):
    """What the keys of a row rest on: names of those that are measured or unverified; `source` documents all others.
    `network.ports` is one key of a mapping, `network` the whole mapping."""

    measured: tuple[str, ...] = ()
    unverified: tuple[str, ...] = ()
    user: tuple[str, ...] = ()
    """Keys that the user's description names (description.py)."""
    left_out: tuple[str, ...] = ()
    """Keys that a description does not name: their values are examples, and no machine is held to them."""

    def of(self, key: str) -> Basis:
        """The basis of a key: as the row says of it, or of the mapping that it stands in."""
        names = {key, key.split(".", maxsplit=1)[0]}
        by_basis: dict[Basis, tuple[str, ...]] = {
            "unverified": self.unverified, "measured": self.measured, "user": self.user
        }  # fmt: skip
        return next((basis for basis, keys in by_basis.items() if names & {*keys}), "documented")

    def is_left_out(self, key: str) -> bool:
        """Whether nobody has said what a machine has of that key."""
        return bool({key, key.split(".", maxsplit=1)[0]} & {*self.left_out})


class NVLink(Row):
    """Links between the GPUs of one node. `topology` is none for a lone GPU or plain PCIe."""

    generation: int | str | None
    links_per_gpu: int = Field(ge=0)
    gbps_per_link: float = Field(ge=0)
    nvswitch_count: int = Field(ge=0)
    topology: Literal["nvswitch", "mesh", "bridge", "none"]


class Network(Row):
    """Ports for training traffic; `rate_gbps` is Gbit/s of one port."""

    kind: Literal["efa", "infiniband", "ethernet", "roce", "none"]
    ports: int = Field(ge=0)
    rate_gbps: float = Field(ge=0)
    cards: int = Field(ge=0)
    total_gbps: float | None = None
    erdma: bool = False
    """Alibaba Cloud's elastic RDMA interfaces could be had. gpuprov does not install their driver: it is Ethernet."""


class LocalNVMe(Row):
    count: int = Field(ge=0)
    size_gb: float = Field(ge=0)


Vendor = Literal["nvidia", "amd", "none"]
"""Who made a machine's GPUs; none of a machine without GPUs."""


class Gpu(Row):
    """A GPU product. `product_names`: every spelling that nvidia-smi or rocm-smi has been seen to print."""

    model: str
    product_names: tuple[str, ...]
    memory_mib: int = Field(ge=0)
    arch: str
    compute_capability: str
    mig: bool
    mig_profiles: tuple[str, ...] = ()
    """What one GPU can be cut into (1g.5gb ...); empty where `mig` is false."""
    ecc: bool
    """ECC is on as shipped. False for GeForce: there it is off, and nothing may be expected of it."""
    open_kernel_modules: Literal["impossible", "default", "required", "n/a"]
    memory_source: str
    pcie_gen: int
    nvlinks: int | None = None
    """Lines of one GPU in `nvidia-smi nvlink -s`, links up and down."""
    gpus_per_serial: int = 1
    """GPUs that share one board and its serial number."""
    source: str = ""
    basis: Evidence = Evidence()

    @property
    def vendor(self) -> Vendor:
        if self.model == "none":
            return "none"
        return "amd" if self.open_kernel_modules == "n/a" else "nvidia"


NO_GPU = Gpu(
    model="none", product_names=(), memory_mib=0, arch="none", compute_capability="", mig=False, ecc=False,
    open_kernel_modules="n/a", memory_source="", pcie_gen=0,
)  # fmt: skip
"""In place of a product: what a machine without GPUs has."""


class Machine(Row):
    """One machine type as the catalogue knows it (keys are explained at the head of machines.yaml)."""

    name: str
    provider: ProviderName
    gpu_model: str
    gpu_count: int = Field(ge=0)
    gpu_memory_mib: int = Field(ge=0)
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
    basis: Evidence
    placement_cluster: bool = False
    frontend_gbps: float | None = None
    bmc: str | None = None
    pcie_host_link: str | None = None
    retired: str | None = None
    cpu: Literal["amd64", "arm64"] = "amd64"
    """Architecture of its processors, as Debian and OCI name it."""
    rdma_devices: tuple[str, ...] = ()
    """Names under /sys/class/infiniband, one for each RDMA port; empty for plain Ethernet."""
    rdma_pci: tuple[Annotated[str, Field(pattern=r"^[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")], ...] = ()
    """PCI addresses of `rdma_devices`, in their order; with them any other RDMA device is for storage or management."""
    nccl_topology: str | None = None
    """NCCL's topology file, ansible/roles/nccl/files/<it>.xml, where the guest does not see the PCI switches."""
    rails: bool = False
    """Whether `rdma_devices` are in the order of the GPUs: the first is on the PCIe switch of GPU 0."""

    @property
    def peer_cells(self) -> tuple[str, ...]:
        """Cells that `nvidia-smi topo -m` may print between two GPUs; empty for a lone GPU."""
        if self.topo_peer_cell is None:
            return ()
        return (self.topo_peer_cell,) if isinstance(self.topo_peer_cell, str) else self.topo_peer_cell

    @property
    def local_disks(self) -> bool:
        """Whether it has local NVMe disks, or may have: no source says how many."""
        return self.local_nvme.count > 0 or self.basis.of("local_nvme.count") == "unverified"

    @property
    def rdma(self) -> bool:
        """Whether it has an RDMA network."""
        return self.network.kind in ("efa", "infiniband", "roce")

    @property
    def rdma_optional(self) -> bool:
        """Whether it can be bought or used without its RDMA network: EFA interfaces are asked for."""
        return self.network.kind == "efa"

    def uses_efa(self, rdma_setting: bool | None) -> bool:
        """Whether nodes have EFA with that word of cluster.yaml (network.rdma): null takes what the machine has."""
        return self.network.kind == "efa" and rdma_setting is not False

    @property
    def subnet_manager_required(self) -> bool:
        """NVLink 5 switches on the node: their fabric manager needs nvlsm (NVIDIA/deepops, amazon-eks-ami)."""
        return self.fabric_manager_required and self.nvlink.generation == 5

    @property
    def imex_required(self) -> bool:
        """NVLink 5 whose switches stand outside the node (GB200, GB300): nvidia-imex, and no fabric manager here."""
        return self.nvlink.generation == 5 and self.nvlink.topology == "nvswitch" and not self.fabric_manager_required


class GpuFraction(Row):
    """A size of a cloud with a vGPU: `share` is the part of a GPU (1/6; 2: a vGPU as large as two)."""

    name: str
    provider: ProviderName
    gpu: str
    share: str
    source: tuple[str, ...]


class Board(Row):
    """An NVSwitch board that several machines share; `topo_cell` stands between any two of its GPUs."""

    board: str
    nvswitch_count: int = Field(ge=0)
    nvlink_generation: int
    links_per_gpu: int = Field(gt=0)
    topo_cell: str
    source: str


class Topology(Row):
    """A full pair matrix: NVn, X on the diagonal, "-" where the pair has no NVLink."""

    name: str
    cells: tuple[tuple[str, ...], ...]
    source: str


class Xid(Row):
    """An Xid code of the NVIDIA driver. `advice` is the sentence for a person; `immediate` and `then` are NVIDIA's
    own buckets, from which severity and action are read."""

    code: int = Field(gt=0)
    mnemonic: str
    meaning: str
    severity: Literal["fatal", "warn", "info"]
    action: Literal["none", "reconfigure", "reset", "reboot", "replace", "vendor"]
    advice: str
    immediate: str
    then: str
    source: str
