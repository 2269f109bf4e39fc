"""Bare metal from power-off to sshd through its BMC, from a golden disk image: the machine is QEMU's, by emulation, its
BMC one that replays a real one. Minutes each, and root, to make the image."""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from provisioner import fleet, ssh
from provisioner.errors import GpuprovError, ProviderError
from provisioner.events import Events
from provisioner.images.disk import tools
from provisioner.installer import disk_image, serve
from provisioner.machines.existing import Way
from provisioner.machines.journal import Journal
from provisioner.machines.redfish import RedfishMachines
from provisioner.paths import ClusterPaths
from provisioner.providers.base import Installation
from provisioner.providers.hosts import Host
from tests.support import bmc as fake
from tests.support import golden, qemu_machine, small_disk
from tests.support.plans import cluster_spec, plan

MIRROR = os.environ.get("GPUPROV_TEST_DEBIAN", "http://deb.debian.org/debian")
TREE = "nvidia-dgx-h100"
WAIT_S = 2400.0


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


@dataclass
class Site:
    """One machine, and gpuprov's way of installing it."""

    folder: Path
    image: tuple[Path, str]
    machine: qemu_machine.Machine
    reinstall: tuple[str, ...] = ()
    said: list[str] = field(default_factory=list)
    credentials = "env:BMC"
    installation: Any = None

    def listed(self, groups: object = ()) -> list[Host]:
        there = self.machine
        return [Host("dgx01.lab", "train", "127.0.0.1", there.port, bmc=there.bmc.address, serial=there.serial)]

    def host_key(self, machine: str) -> str | None:
        return None

    @functools.cached_property
    def paths(self) -> ClusterPaths:
        return ClusterPaths(self.folder / "cluster.yaml", "lab", sandbox=False)

    def up(self) -> list[fleet.Node]:
        """What `gpuprov up` does with the machines before it configures them."""
        wanted = plan(cluster_spec("dgx-h100"))
        file, sha256 = self.image
        installation = Installation(None, "by-size", file, sha256, qemu_machine.HOST, MIRROR, self.reinstall, True)
        key = ssh.ensure_key(self.paths, None)
        events, way = Events(), Way(self.paths, {"train-0": "ubuntu"}, {}, key, "1234")
        events.subscribe(lambda event: self.said.append(f"{time.monotonic():.0f} {event.node}: {event.message}"))
        machines = RedfishMachines(
            "here", self, self, installation, [], way, events, WAIT_S, self.folder, "ubuntu", lambda _: None
        )  # fmt: skip
        return machines.apply(wanted, machines.plan(wanted), always=True)

    def contact(self, nodes: list[fleet.Node]) -> dict[str, ProviderError]:
        return fleet.contact(self.paths, nodes, {"train-0": "ubuntu"}, Events())

    def ask(self, command: str) -> str:
        done = subprocess.run(
            [*ssh.argv(self.paths, "train-0"), command], capture_output=True, text=True, timeout=120, check=False
        )
        return done.stdout.strip()

    def step(self) -> str:
        return Journal(self.paths.site("here") / "bmc.json").load()["dgx01.lab"].step


@pytest.fixture
def site(
    image: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Site]:
    monkeypatch.setenv("BMC_USER", "admin")
    monkeypatch.setenv("BMC_PASSWORD", "not-a-real-one")
    monkeypatch.setattr(serve, "serving", functools.partial(serve.serving, bind="127.0.0.1"))
    bmc = qemu_machine.Behind(copy.deepcopy(fake.tree(TREE)), fake.MANNERS[TREE])
    bmc.system.update(SerialNumber="GPU-0001", PowerState="Off")
    (tmp_path / "machine").mkdir()
    with contextlib.ExitStack() as running:
        running.enter_context(fake.serving(bmc, fake.certificate(tmp_path)))
        machine = qemu_machine.Machine(tmp_path / "machine", "GPU-0001", bmc)
        running.callback(machine.end)
        made = Site(tmp_path, image, machine)
        yield made
        log = os.environ.get("GPUPROV_TEST_LOG")
        if log:
            text = "\n".join(made.said) + "\n" + machine.said()
            Path(log, f"{request.node.name}.txt").write_text(text, encoding="utf-8")


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
    assert [key for _, key in ssh.load_pins(site.paths).values()] == [pinned], "pinned before anybody asked"
    assert site.contact(nodes) == {}
    assert ssh.load_pins(site.paths) == {"train-0": ("dgx01.lab", pinned)}
    assert site.ask("hostname; hostname -f; sudo -n id -u; sudo cat /etc/gpuprov-installed").split()[:3] == [
        "dgx01", "dgx01.lab", "0",
    ]  # fmt: skip
    size = int(site.ask("lsblk -bno SIZE $(findmnt -no SOURCE /)"))
    assert size > 38 * 2**30, "the last partition has grown"
    assert int(site.ask("df --output=size -B1 / | tail -n 1")) > 35 * 2**30, "and its file system"
    assert "Boot" in site.ask("sudo sh -c 'ls /sys/firmware/efi/efivars | grep ^Boot0'")
    before = site.ask("cat /proc/sys/kernel/random/boot_id; cat /etc/machine-id").split()
    site.ask("sudo systemctl reboot")
    until(lambda: len(machine.starts) == 3, 300)
    until(lambda: site.ask("cat /proc/sys/kernel/random/boot_id").strip() not in ("", before[0]), 1500)
    assert site.ask("cat /etc/machine-id") == before[1]
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
        patch.setattr(disk_image, "prepare", lambda *given: replace(prepare(*given), sha256="0" * 64))
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
