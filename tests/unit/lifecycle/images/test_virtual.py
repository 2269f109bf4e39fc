"""Builders that are virtual machines: killed after every step and gone on, failed at every step and cleaned up."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from provisioner.common.errors import GpuprovError, ProviderError
from provisioner.lifecycle.images import commands, virtual, work
from provisioner.lifecycle.images import disk_images as disk
from provisioner.lifecycle.images.disk import base_system
from provisioner.lifecycle.images.disk.first_boot import HostKey
from provisioner.lifecycle.images.manifest import Proof
from provisioner.machines.providers.baremetal.known_hosts import host_key
from tests.unit.lifecycle.images.test_disk import qemu
from tests.unit.lifecycle.images.test_pipeline import BINARY, METAL, Killed, World, opened, published, world

__all__ = ["world"]
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
PREPARED = ("base", "make", "install", "bootable", "generalise", "off")
STEPS = (*PREPARED, "sealed", "disk-proven")


@pytest.fixture
def metal(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """Virtual machines that are steps, at another port each time."""
    ports = iter(range(20001, 20099))

    def base(build: work.Build, name: str, folder: Path) -> None:
        (folder / "root").mkdir(exist_ok=True)
        world.step("base p4d")
        (folder / "root").rmdir()
        (folder / "disk.raw").write_bytes(b"base")

    @contextmanager
    def builder(raw: Path, seed: Path, console: Path, _how: str) -> Iterator[Any]:
        assert (raw.exists(), seed.exists()) == (True, True)
        console.write_text("booting")
        nothing = SimpleNamespace(wait_for_ssh=lambda _: None, running=lambda: None)
        yield SimpleNamespace(port=next(ports), power_off=lambda _: world.step("off p4d"), **vars(nothing))

    def seed(folder: Path, *_: str) -> Path:
        (folder / "seed.img").write_bytes(b"seed")
        return folder / "seed.img"

    def sealed(build: work.Build, name: str, folder: Path) -> Path:
        assert (virtual.folder_of(build, name) / "disk.raw").exists()
        (folder / "disk.raw").write_bytes(b"sealed")
        (folder / "disk.qcow2").write_bytes(b"sealed")
        world.step("sealed p4d")
        return folder / "disk.raw"

    def proven(build: work.Build, name: str) -> list[Proof]:
        world.step("disk-proven p4d")
        results = {"level": "image", "passed": 1, "warned": 0, "unknown": 0, "report": f"{name}-disk-boot-1.json"}
        private = build.folder / "proofs"
        private.mkdir(exist_ok=True)
        return [Proof(machine="m", node=f"{name}-0", **results)]  # type: ignore[arg-type]

    monkeypatch.setattr(virtual, "refuse_unmakeable", lambda _: None)
    monkeypatch.setattr(virtual, "_base", base)
    monkeypatch.setattr(virtual, "_bootable", lambda *_: world.step("bootable p4d"))
    monkeypatch.setattr(virtual, "sealed", sealed)
    monkeypatch.setattr(virtual.ssh_sockets, "disconnect", lambda *_: None)
    monkeypatch.setattr(virtual.ssh_keys, "ensure_key", lambda *_: KEY)
    monkeypatch.setattr(virtual.second_boot, "settle", lambda *_: None)
    monkeypatch.setattr(virtual.first_boot, "host_key", lambda _: HostKey("private", KEY))
    monkeypatch.setattr(virtual.first_boot, "seed", seed)
    monkeypatch.setattr(virtual.virtual_machine, "accelerator", lambda _: "tcg")
    monkeypatch.setattr(virtual.virtual_machine, "builder", builder)
    monkeypatch.setattr(disk, "_proven", proven)
    monkeypatch.setattr(disk.layout, "kernels", lambda _: ["6.1.0-1-amd64"])
    monkeypatch.setattr(disk.layout, "converted", lambda _: None)
    return world


def test_a_disk_is_made_of_the_machine_and_nothing_of_that_is_left(tmp_path: Path, metal: World) -> None:
    built = commands.build(opened(tmp_path, METAL), BINARY)
    target = built.targets["p4d"]
    assert [row.removesuffix(" p4d") for row in metal.steps] == [*STEPS, "publish"]
    assert (target.builder, target.proofs, target.residue) == ("virtual machine", (), ("host keys",))
    assert target.disk is not None
    assert (len(target.disk.proofs), target.proven_by) == (1, target.disk.proofs)
    assert len(published(tmp_path)) == 3
    assert not any(opened(tmp_path, METAL).folder.iterdir())


@pytest.mark.parametrize("step", STEPS)
def test_killed_at_any_step_it_goes_on(tmp_path: Path, metal: World, step: str) -> None:
    metal.die = f"{step} p4d"
    with pytest.raises(Killed):
        commands.build(opened(tmp_path, METAL), BINARY)
    commands.build(opened(tmp_path, METAL), BINARY)
    assert len(published(tmp_path)) == 3
    is_rebuilt = step in ("base", "generalise", "off")  # a machine that is half taken apart is of no more use
    assert metal.steps.count("base p4d") == (2 if is_rebuilt else 1)
    assert metal.steps.count("install p4d") == (2 if step in PREPARED[2:] else 1)


@pytest.mark.parametrize("step", STEPS)
def test_failed_at_any_step_it_leaves_its_console_alone(tmp_path: Path, metal: World, step: str) -> None:
    metal.fails = f"{step} p4d"
    with pytest.raises(ProviderError, match=f"{step} p4d does not work"):
        commands.build(opened(tmp_path, METAL), BINARY)
    assert published(tmp_path) == []
    (failed,) = commands.failed(opened(tmp_path, METAL))
    remaining_files = [
        path for path in Path(failed.evidence).rglob("*") if path.parent.name == "p4d" and path.is_file()
    ]
    assert [path.name for path in remaining_files] == ([] if step == "base" else ["console.log"])
    assert not list(Path(failed.evidence).rglob("*.raw"))
    assert not list(Path(failed.evidence).rglob("seed.img"))


def test_the_machine_is_a_host_of_this_computer_with_a_pinned_key(tmp_path: Path, metal: World) -> None:
    metal.die = "install p4d"
    with pytest.raises(Killed):
        commands.build(opened(tmp_path, METAL), BINARY)
    recipe = opened(tmp_path, METAL)
    (file,) = recipe.folder.glob("*/p4d/build/cluster.yaml")
    site = yaml.safe_load(file.read_text())["sites"]["virginia"]
    assert site["hosts"] == {"builder": {"address": "127.0.0.1", "port": 20001}}  # none of the site's own
    assert host_key(site["host_keys"], ("127.0.0.1",), 20001) == KEY


def test_its_power_button_is_pressed_and_one_that_stays_on_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listens = "import sys, time\nfor line in sys.stdin:\n    'powerdown' in line and sys.exit(0)\ntime.sleep(60)"
    qemu(tmp_path, listens, monkeypatch)
    for name in ("disk.raw", "seed.img"):
        (tmp_path / name).write_bytes(b"")
    builder_arguments = (tmp_path / "disk.raw", tmp_path / "seed.img", tmp_path / "console.log", "tcg")
    with virtual.virtual_machine.builder(*builder_arguments) as guest:
        command_line = " ".join(map(str, guest.process.args))  # type: ignore[arg-type]
        guest.power_off(30)
    assert "restrict=on" not in command_line
    assert f"-smp {max(2, min(os.cpu_count() or 1, 8))} " in command_line
    (tmp_path / "bin" / "qemu-system-x86_64").write_text(f"#!{sys.executable} -S\nimport time; time.sleep(60)")
    with (
        virtual.virtual_machine.builder(*builder_arguments) as guest,
        pytest.raises(ProviderError, match="it is not off 1 s after"),
    ):
        guest.power_off(1)
    assert guest.process.returncode is not None


def test_a_mirror_of_ones_own_is_asked_alone() -> None:
    row = base_system.ARCHIVES["debian-12"]
    assert row.sources("http://mirror.lab/debian") == ["deb http://mirror.lab/debian bookworm main"]
    assert [line.split()[2] for line in row.sources(None)] == ["bookworm", "bookworm-updates", "bookworm-security"]


def test_mmdebstrap_sees_mounts_that_nobody_else_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command_lines: list[list[str]] = []
    monkeypatch.setattr(
        base_system.tools,
        "run",
        lambda command, *_, **__: command_lines.append([str(argument) for argument in command]),
    )
    keyring = tmp_path / "keys.gpg"
    keyring.touch()
    rows = {name: replace(row, keyring=keyring) for name, row in base_system.ARCHIVES.items()}
    monkeypatch.setattr(base_system, "ARCHIVES", rows)
    base_system.make("ubuntu-24.04", None, tmp_path / "root")
    assert command_lines[0][: len(base_system.NAMESPACE)] == list(base_system.NAMESPACE)
    assert f"--keyring={keyring}" in command_lines[0]
    assert command_lines[0][-1] == "deb http://archive.ubuntu.com/ubuntu noble-security main restricted universe"
    with pytest.raises(GpuprovError, match=r"not of ubuntu-22\.04"):
        base_system.make("ubuntu-22.04", None, tmp_path / "root")
