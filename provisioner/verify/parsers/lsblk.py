"""`lsblk --json --bytes`: disks; sizes are numbers (bytes) or, from old versions, strings of digits."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from provisioner.verify.parsers import Unreadable, first_line, whole


@dataclass(frozen=True, slots=True)
class Disk:
    name: str
    size: int | None
    model: str | None
    nvme: bool
    mountpoints: tuple[str, ...]
    """Of the disk and of everything on it."""


def parse(text: str) -> tuple[Disk, ...]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"not JSON: {first_line(text)}") from error
    devices = data.get("blockdevices") if isinstance(data, dict) else None
    if not isinstance(devices, list):
        raise Unreadable("no blockdevices in it")
    return tuple(_disk(d) for d in devices if isinstance(d, dict) and d.get("type") == "disk")


def _disk(device: dict[str, Any]) -> Disk:
    model = device.get("model")
    name = str(device.get("name", "?")).removeprefix("/dev/")[:80]
    return Disk(
        name=name,
        size=whole(str(device.get("size"))),
        model=model.strip()[:80] if isinstance(model, str) and model.strip() else None,
        nvme=name.startswith("nvme"),
        mountpoints=tuple(dict.fromkeys(_mounts(device, 8))),
    )


def _mounts(device: dict[str, Any], depth: int) -> list[str]:
    several = device.get("mountpoints")
    places = [device.get("mountpoint"), *(several if isinstance(several, list) else [])]
    found = [place for place in places if isinstance(place, str)]
    children = device.get("children")
    for child in children if isinstance(children, list) and depth else []:
        if isinstance(child, dict):
            found += _mounts(child, depth - 1)
    return found
