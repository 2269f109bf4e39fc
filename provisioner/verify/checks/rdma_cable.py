"""Cables and transceivers, as the firmware of the network cards sees them."""

from __future__ import annotations

from provisioner.verify.check import check, fail, saw, skip
from provisioner.verify.checks.fleet import alike
from provisioner.verify.checks.rdma import EXPLAINED, used
from provisioner.verify.checks.rdma_setup import CARDS
from provisioner.verify.expectations import Expected
from provisioner.verify.facts import Facts
from provisioner.verify.parsers.mlxlink import Cable
from provisioner.verify.peers import Peers

NEEDS = ("mlxlink.json",)
VIRTUAL = "a virtual machine, whose cards do not tell of their cables, or no InfiniBand or RoCE"


def _cables(node: Facts) -> tuple[Cable, ...]:
    assert node.cables is not None
    if node.cables.why:
        skip(f"{node.cables.why}: `apt install mstflint`")
    return node.cables.cables


@check(
    "rdma.ber",
    severity="fatal",
    documented="InfiniBand architecture: at most one wrong bit in 1e12; github imbue-ai/cluster-health ib_burn",
    action="vendor",
    level="standard",
    needs=(*NEEDS, "rdma.json"),
    follows=(*EXPLAINED, "ib.rate", "load.rdma_link"),
    applies=lambda e: e.bare_metal and e.network in CARDS,
    otherwise=VIRTUAL,
    says="Bits are wrong on a cable behind the error correction too: packets are lost. Clean or replace the cable.",
)
def test_ber(node: Facts, expected: Expected) -> None:
    used_devices = {device.name for device, _ in used(node, expected)}
    rates = {
        cable.device: cable.ber for cable in _cables(node) if cable.ber is not None and cable.device in used_devices
    }
    maximum = expected.most["rdma.ber"]
    saw(expected=f"{maximum:g} at most", actual={name: f"{rate:g}" for name, rate in rates.items()})
    if not rates:
        skip("no card in use tells its bit error rate")
    if wrong := [f"{name}: {rate:g}" for name, rate in rates.items() if rate > maximum]:
        fail("; ".join(wrong))


def transceivers(node: Facts) -> tuple[str, ...] | None:
    """Part number and firmware of the transceivers, each once; None where no card tells one."""
    modules = {f"{c.part} {c.firmware}" for c in (node.cables.cables if node.cables else ()) if c.part and c.firmware}
    return tuple(sorted(modules)) or None


@check(
    "rdma.transceivers",
    severity="warn",
    action="vendor",
    level="standard",
    needs=NEEDS,
    applies=lambda e: e.bare_metal and e.network in CARDS,
    otherwise=VIRTUAL,
    says="Transceivers of one part number have different firmware: links come up slowly, or flap. Bring them to one.",
)
def test_transceivers(node: Facts) -> None:
    kinds: dict[str, set[str]] = {}
    for cable in _cables(node):
        if cable.part and cable.firmware:
            kinds.setdefault(cable.part, set()).add(cable.firmware)
    saw(expected="one version for a part number", actual={part: sorted(versions) for part, versions in kinds.items()})
    if mixed := [f"{part}: {', '.join(sorted(versions))}" for part, versions in kinds.items() if len(versions) > 1]:
        fail("; ".join(mixed))
    if not kinds:
        skip("no card tells a transceiver's firmware, as with copper cables")


@check(
    "fleet.transceivers",
    severity="warn",
    action="vendor",
    level="standard",
    needs=NEEDS,
    follows=("rdma.transceivers",),
    applies=lambda e: e.bare_metal and e.network in CARDS,
    otherwise=VIRTUAL,
    says="This node's transceivers are others, or have other firmware, than the rest of the group's.",
)
def test_alike(node: Facts, peers: Peers) -> None:
    if transceivers(node) is None:
        skip("no card tells a transceiver's firmware, as with copper cables")
    alike(node, peers, transceivers, "transceivers")
