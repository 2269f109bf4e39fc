"""Ethernet: the way to the node and to everything that is no training traffic."""

from __future__ import annotations

from provisioner.common.text import counted
from provisioner.verify.check import check, fail, saw, skip
from provisioner.verify.checks.host import NEEDS, host_of, reported
from provisioner.verify.expectations import Expected
from provisioner.verify.facts import Facts
from provisioner.verify.growth import DAY, Growth, carrier
from provisioner.verify.parsers.host import Host
from provisioner.verify.parsers.host_software import Interface


def uplinks(host: Host) -> list[Interface]:
    """The interfaces that default routes lead through."""
    routes = host.default_routes or ()
    return [interface for interface in host.interfaces or () if interface.name in routes]


# A warning: a private subnet with endpoints of its own works without one. Whether packages and images are to be had
# is net.sources' to say.
@check(
    "net.default_route",
    severity="warn",
    action="reconfigure",
    needs=NEEDS,
    applies=lambda e: not e.bare_metal,
    otherwise="a private network may not have it",
    says="The node has no default route: it reaches neither registries nor object stores nor time servers.",
)
def test_default_route(node: Facts) -> None:
    routes = reported(host_of(node).default_routes, "its routes")
    saw(expected="one", actual=list(routes) or "none")
    if not routes:
        fail("there is no default route")


@check(
    "net.errors",
    severity="warn",
    action="vendor",
    needs=NEEDS,
    says="An interface counts errors in more than one of a hundred packets: a bad cable, transceiver or port.",
)
def test_errors(node: Facts, expected: Expected) -> None:
    maximum, wrong, counter_count = expected.most["net.error_share"], [], 0
    for interface in reported(host_of(node).interfaces, "its interfaces"):
        if interface.name == "lo":
            continue
        for direction in ("rx", "tx"):
            packets, errors = (
                interface.counts.get(f"{direction}_packets", 0),
                interface.counts.get(f"{direction}_errors", 0),
            )
            counter_count += packets > 0
            # Drops on receiving are also packets that nobody here wanted, so only errors count.
            if packets >= ENOUGH and errors > maximum * packets:
                wrong.append(f"{interface.name}: {counted(errors, 'error')} in {packets} {direction} packets")
    saw(expected=f"{maximum:.0%} at most", actual=wrong or f"{counter_count} counters")
    if wrong:
        fail("; ".join(wrong))


ENOUGH = 1000
"""Packets below which a share says nothing."""


@check(
    "net.flaps",
    severity="warn",
    action="vendor",
    needs=NEEDS,
    says="The interface of the default route lost its link again and again: look at cable and switch port.",
)
def test_flaps(node: Facts, expected: Expected) -> None:
    maximum = expected.most["link.flaps"]
    losses = {i.name: i.carrier_losses for i in uplinks(host_of(node)) if i.carrier_losses is not None}
    if not losses:
        skip("no interface of a default route counts losses of its link")
    growth = Growth.of(node)
    grown, maximum = {name: growth.by(carrier(name), n) for name, n in losses.items()}, growth.allowed(maximum, DAY)
    saw(expected=f"{maximum:.0f} at most, {growth.since}", actual=grown)
    if wrong := [f"{name} lost its link {n} times" for name, n in grown.items() if n > maximum]:
        fail(f"{'; '.join(wrong)} ({growth.since})")


@check(
    "net.bond",
    severity="warn",
    action="vendor",
    needs=NEEDS,
    says="A bond runs without one of its links: half the speed, and the next loss cuts the node off.",
)
def test_bond(node: Facts) -> None:
    bonds = host_of(node).bonds
    if not bonds:
        skip("there is no bond")
    down = {name: list(slaves) for name, slaves in bonds.items() if slaves}
    saw(expected="all links up", actual=down or "all links up")
    if down:
        fail("; ".join(f"{name}: {', '.join(slaves)} down" for name, slaves in down.items()))


@check(
    "net.conntrack",
    severity="warn",
    action="reconfigure",
    needs=NEEDS,
    says="The kernel's table of connections is nearly full: new ones are dropped. Raise nf_conntrack_max.",
)
def test_conntrack(node: Facts, expected: Expected) -> None:
    settings = host_of(node).settings
    count, maximum = (settings.get(f"net/netfilter/nf_conntrack_{name}") for name in ("count", "max"))
    if count is None or not maximum:
        skip("connection tracking is off")
    share = expected.most["net.conntrack_share"]
    saw(expected=f"{maximum * share:.0f} at most", actual=count)
    if count > maximum * share:
        fail(f"{count} of {counted(maximum, 'entry')}")
