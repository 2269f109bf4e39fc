"""`lspci -nn` (or -Dnn): what is on the PCI bus, whether or not a driver sees it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from provisioner.verify.parsers import Unreadable, first_line, lines, pci

_DEVICE = re.compile(r"^((?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]) (.*?) \[([0-9a-f]{4})\]: (.*)$")
_ID = re.compile(r"\[([0-9a-f]{4}):([0-9a-f]{4})\]")


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


def parse(text: str) -> Pci:
    gpus: list[str] = []
    dead: list[str] = []
    nvswitch = efa = mellanox = nvme = seen = 0
    for line in lines(text):
        match = _DEVICE.match(line.strip())
        if not match:
            continue
        seen += 1
        kind, ids = match[3], _ID.findall(match[4])
        vendor, device = ids[-1] if ids else ("", "")
        if vendor in ("10de", "1002") and kind[:2] in ("03", "06", "12") and match[4].rstrip().endswith("(rev ff)"):
            dead.append(pci(match[1]))
        if (vendor == "10de" and kind in ("0300", "0302")) or (vendor == "1002" and kind in ("0380", "1200")):
            gpus.append(pci(match[1]))
        elif vendor == "10de" and kind == "0680":
            nvswitch += 1
        elif vendor == "1d0f" and device.startswith("efa"):
            efa += 1
        elif vendor == "15b3" and kind in ("0200", "0207"):
            mellanox += 1
        elif kind == "0108":
            nvme += 1
    if not seen:
        raise Unreadable(f"no device with its class and id (lspci -nn): {first_line(text)}")
    return Pci(tuple(gpus), nvswitch, efa, mellanox, nvme, tuple(dead))
