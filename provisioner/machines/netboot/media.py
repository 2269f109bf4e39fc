"""A distribution's installer for one machine, as files that iPXE and the installer fetch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from provisioner.common.paths import private_dir, write_whole
from provisioner.machines.installer import disk_image, iso, seed, source
from provisioner.machines.installer.disk_image import DiskImage
from provisioner.machines.installer.ramdisk import Ramdisk
from provisioner.machines.installer.seed import Target
from provisioner.machines.providers import first_boot


@dataclass(frozen=True, slots=True)
class Media:
    """Name → file, and the kernel's command line. `linux` and `initrd.gz` are always there."""

    files: Mapping[str, Path]
    words: str


def of_disk_image(ramdisk: Ramdisk, image: DiskImage, target: Target, folder: Path) -> Media:
    """The installer that writes a disk image. `folder`: of this machine's files."""
    config = first_boot.cloud_config(target.user, target.ssh_key)
    initrd = private_dir(folder) / "initrd.gz"
    write_whole(initrd, ramdisk.initrd.read_bytes() + iso.in_memory(disk_image.files(target, image, "", config)))
    files = {"linux": ramdisk.linux, "initrd.gz": initrd, disk_image.NAME: image.file}
    return Media(files, f"{disk_image.kernel_command_line(target)} {iso.CONSOLES}")


def make(system: str, installer: Path, target: Target, folder: Path) -> Media:
    """`folder`: of this machine's files. Raises GpuprovError for what can't be installed so."""
    source.refuse_unfit(system, installer, network=True)
    layout = iso.LAYOUTS[system.partition("-")[0]]
    if system.startswith("debian"):
        initrd = private_dir(folder) / "initrd.gz"
        linux, original = source.netboot(installer)
        write_whole(initrd, original.read_bytes() + iso.seed_in_memory(target))
        return Media({"linux": linux, "initrd.gz": initrd}, layout.words)
    texts = {"user-data": seed.autoinstall(target), "meta-data": "", "vendor-data": "", "guard.sh": seed.guard(target)}
    files = {"installer.iso": installer}
    for name, text in texts.items():
        files[name] = private_dir(folder) / name
        write_whole(files[name], text)
    for name, path_in_image in (("linux", layout.kernel), ("initrd.gz", layout.initrd)):
        files[name] = iso.extract(installer, path_in_image, folder.parent / name)
    command_line = f"ip=dhcp url={target.report}/installer.iso autoinstall ds=nocloud;s={target.report}/ {iso.CONSOLES}"
    return Media(files, command_line)
