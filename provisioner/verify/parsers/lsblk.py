"""`lsblk --json --bytes`: disks; sizes are numbers (bytes) or, from old versions, strings of digits. What people keep
in its place is read as well (disk_lists.py).

Traps: without --bytes sizes are rounded ("894.3G", "7T", units of 1024; a comma in some languages); names may be paths.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from provisioner.verify.parsers import Unreadable, disk_lists, first_line
from provisioner.verify.tool import Tool

_SIZE = re.compile(r"([0-9]{1,19})(?:[.,]([0-9]{1,3}))?([BKMGTPE]?)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Disk:
    """`size` in bytes, as exact as it was printed."""

    name: str
    size: int | None
    model: str | None
    nvme: bool
    mountpoints: tuple[str, ...]
    """Of the disk and of everything on it."""
    told: bool = True
    """Whether the list says what is mounted and which model a disk is: what the system boots from, and disks of the
    network, cannot be told from the machine's own without."""


NETWORK_DISKS = ("Elastic Block Store", "MSFT NVMe Accelerator", "Elastic Block Storage", "Cloud Block Storage")
"""Words in the model of a disk that is none of the machine's own (role scratch has the same)."""


def local_disks(disks: Iterable[Disk]) -> list[Disk]:
    """The machine's own NVMe disks; what it boots from is beside those that the catalogue counts."""
    local = [d for d in disks if d.nvme and not any(model_part in (d.model or "") for model_part in NETWORK_DISKS)]
    return [d for d in local if not {"/", "/boot", "/boot/efi"} & set(d.mountpoints)]


def parse(text: str) -> tuple[Disk, ...]:
    rows = disk_lists.read(text)
    if rows is not None:
        return tuple(_disk(row) for row in rows)
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"not JSON: {first_line(text)}") from error
    devices = data.get("blockdevices") if isinstance(data, dict) else None
    if not isinstance(devices, list):
        raise Unreadable("no blockdevices in it")
    if devices and not any(isinstance(d, dict) and d.get("type") for d in devices):
        raise Unreadable("it does not say which of its devices are disks (column TYPE)")
    return tuple(_disk(d) for d in devices if isinstance(d, dict) and d.get("type") == "disk")


def _disk(device: dict[str, Any]) -> Disk:
    model = device.get("model")
    name = str(device.get("name", "?")).removeprefix("/dev/")[:80]
    return Disk(
        name=name,
        size=_size(device.get("size")),
        model=model.strip()[:80] if isinstance(model, str) and model.strip() else None,
        nvme=name.startswith("nvme"),
        mountpoints=tuple(dict.fromkeys(_mounts(device, 8))),
        told=device.get("told") is not False,
    )


def _size(value: Any) -> int | None:
    match = _SIZE.fullmatch(str(value).strip())
    if not match:
        return None
    digits, part, unit = match[1], match[2] or "", match[3]
    return int(digits + part) * 1024 ** " KMGTPE".find(unit or " ") // 10 ** len(part) if unit != "B" else int(digits)


def _mounts(device: dict[str, Any], depth: int) -> list[str]:
    several = device.get("mountpoints")
    candidates = [device.get("mountpoint"), *(several if isinstance(several, list) else [])]
    paths = [path for path in candidates if isinstance(path, str)]
    children = device.get("children")
    for child in children if isinstance(children, list) and depth else []:
        if isinstance(child, dict):
            paths += _mounts(child, depth - 1)
    return paths


COLUMNS = "NAME,TYPE,SIZE,ROTA,SERIAL,MODEL,MOUNTPOINT,FSTYPE"
TOOLS = (
    Tool(
        file="lsblk.json",
        field="disks",
        parse=parse,
        command=("lsblk", "--json", "--bytes", "--output", COLUMNS),
        seconds=10,
        label="lsblk --json --bytes",
    ),
)
