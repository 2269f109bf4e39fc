"""Images that gpuprov makes, started in QEMU with Debian's own installer: minutes each, by emulation.

A whole installation needs a mirror of Debian with the components of its installer (udebs); where there is none that is
whole, the test says which one is missing."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import urllib3

from provisioner.machines.installer import iso
from provisioner.machines.installer.seed import Target

NETBOOT = Path("/usr/lib/debian-installer/images/12/amd64/text")
MIRROR = os.environ.get("GPUPROV_TEST_DEBIAN", "http://deb.debian.org/debian")
NEEDS = ("qemu-system-x86_64", "qemu-img", "xorriso", "grub-mkrescue", "mformat")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not NETBOOT.exists() or not all(map(shutil.which, NEEDS)),
        reason="needs debian-installer-12-netboot-amd64 qemu-system-x86 qemu-utils xorriso grub-pc-bin mtools",
    ),
]


def image_and_key(folder: Path, serial: str, *, reinstall: bool = False) -> tuple[Path, Path]:
    """The image for a machine, and the key that it lets in."""
    key = folder / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    public = " ".join(key.with_suffix(".pub").read_text().split()[:2])
    target = Target("dgx01.lab", "ubuntu", public, (serial,), "ab" * 16, mirror=MIRROR, reinstall=reinstall)
    return iso.make("debian-12", NETBOOT, target, folder / "install.iso"), key


@contextmanager
def machine(folder: Path, image: Path, serial: str, *, port: int = 0) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A machine with an empty disk (or the one that it had) that starts from the image once."""
    disk, console = folder / "disk.qcow2", folder / "console.txt"
    if not disk.exists():
        subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", str(disk), "40G"], check=True)
    forward = f",hostfwd=tcp:127.0.0.1:{port}-:22" if port else ""
    process = subprocess.Popen(
        [
            "qemu-system-x86_64", "-machine", "q35,accel=tcg", "-cpu", "max", "-smp", "2", "-m", "2048",
            "-display", "none", "-monitor", "none", "-serial", f"file:{console}", "-smbios", f"type=1,serial={serial}",
            "-drive", f"file={disk},if=virtio,format=qcow2", "-cdrom", str(image), "-boot", "once=d",
            "-netdev", f"user,id=n{forward}", "-device", "virtio-net-pci,netdev=n",
            "-object", "rng-random,id=r,filename=/dev/urandom", "-device", "virtio-rng-pci,rng=r",
        ],
    )  # fmt: skip
    try:
        yield process, console
    finally:
        process.kill()
        process.wait()


def console_text(console: Path) -> str:
    text = console.read_text(errors="replace") if console.exists() else ""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def test_another_machine_switches_itself_off(tmp_path: Path) -> None:
    """The image of one machine, started on another: nothing is written, the console says why, and it is off."""
    image, _ = image_and_key(tmp_path, "GPU-0001")
    with machine(tmp_path, image, "GPU-9999") as (process, console):
        process.wait(timeout=600)
        assert "NOT INSTALLED: this machine is not the one that it was made for (GPU-0001)" in console_text(console)
    disk = subprocess.run(["qemu-img", "map", str(tmp_path / "disk.qcow2")], capture_output=True, text=True, check=True)
    assert len(disk.stdout.splitlines()) <= 1, f"something was written:\n{disk.stdout}"


def whole_mirror() -> str:
    """What the mirror lacks of the installer; empty where it is whole."""
    with urllib3.PoolManager() as web:
        for package in (
            "a/apt-setup/apt-setup-udeb_0.182_amd64.udeb",
            "g/grub-installer/grub-installer_1.194_amd64.udeb",
        ):
            if web.request("HEAD", f"{MIRROR}/pool/main/{package}", retries=False).status != 200:
                return package
    return ""


def test_an_unattended_installation_to_sshd(tmp_path: Path) -> None:
    if lacks := whole_mirror():
        pytest.skip(f"{MIRROR} has no {lacks}: give a whole mirror as GPUPROV_TEST_DEBIAN")
    image, key = image_and_key(tmp_path, "GPU-0001")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with machine(tmp_path, image, "GPU-0001", port=port) as (process, console):
        end = time.monotonic() + 5400
        ssh = [
            "ssh",
            "-F",
            "/dev/null",
            "-o",
            "BatchMode=yes",
            "-o",
            "ConnectTimeout=10",
            "-i",
            str(key),
            "-p",
            str(port),
        ]
        ssh += ["-o", "StrictHostKeyChecking=accept-new", "-o", f"UserKnownHostsFile={tmp_path}/known_hosts"]
        while True:
            assert process.poll() is None, console_text(console)[-3000:]
            assert time.monotonic() < end, console_text(console)[-3000:]
            done = subprocess.run(
                [*ssh, "ubuntu@127.0.0.1", "cat /etc/gpuprov-installed; sudo -n id -u"],
                capture_output=True, text=True, timeout=60, check=False,
            )  # fmt: skip
            if done.returncode == 0:
                break
            time.sleep(10)
        assert done.stdout.split() == ["ab" * 16, "0"]
