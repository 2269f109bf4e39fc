"""Cabling: each rail of a node at the switch where the same rail of its group is."""

from __future__ import annotations

from collections.abc import Mapping

from provisioner.common.text import few
from provisioner.verify.check import check, fail, saw, skip
from provisioner.verify.facts import Facts
from provisioner.verify.parsers.ib_switches import Link
from provisioner.verify.peers import FEWEST, Peers


def links(node: Facts) -> tuple[Link, ...]:
    return (*(node.ib_links or ()), *(node.lldp or ()))


def cables(node: Facts) -> tuple[tuple[str, str], ...] | None:
    """(port, switch) of each cable; None where neither LLDP nor the subnet tells."""
    return tuple((link.port, link.switch) for link in links(node)) or None


def misplaced(link: Link, holders: Mapping[tuple[str, str], list[str]]) -> str | None:
    """The port whose switch it is, where the group has that rail alone at it and this node another one. A switch that
    has several rails, or that few nodes reach, belongs to no rail: fabrics of several units, and those of one switch
    for each node, are right."""
    at_switch = {port: len(names) for (port, switch), names in holders.items() if switch == link.switch}
    other_rails = {port: count for port, count in at_switch.items() if port != link.port}
    if at_switch.get(link.port, 0) > 1 or len(other_rails) != 1:
        return None
    ((port, count),) = other_rails.items()
    return port if count >= FEWEST else None


@check(
    "fleet.cabling",
    severity="warn",
    documented="github scitix/sichek#133, NVIDIA/nccl#1933, NVIDIA/nccl#1591: swapped rails are not detected by NCCL, "
    "and every message of them crosses the spine",
    action="vendor",
    needs=(),
    reads=("ib-switches.json", "lldp.json"),
    follows=("ib.ports", "fleet.device_names"),
    applies=lambda e: e.bare_metal,
    otherwise="a virtual machine does not see its cables",
    says="A cable of this node is at the switch of another rail. NCCL sends that rail's traffic across the "
    "spine, and all nodes of a job slow down. Swap the cables back.",
)
def test_cabling(node: Facts, peers: Peers) -> None:
    cabled = links(node)
    if not cabled:
        skip("neither lldpctl nor smpquery tells where the cables lead (`apt install lldpd infiniband-diags`)")
    if peers.common(cables).said < FEWEST:
        skip(f"fewer than {FEWEST} nodes of this group know where their cables lead")
    holders: Mapping[tuple[str, str], list[str]] = peers.holders(cables)  # type: ignore[assignment]
    wrong = {link: port for link in cabled if (port := misplaced(link, holders)) is not None}
    saw(expected="each rail at its own switch", actual={link.port: link.name or link.switch for link in cabled})
    if wrong:
        fail(few([f"{a.port} is at {a.name or a.switch} port {a.switch_port or '?'}, where the group has {port}"
                  for a, port in wrong.items()], 4))  # fmt: skip
