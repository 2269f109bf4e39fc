"""Bare metal from power-off to sshd through its BMC, from a golden disk image: the machine is QEMU's, by emulation, its
BMC one that replays a real one. Minutes each, and root, to make the image."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from provisioner.common.errors import GpuprovError, ProviderError
from provisioner.lifecycle.images.disk import tools
from provisioner.machines.installer import disk_image
from provisioner.machines.journal import Journal
from provisioner.transport import ssh_pins
from tests.support import golden, small_disk
from tests.support.bmc_site import Site, powered_off_site


def lacking() -> str:
    try:
        tools.require()
    except GpuprovError as error:
        return f"{error.message}: {error.hint}"
    names = ("xorriso", "grub-mkrescue", "mformat", "zstd", "mmdebstrap", "ssh-keygen")
    lacks = [name for name in names if shutil.which(name) is None]
    return f"needs {' '.join(lacks)}" if lacks else "" if os.geteuid() == 0 else "needs root, to make the image"


pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(lacking()), reason=lacking())]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    with pytest.MonkeyPatch.context() as patch:
        file = small_disk.make(tmp_path_factory.mktemp("golden"), patch)
    with file.open("rb") as stream:
        return file, hashlib.file_digest(stream, "sha256").hexdigest()


@pytest.fixture
def site(
    image: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Site]:
    with powered_off_site(tmp_path, image, monkeypatch, request.node.name) as installed_site:
        yield installed_site


def until(true: Any, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(2)


def test_from_power_off_to_sshd_and_again(site: Site) -> None:
    nodes = site.up()
    bmc, machine = site.machine.bmc, site.machine
    assert [bool(image) for image in machine.starts] == [True, False], machine.said()[-3000:]
    assert (bmc.inserted, bmc._boot()["BootSourceOverrideEnabled"]) == ([], "Disabled")
    pinned = Journal(site.paths.site("here") / "bmc.json").load()["dgx01.lab"].host_key
    assert pinned.startswith("ssh-ed25519 ")
    assert [key for _, key in ssh_pins.load_pins(site.paths).values()] == [pinned], "pinned before anybody asked"
    assert site.contact(nodes) == {}
    assert ssh_pins.load_pins(site.paths) == {"train-0": ("dgx01.lab", pinned)}
    assert site.ask("hostname; hostname -f; sudo -n id -u; sudo cat /etc/gpuprov-installed").split()[:3] == [
        "dgx01", "dgx01.lab", "0",
    ]  # fmt: skip
    size = int(site.ask("lsblk -bno SIZE $(findmnt -no SOURCE /)"))
    assert size > 38 * 2**30, "the last partition has grown"
    assert int(site.ask("df --output=size -B1 / | tail -n 1")) > 35 * 2**30, "and its file system"
    assert "Boot" in site.ask("sudo sh -c 'ls /sys/firmware/efi/efivars | grep ^Boot0'")
    previous_ids = site.ask("cat /proc/sys/kernel/random/boot_id; cat /etc/machine-id").split()
    site.ask("sudo systemctl reboot")
    until(lambda: len(machine.starts) == 3, 300)
    until(lambda: site.ask("cat /proc/sys/kernel/random/boot_id").strip() not in ("", previous_ids[0]), 1500)
    assert site.ask("cat /etc/machine-id") == previous_ids[1]
    assert site.up() == nodes
    assert len(machine.starts) == 3, "a machine that is installed is left alone"


def tiny(file: Path) -> tuple[Path, str]:
    """What looks like a disk that starts by UEFI, and holds no system."""
    return golden.raw(file, 64), hashlib.sha256(file.read_bytes()).hexdigest()


def holds(disk: Path, pattern: int, size: int) -> bool:
    """Whether a disk begins with so many bytes of a pattern."""
    done = tools.run(["qemu-io", "-f", "qcow2", "-c", f"read -P {pattern} 0 {size}", disk], 60)
    return "failed" not in done


def test_what_is_refused_is_said_and_leaves_nothing_that_starts(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = site.machine
    site.image = tiny(site.folder / "tiny.raw")
    tools.run(["qemu-io", "-f", "qcow2", "-c", "write -P 171 0 512", machine.disk], 60)
    with pytest.raises(ProviderError, match="nothing was written: a disk of it holds data") as refused:
        site.up()
    assert "GPU-0001" in refused.value.hint
    assert "NOT INSTALLED: disk /dev/nvme0n1 holds data" in machine.said()
    until(lambda: machine.bmc.system["PowerState"] == "Off", 60)
    assert holds(machine.disk, 171, 512) and machine.bmc.inserted == []
    site.reinstall = ("GPU-0001",)
    prepare = disk_image.prepare
    with monkeypatch.context() as patch:  # what arrives is another image than cluster.yaml names
        patch.setattr(disk_image, "prepare", lambda *arguments: replace(prepare(*arguments), sha256="0" * 64))
        with pytest.raises(ProviderError, match="what it fetched three times was not the image"):
            site.up()
    until(lambda: machine.bmc.system["PowerState"] == "Off", 60)
    assert holds(machine.disk, 0, 1 << 20)
    with pytest.raises(ProviderError, match="holds no system with cloud-init and sshd"):
        site.up()
    until(lambda: machine.bmc.system["PowerState"] == "Off", 60)
    assert holds(machine.disk, 0, 1 << 20)
    assert site.step() == "failed" and len(machine.starts) == 3


def test_a_machine_that_is_started_by_bios_refuses(site: Site) -> None:
    site.machine.uefi, site.image = False, tiny(site.folder / "tiny.raw")
    with pytest.raises(ProviderError, match="it was started by BIOS, and a disk image starts by UEFI alone"):
        site.up()
    assert "NOT INSTALLED: it was started by BIOS" in site.machine.said()
