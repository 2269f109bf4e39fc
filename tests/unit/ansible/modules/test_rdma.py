"""What NCCL is told of a node, from made-up trees in the kernel's formats: the shapes that machines really have."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.ansible_modules import shared

rdma = shared("gpuprov_rdma")

V4 = "0000:0000:0000:0000:0000:ffff:0a0a:{:04x}"
LINK_LOCAL = "fe80:0000:0000:0000:0ac0:ebff:fe00:{:04x}"
EMPTY = "0000:0000:0000:0000:0000:0000:0000:0000"


@dataclass
class Tree:
    """A node's /sys and /proc below a folder."""

    root: Path

    def write(self, path: str, text: object) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")

    def link(self, path: str, target: str) -> None:
        (self.root / target).mkdir(parents=True, exist_ok=True)
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).symlink_to(self.root / target)

    def route(self, *interfaces: str) -> None:
        """Default routes, each with a larger metric than the one before."""
        rows = ["Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT"]
        rows += [f"{name} 00000000 0101A8C0 0003 0 0 {100 * i} 00000000 0 0 0" for i, name in enumerate(interfaces)]
        rows.append("docker0 000011AC 00000000 0001 0 0 0 0000FFFF 0 0 0")
        self.write("proc/net/route", "\n".join(rows))

    def gpu(self, pci: str) -> None:
        address = pci.rpartition("/")[2]
        self.write(f"sys/devices/{pci}/vendor", "0x10de")
        self.write(f"sys/devices/{pci}/class", "0x030200")
        self.link(f"sys/bus/pci/devices/{address}", f"sys/devices/{pci}")

    def card(
        self,
        name: str,
        *,
        layer: str = "InfiniBand",
        up: bool = True,
        rate: int = 400,
        pci: str = "",
        netdev: str = "",
        pkeys: tuple[str, ...] = ("0xffff", "0x0000"),
        gids: tuple[tuple[str, str], ...] = (),
    ) -> None:
        base = f"sys/class/infiniband/{name}"
        pci = pci or f"pci0000:00/0000:00:{len(name):02x}.0/0000:{sum(map(ord, name)) % 251:02x}:00.0"
        self.link(f"{base}/device", f"sys/devices/{pci}")
        self.write(f"{base}/ports/1/link_layer", layer)
        self.write(f"{base}/ports/1/state", "4: ACTIVE" if up else "1: DOWN")
        self.write(f"{base}/ports/1/rate", f"{rate} Gb/sec (4X NDR)")
        if netdev:
            self.write(f"sys/devices/{pci}/net/{netdev}/type", 32 if layer == "InfiniBand" else 1)
        for index, key in enumerate(pkeys if layer == "InfiniBand" else ()):
            self.write(f"{base}/ports/1/pkeys/{index}", key)
        for index, (kind, gid) in enumerate(gids):
            self.write(f"{base}/ports/1/gids/{index}", gid)
            self.write(f"{base}/ports/1/gid_attrs/types/{index}", kind)
            self.write(f"{base}/ports/1/gid_attrs/ndevs/{index}", netdev)

    def settings(
        self,
        kind: str,
        count: int,
        *,
        efa: bool = False,
        devices: tuple[str, ...] = (),
        pci: tuple[str, ...] = (),
        topology: str = "",
    ) -> dict[str, str]:
        values, messages = rdma.settings(kind, count, efa, devices, str(self.root), pci, topology)
        self.messages = messages
        return values


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    test_tree = Tree(tmp_path)
    test_tree.route("eth0")
    return test_tree


def roce_gids(number: int, *, first: int = 0) -> tuple[tuple[str, str], ...]:
    """A GID table as mlx5 fills it; `first` unused entries stand before the address."""
    link_local = LINK_LOCAL.format(number)
    rows = [("IB/RoCE v1", link_local), ("RoCE v2", link_local)]
    rows += [("RoCE v2", EMPTY)] * first
    return (*rows, ("IB/RoCE v1", V4.format(number)), ("RoCE v2", V4.format(number)))


def test_names_come_from_the_node(tree: Tree) -> None:
    """Azure NDv4: the cards are called mlx5_ib0 on some nodes and mlx5_0 on others."""
    for i in range(8):
        tree.card(f"mlx5_ib{i}", rate=200, netdev=f"ib{i}", pkeys=("0x800b", "0x7fff"))
    assert tree.settings("infiniband", 8) == {
        "NCCL_NET": "IB",
        "NCCL_SOCKET_IFNAME": "=eth0",
        "NCCL_IB_HCA": "=" + ",".join(f"mlx5_ib{i}:1" for i in range(8)),
    }
    assert tree.messages == []


def test_a_machine_whose_switches_are_hidden_gets_its_topology_file(tree: Tree) -> None:
    """Azure's ND machines: without the file NCCL leaves GPUDirect RDMA out (azhpc-images, ndv4.sh and ndv5.sh)."""
    tree.card("mlx5_0", netdev="ib0")
    values = tree.settings("infiniband", 1, topology="/etc/gpuprov/nccl-topology.xml")
    assert values == tree.settings("infiniband", 1) | {
        "NCCL_TOPO_FILE": "/etc/gpuprov/nccl-topology.xml",
        "NCCL_IB_PCI_RELAXED_ORDERING": "1",
        "NCCL_IGNORE_CPU_AFFINITY": "1",
    }


def test_an_ethernet_function_beside_the_fabric_is_left_out(tree: Tree) -> None:
    """Azure NDv5: mlx5_an0 is the accelerated network, mlx5_ib0 to 7 are the fabric."""
    tree.card("mlx5_an0", layer="Ethernet", rate=100, netdev="enP1s0", gids=roce_gids(9))
    tree.write("sys/class/net/eth0/lower_enP1s0/ifindex", 3)
    for i in range(8):
        tree.card(f"mlx5_ib{i}", netdev=f"ib{i}")
    assert "an0" not in tree.settings("infiniband", 8)["NCCL_IB_HCA"]


def dgx_h100(tree: Tree, *, storage_rate: int) -> None:
    """Eight cards that each share a PCIe switch with a GPU, and two for storage that do not."""
    for i in range(8):
        root = f"pci0000:{0x10 + i:02x}/0000:{0x10 + i:02x}:01.0/0000:{0x20 + i:02x}:00.0"
        tree.gpu(f"{root}/0000:{0x40 + i:02x}:00.0/0000:{0x50 + i:02x}:00.0")
        tree.card(f"mlx5_{i + (i > 0) + (i > 5)}", pci=f"{root}/0000:{0x60 + i:02x}:00.0/0000:{0x70 + i:02x}:00.0")
    for name, bus in (("mlx5_1", 0xA0), ("mlx5_7", 0xB0)):
        tree.card(name, rate=storage_rate, pci=f"pci0000:{bus:02x}/0000:{bus:02x}:01.0/0000:{bus + 1:02x}:00.0")


@pytest.mark.parametrize("storage_rate", [200, 400], ids=["slower", "as-fast"])
def test_storage_ports_of_the_same_fabric_are_left_out(tree: Tree, storage_rate: int) -> None:
    """DGX H100: 8 + 2. By their rate, and where that is the same by where they stand in the PCI tree."""
    dgx_h100(tree, storage_rate=storage_rate)
    chosen = tree.settings("infiniband", 8)["NCCL_IB_HCA"].removeprefix("=").split(",")
    assert chosen == [f"mlx5_{i}:1" for i in (0, 2, 3, 4, 5, 6, 8, 9)]


def test_a_storage_port_takes_no_place_of_one_that_is_down(tree: Tree) -> None:
    """Two ports for training, one of them down, and a storage port that is as fast and as near to a GPU."""
    tree.card("mlx5_0", pci="pci0000:15/0000:15:01.0/0000:18:00.0")
    tree.card("mlx5_1", pci="pci0000:15/0000:15:02.0/0000:29:00.0")
    tree.card("mlx5_2", pci="pci0000:3e/0000:3e:01.0/0000:40:00.0", up=False)
    addresses = ("0000:18:00.0", "0000:40:00.0")
    assert tree.settings("infiniband", 2, pci=addresses)["NCCL_IB_HCA"] == "=mlx5_0:1"
    assert tree.messages == ["1 of 2 ports for training traffic are active"]
    assert tree.settings("infiniband", 2)["NCCL_IB_HCA"] == "=mlx5_0:1,mlx5_1:1", "nobody says the addresses"
    other = ("0000:01:00.0", "0000:02:00.0", "0000:18:00.0")
    assert tree.settings("infiniband", 2, pci=other)["NCCL_IB_HCA"] == "=mlx5_0:1,mlx5_1:1", "another layout"


def test_what_nothing_settles_is_not_guessed(tree: Tree) -> None:
    for i in range(10):
        tree.card(f"mlx5_{i}", pci=f"pci0000:00/0000:00:01.0/0000:{i:02x}:00.0")
    with pytest.raises(rdma.Undecided, match="10 active InfiniBand ports are there, the machine has 8"):
        tree.settings("infiniband", 8)
    chosen = tree.settings("infiniband", 8, devices=tuple(f"mlx5_{i}" for i in range(1, 9)))
    assert chosen["NCCL_IB_HCA"] == "=" + ",".join(f"mlx5_{i}:1" for i in range(1, 9))


def test_a_port_that_is_down_is_left_out_and_said(tree: Tree) -> None:
    for i in range(8):
        tree.card(f"mlx5_{i}", up=i != 3)
    assert "mlx5_3" not in tree.settings("infiniband", 8)["NCCL_IB_HCA"]
    assert tree.messages == ["7 of 8 ports for training traffic are active"]


def test_the_transport_is_pinned_where_nothing_is_up(tree: Tree) -> None:
    """No fall-back to sockets that nobody notices."""
    assert tree.settings("infiniband", 8) == {"NCCL_NET": "IB", "NCCL_SOCKET_IFNAME": "=eth0"}
    assert tree.messages == ["0 of 8 ports for training traffic are active"]


@pytest.mark.parametrize(
    ("pkeys", "expected"),
    [
        (("0xffff", "0x0000"), None),
        (("0x7fff", "0x0000"), None),
        (("0x800b", "0x7fff"), None),  # ours, at the index that NCCL takes by itself
        (("0x7fff", "0x800b"), "1"),
        (("0xffff", "0x0000", "0x8017"), "2"),
        (("0x7fff", "0x0005", "0x8005"), "2"),  # full before limited membership
    ],
)
def test_partition(tree: Tree, pkeys: tuple[str, ...], expected: str | None) -> None:
    for i in range(2):
        tree.card(f"mlx5_{i}", pkeys=pkeys)
    assert tree.settings("infiniband", 2).get("NCCL_IB_PKEY") == expected


def test_a_partition_that_moved_on_one_device_is_said(tree: Tree) -> None:
    tree.card("mlx5_0", pkeys=("0x7fff", "0x800b"))
    tree.card("mlx5_1", pkeys=("0x800b", "0x7fff"))
    with pytest.raises(rdma.Undecided, match="mlx5_0 0x800b at 1, mlx5_1 0x800b at 0"):
        tree.settings("infiniband", 2)


def test_roce_takes_the_routable_address(tree: Tree) -> None:
    for i in range(8):
        tree.card(f"mlx5_{i}", layer="Ethernet", netdev=f"ens{i}f0", gids=roce_gids(i))
    tree.card("mlx5_8", layer="Ethernet", netdev="eth0", gids=roce_gids(8))  # the node's own way to the world
    values = tree.settings("roce", 8)
    assert values["NCCL_IB_GID_INDEX"] == "3"
    assert values["NCCL_IB_HCA"] == "=" + ",".join(f"mlx5_{i}:1" for i in range(8))
    assert values["NCCL_NET"] == "IB"


def test_roce_with_tables_that_differ(tree: Tree) -> None:
    """One card had a VLAN once: its address stands further down. NCCL finds it by version and family."""
    tree.card("mlx5_0", layer="Ethernet", netdev="ens0", gids=roce_gids(0))
    tree.card("mlx5_1", layer="Ethernet", netdev="ens1", gids=roce_gids(1, first=2))
    values = tree.settings("roce", 2)
    assert "NCCL_IB_GID_INDEX" not in values
    assert values["NCCL_IB_ROCE_VERSION_NUM"] == "2"
    assert values["NCCL_IB_ADDR_FAMILY"] == "AF_INET"


def test_roce_without_an_address_is_refused(tree: Tree) -> None:
    tree.card("mlx5_0", layer="Ethernet", netdev="ens0", gids=roce_gids(0)[:2])
    with pytest.raises(rdma.Undecided, match="no routable RoCE v2 address on mlx5_0"):
        tree.settings("roce", 1)


def test_members_of_the_bond_that_the_node_is_reached_by_are_left_out(tree: Tree) -> None:
    tree.route("bond0")
    tree.write("sys/class/net/bond0/bonding/slaves", "ens8 ens9")
    for i in (0, 1, 8, 9):
        tree.card(f"mlx5_{i}", layer="Ethernet", netdev=f"ens{i}", gids=roce_gids(i))
    values = tree.settings("roce", 2)
    assert values["NCCL_IB_HCA"] == "=mlx5_0:1,mlx5_1:1"
    assert values["NCCL_SOCKET_IFNAME"] == "=bond0"


def test_efa_names_no_device(tree: Tree) -> None:
    tree.route("ens32", "ens33")
    for name in ("rdmap16s27", "rdmap32s27"):
        tree.card(name, layer="Unspecified", rate=100)
    assert tree.settings("efa", 2, efa=True) == {"NCCL_NET": "AWS Libfabric", "NCCL_SOCKET_IFNAME": "=ens32"}


def test_efa_that_is_switched_off_is_plain_ethernet(tree: Tree) -> None:
    assert tree.settings("efa", 4) == {"NCCL_SOCKET_IFNAME": "=eth0"}


@pytest.mark.parametrize("kind", ["ethernet", "none"])
def test_without_rdma_only_the_interface_is_named(tree: Tree, kind: str) -> None:
    assert tree.settings(kind, 0) == {"NCCL_SOCKET_IFNAME": "=eth0"}


def test_ipv6_only(tree: Tree) -> None:
    tree.route()
    zeros, hop = "0" * 32, "fe800000000000000000000000000001"
    rows = [
        f"{zeros} 00 {zeros} 00 {hop} 00000400 1 0 00450003 ens5",
        f"{zeros} 00 {zeros} 00 {zeros} ffffffff 1 0 0 lo",
    ]
    tree.write("proc/net/ipv6_route", "\n".join(rows))
    assert tree.settings("ethernet", 0) == {"NCCL_SOCKET_IFNAME": "=ens5"}


def test_a_node_without_a_way_out(tree: Tree) -> None:
    (tree.root / "proc/net/route").unlink()
    assert tree.settings("ethernet", 0) == {}
