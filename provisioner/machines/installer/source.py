"""What a distribution's installer lies in, on this computer: an ISO image, or the folder of Debian's netboot images."""

from __future__ import annotations

import hashlib
from pathlib import Path

from provisioner.common import regular_file
from provisioner.common.errors import GpuprovError

SYSTEMS = ("debian", "ubuntu")
"""Distributions whose installer is told what to do (seed.py)."""
KINDS = "install.iso: the distribution's ISO image, or the folder of Debian's netboot images; install.image: a raw disk"
_PAIR = ("linux", "initrd.gz")
_FOLDER = "install.iso: the folder of Debian's netboot images (debian-installer-12-netboot-amd64)"


def refuse_unfit(system: str | None, installer: Path, *, network: bool) -> None:
    """Raises GpuprovError for an installer that is there and can't install the distribution. `system`: its name, None
    where it is not known yet; `network`: for machines that start from the network, not for a BMC's virtual media. What
    an image holds is not looked at: its SHA-256 says that it is the distribution's."""
    family = (system or "").partition("-")[0]
    if family and family not in SYSTEMS:
        raise GpuprovError(f"cannot install {system} unattended", hint="install.os: debian-12 or ubuntu-24.04")
    if installer.is_dir():
        if family == "ubuntu":
            raise GpuprovError(
                f"is a folder, and {system} is installed from an image", where=str(installer),
                hint="install.iso: Ubuntu's live server image; or install.os: debian-12",
            )  # fmt: skip
        netboot(installer)
    elif network and family == "debian":
        raise GpuprovError(
            "is an ISO image, and Debian's installer on it looks for a CD", where=str(installer), hint=_FOLDER
        )
    elif installer.stat().st_size == 0:
        raise GpuprovError("is empty", where=str(installer), hint="download it again")


def refuse_other(installer: Path, sha256: str | None, kind: type[GpuprovError] = GpuprovError) -> None:
    """Raises `kind` for an image that is not the one that cluster.yaml names; a folder has no SHA-256."""
    if not installer.is_file():
        return
    with installer.open("rb") as image:
        digest = hashlib.file_digest(image, "sha256").hexdigest()
    hint = "download it again, and compare install.sha256 with the distribution's signed SHA256SUMS"
    refuse_another(installer, digest, sha256, hint, kind)


def refuse_another(
    file: Path, digest: str, sha256: str | None, hint: str, kind: type[GpuprovError] = GpuprovError
) -> None:
    """Raises `kind` where a file has another SHA-256 than cluster.yaml names."""
    if digest != sha256:
        message = f"has the SHA-256 {digest}, not {sha256 or 'any that cluster.yaml names'}"
        raise kind(message, where=str(file), hint=hint)


SECTOR = 512
UEFI_PARTITION = bytes.fromhex("28732ac11ff8d211ba4b00a0c93ec93b")
"""Type of an EFI system partition, as it stands in a table (UEFI 2.10, 5.3.3)."""


def refuse_unfit_disk(image: Path) -> None:
    """Raises GpuprovError for what is no raw image of a disk that starts by UEFI. Its first sectors are looked at."""
    with regular_file.opened(image) as stream:
        head = stream.read(64 * SECTOR)
    hint = "install.image: the .raw of `gpuprov image build`, or another raw disk with a GUID partition table"
    if head[:4] == b"QFI\xfb":
        raise GpuprovError("is a qcow2 image", where=str(image), hint=f"qemu-img convert -O raw; {hint}")
    if head[:4] == b"\x28\xb5\x2f\xfd" or head[:2] == b"\x1f\x8b" or head[:6] == b"\xfd7zXZ\0":
        raise GpuprovError("is compressed", where=str(image), hint=f"give it as it is written to a disk; {hint}")
    if head[SECTOR : SECTOR + 8] != b"EFI PART":
        raise GpuprovError("has no GUID partition table", where=str(image), hint=hint)
    if UEFI_PARTITION not in head[2 * SECTOR :]:
        raise GpuprovError("has no EFI system partition", where=str(image), hint=hint)
    disk_size, size = (_number(head, SECTOR + 32) + 1) * SECTOR, image.stat().st_size
    if size < disk_size:
        message = f"is cut: it has {size:,} bytes, and its partition table is of a disk of {disk_size:,}"
        raise GpuprovError(message, where=str(image), hint="copy it again")
    entries = [head[at : at + 128] for at in range(2 * SECTOR, 34 * SECTOR, 128) if head[at : at + 16].strip(b"\0")]
    if max(entries, key=lambda entry: _number(entry, 32))[:16] == UEFI_PARTITION:
        message = (
            "has its EFI system partition last, and the last partition is the one that grows to the machine's disk"
        )
        raise GpuprovError(message, where=str(image), hint="the system's partition is the last")


def _number(head: bytes, offset: int) -> int:
    """UEFI 2.10, 5.3: of a header the block of the other one at byte 32, of an entry the partition's first."""
    return int.from_bytes(head[offset : offset + 8], "little")


def netboot(folder: Path) -> tuple[Path, Path]:
    """Kernel and initrd of Debian's netboot images, which lie beside each other. Raises GpuprovError where there is not
    one such pair: of several, one would be another architecture's or version's."""
    folders = sorted({file.parent for file in folder.rglob("initrd.gz") if _has_pair(file.parent)})
    if len(folders) > 1:
        raise GpuprovError(
            f"has {len(folders)} installers: {', '.join(str(path.relative_to(folder)) for path in folders[:4])}",
            where=str(folder), hint="install.iso: the folder of one of them",
        )  # fmt: skip
    if not folders:
        raise GpuprovError(f"has no {' beside an '.join(_PAIR)}", where=str(folder), hint=_FOLDER)
    return folders[0] / _PAIR[0], folders[0] / _PAIR[1]


def _has_pair(folder: Path) -> bool:
    return all((folder / name).is_file() and (folder / name).stat().st_size for name in _PAIR)
