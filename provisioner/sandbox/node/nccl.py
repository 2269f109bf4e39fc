"""Whether NCCL in a container goes from the GPUs' memory to the network cards: GPUDirect RDMA, as the real one decides.

NVIDIA/nccl 5067397, src/graph/paths.cc (ncclTopoCheckGdr): GPU and card have to share a PCI bridge (PXB or nearer),
unless NCCL_NET_GDR_LEVEL says otherwise, or the GPU reaches its processor's cards by NVLink-C2C (ncclParamNetGdrC2c).
src/graph/xml.cc: without a topology file the bridges are those of /sys; a device on a PCI domain of its own hangs at
the processor (PHB). src/graph/topo.cc: a topology file that cannot be opened is passed over. src/misc/param.cc: the
environment stands before NCCL_CONF_FILE (else ~/.nccl.conf), that before /etc/nccl.conf, and of one name the first line
counts.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # typing would be a tenth of what a tool takes to start
if TYPE_CHECKING:
    from typing import Any

    Json = dict[str, Any]

CONF = "/etc/nccl.conf"
GRACE = ("GH200", "GB200", "GB300")
FAR = ("PHB", "SYS")
"""Values of NCCL_NET_GDR_LEVEL with which a processor may stand between GPU and card."""


def direct(machine: Json, environment: dict[str, str], mounts: list[Json]) -> bool:
    """`environment` and `mounts` are the container's, as OCI's config.json has them (destination, source)."""
    files = {mount["destination"]: mount["source"] for mount in mounts if mount.get("type", "bind") == "bind"}
    variables = settings(environment, files)
    if variables.get("NCCL_NET_GDR_LEVEL") in FAR or _goes_over_c2c(machine, variables):
        return True
    gpus = _addresses(machine["gpus"], "pci")
    cards = set(_addresses([*machine["nics"], *machine["efa"]], "slot"))
    listed = bridges(_text(files, variables.get("NCCL_TOPO_FILE", "")))
    return all(_shares_bridge(gpu, cards, listed) for gpu in gpus)


def _goes_over_c2c(machine: Json, variables: dict[str, str]) -> bool:
    """Whether the GPUs are joined to their Grace processors by NVLink-C2C, and go to the cards of these over it
    (NCCL_NET_GDR_C2C, on by default)."""
    joined = all(any(chip in str(gpu["name"]) for chip in GRACE) for gpu in machine["gpus"])
    return joined and variables.get("NCCL_NET_GDR_C2C") != "0"


def _shares_bridge(gpu: str, cards: set[str], listed: list[set[str]]) -> bool:
    """Whether a GPU shares a bridge with a card: by the topology file where that has it, else one PCI domain's."""
    bridges_of_gpu = [addresses for addresses in listed if gpu in addresses]
    if bridges_of_gpu:
        return any(addresses & cards for addresses in bridges_of_gpu)
    return any(card[:4] == gpu[:4] for card in cards)


def settings(environment: dict[str, str], files: dict[str, str]) -> dict[str, str]:
    """NCCL's variables in a container."""
    variables = {name: value for name, value in environment.items() if name.startswith("NCCL_")}
    for path in (variables.get("NCCL_CONF_FILE") or "/root/.nccl.conf", CONF):
        for line in _text(files, path).splitlines():
            name, equals, value = line.partition("=")
            if equals and not name.startswith("#"):
                variables.setdefault(name, value)
    return variables


def bridges(topology: str) -> list[set[str]]:
    """The PCI addresses below each bridge of a topology file; nothing where it is none."""
    if not topology:
        return []
    from xml.etree import ElementTree

    try:
        root = ElementTree.fromstring(topology)  # noqa: S314 - a file of this node
    except ElementTree.ParseError:
        return []
    return [
        {below.get("busid", "").lower() for below in pci.iter("pci") if below is not pci} for pci in root.iter("pci")
    ]


def _addresses(devices: list[Json], key: str) -> list[str]:
    """As the kernel writes them; nvidia-smi has four digits more."""
    return [device[key].lower()[-12:] for device in devices]


def _text(files: dict[str, str], path: str) -> str:
    """A file that the container sees of the node; nothing where it does not."""
    source = files.get(path, "")
    if not source or not os.path.isfile(source):
        return ""
    with open(source, encoding="utf-8", errors="replace") as stream:
        return stream.read()
