"""A machine type described by the few things that tell machines apart, and the whole row that follows from them.

Two kinds of types are described so: those of a user (`machines:` in cluster.yaml, or in a file of their own) and the
clouds' sizes (data/cloud_sizes.yaml). What a description leaves out is taken from gpus.yaml or from a type of the
catalogue with the same GPUs; then it is unverified, and a check that fails by it warns. Processors, memory, disks and
network that it leaves out are not expected at all: nodes are compared with each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, Protocol

from pydantic import ConfigDict, Discriminator, Field, Tag

from provisioner.catalog.models import NO_GPU, Board, Evidence, Gpu, LocalNVMe, Machine, Network, NVLink, Row

MACHINE_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"
MACHINE_NAME_TITLE = "a name of letters, digits, dots, hyphens and underscores, at most 63, a letter or digit first"
FARTHER = ("PIX", "PXB", "PHB", "NODE", "SYS")
"""As the legend of `nvidia-smi topo -m` orders them, the nearest first."""
EXAMPLE_VCPUS, EXAMPLE_GIB = 8, 64
"""For each GPU, where a description has none: what a simulated node shows. No node is held to it."""


class CatalogRows(Protocol):
    """What a description is completed from: catalog.Catalog."""

    @property
    def listed(self) -> Mapping[str, Machine]: ...

    @property
    def boards(self) -> tuple[Board, ...]: ...

    def gpu(self, model: str) -> Gpu: ...

    def gpus(self) -> tuple[Gpu, ...]: ...


class DescribedPart(Row):
    """Read from files of users: no value is converted silently."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class DescribedGpu(DescribedPart):
    """A GPU product that gpus.yaml does not have."""

    product_name: Annotated[str, Field(min_length=2, max_length=100)] = Field(
        title="the name that nvidia-smi or amd-smi prints",
        description="Name of the GPU as `nvidia-smi --query-gpu=name` prints it",
        examples=["NVIDIA RTX A6000"],
    )
    memory_mib: int = Field(
        ge=1024,
        le=4_194_304,
        title="a whole number of MiB",
        description="Memory of one GPU, MiB, as `nvidia-smi --query-gpu=memory.total` prints it",
        examples=[49140],
    )
    arch: Literal["volta", "turing", "ampere", "ada", "hopper", "blackwell", "cdna2", "cdna3"] = Field(
        description="Architecture of the GPU; the driver and CUDA follow from it"
    )
    compute_capability: Annotated[str, Field(pattern=r"^([0-9]{1,2}\.[0-9]|gfx[0-9a-f]{3,5})$")] = Field(
        title='a version in quotes such as "8.6" (AMD: gfx942)',
        description="SM version in quotes, as `nvidia-smi --query-gpu=compute_cap` prints it; AMD: gfx target",
        examples=["8.6"],
    )
    ecc: bool = Field(default=False, title="true or false", description="Whether ECC is enabled as shipped")
    pcie_gen: int = Field(default=4, ge=3, le=6, title="a whole number", description="PCIe generation of the GPU")

    def row(self, machine: str, catalog: CatalogRows) -> Gpu:
        """The same as a row of gpus.yaml, whose model is of that machine type alone. Which kernel modules drive it
        follows from the architecture."""
        same = next(gpu for gpu in catalog.gpus() if gpu.arch == self.arch)
        return Gpu(
            model=f"{machine}:gpu",
            product_names=(self.product_name,),
            memory_mib=self.memory_mib,
            arch=self.arch,
            compute_capability=self.compute_capability,
            mig=False,
            ecc=self.ecc,
            open_kernel_modules=same.open_kernel_modules,
            memory_source="user",
            pcie_gen=self.pcie_gen,
            source="user",
            basis=Evidence(user=("product_names", "memory_mib", *(("ecc",) if "ecc" in self.model_fields_set else ())),
                           unverified=() if "ecc" in self.model_fields_set else ("ecc",)),
        )  # fmt: skip


class DescribedNVLink(DescribedPart):
    """How the GPUs of a node are linked."""

    topology: Literal["nvswitch", "mesh", "bridge", "none"] = Field(
        description="nvswitch: through switches; mesh: all to all; bridge: pairs of PCIe cards; none: PCIe alone"
    )
    links_per_gpu: int = Field(
        default=0, ge=0, le=36, title="a whole number",
        description="Links of one GPU that must be active; needed for all topologies but none", examples=[18],
    )  # fmt: skip


class DescribedNetwork(DescribedPart):
    """Ports for training traffic."""

    kind: Literal["efa", "infiniband", "ethernet", "roce", "none"] = Field(description="What the nodes train over")
    ports: int = Field(default=1, ge=0, le=64, title="a whole number", description="Ports for training traffic")
    rate_gbps: float = Field(
        default=0, ge=0, le=3200, title="a number of Gbit/s", description="Rate of one port, Gbit/s", examples=[400]
    )
    devices: tuple[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,30}$")], ...] = Field(
        default=(), max_length=64, title="a list of RDMA devices such as [mlx5_0, mlx5_3]",
        description="Names under /sys/class/infiniband of the ports for training, where others are for storage",
        examples=[["mlx5_0", "mlx5_3"]],
    )  # fmt: skip


class DescribedDisks(DescribedPart):
    """Local NVMe disks beside the system's."""

    count: int = Field(ge=0, le=64, title="a whole number", description="Local NVMe disks, without the system's")
    size_gb: float = Field(
        default=0, ge=0, le=1_000_000, title="a number of GB", description="Size of one disk, decimal GB"
    )


ARCHITECTURES = {
    "volta": ("7.0", "7.2"), "turing": ("7.5",), "ampere": ("8.0", "8.6", "8.7"), "ada": ("8.9",), "hopper": ("9.0",),
    "blackwell": ("10.0", "10.3", "12.0", "12.1"), "cdna2": ("gfx90a",), "cdna3": ("gfx940", "gfx941", "gfx942"),
}  # fmt: skip
"""Architecture → compute capabilities of its GPUs. https://developer.nvidia.com/cuda-gpus,
https://rocm.docs.amd.com/en/latest/reference/gpu-arch-specs.html"""
GpuName = Annotated[str, Field(min_length=1, max_length=100)]


def _form_of_gpu(value: object) -> str:
    return "block" if isinstance(value, dict | DescribedGpu) else "name"


class MachineDescription(DescribedPart):
    """A machine type that the catalogue does not have."""

    provider: Annotated[str, Field(min_length=1, max_length=32)] = Field(
        default="baremetal",
        title="aws, azure, alicloud, tencent or baremetal",
        description="Who sells it; for a cloud the name of the machine type is the name of the size there",
    )
    gpu: Annotated[
        Annotated[GpuName, Tag("name")] | Annotated[DescribedGpu, Tag("block")], Discriminator(_form_of_gpu)
    ] = Field(
        default=NO_GPU.model,
        title="a GPU of `gpuprov catalog --gpus`, or a block that describes another",
        description="GPU product of `gpuprov catalog --gpus`, or a block that describes one that is not listed; left "
        "out where `gpus` is 0",
        examples=["L40S", "H100-SXM5-80GB"],
    )
    gpus: int = Field(
        ge=0, le=32, title="a whole number", description="GPUs of one machine; 0 for a head node, which has none"
    )
    nvlink: DescribedNVLink | None = Field(
        default=None,
        title="a block, or null",
        description="NVLink of the node; null: as machines of the catalogue with the same GPUs have it",
    )
    network: DescribedNetwork | None = Field(
        default=None, title="a block, or null", description="Network for training; null: nothing is expected of it"
    )
    vcpus: int | None = Field(
        default=None, ge=1, le=4096, title="a whole number or null",
        description="Hardware threads that the OS sees; null: nodes of a group are compared",
    )  # fmt: skip
    memory_gib: float | None = Field(
        default=None, gt=0, le=65536, title="a number of GiB or null",
        description="Memory of the machine, GiB; null: nodes of a group are compared",
    )  # fmt: skip
    numa_nodes: int | None = Field(
        default=None, ge=1, le=64, title="a whole number or null", description="NUMA nodes that the OS sees"
    )
    local_nvme: DescribedDisks | None = Field(
        default=None, title="a block, or null",
        description="Local NVMe disks beside the system's; null: not known, those that are there are used",
    )  # fmt: skip
    cpu: Literal["amd64", "arm64"] = Field(default="amd64", description="Architecture of the processors")
    retired: str | None = Field(
        default=None, title="a text, or null", description="When and by whom the type was withdrawn: it is refused then"
    )
    source: tuple[str, ...] = Field(default=(), title="a list of texts", description="Where the values were read")

    def own_gpu(self, name: str, catalog: CatalogRows) -> Gpu | None:
        """The GPU that is described here; None for one of gpus.yaml."""
        return self.gpu.row(name, catalog) if isinstance(self.gpu, DescribedGpu) else None


def machine(
    name: str, description: MachineDescription, catalog: CatalogRows, basis: Literal["user", "documented"]
) -> Machine:
    """The row of a described type. `basis`: what the values that it names rest on. Raises GpuprovError for a GPU that
    neither the catalogue nor the description has."""
    gpu = description.own_gpu(name, catalog) or catalog.gpu(str(description.gpu))
    links = _linked(description, gpu, catalog)
    network, disks = description.network or DescribedNetwork(kind="ethernet", rate_gbps=10), description.local_nvme
    sold = [row for row in catalog.listed.values() if row.provider == description.provider]
    return Machine(
        name=name,
        provider=description.provider,
        gpu_model=gpu.model,
        gpu_count=description.gpus,
        gpu_memory_mib=gpu.memory_mib,
        gpu_arch=gpu.arch,
        compute_capability=gpu.compute_capability,
        nvlink=links.nvlink,
        topo_peer_cell=links.peer_cells,
        topology=links.layout,
        fabric_manager_required=links.fabric_manager,
        network=Network(kind=network.kind, ports=network.ports, rate_gbps=network.rate_gbps, cards=network.ports),
        local_nvme=LocalNVMe(count=disks.count if disks else 0, size_gb=disks.size_gb if disks else 0),
        vcpus=description.vcpus or EXAMPLE_VCPUS * max(1, description.gpus),
        memory_gib=description.memory_gib or EXAMPLE_GIB * max(1, description.gpus),
        numa_nodes=description.numa_nodes,
        mig_capable=gpu.mig,
        notes="",
        source=description.source or (basis,),
        basis=_evidence(description, gpu, basis),
        placement_cluster=bool(sold) and all(row.placement_cluster for row in sold),
        retired=description.retired,
        cpu=description.cpu,
        rdma_devices=network.devices or _device_names(network),
    )


def _evidence(description: MachineDescription, gpu: Gpu, basis: Literal["user", "documented"]) -> Evidence:
    """What the keys of the row rest on: what is stated on the description, the rest on a like machine or nothing."""
    stated = description.model_dump(exclude_none=True)
    network, disks, nvlink = description.network, description.local_nvme, description.nvlink
    is_alone = description.gpus <= 1
    keys = {
        "gpu_model": True,
        "gpu_count": True,
        "gpu_memory_mib": gpu.basis.of("memory_mib") != "unverified",
        "nvlink": nvlink is not None or is_alone,
        "nvlink.nvswitch_count": is_alone or (nvlink is not None and nvlink.topology != "nvswitch"),
        "topo_peer_cell": nvlink is not None and _is_uniform(nvlink.topology, description.gpus),
        "fabric_manager_required": is_alone or (nvlink is not None and nvlink.topology != "nvswitch"),
        "network": network is not None,
        "network.rate_gbps": network is not None and network.rate_gbps > 0,
        "rdma_devices": network is not None and bool(network.devices),
        "local_nvme": disks is not None,
        "local_nvme.size_gb": disks is not None and (disks.count == 0 or disks.size_gb > 0),
        **{key: key in stated for key in ("vcpus", "memory_gib", "numa_nodes")},
    }
    stated_keys = tuple(key for key, is_named in keys.items() if is_named)
    return Evidence(
        user=stated_keys if basis == "user" else (),
        unverified=tuple(key for key, is_named in keys.items() if not is_named),
        left_out=tuple(key for key in ("vcpus", "memory_gib", "local_nvme", "network") if key not in stated_keys),
    )


def _device_names(network: DescribedNetwork) -> tuple[str, ...]:
    """RDMA devices as the kernel's drivers number them; none of plain Ethernet."""
    if network.kind not in ("efa", "infiniband", "roce"):
        return ()
    prefix = "efa_" if network.kind == "efa" else "mlx5_"
    return tuple(f"{prefix}{number}" for number in range(network.ports))


class _Links(Row):
    nvlink: NVLink
    peer_cells: str | tuple[str, ...] | None
    layout: str | None = None
    fabric_manager: bool = False


def _linked(description: MachineDescription, gpu: Gpu, catalog: CatalogRows) -> _Links:
    """NVLink and the cells of `nvidia-smi topo -m`: as described, else of a type of the catalogue with the same GPUs,
    else by the GPU's form: a module on a board has links, a PCIe card has none."""
    none = NVLink(generation=None, links_per_gpu=0, gbps_per_link=0, nvswitch_count=0, topology="none")
    stated = description.nvlink
    gpus = description.gpus
    if gpus <= 1:
        return _Links(nvlink=none, peer_cells=None)
    if stated is None:
        alike = _alike(description, gpu, catalog)
        if alike is not None:
            return _Links(
                nvlink=alike.nvlink,
                peer_cells=alike.topo_peer_cell,
                layout=alike.topology,
                fabric_manager=alike.fabric_manager_required,
            )
    topology = stated.topology if stated else ("none" if gpu.nvlinks is None else "mesh")
    count = (stated.links_per_gpu if stated else 0) or gpu.nvlinks or 0
    if gpu.vendor == "amd":
        xgmi = NVLink(generation="xgmi", links_per_gpu=count, gbps_per_link=0, nvswitch_count=0, topology=topology)
        return _Links(nvlink=none, peer_cells=FARTHER) if topology == "none" else _Links(nvlink=xgmi, peer_cells="XGMI")
    if topology == "none" or not count:
        return _Links(nvlink=none, peer_cells=FARTHER)
    generation, rate = _link_generation(gpu.arch, catalog)
    if topology == "bridge":
        rate = 0  # links of cards differ from those of modules: 14 GB/s one way on GA102, 25 on GA100
    board = _board(generation, count, catalog.boards) if topology == "nvswitch" else None
    nvlink = NVLink(
        generation=generation, links_per_gpu=count, gbps_per_link=rate,
        nvswitch_count=board.nvswitch_count if board else 0, topology=topology,
    )  # fmt: skip
    if topology == "nvswitch":
        return _Links(nvlink=nvlink, peer_cells=f"NV{count}", fabric_manager=board is None or board.nvswitch_count > 0)
    bonds = tuple(f"NV{number}" for number in range(1, count + 1))
    return _Links(nvlink=nvlink, peer_cells=f"NV{count}" if _is_uniform(topology, gpus) else (*bonds, *FARTHER))


def _link_generation(arch: str, catalog: CatalogRows) -> tuple[int | None, float]:
    """NVLink's generation of an architecture and GB/s of one link, both directions, as the machines of machines.yaml
    have it; no generation where none of them has NVLink."""
    links = (row.nvlink for row in catalog.listed.values() if row.gpu_arch == arch)
    nvlink = next((link for link in links if isinstance(link.generation, int)), None)
    return (int(nvlink.generation or 0), nvlink.gbps_per_link) if nvlink else (None, 50.0)


def _is_uniform(topology: str, gpus: int) -> bool:
    """Whether every pair of GPUs has all links of a GPU."""
    return topology == "nvswitch" or (topology == "bridge" and gpus == 2)


def _alike(description: MachineDescription, gpu: Gpu, catalog: CatalogRows) -> Machine | None:
    """A type of machines.yaml with the same GPUs in the same number, of the same provider where there is one; else one
    whose GPUs are modules of the same generation with as many links. None for cards: a bridge is the owner's choice."""
    if gpu.nvlinks is None and gpu.vendor == "nvidia":
        return None
    rows = [row for row in catalog.listed.values() if row.gpu_count == description.gpus]
    same = [row for row in rows if row.gpu_model == gpu.model]
    if not same and gpu.vendor == "nvidia":
        same = [row for row in rows if row.gpu_arch == gpu.arch and catalog.gpu(row.gpu_model).nvlinks == gpu.nvlinks]
    return next((row for row in same if row.provider == description.provider), same[0] if same else None)


def _board(generation: int | None, links: int, boards: Sequence[Board]) -> Board | None:
    return next((b for b in boards if (b.nvlink_generation, b.links_per_gpu) == (generation, links)), None)
