"""One node against the others of its group: what differs, who is slower."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from statistics import median

from provisioner.common.text import counted
from provisioner.verify.check import check, fail, saw, skip, unknown
from provisioner.verify.checks.network import LAYER
from provisioner.verify.expectations import Expected
from provisioner.verify.facts import Facts
from provisioner.verify.peers import FEWEST, Peers, Spread

HOT_SHARE, HOT = 0.25, 15.0
"""Share and degrees Celsius above the group's median that are worth a look: no vendor's numbers, hence a warning, and
on top of the outlier test."""


def alike(node: Facts, peers: Peers, of: Callable[[Facts], Hashable | None], noun: str) -> None:
    """Fails on the node that differs from most of its group; on each of them where there is no majority."""
    common, own_value = peers.common(of), of(node)
    if own_value is None:
        unknown(f"this node reports no {noun}")
    if common.said < FEWEST:
        skip(f"fewer than {FEWEST} nodes of this group report their {noun}")
    saw(expected=_text(common.value) if common.value is not None else "one for all", actual=_text(own_value))
    if common.value is None:
        counts_text = ", ".join(f"{_text(value)} ({count})" for value, count in list(common.counts.items())[:4])
        fail(f"the group has no common {noun}: {counts_text}")
    if own_value != common.value:
        fail(f"{noun} {_text(own_value)}; {common.counts[common.value]} of {common.said} have {_text(common.value)}")


def spread_of(peers: Peers, of: Callable[[Facts], float | None], noun: str) -> Spread:
    """How a number of the group's nodes is spread; the check is skipped where too few give it."""
    spread = peers.spread(of)
    return spread if spread is not None else skip(f"fewer than {FEWEST} nodes of this group report {noun}")


def _text(value: Hashable) -> str:
    return ", ".join(map(_text, value)) if isinstance(value, tuple) else str(value)


def kernel(node: Facts) -> str | None:
    return node.kernel


@check(
    "fleet.kernel",
    severity="warn",
    action="reboot",
    needs=("kernel.txt",),
    says="This node runs another kernel than the others of its group: it waits for a reboot, or was left out of one.",
)
def test_kernel(node: Facts, peers: Peers) -> None:
    alike(node, peers, kernel, "kernel")


def rdma_names(node: Facts) -> tuple[str, ...] | None:
    return None if node.ib is None else tuple(sorted({port.device for port in node.ib.ports}))


@check(
    "fleet.device_names",
    severity="warn",
    action="reconfigure",
    needs=("ibstat.txt",),
    applies=lambda e: e.network in LAYER,
    otherwise="this machine has neither InfiniBand nor RoCE",
    says="Network cards have other names than on the rest of the group. NCCL_IB_HCA and the like then miss cards here.",
)
def test_device_names(node: Facts, peers: Peers) -> None:
    alike(node, peers, rdma_names, "RDMA devices")


def firmware(node: Facts) -> tuple[str, ...] | None:
    if node.ib is None or not node.ib.ports:
        return None
    versions = {f"{port.card or '?'} {port.firmware}" for port in node.ib.ports if port.firmware}
    return tuple(sorted(versions)) or None


@check(
    "fleet.nic_firmware",
    severity="warn",
    action="vendor",
    needs=("ibstat.txt",),
    applies=lambda e: e.network in LAYER,
    otherwise="this machine has neither InfiniBand nor RoCE",
    says="Network cards have other firmware than on the rest of the group: bring it to one version before a long job.",
)
def test_nic_firmware(node: Facts, peers: Peers) -> None:
    alike(node, peers, firmware, "network firmware")


def partitions(node: Facts) -> tuple[str, ...] | None:
    """The keys by which the node's InfiniBand ports are full members of partitions."""
    ports = [port for device in node.rdma or () for port in device.ports if port.link_layer == "InfiniBand"]
    return tuple(sorted({key for port in ports for key in port.full_keys})) or None


@check(
    "fleet.pkeys",
    severity="warn",
    action="vendor",
    needs=("rdma.json",),
    follows=("rdma.pkey",),
    applies=lambda e: e.network == "infiniband",
    otherwise="this machine has no InfiniBand",
    says="This node is in another InfiniBand partition than its group: they do not reach each other by RDMA.",
)
def test_pkeys(node: Facts, peers: Peers) -> None:
    alike(node, peers, partitions, "partition keys")


def matrix(node: Facts) -> Hashable | None:
    """The whole `nvidia-smi topo -m`, GPUs and network cards."""
    if node.topo is None:
        return None
    cells = (*node.topo.cells.items(), *node.topo.near.items())
    return tuple(sorted((a, b, cell or "?") for a, row in cells for b, cell in row.items()))


@check(
    "fleet.topology",
    severity="warn",
    action="replace",
    needs=("topo.txt",),
    vendor="nvidia",
    applies=lambda e: e.topology,
    otherwise="needs at least two GPUs",
    follows=("nvlink.topology", "nvlink.links", "nvswitch.fabric", "gpu.count", "efa.devices", "ib.ports"),
    says="GPUs and cards reach each other by other paths than on the rest of the group, though each may be allowed.",
)
def test_topology(node: Facts, peers: Peers) -> None:
    common, own_matrix = peers.common(matrix), matrix(node)
    assert isinstance(own_matrix, tuple)
    if common.said < FEWEST:
        skip(f"fewer than {FEWEST} nodes of this group report their topology")
    saw(expected=f"as on most of {common.said} nodes", actual="as there")
    if common.value is None:
        fail(f"the group has {len(common.counts)} topologies, none of them on most nodes")
    if own_matrix != common.value:
        assert isinstance(common.value, tuple)
        theirs = {(a, b): cell for a, b, cell in common.value}
        differing = [(a, b, cell) for a, b, cell in own_matrix if theirs.get((a, b)) != cell]
        other = [f"{a}-{b} {cell} (others {theirs.get((a, b), 'none')})" for a, b, cell in differing]
        saw(expected=f"as on most of {common.said} nodes", actual=other[:8] or "fewer devices")
        fail(
            f"{counted(len(other), 'pair')} differ: {'; '.join(other[:3])}"
            if other
            else "devices are missing that others have"
        )


def slower(node: Facts, expected: Expected, peers: Peers, of: Callable[[Facts], float | None], noun: str) -> None:
    """Fails on a node that is an outlier below its group's median by more than `fleet.slow` of health.yaml: all_reduce
    goes at the pace of the slowest. On top of the outlier test, which knows how much this group's own runs differ."""
    own_value = of(node)
    if own_value is None:
        unknown(f"this node reports no {noun}")
    spread = spread_of(peers, of, noun)
    saw(expected=f"about {spread.median:.4g} {noun}", actual=round(own_value, 2))
    if spread.below(own_value, expected.most["fleet.slow"]):
        slow = f"{own_value:.4g} {noun}, {spread.said} nodes have a median of {spread.median:.4g}"
        fail(slow, unverified=expected.unsupported("fleet.slow"))


def _versions(reported: Iterable[str | None]) -> tuple[str, ...] | None:
    """Every version that a GPU of a node has; None where one does not say."""
    versions = set(reported)
    return tuple(sorted(map(str, versions))) if versions and None not in versions else None


def vbios(node: Facts) -> tuple[str, ...] | None:
    return _versions(gpu.vbios for gpu in node.gpus or ())


@check(
    "fleet.vbios",
    severity="warn",
    action="vendor",
    needs=("gpus",),
    follows=("gpu.vbios",),
    vendor="nvidia",
    says="GPUs have another VBIOS than those of the rest of the group: power and clocks may differ. Ask the vendor.",
)
def test_vbios(node: Facts, peers: Peers) -> None:
    alike(node, peers, vbios, "VBIOS")


def inforom(node: Facts) -> tuple[str, ...] | None:
    return _versions(gpu.inforom for gpu in node.gpus or ())


@check(
    "fleet.inforom",
    severity="info",
    action="vendor",
    needs=("gpus",),
    vendor="nvidia",
    says="GPUs have another InfoROM image than those of the rest of the group, as after a repair with another board.",
)
def test_inforom(node: Facts, peers: Peers) -> None:
    if inforom(node) is None:
        skip("the GPUs report no InfoROM version")
    alike(node, peers, inforom, "InfoROM")


def temperature(node: Facts) -> float | None:
    """The median over the GPUs, °C: one hot GPU is another matter than a node in a hot place."""
    temperatures = [gpu.temperature for gpu in node.gpus or () if gpu.temperature is not None]
    return float(median(temperatures)) if temperatures else None


@check(
    "fleet.hot",
    severity="warn",
    action="vendor",
    needs=("gpus",),
    vendor="nvidia",
    says="This node's GPUs are much hotter than those of its group. Look at fans, air flow and its place in the rack.",
)
def test_hot(node: Facts, peers: Peers) -> None:
    own_temperature = temperature(node)
    if own_temperature is None:
        skip("no GPU reports its temperature")
    spread = spread_of(peers, temperature, "their temperature")
    saw(expected=f"about {spread.median:.0f} °C", actual=own_temperature)
    # Idle and loaded nodes lie some 30 °C apart: only one that stands out from a group in one state counts.
    if spread.above(own_temperature, HOT_SHARE) and own_temperature - spread.median > HOT:
        fail(f"{own_temperature:.0f} °C, the median of {spread.said} nodes is {spread.median:.0f} °C")


def uuids(node: Facts) -> tuple[str, ...]:
    return tuple(gpu.uuid for gpu in node.gpus or () if gpu.uuid)


@check(
    "fleet.cloned",
    severity="fatal",
    documented="nvidia-smi(1): a GPU's UUID is globally unique",
    action="reconfigure",
    needs=("gpus",),
    vendor="nvidia",
    says="Two nodes show the same GPU: one address leads to another machine than its name says. Trust neither result.",
)
def test_cloned(node: Facts, peers: Peers, name: str) -> None:
    holders = peers.holders(uuids)
    twins = sorted({other for uuid in uuids(node) for other in holders[uuid] if other != name})
    saw(expected="no GPU of another node", actual=twins or "no GPU of another node")
    if twins:
        fail(f"it shows GPUs of {', '.join(twins[:4])}")


def fabric_clique(node: Facts) -> str | None:
    """The rack's NVLink domain and the partition of it that the node's GPUs are in; None where they are in several, or
    in none."""
    cliques = {(gpu.fabric_cluster, gpu.fabric_clique) for gpu in node.gpus or () if gpu.fabric_cluster}
    return " clique ".join(map(str, cliques.pop())) if len(cliques) == 1 else None


@check(
    "fleet.clique",
    severity="warn",
    action="vendor",
    needs=("gpus",),
    vendor="nvidia",
    follows=("gpu.fabric_state", "gpu.fabric_health"),
    applies=lambda e: e.nvlink_across,
    otherwise="NVLink does not leave this node",
    says="This node is in another partition of its rack's NVLink domain than its neighbours: they do not reach each "
    "other by NVLink. Look at the partitions in NMX, or at the fabric manager of the switches.",
)
def test_clique(node: Facts, peers: Peers) -> None:
    clique = fabric_clique(node)
    if clique is None:
        skip("the GPUs do not all name one partition")
    # A group may have several racks, and each has a domain of its own.
    domain = clique.partition(" clique ")[0]
    counts = {str(name): n for name, n in peers.common(fabric_clique).counts.items() if str(name).startswith(domain)}
    saw(expected="one partition", actual=counts)
    if counts[clique] * 2 <= sum(counts.values()):
        other_cliques = ", ".join(f"{n} {name}" for name, n in counts.items() if name != clique)
        fail(f"{clique}; others of its domain: {other_cliques}")
