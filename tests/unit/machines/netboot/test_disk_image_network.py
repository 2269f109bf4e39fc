"""Bare metal from a golden disk image over the network: `gpuprov netboot --run`, dnsmasq, OVMF and iPXE, from the first
question for an address to sshd with the host key that was reported. By emulation: minutes, and root."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from provisioner.common.errors import GpuprovError
from provisioner.lifecycle.images.disk import tools
from provisioner.machines.journal import Journal
from provisioner.machines.netboot import dnsmasq
from tests.support import small_disk
from tests.support.netboot_lab import TOOLS, UEFI, Lab


def lacking() -> str:
    try:
        tools.require()
    except GpuprovError as error:
        return f"{error.message}: {error.hint}"
    lacks = [name for name in (*TOOLS, "zstd", "mmdebstrap") if shutil.which(name) is None] + dnsmasq.missing()
    lacks += [str(file) for file in (Path("/dev/net/tun"), UEFI / "OVMF_CODE.fd") if not file.exists()]
    return f"needs {' '.join(lacks)}" if lacks else "" if os.geteuid() == 0 else "needs root"


pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(lacking()), reason=lacking())]


def run_on_machine(lab: Lab, command: str, key: str) -> str:
    """What the machine answers; it must show this host key."""
    (lab.folder / "known").write_text(f"10.77.0.11 {key}\n")
    options = ("BatchMode=yes", "StrictHostKeyChecking=yes", "ConnectTimeout=10",
               f"UserKnownHostsFile={lab.folder / 'known'}")  # fmt: skip
    ssh = ["ssh", "-F", "/dev/null", "-i", str(lab.folder / ".gpuprov/rack/ssh/id_ed25519")]
    ssh += [argument for option in options for argument in ("-o", option)]
    done = subprocess.run(
        ["ip", "netns", "exec", lab.ours, *ssh, "ubuntu@10.77.0.11", command],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    return done.stdout.strip()


def test_from_the_network_to_sshd_and_then_from_its_own_disk(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    image_folder = lab.folder / "made"
    image_folder.mkdir()
    image = small_disk.make(image_folder, monkeypatch)
    with image.open("rb") as stream:
        sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
    disk = lab.folder / "disk.qcow2"
    tools.run(["qemu-img", "create", "-q", "-f", "qcow2", disk, "40G"], 60)
    with lab.answering(install=f'image: {image}, sha256: "{sha256}"', within_s=1200):
        with lab.machine("52:54:00:00:00:01", "GPU-0001", uefi=True, disk=disk) as console:
            try:
                lab.until(lambda: "n1.lab: installed: it answers by ssh" in lab.log(), 2400)
            finally:
                if log := os.environ.get("GPUPROV_TEST_LOG"):
                    Path(log, "pxe.txt").write_text(f"{lab.log()}\n{lab.log(console)}", encoding="utf-8")
            key = Journal(lab.folder / ".gpuprov/rack/sites/lab/netboot.json").load()["n1.lab"].host_key
            pins = json.loads((lab.folder / ".gpuprov/rack/ssh/pins.json").read_text())
            assert key.startswith("ssh-ed25519 ") and list(pins.values()) == [["n1.lab", key]]
            assert run_on_machine(lab, "hostname -f; sudo -n id -u", key).split() == ["n1.lab", "0"]
            assert "10.77.0.11/24" in run_on_machine(lab, "ip -brief -4 address show scope global", key)
            boot = run_on_machine(lab, "cat /proc/sys/kernel/random/boot_id", key)
        # its firmware has forgotten the entry, and asks the network first
        with lab.machine("52:54:00:00:00:01", "GPU-0001", uefi=True, disk=disk):
            lab.until(lambda: "n1.lab: starts from its own disk: it is installed" in lab.log(), 300)
            lab.until(lambda: run_on_machine(lab, "cat /proc/sys/kernel/random/boot_id", key) not in ("", boot), 900)
