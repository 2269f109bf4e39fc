"""The PCIe side of the GPUs: generation, replays, their NUMA node and the network cards beside them."""

from __future__ import annotations

from collections import Counter
from statistics import median

from provisioner.verify.check import check, fail, saw, skip, unknown
from provisioner.verify.checks.gpu import all_report, answering
from provisioner.verify.checks.network import by_place
from provisioner.verify.expectations import Expected
from provisioner.verify.facts import Facts

NEAR = ("PIX", "PXB", "PSB", "C2C")
"""Paths that do not go through the CPU, as the legend of `nvidia-smi topo -m` explains them."""


@check(
    "gpu.pcie_gen",
    severity="warn",
    action="reboot",
    needs=("gpus",),
    vendor="nvidia",
    follows=("gpu.model", "gpu.pcie"),
    applies=lambda e: e.pcie_gen,
    otherwise="the catalogue has no PCIe generation for this host",
    says="A GPU and its host have agreed on an older PCIe generation than both can do. Reboot; reseat the GPU's board.",
)
def test_generation(node: Facts, expected: Expected) -> None:
    assert expected.pcie_gen is not None
    # The highest that GPU and host can do together: the current one of an idle GPU says nothing.
    best = {gpu.index: gpu.pcie_gen_max for gpu in answering(node)}
    saw(expected=f"generation {expected.pcie_gen}", actual=sorted({str(gen) for gen in best.values()}))
    low = [f"GPU {gpu}: generation {gen}" for gpu, gen in best.items() if gen is not None and gen < expected.pcie_gen]
    if low:
        fail("; ".join(low))
    all_report(node, best, "PCIe generation")


@check(
    "gpu.pcie_replay",
    severity="info",
    action="vendor",
    needs=("gpus",),
    vendor="nvidia",
    applies=lambda e: e.gpu_count > 1,
    otherwise="needs at least two GPUs",
    says="A GPU repeats far more PCIe transfers than its peers: a link that is going bad. Watch it under load.",
)
def test_replays(node: Facts, expected: Expected) -> None:
    counts = {f"GPU {g.index}": g.pcie_replays for g in answering(node) if g.pcie_replays is not None}
    if not counts:
        skip("these GPUs do not count replays")
    # Healthy GPUs count some over the months, all about alike.
    middle = median(counts.values())
    limit = 10 * middle + expected.most.get("pcie.replays", float("inf"))
    saw(expected=f"{limit:g} at most, ten times the median and a floor", actual=counts)
    many = [f"{gpu}: {count} replays, median {middle:g}" for gpu, count in counts.items() if count > limit]
    if many:
        fail("; ".join(many))


@check(
    "gpu.numa_affinity",
    severity="warn",
    action="vendor",
    needs=("topo.txt",),
    vendor="nvidia",
    follows=("host.numa",),
    applies=lambda e: e.verified("numa_nodes") and (e.numa_nodes or 1) > 1,
    otherwise="one NUMA node, or no source says how many",
    says="The system does not know, or has wrong, which CPU a GPU hangs on: processes land on the far one. Look at "
    "BIOS or image.",
)
def test_numa(node: Facts, expected: Expected) -> None:
    assert node.topo is not None
    numa = node.topo.numa
    saw(expected="a NUMA node for each GPU", actual=numa)
    if not numa or all(value is None for value in numa.values()):
        unknown("the matrix has no NUMA column")
    lost = [gpu for gpu, value in numa.items() if value == "N/A"]
    if lost:
        fail(f"no NUMA node for {', '.join(lost)}")
    if silent := [gpu for gpu, value in numa.items() if value is None]:
        unknown(f"the matrix lacks the NUMA node of {', '.join(silent)}")
    # Boards with NVSwitch have half of their GPUs on each of two sockets (captures); with more NUMA nodes than sockets
    # they need not be spread evenly (sgl-project/sglang#13973: 3, 1, 3, 1).
    counts = Counter(numa.values())
    even = expected.numa_nodes == len(counts) == 2 and expected.large_bar and len(numa) == expected.gpu_count
    if even and len(set(counts.values())) > 1:
        counts_text = ", ".join(f"{n} on node {numa_node}" for numa_node, n in sorted(counts.items(), key=str))
        fail(f"GPUs are not spread evenly: {counts_text}")


@check(
    "gpu.nic_affinity",
    severity="warn",
    action="vendor",
    needs=("topo.txt",),
    vendor="nvidia",
    follows=("gpu.count", "ib.ports", "gpu.numa_affinity"),
    applies=lambda e: e.bare_metal and e.network in ("infiniband", "roce") and e.ports >= e.gpu_count > 1,
    otherwise="needs bare metal with one network port for each GPU",
    says="A GPU has no network card on its own PCIe switch: traffic goes through the CPU. Look for a lost card.",
)
def test_nic(node: Facts) -> None:
    assert node.topo is not None
    near_cards = {gpu: [n for n, cell in cells.items() if cell in NEAR] for gpu, cells in node.topo.near.items()}
    saw(expected="a card at PIX or PXB for each GPU", actual={gpu: cards[:2] for gpu, cards in near_cards.items()})
    if not node.topo.nics:
        unknown("the matrix has no column of a network card")
    unread = [gpu for gpu, cells in node.topo.near.items() if None in cells.values()]
    alone = [gpu for gpu, cards in near_cards.items() if not cards and gpu not in unread]
    if alone:
        fail(f"no card beside {', '.join(alone)}")
    if silent := [gpu for gpu in unread if not near_cards[gpu]]:
        unknown(f"the matrix lacks cells of {', '.join(silent)}")


@check(
    "ib.rails",
    severity="warn",
    documented="DGX H100/H200 User Guide, table of network modules: the port and the RDMA device of each GPU",
    action="vendor",
    needs=("topo.txt",),
    vendor="nvidia",
    follows=("gpu.count", "ib.ports", "gpu.nic_affinity"),
    applies=lambda e: e.rails,
    otherwise="the catalogue does not know which port belongs to which GPU of this machine",
    says="A port is not beside the GPU that it belongs to: rails are mixed up between nodes. Look at slots and cards.",
)
def test_rails(node: Facts, expected: Expected) -> None:
    assert node.topo is not None
    names = {node.topo.names.get(nic, nic): nic for nic in node.topo.nics}
    device_at = by_place(node, expected)
    rails = tuple(device_at.get(at, name) for at, name in zip(expected.rdma_pci, expected.rails, strict=True))
    present = {f"GPU{i}": device for i, device in enumerate(rails) if device in names}
    cells = {gpu: node.topo.near.get(gpu, {}).get(names[device]) for gpu, device in present.items()}
    saw(
        expected={f"GPU{i}": device for i, device in enumerate(rails)},
        actual={gpu: f"{device} at {cells[gpu] or '?'}" for gpu, device in present.items()},
    )
    if len(present) < len(rails):
        unknown(f"{len(rails) - len(present)} of the ports have another name in the matrix")
    far = [
        f"{present[gpu]} is not beside {gpu}" for gpu, cell in cells.items() if cell is not None and cell not in NEAR
    ]
    if far:
        fail("; ".join(far))
    if any(cell is None for cell in cells.values()):
        unknown("the matrix lacks cells of the ports")
