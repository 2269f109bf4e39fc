"""What a node shows of its network for training traffic, below /sys and /proc, and what NCCL has to be told of it.

Reads only; a root folder in place of / serves tests. Formats: Documentation/ABI/stable/sysfs-class-infiniband of the
Linux kernel. Written for the Python of the nodes (3.10 and later), with nothing but the standard library.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

DEFAULT_KEYS = (0xFFFF, 0x7FFF)
"""The default partition, as full and as limited member."""


class Undecided(Exception):
    """The node shows more than one way, and nothing says which is right."""


@dataclass(frozen=True)
class Port:
    """One port of an RDMA device. `pci`: addresses from the root of its PCI tree down to the card."""

    device: str
    port: int
    layer: str
    active: bool
    gbps: float
    netdevs: tuple[str, ...] = ()
    pci: tuple[str, ...] = ()
    pkeys: tuple[int, ...] = ()
    gids: tuple[tuple[int, str, str, str], ...] = field(default=())
    """(index, GID, type, network interface) of each entry of the GID table."""


def text(*parts):
    """A small file's text; None where it can't be read (an empty GID entry gives an I/O error)."""
    try:
        with open(os.path.join(*parts), encoding="ascii", errors="replace") as stream:
            return stream.read().strip()
    except OSError:
        return None


def names(*parts):
    try:
        return sorted(os.listdir(os.path.join(*parts)))
    except OSError:
        return []


def pci_path(folder):
    """The PCI addresses from the root down to a device, from where its link below /sys/class leads."""
    return tuple(part for part in os.path.realpath(folder).split("/") if part.count(":") == 2 and "." in part)


def ports(root="/"):
    """Every port of every RDMA device."""
    base, rows = os.path.join(root, "sys/class/infiniband"), []
    for device in names(base):
        for number in names(base, device, "ports"):
            port_folder = os.path.join(base, device, "ports", number)
            gids = []
            for index in sorted(names(port_folder, "gids"), key=int):
                kind, gid = text(port_folder, "gid_attrs/types", index), text(port_folder, "gids", index)
                if kind and gid and gid.replace("0", "").replace(":", ""):
                    gids.append((int(index), gid, kind, text(port_folder, "gid_attrs/ndevs", index) or ""))
            keys = [text(port_folder, "pkeys", index) for index in sorted(names(port_folder, "pkeys"), key=int)]
            rows.append(
                Port(
                    device=device,
                    port=int(number),
                    layer=text(port_folder, "link_layer") or "",
                    active=(text(port_folder, "state") or "").startswith("4:"),
                    gbps=float(((text(port_folder, "rate") or "0").split() or ["0"])[0]),
                    netdevs=tuple(names(base, device, "device/net")),
                    pci=pci_path(os.path.join(base, device, "device")),
                    pkeys=tuple(int(key, 16) for key in keys if key),
                    gids=tuple(gids),
                )
            )
    return rows


def default_interface(root="/"):
    """The interface of the default route, the one with the smallest metric; None where there is none."""
    routes = []
    for line in (text(root, "proc/net/route") or "").splitlines()[1:]:
        row = line.split()
        if len(row) > 7 and row[1] == "00000000" and row[7] == "00000000":
            routes.append((int(row[6]), row[0]))
    for line in (text(root, "proc/net/ipv6_route") or "").splitlines():
        row = line.split()
        if len(row) == 10 and set(row[0]) == {"0"} and row[1] == "00" and row[9] != "lo":
            routes.append((int(row[5], 16), row[9]))
    return min(routes)[1] if routes else None


def below(interface, root="/"):
    """An interface with everything that it stands on: the members of a bond, the virtual function under a NIC."""
    base = os.path.join(root, "sys/class/net")
    lower = [n.removeprefix("lower_") for n in names(base, interface or "") if n.startswith("lower_")]
    slaves = (text(base, interface or "", "bonding/slaves") or "").split()
    return {interface, *lower, *slaves}


def gpu_paths(root="/"):
    """PCI paths of the NVIDIA GPUs."""
    base, paths = os.path.join(root, "sys/bus/pci/devices"), []
    for address in names(base):
        folder = os.path.join(base, address)
        if text(folder, "vendor") == "0x10de" and (text(folder, "class") or "").startswith("0x03"):
            paths.append(pci_path(folder))
    return paths


def near(port, gpus):
    """How many PCI bridges a port shares with the GPU that is nearest to it."""
    return max((shared(port.pci, gpu) for gpu in gpus), default=0)


def shared(path, other):
    """How long the common beginning of two PCI paths is."""
    return next((i for i, (a, b) in enumerate(zip(path, other)) if a != b), min(len(path), len(other)))


def training(candidates, kind, count, interface, root="/", pci=()):
    """The ports that carry training traffic: active, of the right link layer, none that the node is reached by.

    With the PCI addresses of the machine's ports for training (`pci`) no others, where cards stand at half of them or
    more. Where more than the machine has (`count`) are left, the fastest, then those nearest to the GPUs. Raises
    Undecided when that does not settle it.
    """
    known = [port for port in candidates if port.pci and port.pci[-1] in pci]
    if pci and 2 * len({port.pci[-1] for port in known}) >= len(pci):
        candidates = known
    layer = {"infiniband": "InfiniBand", "roce": "Ethernet"}[kind]
    management = below(interface, root)
    usable = [p for p in candidates if p.active and p.layer == layer and not management & set(p.netdevs)]
    if count and len(usable) > count:
        usable = ranked(usable, count, lambda port: port.gbps)
    if count and len(usable) > count:
        gpus = gpu_paths(root)
        usable = ranked(usable, count, lambda port: near(port, gpus))
    if count and len(usable) > count:
        raise Undecided(
            "{} active {} ports are there, the machine has {} for training: {}. Name them in nccl_devices".format(
                len(usable), layer, count, ", ".join(f"{p.device}:{p.port}" for p in usable)
            )
        )
    return usable


def ranked(candidates, count, worth):
    """Those that are worth most: at least `count`, with all that are worth as much as the last of them."""
    minimum = sorted(map(worth, candidates), reverse=True)[count - 1]
    return [port for port in candidates if worth(port) >= minimum]


def gid_index(port):
    """Index of the port's routable RoCE v2 GID, one with an IPv4 address before others; None where there is none."""
    v2 = [(index, gid) for index, gid, kind, _ in port.gids if kind == "RoCE v2"]
    v4 = [index for index, gid in v2 if gid.startswith("0000:0000:0000:0000:0000:ffff:")]
    v6 = [index for index, gid in v2 if not gid.startswith("fe80:")]
    return (v4 or v6 or [None])[0]


def partition(port):
    """Index and key of the partition that the port is in beside the default one; None where there is none."""
    own_keys = [(i, key) for i, key in enumerate(port.pkeys) if key and key not in DEFAULT_KEYS]
    full = [(i, key) for i, key in own_keys if key & 0x8000]
    return (full or own_keys or [None])[0]


HIDDEN_SWITCHES = {"NCCL_IB_PCI_RELAXED_ORDERING": "1", "NCCL_IGNORE_CPU_AFFINITY": "1"}
"""What a machine with a topology file needs beside it (Azure/azhpc-images 8e9d055, components/customizations/ndv4.sh and
ndv5.sh): relaxed ordering on its virtual functions, and the GPU's processors in place of the job's own."""


def settings(kind, count, efa, devices=(), root="/", pci=(), topology=""):
    """NCCL's variables for a node and what is worth a warning: ({name: value}, [sentence]).

    kind: the machine's network (efa, infiniband, roce, anything else is plain Ethernet); count: ports that the
    catalogue says; efa: whether the lock has EFA's parts; devices: names that a person has chosen; pci: addresses of the
    ports for training, where the catalogue has them; topology: NCCL's topology file of the machine type, where its guest
    does not see the PCI switches. Raises Undecided.
    """
    interface, all_ports, sentences = default_interface(root), ports(root), []
    # The exact interface: without it NCCL takes the first that is up, be it docker's bridge.
    values = {"NCCL_SOCKET_IFNAME": f"={interface}"} if interface else {}
    if kind == "efa" and efa:
        # The plugin's name up to 1.11, which later ones know as well. FI_PROVIDER and its like are left alone: the
        # plugin chooses them itself (EFA cheat sheet).
        return {**values, "NCCL_NET": "AWS Libfabric"}, sentences
    if kind not in ("infiniband", "roce"):
        return values, sentences
    values["NCCL_NET"] = "IB"
    if topology:
        values |= {"NCCL_TOPO_FILE": topology, **HIDDEN_SWITCHES}
    if devices:
        chosen = [port for port in all_ports if port.device in devices]
    else:
        chosen = training(all_ports, kind, count, interface, root, pci)
    if count and len(chosen) < count:
        sentences.append(f"{len(chosen)} of {count} ports for training traffic are active")
    if not chosen:
        return values, sentences
    values["NCCL_IB_HCA"] = "=" + ",".join(f"{port.device}:{port.port}" for port in chosen)
    if kind == "roce":
        values |= roce(chosen)
    else:
        values |= partitions(chosen)
    return values, sentences


def roce(chosen):
    indexes = {gid_index(port) for port in chosen}
    if None in indexes:
        bare = ", ".join(port.device for port in chosen if gid_index(port) is None)
        raise Undecided(f"no routable RoCE v2 address on {bare}: give the interface an IP address, then run again")
    if len(indexes) == 1:
        return {"NCCL_IB_GID_INDEX": str(indexes.pop())}
    # One index for all does not exist here; NCCL (2.21 and later) then looks for it on each card.
    v4 = all(
        port.gids and any(i == gid_index(port) and ":ffff:" in gid for i, gid, _, _ in port.gids) for port in chosen
    )
    return {"NCCL_IB_ROCE_VERSION_NUM": "2", "NCCL_IB_ADDR_FAMILY": "AF_INET" if v4 else "AF_INET6"}


def partitions(chosen):
    by_device = {port.device: partition(port) for port in chosen}
    indexes = {own_partition[0] if own_partition else None for own_partition in by_device.values()}
    if indexes in ({None}, {0}):
        return {}  # the default partition, or ours at the index that NCCL takes by itself
    if len(indexes) > 1:
        rows = ", ".join("{} {}".format(d, f"0x{p[1]:04x} at {p[0]}" if p else "none") for d, p in by_device.items())
        raise Undecided(f"the partition key is not at the same index on all devices: {rows}")
    return {"NCCL_IB_PKEY": str(indexes.pop())}
