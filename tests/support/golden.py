"""A file that looks like a golden disk image to whoever reads its first sectors."""

from __future__ import annotations

from pathlib import Path

from provisioner.machines.installer.source import SECTOR, UEFI_PARTITION

LINUX_ROOT = bytes.fromhex("e3bc684fcde8b14d96e7fbcaf984b709")
"""Of x86-64 (Discoverable Partitions Specification)."""


def raw(file: Path, mib: int = 1) -> Path:
    """A GUID partition table with an EFI system partition and a root behind it, as far as that is looked at (UEFI 2.10,
    5.3)."""
    entries = b"".join(
        kind.ljust(32, b"\0") + first.to_bytes(8, "little").ljust(96, b"\0")
        for kind, first in ((UEFI_PARTITION, 40), (LINUX_ROOT, 1000))
    )
    header = b"EFI PART".ljust(32, b"\0") + ((mib << 11) - 1).to_bytes(8, "little")
    file.write_bytes((b"\0" * SECTOR + header.ljust(SECTOR, b"\0") + entries).ljust(mib << 20, b"\0"))
    return file
