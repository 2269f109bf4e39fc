"""What a disk is known by: UUIDs that follow from what it is made of, so that two builds of the same inputs have the
same ones."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

_NAMESPACE = uuid.UUID("5d0f5c59-6f2c-5c5b-9a5e-7d2f0a3f8c61")


@dataclass(frozen=True, slots=True)
class Identity:
    """UUIDs in lower case with hyphens; `volume` is the serial number of the EFI system partition, 8 hex digits."""

    disk: str
    esp_partition: str
    root_partition: str
    root: str
    hash_seed: str
    volume: str

    @classmethod
    def of(cls, inputs: str) -> Identity:
        """`inputs`: a text that says what the disk is made of."""
        seed = uuid.uuid5(_NAMESPACE, inputs)
        fresh = (str(uuid.uuid5(seed, name)) for name in ("disk", "esp_partition", "root_partition", "root", "hash"))
        disk, esp_partition, root_partition, root, hash_seed = fresh
        volume = uuid.uuid5(seed, "volume").hex[:8].upper()
        return cls(disk, esp_partition, root_partition, root, hash_seed, volume)

    @property
    def volume_id(self) -> str:
        """As fstab has it."""
        return f"{self.volume[:4]}-{self.volume[4:]}"
