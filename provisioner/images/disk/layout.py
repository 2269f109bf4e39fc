"""A root file system and an EFI system partition → a disk with a GUID partition table, raw and as qcow2."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from provisioner.errors import GpuprovError
from provisioner.images.disk import tools
from provisioner.images.disk.identity import Identity

MIB, BLOCK = 1 << 20, 4096
ESP_MIB = 512
"""Room for four kernels with their initramfs."""
FREE = 1.25
"""Size of the root file system over that of its files: inodes, the journal, blocks that are not full."""
FREE_MIB = 1024
"""Free beside that. The partition grows to the end of the machine's disk at first boot (cloud-init, growpart)."""
ROOT_TYPE = "4f68bce3-e8cd-4db1-96e7-fbcaf984b709"
"""Root file system for x86-64 (https://uapi-group.org/specifications/specs/discoverable_partitions_specification/)."""
MAKE_S, CONVERT_S = 3600.0, 3600.0


def root_mib(root: Path) -> int:
    """MiB of a root file system that holds these files. A file with several names counts once."""
    sizes: dict[tuple[int, int], int] = {}
    for path in (root, *root.rglob("*")):
        found = path.lstat()
        sizes[found.st_dev, found.st_ino] = -(-found.st_size // BLOCK) * BLOCK
    return int(sum(sizes.values()) * FREE / MIB) + FREE_MIB


def configuration(root: Path, esp: Path, identity: Identity, made: datetime, size_mib: int) -> str:
    """genimage's file (https://github.com/pengutronix/genimage#configuration-file). Raises GpuprovError for paths that
    it cannot name: it puts them into a shell's command line."""
    for path in (root, esp):
        if not all(c.isalnum() or c in "/._-+@" for c in str(path)):
            hint = "use a folder without spaces and quotes"
            raise GpuprovError("genimage cannot read from this path", where=str(path), hint=hint)
    moment = made.astimezone(UTC).strftime("%Y%m%d%H%M%S")
    options = f"root_owner=0:0,lazy_itable_init=0,lazy_journal_init=0,hash_seed={identity.hash_seed}"
    return f"""\
image esp.vfat {{
  vfat {{
    label = "ESP"
    extraargs = "-i {identity.volume}"
  }}
  size = {ESP_MIB}M
  srcpath = "{esp}"
}}
image root.ext4 {{
  ext4 {{
    label = "root"
    use-mke2fs = true
    extraargs = "-U {identity.root} -E {options}"
    fs-timestamp = "{moment}"
  }}
  size = {size_mib}M
  srcpath = "{root}"
}}
image disk.raw {{
  hdimage {{
    partition-table-type = "gpt"
    disk-uuid = "{identity.disk}"
    align = 1M
  }}
  partition esp {{
    image = "esp.vfat"
    partition-type-uuid = "U"
    partition-uuid = "{identity.esp_partition}"
  }}
  partition root {{
    image = "root.ext4"
    partition-type-uuid = "{ROOT_TYPE}"
    partition-uuid = "{identity.root_partition}"
  }}
}}
"""


def make(root: Path, esp: Path, folder: Path, identity: Identity, made: datetime) -> Path:
    """Write `folder`/disk.raw, sparse. `made` is the time that the file systems say they were made at. Raises
    ProviderError where that fails."""
    work = folder / "genimage"
    for name in ("empty", "input", "out"):
        (work / name).mkdir(parents=True, exist_ok=True)
    file = work / "genimage.cfg"
    file.write_text(configuration(root, esp, identity, made, root_mib(root)), encoding="utf-8")
    epoch = str(int(made.timestamp()))
    tools.run(
        ["genimage", "--rootpath", work / "empty", "--inputpath", work / "input", "--tmppath", work / "tmp",
         "--outputpath", work / "out", "--config", file],
        MAKE_S, environment={"SOURCE_DATE_EPOCH": epoch, "E2FSPROGS_FAKE_TIME": epoch},
    )  # fmt: skip
    return (work / "out" / "disk.raw").replace(folder / "disk.raw")


def converted(raw: Path) -> Path:
    """The same disk beside it as qcow2, compressed. Raises ProviderError where that fails."""
    target = raw.with_suffix(".qcow2")
    tools.run(["qemu-img", "convert", "-f", "raw", "-O", "qcow2", "-c", raw, target], CONVERT_S)
    return target
