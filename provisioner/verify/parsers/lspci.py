"""`lspci -Dnnx` (or -nn, with or without -v): what is on the PCI bus, whether or not a driver sees it. Where it is not
installed the probe writes the same from /sys, in numbers alone (-Dnx).

Traps: without -nn there are names and no numbers, and a class that the database does not know has one all the same
("Generic system peripheral [0807]"); -n has numbers only; -v and -x add lines below each device. The revision of a
device whose registers read as ones is ff up to pciutils 3.7; from 3.8 on it is what the kernel has kept since the boot
(lib/sysfs.c), and only -v ("Unknown header type 7f") and -x (bytes ff) tell. A virtual function has ff for its vendor
and device alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from provisioner.verify.document import plain
from provisioner.verify.parsers import Unreadable, first_line, lines, pci
from provisioner.verify.tool import Tool

_GONE = re.compile(r"\(rev ff\)(?: \(prog-if ff[^)]*\))?$")
_NO_HEADER = re.compile(r"^\s+!!! Unknown header type 7f|^0+:(?: ff){16}$")
"""What stands below such a device (github pciutils/pciutils#91, ellyq/coreboot#4)."""
_DEVICE = re.compile(
    r"^((?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]) "
    r"(?:(?P<code>[0-9a-f]{4})|(?P<kind>[^:\[\]]*?)(?: \[(?P<number>[0-9a-f]{4})\])?): (?P<rest>.*)$"
)
_ADDRESS = re.compile(r"^(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7]\b|$)")
_ID = re.compile(r"\[([0-9a-f]{4}):([0-9a-f]{4})\]")
_NUMBERS = re.compile(r"^([0-9a-f]{4}):([0-9a-f]{4})\b")
_NAMED = re.compile(r"^(?P<vendor>.*?) Device (?P<device>[0-9a-f]{4})\b")
KINDS = {
    "VGA compatible controller": "0300", "3D controller": "0302", "Display controller": "0380",
    "Processing accelerators": "1200", "Bridge": "0680", "Ethernet controller": "0200",
    "Infiniband controller": "0207", "InfiniBand controller": "0207", "Non-Volatile memory controller": "0108",
    "Host bridge": "0600",
}  # fmt: skip
"""Classes as the PCI database names them."""
VENDORS = (
    ("NVIDIA Corporation ", "10de"), ("nVidia Corporation ", "10de"), ("Mellanox Technologies ", "15b3"),
    ("Advanced Micro Devices, Inc. [AMD/ATI] ", "1002"), ("Amazon.com, Inc. ", "1d0f"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Pci:
    """PCI addresses (normalised) of the GPUs, and counts of the rest."""

    gpus: tuple[str, ...]
    nvswitches: int
    efa: int
    mellanox: int
    nvme: int
    dead: tuple[str, ...] = ()
    """GPUs and NVSwitches that are listed and answer no more: every register reads ff."""
    cards: tuple[str, ...] = ()
    """Network cards of NVIDIA (Mellanox)."""
    excerpt: bool = False
    """Devices of one maker and no host bridge: a part of what lspci printed, as `lspci | grep NVIDIA` shows it."""


def parse(text: str) -> Pci:
    gpus: list[str] = []
    dead: list[str] = []
    cards: list[str] = []
    makers: set[str] = set()
    nvswitch = efa = nvme = count = bridges = 0
    unresponsive = ""
    for line in lines(text):
        match = _DEVICE.match(line.strip())
        if not match:
            if unresponsive and _NO_HEADER.match(line.rstrip()):
                dead.append(unresponsive)
                unresponsive = ""
            if _ADDRESS.match(line):
                raise Unreadable(f"a device without its class, so more may be cut: {first_line(line)}")
            continue
        count += 1
        description = match["rest"].rstrip()
        kind = match["code"] or match["number"] or KINDS.get(match["kind"] or "", "")
        vendor, device = _ids(description)
        makers.add(vendor or description.split(" ", 1)[0])
        bridges += kind == "0600"
        unresponsive = pci(match[1]) if vendor in ("10de", "1002") and kind[:2] in ("03", "06", "12") else ""
        if unresponsive and _GONE.search(description):
            dead.append(unresponsive)
            unresponsive = ""
        if (vendor == "10de" and kind in ("0300", "0302")) or (vendor == "1002" and kind in ("0380", "1200")):
            gpus.append(pci(match[1]))
        elif vendor == "10de" and kind == "0680":
            nvswitch += 1
        elif vendor == "1d0f" and device.startswith("efa"):
            efa += 1
        elif vendor == "15b3" and kind in ("0200", "0207"):
            cards.append(pci(match[1]))
        elif kind == "0108":
            nvme += 1
    if not count:
        raise Unreadable(f"no device with its class: {first_line(text)}")
    part = not bridges and len(makers) == 1
    return Pci(tuple(gpus), nvswitch, efa, len(cards), nvme, tuple(dead), tuple(cards), part)


def _ids(description: str) -> tuple[str, str]:
    """Vendor and device: the last pair of numbers, or what the names stand for."""
    if match := _NUMBERS.match(description):
        return match[1], match[2]
    for vendor, device in reversed(_ID.findall(description)):
        return vendor, device
    maker = next((number for name, number in VENDORS if description.startswith(name)), "")
    if "Elastic Fabric Adapter" in description:
        return maker, "efa"
    name_match = _NAMED.match(description)
    return maker, name_match["device"] if name_match else ""


TOOLS = (Tool(file="lspci.txt", field="bus", parse=parse, label="lspci -Dnnx", document={"pci": plain}),)
