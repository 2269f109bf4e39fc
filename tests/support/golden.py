"""A file that looks like a golden disk image to whoever reads its first sectors."""

from __future__ import annotations

from pathlib import Path

from provisioner.installer.source import SECTOR, UEFI_PARTITION


def raw(file: Path, mib: int = 1) -> Path:
    """A GUID partition table with an EFI system partition, as far as that is looked at (UEFI 2.10, 5.3)."""
    head = b"\0" * SECTOR + b"EFI PART".ljust(SECTOR, b"\0") + UEFI_PARTITION.ljust(SECTOR, b"\0")
    file.write_bytes(head.ljust(mib << 20, b"\0"))
    return file
