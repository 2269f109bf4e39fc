"""The catalogue agrees with itself and with physics: what is held of every row, whoever adds it."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import pytest

from provisioner import catalog
from provisioner.catalog import nvlinks
from provisioner.catalog.models import Machine
from provisioner.spec.groups import Group
from provisioner.spec.rules_machine import hardware
from provisioner.stack.candidates import TRAIT_VALUES

CATALOG = catalog.load()
MACHINES = tuple(CATALOG.listed.values())
RDMA_KINDS = {"efa", "infiniband", "roce"}
CELLS = {"PIX", "PXB", "PHB", "NODE", "SYS", "XGMI"}


def each_machine(test: object) -> object:
    return pytest.mark.parametrize("machine", MACHINES, ids=lambda m: m.name)(test)


def test_names_are_unique() -> None:
    rows = catalog._rows("machines", "machines", Machine)
    assert [name for name, n in Counter(row.name for row in rows).items() if n > 1] == []
    for name, key, field in (("gpus", "gpus", "model"), ("xids", "xids", "code"), ("topologies", "topologies", "name")):
        values = [row[field] for row in catalog._document(name)[key]]
        assert len(values) == len(set(values)), (name, field)


def test_every_provider_has_machines() -> None:
    assert {m.provider for m in MACHINES} == {"aws", "alicloud", "azure", "tencent", "baremetal"}
    assert len(MACHINES) >= 92


@each_machine
def test_machine_agrees_with_its_gpu(machine: Machine) -> None:
    gpu = CATALOG.gpu(machine.gpu_model)
    assert (machine.gpu_memory_mib, machine.gpu_arch, machine.compute_capability, machine.mig_capable) == (
        gpu.memory_mib,
        gpu.arch,
        gpu.compute_capability,
        gpu.mig,
    )


@each_machine
def test_machine_says_where_it_was_read(machine: Machine) -> None:
    assert machine.source
    assert all(machine.source)


@each_machine
def test_nvlink_is_possible(machine: Machine) -> None:
    nvlink = machine.nvlink
    if nvlink.topology == "none":
        assert nvlink.links_per_gpu == 0
        assert not machine.fabric_manager_required
        assert not any(nvlinks(cell) for cell in machine.peer_cells)
    else:
        assert machine.gpu_count > 1
        assert nvlink.links_per_gpu > 0
        assert nvlink.gbps_per_link > 0
    if nvlink.topology == "nvswitch":
        assert machine.peer_cells == (f"NV{nvlink.links_per_gpu}",)
    else:
        assert nvlink.nvswitch_count == 0
        assert not machine.fabric_manager_required


@each_machine
def test_topology_has_every_pair_and_no_gpu_uses_more_links_than_it_has(machine: Machine) -> None:
    topology = CATALOG.topology(machine)
    assert set(topology) == set(combinations(range(machine.gpu_count), 2))
    for pair, cells in topology.items():
        assert cells, pair
        assert cells <= set(machine.peer_cells), pair
        assert all(cell in CELLS or nvlinks(cell) for cell in cells), pair
    links = CATALOG.nvlinks_per_gpu(machine)
    assert len(links) == machine.gpu_count
    assert all(count <= machine.nvlink.links_per_gpu for count in links)
    is_derived = machine.name not in CATALOG.listed  # whether each pair is linked is not known
    if machine.nvlink.topology != "none" and CATALOG.gpu(machine.gpu_model).vendor == "nvidia" and not is_derived:
        assert all(count > 0 for count in links)


@each_machine
def test_a_gpu_has_the_links_that_its_machines_use(machine: Machine) -> None:
    links, used = CATALOG.gpu(machine.gpu_model).nvlinks, machine.nvlink.links_per_gpu
    if machine.nvlink.topology == "nvswitch":
        assert links == used
    assert links is None or links >= used


@each_machine
def test_a_mesh_does_not_promise_more_peers_than_links(machine: Machine) -> None:
    if machine.nvlink.topology != "mesh" or machine.gpu_arch != "volta":
        return
    topology = CATALOG.topology(machine)
    for gpu in range(machine.gpu_count):
        linked = [cells for pair, cells in topology.items() if gpu in pair and all(nvlinks(c) for c in cells)]
        assert len(linked) <= machine.nvlink.links_per_gpu


@each_machine
def test_layout_is_one_of_the_allowed(machine: Machine) -> None:
    topology = CATALOG.topology(machine)
    layout = CATALOG.layout(machine)
    assert layout.keys() == topology.keys()
    assert all(layout[pair] in topology[pair] for pair in layout)


@each_machine
def test_ports_and_devices_agree(machine: Machine) -> None:
    network = machine.network
    if network.kind in RDMA_KINDS:
        assert len(machine.rdma_devices) == network.ports
        assert len(set(machine.rdma_devices)) == network.ports
        assert network.rate_gbps > 0
    else:
        assert machine.rdma_devices == ()
    assert len(set(machine.rdma_pci)) in (0, network.ports) and len(machine.rdma_pci) in (0, network.ports)
    assert machine.rdma_pci or not machine.rails
    if network.kind == "efa":
        assert machine.provider == "aws"
    if network.erdma:
        assert machine.provider == "alicloud" and network.kind == "ethernet"
    if network.total_gbps is not None:
        assert network.total_gbps <= network.ports * network.rate_gbps


@each_machine
def test_local_disks_agree(machine: Machine) -> None:
    assert (machine.local_nvme.count == 0) == (machine.local_nvme.size_gb == 0)


@pytest.mark.parametrize(("name", "disks"), [
    ("p4d.24xlarge", True), ("Standard_ND96asr_v4", True), ("p3.8xlarge", False), ("supermicro-sys-420gp-tnar", True),
])  # fmt: skip
def test_disks_that_nobody_has_counted_may_be_there(name: str, disks: bool) -> None:
    machine = CATALOG.machine(name)
    assert machine.local_disks is disks
    group = Group.model_validate({"machine": name, "storage": {"scratch": "/scratch"}})
    messages = [finding.message for finding in hardware(("groups", "a"), group, machine, CATALOG)]
    assert any("no local NVMe disks" in message for message in messages) is not disks


def test_only_aws_sells_cluster_placement() -> None:
    assert {m.provider for m in MACHINES if m.placement_cluster} == {"aws"}


@pytest.mark.parametrize("gpu", CATALOG.gpus(), ids=lambda g: g.model)
def test_gpu_is_complete(gpu: catalog.Gpu) -> None:
    assert gpu.product_names
    assert gpu.source
    assert bool(gpu.mig_profiles) == gpu.mig
    assert 3 <= gpu.pcie_gen <= 6
    for profile in gpu.mig_profiles:
        gigabytes = int(profile.split(".")[1].removesuffix("gb"))
        assert gigabytes * 1e9 <= gpu.memory_mib * 2**20 * 1.07, profile
    if gpu.vendor == "nvidia":
        assert gpu.arch in TRAIT_VALUES["gpu"]


def test_no_product_name_means_two_products() -> None:
    names = Counter(name for gpu in CATALOG.gpus() for name in gpu.product_names)
    assert [name for name, n in names.items() if n > 1] == []


def test_boards_agree_with_their_machines() -> None:
    boards = {(b.nvlink_generation, b.nvswitch_count, b.links_per_gpu, b.topo_cell) for b in CATALOG.boards}
    for machine in MACHINES:
        nvlink = machine.nvlink
        slice_of_one = nvlink.nvswitch_count == 0 and machine.basis.of("nvlink.nvswitch_count") == "unverified"
        if nvlink.topology == "nvswitch" and machine.gpu_count == 8 and not slice_of_one:
            key = (nvlink.generation, nvlink.nvswitch_count, nvlink.links_per_gpu, machine.topo_peer_cell)
            assert key in boards, machine.name


@pytest.mark.parametrize("machine", [m for m in MACHINES if CATALOG.nccl_limit(m)], ids=lambda m: m.name)
def test_nccl_threshold_is_below_the_wire(machine: Machine) -> None:
    limit = CATALOG.nccl_limit(machine)
    assert limit is not None
    nvlink, n = machine.nvlink, machine.gpu_count
    wire = nvlink.links_per_gpu * nvlink.gbps_per_link / 2 or 32.0
    in_switch = nvlink.topology == "nvswitch" and isinstance(nvlink.generation, int) and nvlink.generation >= 4
    ceiling = wire * 2 * (n - 1) / (n + 1) if in_switch else wire
    assert limit.line_rate == pytest.approx(ceiling)
    assert 0 < limit.threshold <= limit.line_rate
    assert limit.measured is None or limit.threshold <= limit.measured <= limit.line_rate


@pytest.mark.parametrize("machine", [m for m in MACHINES if CATALOG.rdma_limit(m)], ids=lambda m: m.name)
def test_rdma_threshold_is_below_the_port_rate(machine: Machine) -> None:
    limit = CATALOG.rdma_limit(machine)
    assert limit is not None
    assert limit.line_rate == machine.network.rate_gbps
    assert limit.line_rate / 2 <= limit.threshold <= limit.line_rate


@pytest.mark.parametrize("machine", [m for m in MACHINES if CATALOG.fabric_limit(m)], ids=lambda m: m.name)
def test_the_threshold_of_several_nodes_is_below_what_their_ports_carry(machine: Machine) -> None:
    limit, network = CATALOG.fabric_limit(machine), machine.network
    assert limit is not None
    assert limit.line_rate == pytest.approx(network.ports * network.rate_gbps / 8)
    assert limit.line_rate / 2 <= limit.threshold <= limit.line_rate
    # A node's GPUs add up among themselves first: busbw of k nodes can be so much above the wire (head of limits.yaml).
    k, ranks = limit.nodes, limit.nodes * machine.gpu_count
    ceiling = limit.line_rate * (ranks - 1) / ranks * k / (k - 1)
    assert limit.measured is None or limit.threshold <= limit.measured <= ceiling


def test_limits_name_machines_that_exist_once() -> None:
    for key in ("nccl", "rdma", "fabric", "copies", "scratch"):
        machine_names = [name for row in catalog._document("limits")[key] for name in row["machines"]]
        assert set(machine_names) <= set(CATALOG.names())
        if key not in ("copies", "scratch"):  # which have a row for each direction
            assert len(machine_names) == len(set(machine_names))


def test_xids_that_decide_a_fleet() -> None:
    verdicts = {code: (x.severity, x.action) for code in (13, 48, 63, 79, 94, 95, 119) if (x := CATALOG.xid(code))}
    assert verdicts == {
        13: ("warn", "none"),
        48: ("fatal", "reset"),
        63: ("info", "none"),
        79: ("fatal", "reboot"),
        94: ("warn", "none"),
        95: ("fatal", "reset"),
        119: ("fatal", "reset"),
    }
    assert CATALOG.xid(9999) is None
    assert len(CATALOG.xids()) >= 114
    assert all(x.advice.endswith(".") for x in CATALOG.xids())
    assert all(x.severity != "fatal" or x.action != "none" for x in CATALOG.xids())
