"""The image that a machine starts its installation from: a distribution's installer with the seed of one machine on it.

xorriso changes an ISO image and keeps what makes it start, by BIOS and UEFI; grub-mkrescue makes one of a kernel and an
initrd (Debian's netboot images)."""

from __future__ import annotations

import gzip
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from provisioner.common import directories
from provisioner.common.errors import GpuprovError
from provisioner.machines.installer import seed, source
from provisioner.machines.installer.seed import Target

BUILD_S = 600

CONSOLES = "console=tty0 console=ttyS0,115200n8"
"""The last one has the installer's own screen: BMCs show it as serial over LAN."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a distribution's installer lies on its image. `menus`: boot menus that are replaced, `grub` or
    `isolinux`."""

    kernel: str
    initrd: str
    words: str
    menus: Mapping[str, str]


LAYOUTS = {
    "debian": Layout(
        "/install.amd/vmlinuz", "/install.amd/initrd.gz", f"auto=true priority=critical {CONSOLES}",
        {"/boot/grub/grub.cfg": "grub", "/isolinux/isolinux.cfg": "isolinux"},
    ),
    "ubuntu": Layout(
        "/casper/vmlinuz", "/casper/initrd", f"autoinstall ds=nocloud\\;s=/cdrom/nocloud/ {CONSOLES}",
        {"/boot/grub/grub.cfg": "grub"},
    ),
}  # fmt: skip


def make(distribution: str, installer: Path, target: Target, out: Path) -> Path:
    """Write the image of one machine. `installer`: the distribution's ISO image, or Debian's netboot folder (linux,
    initrd.gz). Raises GpuprovError for what can't be read or made."""
    if not installer.exists():
        raise GpuprovError("is not there", where=str(installer), hint="install.iso: the distribution's ISO image")
    source.refuse_unfit(distribution, installer, network=False)
    layout = LAYOUTS[distribution.partition("-")[0]]
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".iso-") as folder:
        work, partial_image = Path(folder), Path(folder) / "whole.iso"
        if installer.is_dir():
            _of_kernel(*source.netboot(installer), seed_in_memory(target), layout, partial_image)
        elif distribution.startswith("debian"):
            _of_debian(installer, layout, target, work, partial_image)
        else:
            _of_ubuntu(installer, layout, target, work, partial_image)
        directories.move(partial_image, out)
    return out


def of_kernel(linux: Path, initrd: Path, appended: bytes, command_line: str, out: Path) -> Path:
    """Write an image that starts a kernel by BIOS and by UEFI. `appended`: an archive that is unpacked over the
    initrd; `command_line`: the kernel's command line. Raises GpuprovError."""
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".iso-") as folder:
        partial_image = Path(folder) / "whole.iso"
        _of_kernel(
            linux, initrd, appended, Layout("/linux", "/initrd.gz", f"{command_line} {CONSOLES}", {}), partial_image
        )
        directories.move(partial_image, out)
    return out


def _of_kernel(linux: Path, initrd: Path, appended: bytes, layout: Layout, out: Path) -> None:
    tree = out.parent / "tree"
    for name in ("boot/grub/grub.cfg", layout.kernel.lstrip("/")):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(linux, tree / layout.kernel.lstrip("/"))
    (tree / layout.initrd.lstrip("/")).write_bytes(initrd.read_bytes() + appended)
    (tree / "boot" / "grub" / "grub.cfg").write_text(_menu("grub", layout), encoding="utf-8")
    _run(["grub-mkrescue", "-o", str(out), str(tree)], "grub-pc-bin grub-efi-amd64-bin grub-common xorriso mtools")


def _of_debian(installer: Path, layout: Layout, target: Target, work: Path, out: Path) -> None:
    initrd = extract(installer, layout.initrd, work / "initrd.gz")
    with initrd.open("ab") as file:
        file.write(seed_in_memory(target))
    _changed(installer, out, {layout.initrd: initrd, **_menus(layout, work)})


def extract(image: Path, path_in_image: str, out: Path) -> Path:
    """A file of an ISO image, which is written anew."""
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".iso-") as folder:
        extracted = Path(folder) / out.name
        _run(["xorriso", "-osirrox", "on", "-indev", str(image), "-extract", path_in_image, str(extracted)], "xorriso")
        directories.move(extracted, out)
    return out


def _of_ubuntu(installer: Path, layout: Layout, target: Target, work: Path, out: Path) -> None:
    files = {"user-data": seed.autoinstall(target), "meta-data": "", "guard.sh": seed.guard(target)}
    put = {}
    for name, text in files.items():
        (work / name).write_text(text, encoding="utf-8")
        put[f"/nocloud/{name}"] = work / name
    _changed(installer, out, {**put, **_menus(layout, work)})


def _menus(layout: Layout, work: Path) -> dict[str, Path]:
    files_by_path = {}
    for number, (path_in_image, kind) in enumerate(layout.menus.items()):
        file = work / f"menu-{number}"
        file.write_text(_menu(kind, layout), encoding="utf-8")
        files_by_path[path_in_image] = file
    return files_by_path


def _menu(kind: str, layout: Layout) -> str:
    """A boot menu with one entry, which starts by itself."""
    if kind == "isolinux":
        arguments = f"initrd={layout.initrd} {layout.words}"
        return f"default install\ntimeout 10\nlabel install\n  kernel {layout.kernel}\n  append {arguments}\n"
    return (
        "set timeout=1\nset default=0\nserial --unit=0 --speed=115200\nterminal_output console serial\n"
        f'menuentry "Install" {{\n  linux {layout.kernel} {layout.words}\n  initrd {layout.initrd}\n}}\n'
    )


def _changed(installer: Path, out: Path, put: Mapping[str, Path]) -> None:
    maps = [argument for path_in_image, file in put.items() for argument in ("-map", str(file), path_in_image)]
    command = [
        "xorriso",
        "-indev",
        str(installer),
        "-outdev",
        str(out),
        "-boot_image",
        "any",
        "replay",
        "-overwrite",
        "on",
        *maps,
    ]
    _run(command, "xorriso")


def seed_in_memory(target: Target) -> bytes:
    """What is appended to Debian's initrd: the installer finds its preseed there before it looks for anything else."""
    files = {"preseed.cfg": seed.preseed(target), "gpuprov-guard": seed.guard(target)}
    return in_memory({name: text.encode() for name, text in files.items()})


def in_memory(files: Mapping[str, bytes]) -> bytes:
    """What is appended to an initrd that is compressed by gzip, or to none. Folders are those of the initrd."""
    return gzip.compress(_cpio(files), mtime=0)


def _cpio(files: Mapping[str, bytes]) -> bytes:
    """An archive in the form that the kernel unpacks (newc):
    https://www.kernel.org/doc/html/latest/driver-api/early-userspace/buffer-format.html"""
    archive = bytearray()
    for number, (name, content) in enumerate([*files.items(), ("TRAILER!!!", b"")], 1):
        mode = 0o100644 if name != "TRAILER!!!" else 0
        fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0)
        archive += b"070701" + b"".join(b"%08x" % value for value in fields) + name.encode() + b"\0"
        archive += b"\0" * (-len(archive) % 4) + content
        archive += b"\0" * (-len(archive) % 4)
    return bytes(archive)


def _run(command: Sequence[str], packages: str) -> None:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
            timeout=BUILD_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except FileNotFoundError:
        raise GpuprovError(
            f"{command[0]} is missing, which makes the installer's image", hint=f"apt install {packages}"
        ) from None
    except subprocess.TimeoutExpired:
        raise GpuprovError(
            f"{command[0]} took more than {BUILD_S} s", hint="look at the disk that it writes to"
        ) from None
    if done.returncode:
        error_line = next(
            (line for line in reversed(done.stderr.splitlines()) if re.search(r"(?i)fail|error|sorry|cannot", line)), ""
        )
        raise GpuprovError(
            f"{command[0]} failed: {error_line.strip()[:200] or done.returncode}",
            hint=f"it needs {packages}; the image must be the distribution's own",
        )
