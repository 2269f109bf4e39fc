"""A small golden disk image: Debian with cloud-init and sshd, laid out and made bootable by what makes them of recipes.

Minutes and root. `GPUPROV_TEST_DISK` names a raw disk that is taken instead: one of `gpuprov image build`, for one."""

from __future__ import annotations

import os
import shutil
import subprocess
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path

import pytest

from provisioner.lifecycle.images.disk import layout
from provisioner.lifecycle.images.disk.identity import Identity
from provisioner.sandbox import image

PACKAGES = (
    "linux-image-cloud-amd64", "initramfs-tools", "zstd", "systemd-sysv", "systemd-boot", "cloud-init",
    "cloud-guest-utils", "netplan.io", "openssh-server", "sudo", "python3", "dbus", "udev", "iproute2", "e2fsprogs",
)  # fmt: skip
BEFORE = "systemctl --quiet enable systemd-networkd.service\nrm -f /etc/ssh/ssh_host_* /etc/hostname\n"
"""What generalising leaves of a machine."""


FREE_MIB, ESP_MIB = 64, 96
"""Less than a recipe's disk has: an emulated processor compares and writes a few MB/s."""


def make(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    if existing_disk := os.environ.get("GPUPROV_TEST_DISK"):
        return Path(existing_disk)
    root, esp, identity = folder / "root", folder / "esp", Identity.of("a test")
    left_out = [f"--dpkgopt=path-exclude={pattern}" for pattern in image.LEFT_OUT]
    subprocess.run(
        ["mmdebstrap", "--quiet", "--variant=minbase", "--mode=root", f"--include={','.join(PACKAGES)}", *left_out,
         f"--keyring={image.KEYRING}", image.SUITE, str(root), *image.mirrors()],
        check=True, timeout=1800, env={**os.environ, "INITRD": "No"},
    )  # fmt: skip
    bootable(root, esp, identity)
    monkeypatch.setattr(layout, "FREE_MIB", FREE_MIB)
    monkeypatch.setattr(layout, "ESP_MIB", ESP_MIB)
    disk = layout.make(root, esp, folder, identity, datetime.now(UTC))
    shutil.rmtree(root)
    return disk


def bootable(root: Path, esp: Path, identity: Identity) -> None:
    """As a recipe's disk is made bootable, in place of a container in a chroot. The EFI system partition is a file
    system of its own, because entries name files as that has them; bootctl needs /proc to put its files in place."""
    esp_mount = root / "boot" / "efi"
    esp_mount.mkdir(exist_ok=True)
    script = files("provisioner.lifecycle.images.disk").joinpath("bootable.sh").read_text(encoding="utf-8")
    variables = {"GPUPROV_ROOT": identity.root, "GPUPROV_ESP": identity.volume_id, "PATH": "/usr/sbin:/usr/bin"}
    mounted = {esp_mount: "tmpfs", root / "proc": "proc"}
    try:
        for mount_point, kind in mounted.items():
            subprocess.run(["mount", "-t", kind, kind, str(mount_point)], check=True, timeout=60)
        subprocess.run(
            ["chroot", str(root), "sh", "-s"], input=BEFORE + script, text=True, check=True, timeout=900, env=variables,
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        shutil.copytree(esp_mount, esp)
    finally:
        for mount_point in mounted:
            subprocess.run(["umount", str(mount_point)], check=False, timeout=60)
