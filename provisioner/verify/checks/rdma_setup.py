"""How RDMA is set up: modules, driver, indices of addresses, packet sizes, IPoIB; alone and in its group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from statistics import median

from provisioner.verify.check import check, fail, saw, skip, unknown
from provisioner.verify.checks.fleet import alike
from provisioner.verify.checks.host import host_of, reported
from provisioner.verify.checks.network import non_training_devices
from provisioner.verify.checks.rdma import EXPLAINED, some, used
from provisioner.verify.checks.unread import modules_are_whole
from provisioner.verify.expectations import Expected
from provisioner.verify.facts import Facts
from provisioner.verify.growth import DAY, Growth, carrier
from provisioner.verify.peers import Peers

CARDS = ("infiniband", "roce")
NO_CARDS = "this machine has neither InfiniBand nor RoCE"
MODULES = ("ib_uverbs", "ib_umad", "rdma_ucm")
"""What role infiniband loads (infiniband_modules; a test holds them equal)."""
OFED_KERNEL = "mlnx-ofed-kernel-dkms"


@check(
    "rdma.modules",
    severity="warn",
    action="reconfigure",
    needs=("modules.txt",),
    follows=("rdma.uverbs",),
    applies=lambda e: e.network in CARDS,
    otherwise=NO_CARDS,
    says="A kernel module of RDMA is not loaded: tools of the fabric, or programs that connect by address, fail.",
)
def test_modules(node: Facts, expected: Expected) -> None:
    if not modules_are_whole(node, expected):
        skip("no lock, and the list of modules may be a part")
    loaded = set(node.modules or ())
    missing = [name for name in MODULES if name not in loaded]
    saw(expected=", ".join(MODULES), actual=f"not {', '.join(missing)}" if missing else "all loaded")
    if missing:
        fail(f"not loaded: {', '.join(missing)}")


@check(
    "rdma.driver",
    severity="warn",
    action="reboot",
    needs=("rdma.json",),
    follows=("packages.locked",),
    applies=lambda e: e.network in CARDS and OFED_KERNEL in (e.packages or {}),
    otherwise="no lock has DOCA's drivers for the network cards",
    lock="DOCA's driver and the kernel's own are both right, unless it names DOCA's",
    says="The kernel's own driver of the network cards runs in place of DOCA's, or an older one. Reboot, or load it.",
)
def test_driver(node: Facts, expected: Expected) -> None:
    assert expected.packages is not None and node.rdma is not None
    package, loaded = expected.packages[OFED_KERNEL], {d.driver for d in node.rdma if d.driver is not None}
    saw(expected=package, actual=sorted(loaded) or "the kernel's own")
    if not loaded:
        fail("mlx5_core is the kernel's own: it tells no version, as DOCA's does")
    # 25.10-1.2.8 is of package 25.10.OFED.25.10.1.2.8.1-1
    if ".OFED." in package and (other := [v for v in loaded if v.replace("-", ".") not in package]):
        fail(f"mlx5_core {other[0]} is loaded, {OFED_KERNEL} {package} is locked")


def indices(node: Facts) -> tuple[int, ...] | None:
    """The first index of a RoCE v2 address with an IP of each port that has one, each once."""
    first = {port.roce_v2[0] for device in node.rdma or () for port in device.ports if port.up and port.roce_v2}
    return tuple(sorted(first)) or None


@check(
    "rdma.gid_index",
    severity="warn",
    action="reconfigure",
    needs=("rdma.json",),
    follows=(*EXPLAINED, "rdma.gids"),
    applies=lambda e: e.network == "roce",
    otherwise="this machine has no RoCE",
    says="Ports have their RoCE v2 address at different indices: no one NCCL_IB_GID_INDEX fits all of them.",
)
def test_gid_index(node: Facts, expected: Expected) -> None:
    first = {f"{d.name}/{p.number}": p.roce_v2[0] for d, p in some(node, expected) if p.roce_v2}
    saw(expected="one index", actual=first)
    if not first:
        unknown("no port has a RoCE v2 address with an IP")
    if len(set(first.values())) > 1:
        fail("; ".join(f"{name}: index {index}" for name, index in first.items()))


@check(
    "fleet.gid_index",
    severity="warn",
    action="reconfigure",
    needs=("rdma.json",),
    follows=("rdma.gids", "rdma.gid_index"),
    applies=lambda e: e.network == "roce",
    otherwise="this machine has no RoCE",
    says="RoCE v2 addresses are at another index than on the group: one NCCL_IB_GID_INDEX for all fails on this node.",
)
def test_fleet_gid_index(node: Facts, peers: Peers) -> None:
    alike(node, peers, indices, "GID index")


@check(
    "rdma.mtu",
    severity="warn",
    action="reconfigure",
    needs=("ibv_devinfo.txt",),
    follows=EXPLAINED,
    applies=lambda e: e.network in CARDS,
    otherwise=NO_CARDS,
    says="A port sends smaller packets than it can: more of them for the same data. Raise the fabric's or its own MTU.",
)
def test_mtu(node: Facts, expected: Expected) -> None:
    assert node.ib_mtu is not None
    up = {(d.name, p.number) for d, p in used(node, expected)} if node.rdma is not None else set(node.ib_mtu)
    port_mtus = {f"{device}/{port}": mtu for (device, port), mtu in node.ib_mtu.items() if (device, port) in up}
    saw(
        expected="as large as the port can",
        actual={name: f"{current} of {maximum}" for name, (current, maximum) in port_mtus.items()},
    )
    if not port_mtus:
        unknown("ibv_devinfo lists no port that is up")
    # RoCE's follows from its interface's: an Ethernet of 1500 bytes leaves 1024, and is somebody's choice.
    sizes = {current for current, _ in port_mtus.values()}
    if expected.network == "roce" and len(sizes) == 1 and sizes != {256}:
        return
    if small := [
        f"{name}: {current} of {maximum} bytes" for name, (current, maximum) in port_mtus.items() if current < maximum
    ]:
        fail("; ".join(small[:4]))


def mtus(node: Facts) -> tuple[int, ...] | None:
    """The packet sizes of the node's RDMA ports that are up, each once."""
    up = {(d.name, p.number) for d in node.rdma or () for p in d.ports if p.up}
    return tuple(sorted({current for port, (current, _) in (node.ib_mtu or {}).items() if port in up})) or None


@check(
    "fleet.rdma_mtu",
    severity="warn",
    action="reconfigure",
    needs=("ibv_devinfo.txt", "rdma.json"),
    follows=("rdma.mtu",),
    applies=lambda e: e.network == "roce",
    otherwise="this machine has no RoCE",
    says="RDMA ports send packets of another size than the rest of the group: two nodes use the smaller, or none.",
)
def test_fleet_mtu(node: Facts, peers: Peers) -> None:
    alike(node, peers, mtus, "RDMA packet sizes")


def boards(node: Facts) -> tuple[str, ...] | None:
    """Kind and board id (PSID) of the network cards that are up, each once."""
    up = [d for d in node.rdma or () if d.board and any(p.up for p in d.ports)]
    return tuple(sorted({f"{d.card} {d.board}" for d in up})) or None


@check(
    "fleet.nic_board",
    severity="warn",
    action="vendor",
    needs=("rdma.json",),
    applies=lambda e: e.network in CARDS,
    otherwise=NO_CARDS,
    says="Network cards are other boards (PSID) than on the rest of the group, as after a repair: firmware may differ.",
)
def test_board(node: Facts, peers: Peers) -> None:
    if boards(node) is None:
        skip("the kernel reports no board of the network cards, as of virtual functions")
    alike(node, peers, boards, "network boards")


@check(
    "rdma.carrier",
    severity="warn",
    action="vendor",
    needs=("rdma.json", "host.json"),
    follows=(*EXPLAINED, "rdma.errors", "load.rdma_link", "log.link_flap"),
    applies=lambda e: e.network in CARDS,
    otherwise=NO_CARDS,
    says="An RDMA card's interface lost its link far more often than its neighbours: look at cable and transceiver.",
)
def test_carrier(node: Facts, expected: Expected) -> None:
    own_interfaces = {name for device in node.rdma or () for name, _ in device.interfaces or ()}
    losses = {i.name: i.carrier_losses for i in reported(host_of(node).interfaces, "its interfaces")
              if i.name in own_interfaces and i.carrier_losses is not None}  # fmt: skip
    if not losses:
        skip("no interface of an RDMA card counts losses of its link")
    growth = Growth.of(node)
    grown = {name: growth.by(carrier(name), count) for name, count in losses.items()}
    typical_count, maximum = median(grown.values()), growth.allowed(expected.most["link.flaps"], DAY)
    saw(expected=f"{maximum:.0f} more than the others at most, {growth.since}", actual=grown)
    if wrong := [
        f"{name} lost its link {n} times, others {typical_count:g}"
        for name, n in grown.items()
        if n - typical_count > maximum
    ]:
        fail(f"{'; '.join(wrong[:4])} ({growth.since})")


def ipoib(node: Facts) -> int | None:
    """InfiniBand devices whose network interface is up; None where no kernel said so."""
    devices = [d for d in node.rdma or () if d.interfaces is not None]
    return sum(any(up for _, up in d.interfaces or ()) for d in devices) if devices else None


@check(
    "fleet.ipoib",
    severity="warn",
    action="reconfigure",
    needs=("rdma.json",),
    follows=EXPLAINED,
    applies=lambda e: e.network == "infiniband",
    otherwise="this machine has no InfiniBand",
    says="Another number of IPoIB interfaces (ib0 …) is up than on the group: what connects by their addresses fails.",
)
def test_ipoib(node: Facts, peers: Peers) -> None:
    if ipoib(node) is None:
        skip("the kernel shows no network interfaces of the InfiniBand cards")
    alike(node, peers, ipoib, "IPoIB interfaces up")


Up = tuple[str, ...]


@lru_cache(maxsize=8)
def storage(names: tuple[str, ...], pci: tuple[str, ...]) -> Callable[[Facts], Up | None]:
    """The function that says which ports for storage and management are up on a node, beside those for training; None
    where the kernel's list is missing, or the node shows no such port."""

    def up(node: Facts) -> Up | None:
        other = non_training_devices(node, names, pci)
        ports = [port for device in node.rdma or () if device.name in other for port in device.ports]
        counts = Counter(f"{port.link_layer or '?'} {port.rate_gbps or 0:g} Gbit/s" for port in ports if port.up)
        kinds = tuple(f"{count} x {kind}" for kind, count in sorted(counts.items())) or ("none of them",)
        return kinds if ports else None

    return up


# Alone nobody can say what is right: the ports of healthy machines are InfiniBand, Ethernet, or not connected at all.
@check(
    "fleet.storage_ports",
    severity="warn",
    action="vendor",
    needs=("rdma.json",),
    applies=lambda e: e.rdma_pci,
    otherwise="which ports of this machine are for storage is unknown",
    says="Other ports for storage and management are up than on the group, or slower: look at cable and switch port.",
)
def test_storage_ports(node: Facts, peers: Peers, expected: Expected) -> None:
    up = storage(expected.rdma_devices, expected.rdma_pci)
    if up(node) is None:
        skip("the machine shows no RDMA port beside those for training")
    alike(node, peers, up, "ports for storage up")
