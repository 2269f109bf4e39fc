"""What the node reaches outside: where its packages and images come from, by name and in time."""

from __future__ import annotations

from provisioner.verify.check import check, fail, saw, skip
from provisioner.verify.expectations import Expected
from provisioner.verify.facts import Facts

NEEDS = ("reach.json",)


@check(
    "net.sources",
    severity="warn",
    action="reconfigure",
    level="standard",
    needs=NEEDS,
    follows=("net.default_route", "host.dns"),
    applies=lambda e: e.sources,
    otherwise="no lock names repositories or registries",
    lock="what the node has to reach are the lock's repositories and registries",
    says="The node does not reach a repository or a registry of its lock: the next `gpuprov up`, or a pull of an "
    "image, ends there. Look at routes, NAT and firewalls.",
)
def test_sources(node: Facts) -> None:
    assert node.reach is not None
    if node.reach.proxy:
        skip("apt goes through a proxy, and the node itself need not reach them")
    wrong = {r.address: r.error or f"HTTP {r.status}" for r in node.reach.addresses if not 0 < (r.status or 0) < 500}
    saw(expected="an answer of each", actual=wrong or f"{len(node.reach.addresses)} answer")
    if not node.reach.addresses:
        skip("nothing was asked")
    if wrong:
        fail("; ".join(f"{address}: {error_text}" for address, error_text in list(wrong.items())[:3]))


@check(
    "net.lookup",
    severity="warn",
    action="reconfigure",
    level="standard",
    needs=NEEDS,
    follows=("host.dns", "net.sources"),
    applies=lambda e: e.sources,
    otherwise="no lock names repositories or registries",
    lock="what the node has to reach are the lock's repositories and registries",
    says="Looking up names of the world outside takes long: each new connection waits for it. See /etc/resolv.conf.",
)
def test_lookup(node: Facts, expected: Expected) -> None:
    assert node.reach is not None
    maximum = expected.most["net.lookup"]
    seconds = {r.address: r.resolve_seconds for r in node.reach.addresses if r.resolve_seconds is not None}
    if not seconds:
        skip("no name was looked up with success")
    # A name server may have to ask others once: one slow name among many is that.
    saw(expected=f"{maximum:g} s at most", actual=seconds)
    if min(seconds.values()) > maximum:
        fail(f"each look-up took {min(seconds.values()):.1f} s and more")
