"""Disks: what they are known by, how they are laid out, and virtual machines that answer, end early or never answer."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from provisioner import spec
from provisioner.common.errors import GpuprovError, ProviderError
from provisioner.lifecycle.images.disk import first_boot, layout, tools, virtual_machine
from provisioner.lifecycle.images.disk.identity import Identity
from tests.support.sandbox_cluster import ROOT

MADE = datetime(2026, 1, 31, 3, 15, tzinfo=UTC)
GREETS = """\
import socket, sys, time
console = next(word for word in sys.argv if word.startswith("file:"))[5:]
open(console, "w").write("BdsDxe: starting Boot0001\\n")
forward = next(word for word in sys.argv if "hostfwd" in word)
port = int(forward.split("hostfwd=tcp:127.0.0.1:")[1].split("-")[0])
there = socket.create_server(("127.0.0.1", port))
while True:
    there.accept()[0].sendall(b"SSH-2.0-test\\r\\n")
"""
SILENT = """\
import sys, time
console = next(word for word in sys.argv if word.startswith("file:"))[5:]
open(console, "w").write("Kernel panic - not syncing: no \\x1b[31mroot\\n")
time.sleep(600)
"""
HANGS = "import time; time.sleep(600)"
ENDS = "import sys; print('could not set up KVM', file=sys.stderr); sys.exit(1)"


def qemu(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that is called as QEMU is, and a firmware."""
    bin_folder = folder / "bin"
    bin_folder.mkdir()
    for name, body in (("qemu-system-x86_64", text), ("qemu-img", "import sys; open(sys.argv[-1], 'w').close()")):
        file = bin_folder / name
        file.write_text(f"#!{sys.executable} -S\n{body}")
        file.chmod(0o755)
    (folder / "firmware.fd").write_bytes(b"")
    monkeypatch.setattr(tools, "FIRMWARE", folder / "firmware.fd")
    monkeypatch.setattr(tools, "FIRMWARE_VARIABLES", folder / "firmware.fd")
    monkeypatch.setattr(tools, "PATH", "")
    monkeypatch.setenv("PATH", str(bin_folder))


def boot(folder: Path, seconds: float) -> tuple[int, subprocess.Popen[bytes]]:
    """Boot it and wait for ssh; its port and its process."""
    (folder / "disk.raw").write_bytes(b"")
    (folder / "seed.img").write_bytes(b"")
    with virtual_machine.booted(folder / "disk.raw", folder / "seed.img", folder / "console.log", "tcg") as guest:
        guest.wait_for_ssh(seconds)
    return guest.port, guest.process


def test_a_machine_that_greets_is_reached_at_this_computer_alone_and_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    qemu(tmp_path, GREETS, monkeypatch)
    port, child = boot(tmp_path, 30)
    assert port > 1023
    assert child.returncode is not None
    command_line = " ".join(map(str, child.args))  # type: ignore[arg-type]
    assert f"restrict=on,hostfwd=tcp:127.0.0.1:{port}-:22" in command_line
    assert "-nodefaults" in command_line
    assert not (tmp_path / "overlay.qcow2").exists()


def test_a_machine_that_never_answers_is_ended_and_its_console_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    qemu(tmp_path, SILENT, monkeypatch)
    with pytest.raises(
        ProviderError, match=r"did not answer within 3 s; its console ends with: Kernel panic"
    ) as caught:
        boot(tmp_path, 3)
    assert "\x1b" not in str(caught.value)
    assert "Kernel panic" in (tmp_path / "console.log").read_text()  # the evidence


def test_an_emulator_that_ends_is_told_with_its_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    qemu(tmp_path, ENDS, monkeypatch)
    with pytest.raises(ProviderError, match="QEMU ended with status 1: could not set up KVM"):
        boot(tmp_path, 30)


@pytest.mark.parametrize(("text", "accelerator"), [(SILENT, "kvm"), (HANGS, "tcg"), (ENDS, "tcg")])
def test_kvm_counts_where_a_guest_says_something(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, accelerator: str
) -> None:
    qemu(tmp_path, text, monkeypatch)
    monkeypatch.setattr(virtual_machine, "KVM", tmp_path / "firmware.fd")
    monkeypatch.setattr(virtual_machine, "FIRMWARE_S", 2.0)
    assert virtual_machine.accelerator(tmp_path) == accelerator
    monkeypatch.setattr(virtual_machine, "KVM", tmp_path / "missing")
    assert virtual_machine.accelerator(tmp_path) == "tcg"


def test_what_is_missing_is_said_with_its_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(tools, "PATH", "")
    monkeypatch.setattr(tools, "FIRMWARE", tmp_path / "none.fd")
    with pytest.raises(GpuprovError, match="not installed here") as caught:
        tools.require()
    assert caught.value.hint.endswith("dosfstools e2fsprogs genimage mtools ovmf qemu-system-x86 qemu-utils")
    with pytest.raises(GpuprovError, match="genimage is not installed"):
        tools.run(["genimage"], 1)


def test_a_tool_that_fails_or_hangs_is_told(tmp_path: Path) -> None:
    with pytest.raises(ProviderError, match="sh failed: error: no space"):
        tools.run(["sh", "-c", "echo error: no space >&2; exit 3"], 10)
    with pytest.raises(ProviderError, match="sleep did not finish in 1 s"):
        tools.run(["sleep", "20"], 1)


def test_the_same_inputs_have_the_same_uuids_and_others_other_ones() -> None:
    first, second, other = Identity.of("inputs"), Identity.of("inputs"), Identity.of("others")
    assert first == second
    fields = Identity.__dataclass_fields__
    assert not {getattr(first, name) for name in fields} & {getattr(other, name) for name in fields}
    assert len({getattr(first, name) for name in fields}) == len(fields)
    assert first.volume_id == f"{first.volume[:4]}-{first.volume[4:]}"


@pytest.mark.parametrize("name", ["a b", 'a"b', "a'b", "a$(id)", "a\nb", "a;b"])
def test_a_path_that_a_shell_would_read_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(GpuprovError, match="cannot read from this path"):
        layout.configuration(tmp_path / name, tmp_path, Identity.of("x"), MADE, 100)


def test_files_with_several_names_count_once(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"x" * (64 << 20))
    empty = layout.root_mib(tmp_path)
    (tmp_path / "two").hardlink_to(tmp_path / "one")
    assert layout.root_mib(tmp_path) == empty == int(64 * layout.FREE) + layout.FREE_MIB


@pytest.mark.skipif(shutil.which("genimage") is None, reason="genimage is not installed")
def test_two_disks_of_the_same_files_are_the_same_but_for_time_stamps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "FREE_MIB", 32)
    monkeypatch.setattr(layout, "ESP_MIB", 64)
    root, esp = tmp_path / "root", tmp_path / "esp"
    (root / "etc").mkdir(parents=True)
    (root / "etc" / "hostname").write_text("one\n")
    (esp / "EFI" / "BOOT").mkdir(parents=True)
    (esp / "EFI" / "BOOT" / "BOOTX64.EFI").write_bytes(b"MZ")
    for path in (root, *root.rglob("*")):  # a file that is read would get another time of access (relatime, mount(8))
        os.utime(path, (time.time() + 3600, MADE.timestamp()))
    identity = Identity.of("inputs")
    disks = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        time.sleep(1.1)  # into another second
        disks.append(layout.make(root, esp, tmp_path / name, identity, MADE))
    content, second_content = (path.read_bytes() for path in disks)
    begin, end = 1 << 20, (1 + layout.ESP_MIB) << 20
    # mtools before 4.0.43 stamps the folders of the EFI system partition with the time of day
    assert content[:begin] + content[end:] == second_content[:begin] + second_content[end:]
    assert len(content[end:]) > 32 << 20
    assert content[512:520] == b"EFI PART"  # the header of a GUID partition table
    copy = layout.converted(disks[0])
    subprocess.run(["qemu-img", "compare", disks[0], copy], check=True, capture_output=True, timeout=60)
    info = subprocess.run(["qemu-img", "info", "--output=json", copy], capture_output=True, timeout=60, check=True)
    assert json.loads(info.stdout)["format"] == "qcow2"


def offset(raw: Path) -> str:
    """The root file system of a disk, as e2fsprogs name it."""
    return f"{raw}?offset={(1 + layout.ESP_MIB) << 20}"


@pytest.mark.skipif(shutil.which("genimage") is None, reason="genimage is not installed")
def test_a_disk_of_a_machine_is_as_small_as_it_was_and_holds_nothing_that_was_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "FREE_MIB", 32)
    monkeypatch.setattr(layout, "ESP_MIB", 64)
    root, esp, identity = tmp_path / "root", tmp_path / "esp", Identity.of("inputs")
    (root / "var" / "lib" / "systemd").mkdir(parents=True)
    (root / "var" / "lib" / "systemd" / "random-seed").write_bytes(b"the same for all" * 32)
    (root / "host-key").write_bytes(b"of the builder alone" * 400)
    (root / "kept").write_bytes(b"a role's file")
    (esp / "loader" / "entries").mkdir(parents=True)
    (esp / "loader" / "random-seed").write_bytes(b"of the loader")
    (esp / "loader" / "entries" / "gpuprov-6.1.0-56-amd64.conf").write_text("title Debian\n")
    raw = layout.make(root, esp, tmp_path, identity, MADE)
    os.truncate(raw, 256 << 20)  # the builder's disk
    subprocess.run(["debugfs", "-w", "-R", "rm /host-key", offset(raw)], check=True, capture_output=True, timeout=60)
    assert b"of the builder alone" in raw.read_bytes()  # its blocks are free, and hold it
    (tmp_path / "sealed").mkdir()
    sealed_disk = layout.sealed(raw, tmp_path / "sealed", identity, MADE)
    content = sealed_disk.read_bytes()
    assert sealed_disk.stat().st_size < 128 << 20
    assert not {
        removed_text
        for removed_text in (b"of the builder alone", b"the same for all", b"of the loader")
        if removed_text in content
    }
    assert b"a role's file" in content
    assert layout.kernels(sealed_disk) == ["6.1.0-56-amd64"]
    assert content[512:520] == b"EFI PART"
    superblock = subprocess.run(
        ["dumpe2fs", "-h", offset(sealed_disk)], capture_output=True, text=True, check=True, timeout=60
    )
    assert identity.root in superblock.stdout


@pytest.mark.skipif(shutil.which("genimage") is None, reason="genimage is not installed")
def test_a_disk_of_a_machine_whose_file_system_is_damaged_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "FREE_MIB", 32)
    monkeypatch.setattr(layout, "ESP_MIB", 64)
    (tmp_path / "root" / "etc").mkdir(parents=True)
    (tmp_path / "esp" / "loader").mkdir(parents=True)
    raw = layout.make(tmp_path / "root", tmp_path / "esp", tmp_path, Identity.of("inputs"), MADE)
    command = ["debugfs", "-w", "-R", "set_inode_field /etc links_count 9", offset(raw)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    (tmp_path / "sealed").mkdir()
    with pytest.raises(ProviderError, match="e2fsck failed"):
        layout.sealed(raw, tmp_path / "sealed", Identity.of("inputs"), MADE)


def test_first_boot_gives_a_host_key_of_which_nothing_stays(tmp_path: Path) -> None:
    key = first_boot.host_key(tmp_path)
    assert list(tmp_path.iterdir()) == []
    text = first_boot.user_data("ubuntu", "ssh-ed25519 AAAA me", key)
    config = json.loads(text.removeprefix("#cloud-config\n"))
    assert config["ssh_keys"]["ed25519_public"] == key.public
    assert config["ssh_keys"]["ed25519_private"].splitlines()[0].strip("-") == " ".join(
        ("BEGIN", "OPENSSH", "PRIVATE", "KEY")
    )
    assert [user["name"] for user in config["users"]] == ["ubuntu"]


@pytest.mark.skipif(
    shutil.which("mcopy") is None or shutil.which("mkdosfs", path=tools.PATH) is None,
    reason="mtools or dosfstools is not installed",
)
def test_the_seed_is_a_small_disk_that_only_its_owner_reads(tmp_path: Path) -> None:
    file = first_boot.seed(tmp_path, "dgx-0", "#cloud-config\n{}\n")
    assert file.stat().st_mode & 0o077 == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["seed.img"]
    read = subprocess.run(["mtype", "-i", file, "::meta-data"], capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(read.stdout) == {"instance-id": "dgx-0", "local-hostname": "dgx-0"}
    assert b"CIDATA" in file.read_bytes()


@pytest.mark.parametrize("file", sorted((ROOT / "images").glob("*.yaml")), ids=lambda file: file.stem)
def test_the_recipes_here_can_be_built_from(file: Path) -> None:
    loaded = spec.load(file)
    assert loaded.image is not None
    assert spec.unready(file, loaded) == []  # a recipe for bare metal lists no hosts
