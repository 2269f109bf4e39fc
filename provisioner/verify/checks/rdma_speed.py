"""Network cards at work one by one: with themselves on one node, and with the same card of another node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import median

from provisioner.common.text import counted
from provisioner.verify.check import LATER, check, fail, saw, skip, unknown
from provisioner.verify.checks.fabric import least_rate, measured_fabric, weak_pairs
from provisioner.verify.checks.rdma import EXPLAINED, used
from provisioner.verify.checks.rdma_setup import CARDS, NO_CARDS
from provisioner.verify.expectations import Expected, far_below
from provisioner.verify.facts import Facts
from provisioner.verify.parsers.perftest import Card, CardPair, OwnCards


def rate_by_card(cards: Iterable[Card]) -> dict[str, str]:
    return {card.device: card.why if card.gbps is None else f"{card.gbps:.4g} Gbit/s" for card in cards}


@check(
    "rdma.loopback",
    severity="fatal",
    documented="github Azure/azurehpc-health-checks azure_ib_write_bw_gdr.nhc: each card with itself, limits.yaml rdma",
    action="vendor",
    level="stress",
    needs=("nic-loopback.json",),
    follows=(*EXPLAINED, "ib.rate", "rdma.uverbs", "rdma.pcie", "limits.memlock"),
    applies=lambda e: e.network in CARDS,
    otherwise=NO_CARDS,
    says="A network card does not move data, or too slowly, with nothing but its own PCIe link on the way. Reseat it.",
)
def test_loopback(node: Facts, expected: Expected) -> None:
    assert node.loopback is not None
    loopback = node.loopback
    if loopback.state == "busy":
        skip(f"not tested: a job is using the GPUs: {', '.join(loopback.busy[:3])}")
    if loopback.state == "absent" and expected.packages is None:
        skip(f"{loopback.why}: `apt install perftest`")
    if loopback.state == "absent":
        unknown(f"{loopback.why}: `gpuprov up` installs perftest with role infiniband")
    if not loopback.cards:
        unknown("no port for training traffic is up")
    minimum, limit = least_rate([card.gbps for card in loopback.cards], expected)
    saw(expected=f"{minimum:.4g} Gbit/s or more", actual=rate_by_card(loopback.cards))
    if silent := [card for card in loopback.cards if card.gbps is None]:
        fail("; ".join(f"{card.device}: {card.why}" for card in silent[:4]))
    slow = {card.device: card.gbps for card in loopback.cards if card.gbps is not None and card.gbps < minimum}
    if slow:
        rates_text = ", ".join(f"{name}: {gbps:.4g}" for name, gbps in slow.items())
        alone = () if any(far_below(gbps, minimum) for gbps in slow.values()) else expected.unsupported(limit)
        fail(f"{rates_text} Gbit/s, {minimum:.4g} is the least", unverified=alone)
    if len(loopback.cards) < expected.ports:
        unknown(f"{len(loopback.cards)} of {counted(expected.ports, 'port')} were measured")


@check(
    "fabric.own_cards",
    severity="warn",
    action="vendor",
    level="standard",
    needs=("fabric.json",),
    follows=(
        "rdma.loopback", *EXPLAINED, "ib.rate", "rdma.uverbs", "rdma.pcie", "limits.memlock", "gpu.count",
        "load.completes", "peermem.loaded", "rdma.gpu_memory",
    ),
    applies=lambda e: e.fabric == "rdma",
    otherwise="this group has no RDMA network",
    says="No other node could be met, and the node's network cards are slow with each other. Look at cable and port.",
)  # fmt: skip
def test_own_cards(node: Facts, expected: Expected) -> None:
    """No limit is verified for it: published ones are of a card with itself, and rails that share no switch do not
    reach each other."""
    assert node.fabric is not None
    cards = node.fabric.own_cards
    if cards is None:
        skip(node.fabric.why or "its cards were worked with other nodes")
    if cards.state == "busy":
        skip(f"not tested: {cards.why}")
    if cards.state == "absent" and expected.packages is None and expected.network in CARDS:
        skip(f"{cards.why}: `apt install perftest`")
    if cards.state == "absent":
        unknown(cards.why, action="none")
    if expected.network not in CARDS:
        _judge_nccl(cards)
        return
    if not cards.pairs:
        skip("fewer than two ports for training traffic are up")
    minimum, limit = least_rate([pair.gbps for pair in cards.pairs], expected)
    actual = {
        f"{pair.sender} to {pair.receiver}": pair.why if pair.gbps is None else f"{pair.gbps:.4g} Gbit/s"
        for pair in cards.pairs
    }
    saw(expected=f"{minimum:.4g} Gbit/s or more", actual=actual, note=OWN_ALONE)
    if not cards.measured:
        unknown(f"no two cards of the node reach each other ({cards.pairs[0].why}): rails may be apart", action="none")
    if weak := weak_pairs(cards, expected):
        failed = "; ".join(f"{name}: {actual[name]}" for name in (f"{p.sender} to {p.receiver}" for p in weak[:4]))
        fail(
            f"{_blamed(weak)}{failed}; {minimum:.4g} is the least, {OWN_ALONE}", unverified=(f"{limit} between cards",)
        )


OWN_ALONE = "measured between the node's own cards, not through the path to another node"


def _judge_nccl(cards: OwnCards) -> None:
    """EFA: whether NCCL works over the node's own devices; nobody has published what it reaches there."""
    rate = f"{cards.busbw_gbps:.4g} GB/s" if cards.busbw_gbps is not None else "no rate"
    saw(expected="NCCL over the node's own network cards", actual=cards.why or rate, note=OWN_ALONE)
    if cards.why:
        fail(f"NCCL over the node's own cards: {cards.why}", unverified=("NCCL between own cards",))


def _blamed(weak: Sequence[CardPair]) -> str:
    """The card that is part of two bad pairs, where it is one."""
    ends = Counter(end for pair in weak for end in {pair.sender, pair.receiver})
    twice = [name for name, count in ends.items() if count > 1]
    return f"{twice[0]}: " if len(twice) == 1 else ""


@check(
    "fabric.rails",
    severity="warn",
    action="vendor",
    level="stress",
    needs=("fabric.json",),
    follows=("fabric.rail_lost", "rdma.loopback", "ib.ports", "ib.rate", "load.rdma_link"),
    applies=lambda e: e.fabric == "rdma" and e.network in CARDS,
    otherwise=NO_CARDS,
    says="One card is slower with other nodes than its neighbours are: look at its cable, transceiver and switch port.",
)
def test_rails(node: Facts, expected: Expected) -> None:
    """What it costs a job, fabric.pairs condemns; this names the card."""
    best: dict[str, Card] = {}
    pairs = measured_fabric(node, expected).pairs
    for pair in pairs:
        for card in pair.rails:
            # A slow partner is another node's fault.
            if card.device not in best or (card.gbps or 0.0) > (best[card.device].gbps or 0.0):
                best[card.device] = card
    if not best:
        if expected.level != "stress":
            skip(f"{LATER}stress on")  # nodes meet at level standard too, without it
        if not any(pair.good for pair in pairs):
            skip("no pair worked, and ib_write_bw was not run between nodes")
        if expected.packages is None:
            skip("ib_write_bw was not run between nodes: `apt install perftest`")
        unknown("ib_write_bw was not run between nodes: see rdma.loopback")
    minimum, limit = least_rate([card.gbps for card in best.values()], expected)
    saw(expected=f"{minimum:.4g} Gbit/s or more", actual=rate_by_card(best.values()))
    slow = {name: card for name, card in best.items() if card.gbps is None or card.gbps < minimum}
    if slow:
        alone = () if any(card.gbps is None for card in slow.values()) else expected.unsupported(limit)
        fail(
            "; ".join(f"{name}: {rate_text}" for name, rate_text in rate_by_card(slow.values()).items()),
            unverified=alone,
        )


@check(
    "fabric.rail_lost",
    severity="fatal",
    documented="github imbue-ai/cluster-health and coreweave/nccl-tests compare each rail with its neighbours and take "
    "out the slow one. Half a rate is a lost lane or a degraded link, not scatter",
    action="vendor",
    level="stress",
    needs=("fabric.json",),
    follows=("rdma.loopback", "ib.ports", "ib.rate", "load.rdma_link"),
    applies=lambda e: e.fabric == "rdma" and e.network in CARDS,
    otherwise=NO_CARDS,
    says="One card reaches less than half of what its neighbours do, with every node that it met. Look at its cable.",
)
def test_rail_lost(node: Facts, expected: Expected) -> None:
    rates: dict[str, list[float]] = {}
    for pair in measured_fabric(node, expected).pairs:
        for card in pair.rails:
            rates.setdefault(card.device, []).append(card.gbps or 0.0)
    twice = {name: max(card_rates) for name, card_rates in rates.items() if len(card_rates) > 1}
    if len(twice) < 3:
        skip("no three cards met two nodes each")
    saw(
        expected="half of its neighbours' rate at least",
        actual={name: f"{rate:.4g} Gbit/s" for name, rate in twice.items()},
    )
    lost = {
        name: rate
        for name, rate in twice.items()
        if rate * 2 < median(other for device, other in twice.items() if device != name)
    }
    if lost:
        fail("; ".join(f"{name}: {rate:.4g} Gbit/s with the best of two nodes" for name, rate in lost.items()))


DATA = ("port_xmit_data", "tx_bytes", "rdma_write_bytes", "rdma_read_resp_bytes")
"""Data that a port has sent: of InfiniBand and mlx5 in four bytes (sysfs-class-infiniband), of EFA in bytes."""


@check(
    "fabric.cards_used",
    severity="warn",
    action="reconfigure",
    level="standard",
    needs=("fabric.json", "rdma.json"),
    follows=(*EXPLAINED, "ib.rate", "fabric.transport", "fabric.pairs"),
    applies=lambda e: e.fabric == "rdma" and e.ports > 1,
    otherwise="this group has no RDMA network, or one card a node",
    says="NCCL leaves a network card out, and jobs have less of the network. See NCCL_IB_HCA and the topology file.",
)
def test_cards_used(node: Facts, expected: Expected) -> None:
    fabric = measured_fabric(node, expected)
    sent = {f"{d.name}/{p.number}": 0 for d, p in used(node, expected)}
    for port, more in fabric.grown.items():
        if port in sent:
            sent[port] = sum(more.get(name, 0) for name in DATA)
    typical_count = median(sent.values()) if sent else 0
    saw(expected="data over every card", actual=sent)
    if not typical_count:
        skip("the ports do not count what they send, or no run with another node went well")
    if idle := [port for port, count in sent.items() if count < typical_count * LEAST_SHARE]:
        fail(f"next to no data over {', '.join(idle)}")


LEAST_SHARE = 0.1
"""Of the median port's data (judgement): rails carry equal shares, and control messages next to nothing."""
