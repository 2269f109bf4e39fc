"""What a node must turn out to be: from the catalogue and the lock alone, never from a node.

A node that came up with seven GPUs must not teach the fleet that seven is right.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal

from provisioner.common.levels import Level
from provisioner.verify.row_basis import FROM_ROW, basis_of

if TYPE_CHECKING:  # the process that judges reads expectations from JSON and needs no model of the rest
    from provisioner.catalog import Catalog
    from provisioner.catalog.models import Basis, Gpu, Machine
    from provisioner.spec.groups import Group
    from provisioner.stack.models import Stack

HEALTH_TIMER = "gpuprov-health.timer"
"""What role health starts, where cluster.yaml wants it."""
FABRIC_MANAGER = "nvidia-fabricmanager.service"
IMEX = "nvidia-imex.service"
INTERRUPTION = "gpuprov-interruption.service"
"""What role interruption starts, where a provider that tells the node beforehand may take its machine away."""
MEMORY_TOLERANCE = 0.03
"""Share by which nvidia-smi's total may differ from the catalogue: it prints less with an older driver or with ECC on
(head of catalog/data/machines.yaml)."""


GROSS = 0.25
"""Share of an unverified lower limit below which a node is broken, whatever the right limit may be: published rates of
healthy machines stand 1.0 to 2.3 times above their limits (limits.yaml), so a limit that was derived from a like
machine is not four times too high."""


def far_below(reached: float, minimum: float) -> bool:
    """Whether that is so little of a lower limit that the node is broken even where the limit is unverified."""
    return reached < minimum * GROSS


TUNED: Mapping[str, str] = {
    "kernel/numa_balancing": "0",
    "vm/max_map_count": "1048576",
    "vm/nr_hugepages": "0",
    "transparent_hugepage": "madvise",
    "governor": "performance",
}
"""What role base sets (ansible/roles/base/defaults/main.yml; a test holds them equal)."""


EFA_HUGE_MIB_PER_CPU = 110
"""Memory in huge pages that EFA's provider takes for one endpoint; one for each processor is what AWS's own check of a
machine asks for. Sources: awslabs/libfabric-ci-scripts efa-check.sh; efa-config's script reserves twice as much
(bottlerocket-os/bottlerocket-core-kit#141 quotes it), and none of more than 16 MiB each (libfabric-ci-scripts#158)."""


ONLY_MODULES: Mapping[str, str] = {"required": "open", "impossible": "proprietary"}
"""What catalog/data/gpus.yaml says of the open kernel modules → the one flavour that such a GPU takes."""


@dataclass(frozen=True, slots=True)
class Expected:
    """Expected facts of one node; None means that nothing is expected (no lock, or the machine has no such part).

    Memory in MiB, rates in Gbit/s, bus bandwidth in GB/s. `topology` has "i-j" (i < j) → allowed cells of
    `nvidia-smi topo -m`; `xids` has code → {"severity", "action", "advice"}; `packages` name → exact version;
    `images` the images of the lock as mappings (keys of stack.models.Image); `units` the systemd units that the roles
    leave enabled and active; `system` the distribution (ubuntu-24.04).
    """

    machine: str
    gpu_model: str
    gpu_count: int
    vendor: Literal["nvidia", "amd", "none"] = "nvidia"
    product_names: tuple[str, ...] = ()
    memory_mib: int = 0
    ecc: bool | None = None
    mig: str | None = None
    mig_instances: int = 0
    """How many instances of that profile each GPU has room for."""
    persistence: bool | None = None
    pcie_width: int | None = None
    topology: Mapping[str, tuple[str, ...]] | None = None
    nvlinks_per_gpu: tuple[int, ...] | None = None
    gpu_nvlinks: int | None = None
    """Links that one GPU has, up or down, where no machine type says how many must be up."""
    nvlink_generation: int | None = None
    fabric_manager: bool = False
    network: str = "none"
    ports: int = 0
    rate_gbps: float = 0.0
    rdma_devices: tuple[str, ...] = ()
    rdma_pci: tuple[str, ...] = ()
    """PCI addresses of the ports for training, in the order of `rdma_devices`; empty where no source says them."""
    rails: tuple[str, ...] = ()
    """RDMA device on the PCIe switch of each GPU, in the order of the GPUs; empty where that is not known."""
    efa: bool = False
    system: str | None = None
    driver: str | None = None
    cuda: str | None = None
    nccl: str | None = None
    dcgm_exporter: bool | None = None
    packages: Mapping[str, str] | None = None
    held: tuple[str, ...] | None = None
    kernel: str | None = None
    """Release, or series (6.8), of the kernel that the driver's modules are for; None where the lock names none."""
    brought: Mapping[str, Mapping[str, Any]] | None = None
    """What the cloud's own GPU image brings: part of the stack → {"version", "packages": names that may hold it}."""
    images: tuple[Mapping[str, Any], ...] | None = None
    units: tuple[str, ...] | None = None
    monitoring_units: tuple[str, ...] = ()
    """What else the roles leave active, and no job dies without: `up` looks after it, no check condemns for it."""
    kernel_modules: str | None = None
    """open or proprietary: the flavour of the driver's modules that the lock names; without one, the only one that
    these GPUs take."""
    module_params: Mapping[str, str] | None = None
    """Parameters of the driver's module that the roles set, as /proc/driver/nvidia/params names them."""
    bare_metal: bool = False
    pcie_gen: int | None = None
    """What GPU and host can do together, where the host is known."""
    nvlink_gbps: float | None = None
    """The least that one link shows in one direction, GB/s."""
    nvswitches: int = 0
    """NVSwitches on the node's PCI bus; 0 where they are not there to be seen."""
    switched: bool = False
    """The GPUs of Hopper or later stand behind NVSwitch, on the node or outside, and say how they joined its fabric."""
    subnet_manager: bool = False
    large_bar: bool = False
    """NVSwitch stands between the GPUs, and they map their whole memory."""
    numa_nodes: int | None = None
    """Where a source says how many the node shows."""
    gpus_per_serial: int = 1
    memory_gib: float | None = None
    """Of the host, as the provider lists it; None where no source says."""
    vcpus: int | None = None
    disk_gb: float = 0.0
    """Size of each local NVMe disk, 10^9 bytes; 0 where no source says."""
    local_nvme: int = 0
    """Local NVMe disks; 0 where there are none, or no source says how many."""
    scratch: str | None = None
    """Where the local disks are mounted."""
    scratch_gb: float = 0.0
    shared: tuple[Mapping[str, str], ...] = ()
    """File systems of the network: path, unit, type, source (empty: not made yet), shows_type, shows_source, access of
    each, as provisioner/machines/mounts.py has them."""
    tuned: Mapping[str, str] | None = None
    """Kernel settings that the roles make, by their path."""
    image: str | None = None
    """The golden image that it is made of, as name and build (pytorch 20260131-031500); None for none."""
    efa_huge_mib_per_cpu: int = 0
    """Memory in huge pages that EFA's packages reserve; 0 where the lock has none of them, or without a lock the
    machine no EFA."""
    maintenance: Mapping[str, Any] | None = None
    """The metadata service that lists the machine's scheduled maintenance (catalog/providers.py, MaintenanceService);
    None where there is nobody to ask."""
    repositories: tuple[str, ...] | None = None
    """Addresses of the lock's package repositories."""
    repo_keys: Mapping[str, str] = field(default_factory=dict)
    """File in /etc/apt/keyrings → fingerprint of the key that its repository is signed by."""
    sources: tuple[str, ...] = ()
    """Those that answer HTTP, and the registries of the lock's images."""
    simulated: bool = False
    """The sandbox's node: what it shows of this computer's kernel is not judged."""
    most: Mapping[str, float] = field(default_factory=dict)
    """Counter → the most of it that is still healthy (catalog/data/health.yaml)."""
    xids: Mapping[str, Mapping[str, str]] | None = None
    known_bad: tuple[Mapping[str, Any], ...] = ()
    """Combinations of versions that were reported as broken, with the product names of the GPUs that each is about
    (catalog/data/known_bad.yaml)."""
    bulletins: tuple[Mapping[str, Any], ...] = ()
    """Security bulletins of the driver and the container toolkit (catalog/data/security.yaml)."""
    min_busbw_gbps: float | None = None
    least: Mapping[str, float] = field(default_factory=dict)
    """host_copy, peer_copy, gpu_memory: GB/s that a healthy GPU reaches, and gpu_compute: TFLOP/s, where somebody has
    published it; fabric: that its nodes do together; scratch_read: all local disks;
    rdma: Gbit/s of one network port."""
    fabric: Literal["", "rdma", "sockets"] = ""
    """How the nodes of its group are joined for one job over several of them; "" where each is for itself."""
    gpudirect: bool = False
    """Its network cards read the GPUs' memory themselves."""
    nvlink_across: bool = False
    """NVLink goes from node to node."""
    published: Mapping[str, float] = field(default_factory=dict)
    """busbw: GB/s that was measured on a healthy node of this type and published. It is shown, and judges nothing."""
    level: Level = "standard"
    diag: int | None = None
    """Run level of dcgmi diag in place of the level's own."""
    bmc: Mapping[str, Any] | None = None
    """What its management controller must show: serial, firmware (part → version), budget_w; None for a machine of
    which cluster.yaml names none."""
    unverified: tuple[str, ...] = ()
    """The limits (names of `most` and `least`, busbw, nvlink, fabric) that no measurement or document supports: what
    fails at one of them alone warns and does not condemn."""
    limits: tuple[str, ...] = ()
    """Every limit that the node is held to, verified or not."""
    basis: Mapping[str, Basis] = field(default_factory=dict)
    """What the fields that follow from the catalogue's row rest on (basis.py). A check that fails after it has read an
    unverified one warns and does not condemn. Every other field is what cluster.yaml asks for or the lock names."""

    unknown: tuple[str, ...] = ()
    """Fields that follow from a machine type, where nobody named one: what reads them is not judged (basis.py)."""

    def knows(self, name: str) -> bool:
        """Whether a field is known; False for what follows from a machine type that nobody named."""
        return name not in self.unknown

    def verified(self, name: str) -> bool:
        """Whether a field rests on more than a guess; for warnings, which have nothing to be lowered to."""
        return self.basis.get(name) != "unverified"

    def units_on(self, switches: int | None) -> tuple[str, ...]:
        """The units of a node that shows so many NVSwitches on its PCI bus (None: not known). Where no source says that
        a machine needs fabric manager, it runs where a switch is visible."""
        absent = {FABRIC_MANAGER} if switches == 0 and not self.verified("fabric_manager") else set()
        return tuple(name for name in self.units or () if name not in absent)

    @property
    def own_units(self) -> tuple[str, ...]:
        """The units that the machine type needs, whoever configured it."""
        needed = {FABRIC_MANAGER: self.knows("fabric_manager") and self.fabric_manager,
                  IMEX: self.knows("nvlink_across") and self.nvlink_across}  # fmt: skip
        return tuple(name for name, needs in needed.items() if needs)

    def unsupported(self, *limits: str) -> tuple[str, ...]:
        """Those of `limits` that are unverified; for check.fail."""
        return tuple(limit for limit in limits if limit in self.unverified)

    def unsupported_floor(self, limit: str, reached: float, minimum: float) -> tuple[str, ...]:
        """The same of a lower limit, for what was reached: none where that is far below it."""
        return () if far_below(reached, minimum) else self.unsupported(limit)

    @property
    def gpu_file(self) -> str:
        """The file of a bundle that lists this machine's GPUs."""
        return "rocm-smi.json" if self.vendor == "amd" else "nvidia-smi.xml"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Expected:
        known = {f.name for f in fields(cls)}
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items() if k in known}
        return cls(**values)


def expect(
    machine: Machine,
    gpu: Gpu,
    stack: Stack | None,
    group: Group | None,
    catalog: Catalog,
    *,
    level: Level = "standard",
    diag: int | None = None,
    simulated: bool = False,
    monitoring_units: tuple[str, ...] = (),
    shared: tuple[Mapping[str, str], ...] = (),
    image: str | None = None,
) -> Expected:
    """What a node of this machine type must show. Without a lock no version, package or image is expected; without a
    group no MIG, persistence or EFA wish, and ECC as the GPU is shipped."""
    expected = Expected(
        machine=machine.name,
        gpu_model=machine.gpu_model,
        gpu_count=machine.gpu_count,
        vendor=gpu.vendor,
        monitoring_units=monitoring_units,
        shared=shared,
        image=image,
        simulated=simulated,
        level=level,
        diag=diag,
        basis=basis_of(machine, gpu),
    )
    expected = _with_gpu(expected, machine, gpu, group, catalog)
    if gpu.vendor == "nvidia":
        expected = _with_nvidia_gpu(expected, machine, gpu, group, catalog)
    expected = _with_network(expected, machine, gpu, group)
    expected = _with_host(expected, machine, catalog)
    expected = _with_limits(expected, machine, catalog)
    if stack is None:
        return replace(expected, efa_huge_mib_per_cpu=EFA_HUGE_MIB_PER_CPU if machine.uses_efa(None) else 0)
    expected = _with_lock(expected, stack)
    return _with_roles(expected, machine, gpu, stack, group) if group else expected


def _with_gpu(expected: Expected, machine: Machine, gpu: Gpu, group: Group | None, catalog: Catalog) -> Expected:
    """With what follows from the GPUs and the links between them, whoever made them."""
    from provisioner.catalog.mig import instances

    mig = group.gpu.mig if group else None
    # Switches of generation 5 are no PCI devices of NVIDIA's; where fabric manager runs, those of 3 and 4 are.
    has_visible_switches = machine.fabric_manager_required and machine.nvlink.generation in (3, 4)
    return replace(
        expected,
        product_names=gpu.product_names,
        memory_mib=machine.gpu_memory_mib,
        mig=mig,
        mig_instances=instances(gpu, mig),
        topology={f"{i}-{j}": tuple(sorted(cells)) for (i, j), cells in catalog.topology(machine).items()},
        gpus_per_serial=gpu.gpus_per_serial,
        nvlink_generation=machine.nvlink.generation if isinstance(machine.nvlink.generation, int) else None,
        fabric_manager=machine.fabric_manager_required,
        nvswitches=machine.nvlink.nvswitch_count if has_visible_switches else 0,
        nvlink_across=machine.imex_required,
    )


def _with_nvidia_gpu(expected: Expected, machine: Machine, gpu: Gpu, group: Group | None, catalog: Catalog) -> Expected:
    """With what NVIDIA's GPUs and tools alone show."""
    nvlink = machine.nvlink
    return replace(
        expected,
        ecc=(group.gpu.ecc if group else True) if gpu.ecc else None,
        persistence=group.gpu.persistence if group else None,
        # SXM boards sit on sixteen lanes; a PCIe card's slot is the host's choice and in no catalogue.
        pcie_width=16 if nvlink.topology in ("nvswitch", "mesh") else None,
        pcie_gen=_pcie_gen(machine, gpu, catalog),
        nvlinks_per_gpu=catalog.nvlinks_per_gpu(machine),
        nvlink_gbps=nvlink.gbps_per_link / 2 * catalog.nvlink_share if nvlink.links_per_gpu else None,
        switched=nvlink.topology == "nvswitch" and gpu.arch in ("hopper", "blackwell"),
        large_bar=nvlink.topology == "nvswitch",
        kernel_modules=ONLY_MODULES.get(gpu.open_kernel_modules),
        known_bad=_known_bad(catalog),
        bulletins=tuple(row.model_dump(mode="json") for row in catalog.bulletins),
    )


def _with_network(expected: Expected, machine: Machine, gpu: Gpu, group: Group | None) -> Expected:
    """With what follows from the network between the nodes."""
    joined = _joined(machine, group)
    return replace(
        expected,
        network=machine.network.kind,
        ports=machine.network.ports,
        rate_gbps=machine.network.rate_gbps,
        rdma_devices=machine.rdma_devices,
        rdma_pci=machine.rdma_pci,
        rails=machine.rdma_devices if machine.rails else (),
        efa=machine.uses_efa(group.network.rdma if group else None),
        subnet_manager=machine.subnet_manager_required,
        fabric=joined,
        # Boards with NVSwitch have it with every such network; of others (V100, cards in a VM) nobody says.
        gpudirect=joined == "rdma" and gpu.vendor == "nvidia" and machine.nvlink.topology == "nvswitch",
    )


def _with_host(expected: Expected, machine: Machine, catalog: Catalog) -> Expected:
    """With what follows from the host: processors, memory, disks, the cloud's services."""
    is_sold = catalog.provider(machine.provider).virtual

    def is_same_for_all(key: str) -> bool:
        """Whether every machine of the type has the same of it: a server is ordered with the memory that its owner
        wants, and an example in the catalogue is not an expectation."""
        return not machine.basis.is_left_out(key) and (is_sold or machine.basis.of(key) != "unverified")

    return replace(
        expected,
        bare_metal=not is_sold,
        numa_nodes=machine.numa_nodes,
        memory_gib=machine.memory_gib if is_same_for_all("memory_gib") else None,
        vcpus=machine.vcpus if is_same_for_all("vcpus") else None,
        disk_gb=machine.local_nvme.size_gb,
        local_nvme=machine.local_nvme.count if is_same_for_all("local_nvme.count") else 0,
        scratch_gb=machine.local_nvme.count * machine.local_nvme.size_gb,
        maintenance=_maintenance(machine, catalog) if not expected.simulated else None,
    )


def _with_limits(expected: Expected, machine: Machine, catalog: Catalog) -> Expected:
    """With the limits of the catalogue, and what each rests on."""
    busbw, together = catalog.nccl_limit(machine), catalog.fabric_limit(machine)
    port, limits = catalog.rdma_limit(machine), catalog.limits(machine)
    return replace(
        expected,
        most=catalog.ceilings,
        xids=_xids(catalog),
        min_busbw_gbps=busbw.threshold if busbw else None,
        least=catalog.copy_limits(machine)
        | catalog.gpu_limits(machine)
        | catalog.scratch_limits(machine)
        | ({"fabric": together.threshold} if together else {})
        | ({"rdma": port.threshold} if port else {}),
        published={"busbw": busbw.measured} if busbw and busbw.measured else {},
        unverified=tuple(sorted(name for name, basis in limits.items() if basis == "unverified")),
        limits=tuple(sorted(limits)),
    )


def _with_lock(expected: Expected, stack: Stack) -> Expected:
    """With what the lock names."""
    return replace(
        expected,
        system=stack.os,
        driver=stack.driver,
        cuda=stack.cuda_driver,
        nccl=stack.nccl,
        dcgm_exporter=stack.dcgm_exporter is not None,
        packages={p.name: p.version for p in stack.packages},
        held=tuple(p.name for p in stack.packages if p.repository is not None),
        brought=_vendor_parts(stack),
        images=tuple(image.model_dump(exclude={"basis", "config"}) for image in stack.images),
        kernel_modules=stack.kernel_modules if expected.vendor == "nvidia" else None,
        # The sandbox's nodes have this computer's kernel.
        kernel=stack.kernel if not expected.simulated else None,
        repositories=tuple(repository.uri for repository in stack.repositories),
    )


def _with_roles(expected: Expected, machine: Machine, gpu: Gpu, stack: Stack, group: Group) -> Expected:
    """With what the roles configure by a lock and a group."""
    return replace(
        expected,
        units=(*units(machine, gpu, stack, group), *(mount["unit"] for mount in expected.shared)),
        # ansible/roles/nvidia_driver/defaults: NVreg_CreateImexChannel0
        module_params={"CreateImexChannel0": "1"} if machine.imex_required else None,
        scratch=group.storage.scratch if machine.local_disks else None,
        tuned=_tuned(stack),
        efa_huge_mib_per_cpu=EFA_HUGE_MIB_PER_CPU if stack.efa else 0,
        repo_keys={f"gpuprov-{r.name}.asc": r.fingerprint for r in stack.repositories if not r.archives},
        sources=_sources(stack),
    )


OF_A_MACHINE = ("machine", "least", "maintenance", "bare_metal", "mig")
"""What follows from a machine type, or from the file that asks for it, besides its row (basis.py, FROM_ROW)."""


def expect_no_machine(
    vendor: Literal["nvidia", "amd"], catalog: Catalog, *, gpu: Gpu | None = None, level: Level = "standard"
) -> Expected:
    """What every machine must show, of which type it may be; `gpu` is the one model that it lists, where the catalogue
    has that. ECC off warns: nobody said what was asked for."""

    unknown = {*FROM_ROW, *OF_A_MACHINE}
    known_bad = _known_bad(catalog) if vendor == "nvidia" else ()
    expected = Expected(machine="", gpu_model="", gpu_count=0, vendor=vendor, most=catalog.ceilings,
                        xids=_xids(catalog), known_bad=known_bad, level=level,
                        unknown=tuple(sorted(unknown)))  # fmt: skip
    if gpu is None:
        return expected
    of_gpu: dict[str, Basis] = {
        "product_names": gpu.basis.of("product_names"), "memory_mib": gpu.basis.of("memory_mib"), "ecc": "unverified"
    }  # fmt: skip
    return replace(
        expected,
        product_names=gpu.product_names,
        memory_mib=gpu.memory_mib,
        gpu_nvlinks=gpu.nvlinks,
        ecc=True if vendor == "nvidia" and gpu.ecc else None,
        basis=of_gpu,
        unknown=tuple(sorted(unknown - of_gpu.keys())),
    )


def _xids(catalog: Catalog) -> dict[str, Mapping[str, str]]:
    return {str(x.code): {"severity": x.severity, "action": x.action, "advice": x.advice} for x in catalog.xids()}


def _known_bad(catalog: Catalog) -> tuple[Mapping[str, Any], ...]:
    return tuple(
        {
            **row.model_dump(mode="json", exclude={"gpus", "basis"}, exclude_none=True),
            "names": [name for model in row.gpus for name in catalog.gpu(model).product_names],
        }
        for row in catalog.known_bad
    )


def _vendor_parts(stack: Stack) -> dict[str, Mapping[str, Any]] | None:
    if stack.vendor is None:
        return None
    names = {part: [p.name for p in stack.vendor.packages if p.part == part and p.asked] for part in stack.vendor.parts}
    return {part: {"version": v, "packages": names[part]} for part, v in stack.vendor.parts.items()}


def _sources(stack: Stack) -> tuple[str, ...]:
    registries = {f"https://{str(i.pull).split('/')[0]}/v2/" for i in stack.images if "." in str(i.pull).split("/")[0]}
    repositories = {
        repository.uri for repository in stack.repositories if repository.uri.startswith(("http://", "https://"))
    }
    return tuple(sorted(registries | repositories))


def _tuned(stack: Stack) -> dict[str, str]:
    """What role base sets; huge pages are EFA's where the lock has it."""
    return {name: value for name, value in TUNED.items() if name != "vm/nr_hugepages" or not stack.efa}


def _maintenance(machine: Machine, catalog: Catalog) -> dict[str, Any] | None:
    service = catalog.provider(machine.provider).maintenance
    return service.model_dump(exclude={"source"}) if service is not None else None


def _joined(machine: Machine, group: Group | None) -> Literal["", "rdma", "sockets"]:
    """Whether a job is meant to run over several nodes, and over what. Plain Ethernet is shared with everything else
    and its rate is nobody's promise: nodes on it are for themselves, unless cluster.yaml wants them close together."""
    if (group is not None and group.gpu.mig) or machine.gpu_count == 0:
        return ""  # a slice of a GPU can't be joined with others
    efa = machine.uses_efa(group.network.rdma if group else None)
    if efa or machine.network.kind in ("infiniband", "roce"):
        return "rdma"
    return "sockets" if group is not None and group.placement == "cluster" else ""


def _pcie_gen(machine: Machine, gpu: Gpu, catalog: Catalog) -> int | None:
    """Generation of a healthy GPU's PCIe link. Known for boards with NVSwitch on bare metal alone: their hosts are
    built for them, while a virtual machine may show less and a card's slot is anything."""
    if catalog.provider(machine.provider).virtual or machine.nvlink.topology != "nvswitch":
        return None
    host = re.match(r"gen(\d)", machine.pcie_host_link or "")
    return min(gpu.pcie_gen, int(host[1])) if host else gpu.pcie_gen


def units(machine: Machine, gpu: Gpu, stack: Stack, group: Group) -> tuple[str, ...]:
    """The units that the roles leave enabled and active on such a node."""
    from provisioner.plan import roles

    return roles.units(machine, gpu, stack, group)
