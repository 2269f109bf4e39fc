"""Several nodes at work: pairs, paths and rings, and which way NCCL went between them."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from provisioner.common.text import few
from provisioner.verify.check import check, fail, saw, skip, unknown
from provisioner.verify.expectations import Expected, far_below
from provisioner.verify.fabric import wrong_way
from provisioner.verify.facts import Facts
from provisioner.verify.parsers.fabric import Fabric
from provisioner.verify.parsers.perftest import CardPair, OwnCards
from provisioner.verify.peers import Peers

NEEDS = ("fabric.json",)
SPREAD = "rdma.spread"
ALONE = "each node of this group is for itself: it has no network for jobs of several"
NOT_YET = (
    "this group has no RDMA network; pairs over sockets are tested from level stress on, where placement is cluster"
)


def measured_fabric(node: Facts, expected: Expected) -> Fabric:
    """What the node did with others; skipped where there was nobody to meet, unknown where it was to and did not.

    Where no other node could be met, that condemns a new machine alone, while a proven neighbour can prove it later and
    its own network cards have not shown that they work."""
    assert node.fabric is not None
    fabric = node.fabric
    if fabric.state in ("alone", "busy"):
        skip(fabric.why)
    if fabric.state == "unreached":
        cards = fabric.own_cards
        works = cards is not None and cards.measured and not cards.why and not weak_pairs(cards, expected)
        between = "measured between the node's own cards, not through the path to another node: " if works else ""
        unknown(between + fabric.why, action="none", condemns=fabric.awaits_proof and not works)
    if fabric.state == "untested":
        unknown(fabric.why)
    return fabric


def weak_pairs(cards: OwnCards, expected: Expected) -> list[CardPair]:
    """Pairs of a node's own cards that have no rate, or one that is too low."""
    minimum, _ = least_rate([pair.gbps for pair in cards.pairs], expected)
    return [pair for pair in cards.pairs if pair.gbps is None or pair.gbps < minimum]


def least_rate(rates: Iterable[float | None], expected: Expected) -> tuple[float, str]:
    """Gbit/s that each card has to reach, and the limit's name: what is published, else what its neighbours do."""
    if "rdma" in expected.least:
        return expected.least["rdma"], "rdma"
    typical_rate = median([rate for rate in rates if rate is not None] or [0.0])
    return typical_rate * (1 - expected.most[SPREAD]), SPREAD


def pair_lines(fabric: Fabric) -> list[str]:
    """Each pair of a node, for the report."""
    rates = {pair: f"{pair.gbps:.4g} GB/s" if pair.gbps is not None else "no rate" for pair in fabric.pairs}
    names = {pair: f"{pair.partner} (borrowed)" if pair.partner in fabric.borrowed else pair.partner for pair in rates}
    return [f"{names[pair]}: {rates[pair] if pair.good else pair.why or 'bad'}" for pair in fabric.pairs]


def lenders(fabric: Fabric) -> str:
    """The sentence that names what was borrowed; "" where nothing was."""
    return f"measured with {' and '.join(fabric.borrowed)}, borrowed for it and not judged" if fabric.borrowed else ""


@check(
    "fabric.transport",
    severity="fatal",
    documented="NCCL environment variables, NCCL_DEBUG=INFO names NET/… of each channel; github "
    "aws/aws-ofi-nccl README",
    action="reconfigure",
    level="standard",
    needs=NEEDS,
    follows=(
        "gpu.count",
        "load.completes",
        "peermem.loaded",
        "rdma.gpu_memory",
        "rdma.uverbs",
        "efa.devices",
        "ib.ports",
        "ib.rate",
    ),
    applies=lambda e: e.fabric == "rdma",
    otherwise="this group has no RDMA network",
    says="Between nodes NCCL goes over sockets, or round by host memory: jobs of several nodes run at a fraction.",
)
def test_transport(node: Facts, expected: Expected) -> None:
    fabric = measured_fabric(node, expected)
    transports = {pair.partner: dict(pair.transports) for pair in fabric.pairs}
    saw(
        expected="RDMA from the GPUs' memory" if expected.gpudirect else "RDMA", actual=transports, note=lenders(fabric)
    )
    if fabric.wrong_way:
        fail(fabric.why or next((pair.why for pair in fabric.pairs if not pair.good), ""))
    between = ("NET/", "P2P") if expected.nvlink_across else ("NET/",)
    if not any(
        transport.startswith(between) for partner_transports in transports.values() for transport in partner_transports
    ):
        unknown("NCCL logged no transport for its channels between nodes")


@check(
    "fabric.pairs",
    severity="fatal",
    measured="nccl_tests/p4de-2nodes-rank-prefix",
    action="vendor",
    level="standard",
    needs=NEEDS,
    follows=(
        "fabric.transport", "load.completes", "gpu.count", "ib.ports", "ib.rate", "rdma.errors", "rdma.pcie",
        "efa.devices", "nccl.bandwidth", "fleet.mtu",
    ),
    applies=lambda e: e.fabric == "rdma" or (e.fabric and e.level == "stress"),
    otherwise=NOT_YET,
    says="This node does not work with others that work among themselves. Look at its network cards, cables and ports.",
)  # fmt: skip
def test_pairs(node: Facts, expected: Expected) -> None:
    fabric = measured_fabric(node, expected)
    minimum = fabric.floor_gbps
    unlimited = "NCCL works with each, as fast as in the group's other pairs, if any"
    expected_text = f"{minimum:g} GB/s or more with each" if minimum else unlimited
    saw(expected=expected_text, actual=pair_lines(fabric), note=lenders(fabric))
    if fabric.state in ("fault", "undecided"):
        # A pair in which nothing moved is wrong whatever the catalogue says of the network.
        silent = any(pair.gbps is None for pair in fabric.pairs if not pair.good)
        fail(fabric.why, unverified=_only_slow(fabric, expected), observed=silent)


def _only_slow(fabric: Fabric, expected: Expected) -> tuple[str, ...]:
    """The limits that its bad pairs are below, where all of those worked, only slowly, and no limit has evidence."""
    bad = [pair for pair in fabric.pairs if not pair.good]
    spread = "fabric.pair_spread" if expected.fabric == "rdma" else "fabric.socket_spread"
    below = set()
    for pair in bad:
        strayed = wrong_way(dict(pair.transports), rdma=expected.fabric == "rdma", gpudirect=expected.gpudirect)
        if pair.gbps is None or strayed or fabric.wrong_way:
            return ()
        minimum = max(fabric.floor_gbps or 0.0, fabric.usual_gbps or 0.0)
        if far_below(pair.gbps, minimum):
            return ()
        below.add("fabric" if pair.gbps < (fabric.floor_gbps or 0.0) else spread)
    unverified = expected.unsupported(*sorted(below))
    return unverified if len(unverified) == len(below) else ()


def latency(node: Facts) -> float | None:
    """The node's best pair, µs: a slow partner is another node's fault. None where it met no two nodes."""
    pairs = node.fabric.pairs if node.fabric is not None else ()
    latencies = {pair.partner: pair.latency_us for pair in pairs if pair.good and pair.latency_us is not None}
    return min(latencies.values()) if len(latencies) > 1 else None


@check(
    "fleet.latency",
    severity="warn",
    action="vendor",
    level="stress",
    needs=NEEDS,
    follows=("fabric.pairs", "fabric.transport", "load.throttle", "host.governor", "host.clocksource"),
    applies=lambda e: e.fabric == "rdma",
    otherwise="this group has no RDMA network",
    says="Small messages take far longer with this node than among the others: look at its processors, PCIe and cable.",
)
def test_latency(node: Facts, expected: Expected, peers: Peers) -> None:
    own_latency = latency(node) if measured_fabric(node, expected) else None
    if own_latency is None:
        skip("it has no latency with two others, and one pair does not tell which of its nodes is slow")
    spread = peers.spread(latency)
    if spread is None:
        skip("fewer than three nodes of this group have a latency")
    saw(expected=f"about {spread.median:.4g} µs", actual=round(own_latency, 1))
    if spread.above(own_latency, expected.most["fleet.latency"]):
        slow = f"{own_latency:.4g} µs at best, {spread.said} nodes have a median of {spread.median:.4g}"
        fail(slow, unverified=expected.unsupported("fleet.latency"))


@check(
    "fabric.path",
    severity="warn",
    action="vendor",
    level="stress",
    needs=NEEDS,
    follows=("fabric.pairs",),
    applies=lambda e: e.fabric,
    otherwise=ALONE,
    says="Two nodes that both work with others do not with each other: a cable or a switch port on the way is bad.",
)
def test_path(node: Facts, expected: Expected) -> None:
    fabric = measured_fabric(node, expected)
    saw(expected="a good path to each partner", actual=pair_lines(fabric))
    if fabric.state != "fine":
        skip("it is not known to work with any other node: see fabric.pairs")
    if fabric.paths:
        reasons = {pair.partner: pair.why for pair in fabric.pairs if not pair.good}
        fail("; ".join(f"with {other}: {reasons.get(other) or 'bad'}" for other in fabric.paths))


@check(
    "fabric.ring",
    severity="warn",
    action="vendor",
    level="stress",
    needs=NEEDS,
    follows=("fabric.pairs", "fabric.path"),
    applies=lambda e: e.fabric,
    otherwise=ALONE,
    says="Nodes that work two by two do not work all together: look at what they share, from the leaf switches up.",
)
def test_ring(node: Facts, expected: Expected) -> None:
    fabric = measured_fabric(node, expected)
    ring = fabric.ring
    if ring is None and fabric.borrowed:
        skip("it met borrowed nodes alone, and those form no ring")
    if ring is None:
        skip("it was in no ring of nodes: two nodes form a pair only, and one end of a bad path is left out")
    rate = f", {ring.gbps:.4g} GB/s" if ring.gbps is not None else ""
    saw(expected="a ring that works", actual=f"{len(ring.nodes)} nodes{rate}")
    if not ring.good:
        some = few(ring.nodes, 6, ",")
        fail(f"{some}: {ring.why}")
