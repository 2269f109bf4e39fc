"""What is known of machines and GPUs: frozen models over catalog/data/*.yaml.

Units: MiB for GPU memory, GiB for host memory, Gbit/s for networks, GB/s for NVLink (both directions together),
decimal GB for local disks. Every row carries the place where it was read in `source`.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

ProviderName = str
"""A folder of provisioner/providers; data/providers.yaml has a row for each."""


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
    mig_profiles: tuple[str, ...] = ()
    """What one GPU can be cut into (1g.5gb ...); empty where `mig` is false."""
    ecc: bool
    """ECC is on as shipped. False for GeForce: there it is off, and nothing may be expected of it."""
    open_kernel_modules: Literal["impossible", "default", "required", "n/a"]
    memory_source: str
    pcie_gen: int
    gpus_per_serial: int = 1
    """GPUs that share one board and its serial number."""
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
    cpu: Literal["amd64", "arm64"] = "amd64"
    """Architecture of its processors, as Debian and OCI name it."""
    rdma_devices: tuple[str, ...] = ()
    """Names under /sys/class/infiniband, one for each RDMA port; empty for plain Ethernet."""
    rdma_pci: tuple[Annotated[str, Field(pattern=r"^[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")], ...] = ()
    """PCI addresses of `rdma_devices`, in their order; with them any other RDMA device is for storage or management."""
    rails: bool = False
    """Whether `rdma_devices` are in the order of the GPUs: the first is on the PCIe switch of GPU 0."""

    @property
    def peer_cells(self) -> tuple[str, ...]:
        """Cells that `nvidia-smi topo -m` may print between two GPUs; empty for a lone GPU."""
        if self.topo_peer_cell is None:
            return ()
        return (self.topo_peer_cell,) if isinstance(self.topo_peer_cell, str) else self.topo_peer_cell

    @property
    def rdma(self) -> bool:
        """Whether it has an RDMA network."""
        return self.network.kind in ("efa", "infiniband", "roce", "eri")

    @property
    def rdma_optional(self) -> bool:
        """Whether it can be bought or used without its RDMA network: EFA interfaces are asked for."""
        return self.network.kind == "efa"

    def uses_efa(self, wanted: bool | None) -> bool:
        """Whether nodes have EFA with that word of cluster.yaml (network.rdma): null takes what the machine has."""
        return self.network.kind == "efa" and wanted is not False

    @property
    def subnet_manager_required(self) -> bool:
        """NVLink 5 switches on the node: their fabric manager needs nvlsm (NVIDIA/deepops, amazon-eks-ami)."""
        return self.fabric_manager_required and self.nvlink.generation == 5

    @property
    def imex_required(self) -> bool:
        """NVLink 5 whose switches stand outside the node (GB200, GB300): nvidia-imex, and no fabric manager here."""
        return self.nvlink.generation == 5 and self.nvlink.topology == "nvswitch" and not self.fabric_manager_required


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


Efficiency = Annotated[float, Field(gt=0, le=1)]


Basis = Literal["measured", "documented", "unverified"]
"""What a limit or a check rests on: real output of a tool or a run on such a machine; what a vendor, a tool's source or
an operator of such machines has written; neither, which warns and never condemns."""


class Limit(Row):
    """A threshold as a share of what the wire can carry, so that none can stand above it."""

    machines: tuple[str, ...]
    line_rate: float = Field(gt=0)
    efficiency: Efficiency
    basis: Basis
    source: str

    @property
    def threshold(self) -> float:
        """The least that a healthy node reaches, in the unit of `line_rate`."""
        return round(self.line_rate * self.efficiency, 1)

    @property
    def name(self) -> str:
        """What the limit is called in `Expected.least` and in reports."""
        raise NotImplementedError

    def of(self, machine: Machine) -> bool:
        """Whether a machine type is held to it."""
        return machine.name in self.machines


class NcclLimit(Limit):
    """Single-node all_reduce bus bandwidth, GB/s, at message size `size`; `measured` on a healthy node."""

    size: str
    measured: float | None = None

    @property
    def name(self) -> str:
        return "busbw"


class FabricLimit(Limit):
    """all_reduce bus bandwidth of `nodes` nodes together, GB/s, at message size `size`; `line_rate` is what all network
    ports of a node carry in one direction. `measured` may stand above it (head of limits.yaml)."""

    nodes: int = Field(gt=1)
    size: str
    measured: float | None = None

    @property
    def name(self) -> str:
        return "fabric"


class CopyLimit(Limit):
    """Copies of one GPU, GB/s in one direction: with the host's pinned memory, or to another GPU of the node."""

    way: Literal["host", "peer"]

    @property
    def name(self) -> str:
        return f"{self.way}_copy"


class GpuLimit(Limit):
    """One GPU by itself, whatever machine it is in: dense products in half precision, TFLOP/s, or bytes read and
    written by a copy within its memory, GB/s. `line_rate`: the data sheet's; `measured`: what a healthy one reached."""

    machines: tuple[str, ...] = ()
    gpus: tuple[str, ...]
    way: Literal["compute", "memory"]
    measured: float | None = None

    @property
    def name(self) -> str:
        return f"gpu_{self.way}"

    def of(self, machine: Machine) -> bool:
        return machine.gpu_model in self.gpus


class ScratchLimit(Limit):
    """All local disks of a machine together, GB/s, big pieces one after the other."""

    way: Literal["read", "write"]

    @property
    def name(self) -> str:
        return f"scratch_{self.way}"


class RdmaLimit(Limit):
    """ib_write_bw of one port, Gbit/s, from GPU or host memory."""

    memory: Literal["gpu", "host"]

    @property
    def name(self) -> str:
        return "rdma"


class Ceiling(Row):
    """The most of a counter or reading that is still healthy, whatever the machine."""

    name: str
    most: float = Field(ge=0)
    unit: str
    basis: Basis
    source: str


SMALL_GIB = 4
"""GiB of memory below which no image is built: apt, docker and the compiler of a driver's modules work there, and
machines without swap end one of them. gpuprov's own bound; how little is enough was not measured."""


class MaintenanceToken(Row):
    """A token that comes before the question: PUT to `path` with the headers `ask`; it goes into `header`."""

    path: str
    ask: dict[str, str]
    header: str


class MaintenanceService(Row):
    """A metadata service that lists events of a machine as JSON: a list, or an object with "Events"."""

    address: str
    path: str
    headers: dict[str, str] = Field(default_factory=dict)
    token: MaintenanceToken | None = None
    name: str | None = None
    """Path that says the machine's own name, where the list has others' events as well."""
    harmless: tuple[str, ...] = ()
    """Kinds of events after which a job goes on."""
    source: str


class Provider(Row):
    """What a provider sells besides machines. `region` and `zone` are regular expressions that match the whole name;
    {region} in `zone` stands for the region."""

    name: ProviderName
    title: str
    capacity: tuple[str, ...]
    infiniband_capacity: tuple[str, ...] | None = None
    """Kinds for machines with InfiniBand, where they are fewer."""
    region: str
    regions: tuple[str, ...] = ()
    """Those that are known by name."""
    zone: str
    example_region: str
    example_zones: tuple[str, ...]
    example_machine: str
    user: str
    spot_notice: str | None = None
    """Address and port of the instance metadata service that announces to a node that its spot machine ends; null where
    the provider announces nothing that gpuprov can hear."""
    block_ends_early_s: int = 0
    """Seconds before the end of a capacity block at which its machines begin to be taken."""
    maintenance: MaintenanceService | None = None
    """Where a machine hears of its scheduled maintenance; null where gpuprov knows of nothing to ask."""
    spot_service: Literal["aws", "azure", "tencent", "alicloud"] = "aws"
    """Whose metadata service that is (role interruption)."""
    virtual: bool = True
    """Whether its machines are virtual ones, or may be."""
    root_disk: tuple[str, str | None] = ("vda", None)
    """Name and model of the disk that a machine boots from; a virtio disk has no model."""
    local_disk: str = "NVMe SSD"
    """Model of a machine's own NVMe disks."""
    adapter_slot: str = "0000:{bus:02x}:00.0"
    """PCI address of a machine's InfiniBand adapters: `number` counts from 0, `bus` is that of a DGX's."""
    machine_type: str = ""
    """A pattern that the names of all its machine types have; empty where it sells none."""
    builder: str | None = None
    """A machine type without GPUs on which images are built; null where it sells none."""
    small: str = ""
    """A pattern of the machine types with less than SMALL_GIB of memory; empty where names do not tell."""
    arm: str = ""
    """A pattern of the machine types with processors of arm64; empty where names do not tell."""
    source: str

    @property
    def sells(self) -> bool:
        """Whether machines are bought there, in regions."""
        return bool(self.region)

    def is_small(self, machine_type: str) -> bool:
        """Whether its name says that it has less than SMALL_GIB of memory."""
        return bool(self.small) and re.fullmatch(self.small, machine_type) is not None

    def is_arm(self, machine_type: str) -> bool:
        """Whether its name says that it has processors of arm64."""
        return bool(self.arm) and re.fullmatch(self.arm, machine_type) is not None

    def region_typo(self, name: str) -> str:
        """The region that a name stands for which is none; empty where it is one, or may be a new one: another number
        of a known place, or a name that is like no other."""
        from rapidfuzz import fuzz, process

        places = {re.sub(r"[0-9]+$", "", one) for one in self.regions}
        if not self.regions or name in self.regions or re.sub(r"[0-9]+$", "", name) in places:
            return ""
        found = process.extractOne(name, self.regions, scorer=fuzz.ratio, score_cutoff=85)
        return found[0] if found else ""

    def is_zone(self, name: str, region: str) -> bool:
        """Whether a zone of that region may be called so."""
        return re.fullmatch(self.zone.replace("{region}", re.escape(region)), name) is not None


Currency = Literal["USD", "CNY"]


class Bought(Row):
    """What a way of buying machines costs. `price`: list: the on-demand list price; spot: one of its own that moves;
    own: agreed elsewhere; nothing: not bought. `why` is for people."""

    provider: ProviderName
    kind: str
    price: Literal["list", "spot", "own", "nothing"]
    why: str
    source: str


class Seller(Row):
    """`page`: where a provider says itself what machines cost; `beside`: what a bill has beside machines and disks."""

    provider: ProviderName
    page: str
    beside: tuple[str, ...]


class Price(Row):
    """The on-demand list price of a machine for one hour. `date`: the source's own, or two with .. between where it
    says no more than that; `source`: an id of the file's `sources`."""

    region: str
    price: float = Field(gt=0)
    currency: Currency
    date: str = Field(pattern=r"^\d{4}-\d\d(-\d\d)?(\.\.\d{4}-\d\d(-\d\d)?)?$")
    source: str


class ListPrices(Row):
    """Where a machine's list price was read, and what it was."""

    machine: str
    prices: tuple[Price, ...]


class Without(Row):
    """A machine whose price was looked for and not found."""

    machine: str
    why: str
    source: str
