"""Quality of service of RoCE: whether NCCL's packets are in a class that does not lose them, alike on all nodes."""

from __future__ import annotations

from collections.abc import Hashable

from provisioner.verify.check import check, fail, saw, skip
from provisioner.verify.checks.fleet import alike
from provisioner.verify.checks.rdma import EXPLAINED, used
from provisioner.verify.expectations import Expected
from provisioner.verify.facts import Facts
from provisioner.verify.parsers.roce_qos import Qos
from provisioner.verify.peers import Peers

NEEDS = ("roce-qos.json",)
NO_ROCE = "this machine has no RoCE"
SILENT = "the cards' driver reports neither trust nor PFC (mlnx_qos is of MLNX_OFED and DOCA)"


def settings(card: Qos) -> Hashable | None:
    """What two cards have to share; None where the driver reports nothing."""
    if card.trust is None and card.pfc is None and card.traffic_class is None:
        return None
    pfc = ",".join(map(str, card.pfc)) if card.pfc is not None else "?"
    return f"trust {card.trust or '?'}, PFC {pfc or 'off'}, traffic class {card.traffic_class or 'not set'}"


@check(
    "rdma.qos",
    severity="warn",
    documented="github NVIDIA/nccl#2383, NVIDIA/nccl#1494; docs.nvidia.com DOCA mlnx_qos: only priorities with PFC are "
    "lossless, and DSCP chooses the priority where it is trusted",
    action="reconfigure",
    needs=(*NEEDS, "rdma.json"),
    follows=EXPLAINED,
    applies=lambda e: e.network == "roce",
    otherwise=NO_ROCE,
    says="RoCE packets of NCCL are in a class that loses them under load, or its cards mark them differently: jobs "
    "retry, slow down or hang. Set trust, PFC and traffic class alike on every card.",
)
def test_qos(node: Facts, expected: Expected) -> None:
    assert node.roce_qos is not None
    devices = {device.name for device, _ in used(node, expected)}
    cards = [card for card in node.roce_qos.cards if card.device in devices]
    known = {card.device: setting for card in cards if (setting := settings(card)) is not None}
    if not known:
        skip(SILENT)
    saw(expected="one setting for all cards, with NCCL's class among the lossless ones", actual=known)
    if len(set(known.values())) > 1:
        common = max(set(known.values()), key=list(known.values()).count)
        other = [f"{device}: {setting}" for device, setting in known.items() if setting != common]
        fail(f"{'; '.join(other[:3])}; the others: {common}")
    for card in cards:
        # The card's own mark overrides what NCCL asks for; 0 is what NCCL takes where nobody says anything.
        marked = card.traffic_class if card.traffic_class is not None else node.roce_qos.nccl_class or 0
        if card.trust == "dscp" and card.pfc and (priority := card.priority_of(marked)) not in card.pfc:
            lossless = ", ".join(map(str, card.pfc))
            fail(f"traffic class {marked} has priority {priority} on {card.device}; PFC is on for {lossless} alone")


def qos(node: Facts) -> Hashable | None:
    """The settings of a node's cards, each once, and NCCL's own."""
    if node.roce_qos is None:
        return None
    known = {setting for card in node.roce_qos.cards if (setting := settings(card)) is not None}
    nccl = node.roce_qos.nccl_class
    return (*sorted(map(str, known)), f"NCCL_IB_TC {nccl if nccl is not None else 'not set'}") if known else None


@check(
    "fleet.qos",
    severity="warn",
    documented="github NVIDIA/nccl#2383: one node in another class; docs.nvidia.com DOCA mlnx_qos",
    action="reconfigure",
    needs=NEEDS,
    follows=("rdma.qos",),
    applies=lambda e: e.network == "roce",
    otherwise=NO_ROCE,
    says="This node marks or queues RoCE packets differently than its group: between it and the others they get lost.",
)
def test_fleet_qos(node: Facts, peers: Peers) -> None:
    if qos(node) is None:
        skip(SILENT)
    alike(node, peers, qos, "RoCE quality of service")
