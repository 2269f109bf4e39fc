"""A root file system and an EFI system partition → a disk with a GUID partition table, raw and as qcow2."""

from __future__ import annotations

import errno
import os
from datetime import UTC, datetime
from pathlib import Path

from provisioner.common.errors import GpuprovError
from provisioner.lifecycle.images.disk import tools
from provisioner.lifecycle.images.disk.identity import Identity

MIB, BLOCK, PIECE = 1 << 20, 4096, 8 << 20
ESP_MIB = 512
"""Room for four kernels with their initramfs."""
FREE = 1.25
"""Size of the root file system over that of its files: inodes, the journal, blocks that are not full."""
FREE_MIB = 1024
"""Free beside that. The partition grows to the end of the machine's disk at first boot (cloud-init, growpart)."""
ROOT_TYPE = "4f68bce3-e8cd-4db1-96e7-fbcaf984b709"
"""Root file system for x86-64 (https://uapi-group.org/specifications/specs/discoverable_partitions_specification/)."""
MAKE_S, CONVERT_S, CHECK_S = 3600.0, 3600.0, 60.0


def root_mib(root: Path) -> int:
    """MiB of a root file system that holds these files. A file with several names counts once."""
    sizes: dict[tuple[int, int], int] = {}
    for path in (root, *root.rglob("*")):
        status = path.lstat()
        sizes[status.st_dev, status.st_ino] = -(-status.st_size // BLOCK) * BLOCK
    return int(sum(sizes.values()) * FREE / MIB) + FREE_MIB


def configuration(root: Path, esp: Path, identity: Identity, made_at: datetime, size_mib: int) -> str:
    """genimage's file (https://github.com/pengutronix/genimage#configuration-file). Raises GpuprovError for paths that
    it cannot name: it puts them into a shell's command line."""
    _refuse_unreadable(root)
    moment = made_at.astimezone(UTC).strftime("%Y%m%d%H%M%S")
    options = f"root_owner=0:0,lazy_itable_init=0,lazy_journal_init=0,hash_seed={identity.hash_seed}"
    return f"""\
{_esp(esp, identity)}image root.ext4 {{
  ext4 {{
    label = "root"
    use-mke2fs = true
    extraargs = "-U {identity.root} -E {options}"
    fs-timestamp = "{moment}"
  }}
  size = {size_mib}M
  srcpath = "{root}"
}}
{_disk(identity)}"""


def _refuse_unreadable(path: Path) -> None:
    if not all(c.isalnum() or c in "/._-+@" for c in str(path)):
        hint = "use a folder without spaces and quotes"
        raise GpuprovError("genimage cannot read from this path", where=str(path), hint=hint)


def _esp(folder: Path, identity: Identity) -> str:
    _refuse_unreadable(folder)
    return f"""\
image esp.vfat {{
  vfat {{
    label = "ESP"
    extraargs = "-i {identity.volume}"
  }}
  size = {ESP_MIB}M
  srcpath = "{folder}"
}}
"""


def _disk(identity: Identity) -> str:
    """genimage's section of the disk; its partitions are sections of these names, or files of its input."""
    return f"""\
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


def make(root: Path, esp: Path, folder: Path, identity: Identity, made_at: datetime) -> Path:
    """Write `folder`/disk.raw, sparse. `made_at` is the time that the file systems say they were made at. Raises
    ProviderError where that fails."""
    return _laid_out(configuration(root, esp, identity, made_at, root_mib(root)), folder, made_at)


def sealed(disk: Path, folder: Path, identity: Identity, made_at: datetime) -> Path:
    """Write `folder`/disk.raw, sparse: what a disk of this layout holds, of a machine that is off; nothing of its free
    blocks, where what was removed can still be read; as small as `make` has it. Raises ProviderError where its root
    file system is not clean."""
    input_folder, esp = folder / "genimage" / "input", folder / "esp"
    for path in (input_folder, esp):
        path.mkdir(parents=True, exist_ok=True)
    files, grown, root = folder / "esp.grown", folder / "root.grown", input_folder / "root.ext4"
    _part(disk, files, MIB, (1 + ESP_MIB) * MIB)
    tools.run(["mcopy", "-s", "-m", "-n", "-i", files, "::/", esp], CHECK_S)
    (esp / "loader" / "random-seed").unlink(missing_ok=True)  # all machines of the disk would share it
    _part(disk, grown, (1 + ESP_MIB) * MIB, disk.stat().st_size)
    tools.run(["e2fsck", "-f", "-y", grown], MAKE_S)
    # written again when it went off
    tools.run(["debugfs", "-w", "-R", "rm /var/lib/systemd/random-seed", grown], CHECK_S)
    tools.run(["e2image", "-r", "-a", grown, root], CONVERT_S)  # blocks in use, nothing else
    tools.run(["resize2fs", root, f"{_used_mib(root)}M"], MAKE_S)
    tools.run(["e2fsck", "-f", "-n", root], MAKE_S)
    for path in (files, grown):
        path.unlink()
    return _laid_out(_esp(esp, identity) + _disk(identity), folder, made_at)


def _part(disk: Path, target: Path, start: int, end: int) -> None:
    """Bytes `start` to `end` of a sparse file as a sparse file: holes are not read."""
    with disk.open("rb") as source, target.open("wb") as copy:
        copy.truncate(end - start)
        at = start
        while at < end:
            try:
                at = os.lseek(source.fileno(), at, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:  # only a hole is left
                    return
                raise
            hole = min(os.lseek(source.fileno(), at, os.SEEK_HOLE), end)
            while at < hole:
                data = os.pread(source.fileno(), min(PIECE, hole - at), at)
                at += os.pwrite(copy.fileno(), data, at - start)


def kernels(disk: Path) -> list[str]:
    """The kernels that a disk of this layout has boot entries for, as `uname -r` has them. Raises ProviderError."""
    partition = f"{disk}@@1M"
    listing = tools.run(["mdir", "-b", "-i", partition, "::/loader/entries"], CHECK_S)
    names = [line.strip().rpartition("/")[2] for line in listing.splitlines()]
    return sorted(name.removeprefix("gpuprov-").removesuffix(".conf") for name in names if name.startswith("gpuprov-"))


def _used_mib(file: Path) -> int:
    """As `root_mib`, of a file system in a file."""
    fields = dict(
        line.split(":", 1) for line in tools.run(["dumpe2fs", "-h", file], CHECK_S).splitlines() if ":" in line
    )
    used = int(fields["Block count"]) - int(fields["Free blocks"])
    return int(used * int(fields["Block size"]) * FREE / MIB) + FREE_MIB


def _laid_out(text: str, folder: Path, made_at: datetime) -> Path:
    work = folder / "genimage"
    for name in ("empty", "input", "out"):
        (work / name).mkdir(parents=True, exist_ok=True)
    file = work / "genimage.cfg"
    file.write_text(text, encoding="utf-8")
    epoch = str(int(made_at.timestamp()))
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
