"""One node's host against the others of its group."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from provisioner.verify.check import check, fail, saw, skip, unknown
from provisioner.verify.checks.ethernet import uplinks
from provisioner.verify.checks.fleet import alike, spread_of
from provisioner.verify.checks.host import NEEDS, reported
from provisioner.verify.expectations import Expected
from provisioner.verify.facts import Facts
from provisioner.verify.peers import FAR, FEWEST, Peers


def _same(node: Facts, peers: Peers, of: Callable[[Facts], Hashable | None], noun: str) -> None:
    """As `alike`; a machine that does not say it is none of this check's."""
    if of(node) is None:
        skip(f"this node reports no {noun}")
    alike(node, peers, of, noun)


def memory(node: Facts) -> int | None:
    """GiB."""
    host_memory = node.host.memory if node.host else None
    return None if host_memory is None else host_memory.total // 2**20


@check(
    "fleet.memory",
    severity="warn",
    action="vendor",
    needs=NEEDS,
    follows=("host.memory",),
    says="This node has less memory than its group: a module has failed, or the machine is another one.",
)
def test_memory(node: Facts, peers: Peers) -> None:
    own_memory = memory(node)
    if own_memory is None:
        unknown("the node reports no memory size")
    spread = spread_of(peers, memory, "their memory")
    saw(expected=f"{spread.median:g} GiB", actual=own_memory)
    if spread.median - own_memory > max(LEAST_MODULE, spread.median * MODULE):
        fail(f"{own_memory} GiB, {spread.said} nodes have a median of {spread.median:g}")


LEAST_MODULE, MODULE = 1.5, 0.01
"""GiB and share of memory that a node may have less than its group: a server has 32 modules at most, so
that one of them is more than three per cent; kernels and crash reserves differ by less than one."""


def cpu_model(node: Facts) -> tuple[str, ...] | None:
    cpu = node.host.cpu if node.host else None
    return tuple(sorted(cpu.models)) or None if cpu else None


@check(
    "fleet.cpu_model",
    severity="info",
    action="vendor",
    needs=NEEDS,
    says="This node has other processors than the rest of its group: its steps may take longer or shorter.",
)
def test_cpu_model(node: Facts, peers: Peers) -> None:
    _same(node, peers, cpu_model, "processors")


def cmdline(node: Facts) -> tuple[str, ...] | None:
    return node.host.cmdline if node.host else None


# No list of arguments that a node needs: what iommu=pt, pci=realloc or hugepages= are for is judged where it shows
# (pcie.iommu, gpu.bar_size, log.rm_init, host.hugepages).
@check(
    "fleet.cmdline",
    severity="warn",
    action="reconfigure",
    needs=NEEDS,
    says="This node's kernel was started with other arguments than the rest of its group (IOMMU, NUMA, mitigations …).",
)
def test_cmdline(node: Facts, peers: Peers) -> None:
    own_arguments, common = cmdline(node), peers.common(cmdline)
    if own_arguments is None:
        skip("this node reports no kernel command line")
    if common.said < FEWEST:
        skip(f"fewer than {FEWEST} nodes of this group report their kernel command line")
    common_arguments = common.value if isinstance(common.value, tuple) else ()
    more, less = sorted(set(own_arguments) - set(common_arguments)), sorted(set(common_arguments) - set(own_arguments))
    saw(expected=" ".join(map(str, common_arguments)) or "one for all", actual=" ".join(own_arguments))
    if common.value is None:
        fail(f"the group has {len(common.counts)} sets of arguments, none of them on most nodes")
    if own_arguments != common.value:
        fail(
            "; ".join([f"more: {' '.join(more)}"] * bool(more) + [f"missing: {' '.join(map(str, less))}"] * bool(less))
        )


def bios(node: Facts) -> tuple[str, ...] | None:
    return node.host.system if node.host else None


@check(
    "fleet.bios",
    severity="info",
    action="vendor",
    needs=NEEDS,
    says="This node has another BIOS or is another product than the rest of its group: settings and speed may differ.",
)
def test_bios(node: Facts, peers: Peers) -> None:
    _same(node, peers, bios, "product and BIOS")


def dgx_os(node: Facts) -> str | None:
    return None if node.dgx is None else node.dgx.release or NO_DGX_OS


NO_DGX_OS = "none"


@check(
    "fleet.dgx_os",
    severity="warn",
    action="reconfigure",
    needs=("dgx-release.txt",),
    applies=lambda e: e.bare_metal and e.vendor == "nvidia" and e.packages is None,
    otherwise="a machine of a cloud, or one that gpuprov configures, has no DGX OS",
    says="DGX OS is of another release than on most machines of the group, or missing: drivers and settings differ.",
)
def test_dgx_os(node: Facts, peers: Peers) -> None:
    if dgx_os(node) == NO_DGX_OS == peers.common(dgx_os).value:
        skip("there is no DGX OS")
    alike(node, peers, dgx_os, "DGX OS")


def mtu(node: Facts) -> tuple[int, ...] | None:
    links = uplinks(node.host) if node.host else []
    return tuple(sorted({link.mtu for link in links if link.mtu is not None})) or None


@check(
    "fleet.mtu",
    severity="warn",
    action="reconfigure",
    needs=NEEDS,
    says="This node sends packets of another size than the rest of its group: large ones get lost between them.",
)
def test_mtu(node: Facts, peers: Peers) -> None:
    _same(node, peers, mtu, "MTU")


def link_speed(node: Facts) -> tuple[int, ...] | None:
    links = uplinks(node.host) if node.host else []
    return tuple(sorted(link.speed for link in links if link.speed is not None)) or None


@check(
    "fleet.link_speed",
    severity="warn",
    action="vendor",
    needs=NEEDS,
    says="This node's Ethernet runs at another speed than its group's: look at cable, transceiver and switch port.",
)
def test_link_speed(node: Facts, peers: Peers) -> None:
    _same(node, peers, link_speed, "Ethernet speed in Mbit/s")


def links_up(node: Facts) -> int | None:
    """Ethernet cards that have a link; InfiniBand's interfaces are fleet.ipoib's."""
    interfaces = node.host.interfaces if node.host else None
    return (
        None
        if interfaces is None
        else sum(
            interface.physical and interface.up and not interface.name.startswith("ib") for interface in interfaces
        )
    )


@check(
    "fleet.links",
    severity="warn",
    action="vendor",
    needs=NEEDS,
    follows=("net.bond",),
    says="Another number of Ethernet cards has a link than on the group: a cable, transceiver or switch port is out.",
)
def test_links(node: Facts, peers: Peers) -> None:
    _same(node, peers, links_up, "Ethernet cards with a link")


def skew(node: Facts) -> float | None:
    return None if node.collected is None or node.received is None else node.collected - node.received


@check(
    "fleet.clock",
    severity="warn",
    action="reconfigure",
    needs=NEEDS,
    follows=("host.clock_skew", "host.time_sync"),
    says="This node's clock is seconds away from its group's: its logs and time-outs do not match theirs.",
)
def test_clock(node: Facts, peers: Peers, expected: Expected) -> None:
    own_skew, maximum = skew(node), expected.most["clock.group"]
    if own_skew is None:
        skip("the bundle does not record when it was collected (probe.json)")
    spread = spread_of(peers, skew, "their clock")
    saw(expected=f"within {maximum:g} s of the group", actual=f"{own_skew - spread.median:+.1f} s")
    # Busy nodes answer late and at different times: only one that stands out counts.
    if abs(own_skew - spread.median) > max(maximum, FAR * spread.deviation):
        fail(f"the clock is {own_skew - spread.median:+.1f} s from that of {spread.said} nodes")


def _alone(node: Facts, peers: Peers, name: str, of: Callable[[Facts], str | None], noun: str) -> None:
    """Fails on each of the nodes that have one thing which each should have for itself."""
    twins = [other for other in peers.holders(of)[reported(of(node), f"its {noun}")] if other != name]
    saw(expected="its own", actual=twins or "its own")
    if twins:
        fail(f"{', '.join(twins[:4])} {'have' if len(twins) > 1 else 'has'} the same {noun}")


def machine_id(node: Facts) -> str | None:
    return node.host.machine_id if node.host else None


@check(
    "fleet.machine_id",
    severity="warn",
    action="reconfigure",
    needs=NEEDS,
    follows=("fleet.cloned",),
    says="Two nodes have one machine-id, as copies of a disk do: DHCP may give both one address. Make new ones.",
)
def test_machine_id(node: Facts, peers: Peers, name: str) -> None:
    _alone(node, peers, name, machine_id, "machine-id")


def host_key(node: Facts) -> str | None:
    return node.host.host_key if node.host else None


# A warning: no job fails by it, and gpuprov itself pins each node's key with its address.
@check(
    "fleet.host_keys",
    severity="warn",
    action="reconfigure",
    needs=NEEDS,
    follows=("fleet.cloned",),
    says="Two nodes have one ssh host key, as copies of an image do: each can pass for the other. Make new keys.",
)
def test_host_keys(node: Facts, peers: Peers, name: str) -> None:
    _alone(node, peers, name, host_key, "host key")


def hostname(node: Facts) -> str | None:
    return node.host.hostname if node.host else None


@check(
    "fleet.hostname",
    severity="warn",
    action="reconfigure",
    needs=NEEDS,
    follows=("fleet.cloned",),
    says="Two nodes have one name: Slurm, MPI and everything that writes logs take them for one. Give each its own.",
)
def test_hostname(node: Facts, peers: Peers, name: str) -> None:
    _alone(node, peers, name, hostname, "name")
