"""The disk that a machine boots from: what no role may ever touch."""

from __future__ import annotations

from typing import Any

from provisioner.catalog.providers import Provider


def root_disk(provider: Provider, serial: str) -> dict[str, Any]:
    """The disk that a machine boots from, with its partitions; sizes in bytes."""
    name, model = provider.root_disk
    part = f"{name}p" if name[-1].isdigit() else name
    return {
        "name": name,
        "bytes": 200 * 2**30,
        "model": model,
        "serial": serial,
        "partitions": [
            {"name": f"{part}1", "bytes": 199 * 2**30, "fstype": "ext4", "label": "root", "uuid": None,
             "mountpoint": "/"},
            {"name": f"{part}15", "bytes": 2**27, "fstype": "vfat", "label": "UEFI", "uuid": None,
             "mountpoint": "/boot/efi"},
        ],
    }  # fmt: skip
