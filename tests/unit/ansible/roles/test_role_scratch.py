"""gpuprov-scratch on simulated disks: what it takes, what it leaves alone, what it makes again."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from provisioner.sandbox.node import state, storage
from tests.support.role_script import load, on_node
from tests.support.sandbox_node import MakeNode, Node
from tests.unit.sandbox.conftest import make_node

__all__ = ["make_node"]  # the fixture of the simulator's own tests


class Scratch:
    """The script on a node; `said` is what it wrote to standard error the last time."""

    def __init__(
        self, node: Node, module: ModuleType, mount_point: Path, disks: int | str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.node, self.module, self.place, self.disks = node, module, mount_point, disks
        fine = subprocess.CompletedProcess(["udevadm"], 0, "", "")
        self.called = on_node(node, monkeypatch, module, udevadm=lambda _arguments: fine)

    def run(self, *more: str) -> tuple[int, str, str]:
        self.called.clear()
        self.node.capsys.readouterr()
        models = ("--network-model", "Elastic Block Store")
        code = self.module.main(["--mount", str(self.place), "--disks", str(self.disks), *models, *more])
        captured = self.node.capsys.readouterr()
        return code, captured.out.strip(), captured.err

    def formatted(self) -> bool:
        return any(command[0].startswith("mkfs") or "--create" in command for command in self.called)


def change(edit: Any) -> None:
    machine = state.hardware()
    edit(machine)
    state.write(state.HARDWARE, machine)


def reboot(node: Node) -> None:
    """/run is empty afterwards, and udev assembles what is whole."""
    for file in (storage.ACTIVE, storage.MOUNTS):
        (node.root / file).unlink(missing_ok=True)
    storage.assemble_all()


@pytest.fixture
def scratch(make_node: MakeNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scratch:
    """p4d.24xlarge: eight local disks, and an EBS volume with the system."""
    module = load("scratch", "files/gpuprov_scratch.py")
    return Scratch(make_node("p4d.24xlarge"), module, tmp_path / "scratch", 8, monkeypatch)


def test_eight_disks_become_one_and_a_second_run_changes_nothing(scratch: Scratch) -> None:
    code, out, err = scratch.run()
    assert (code, err) == (0, "")
    assert out.startswith("changed: made xfs over nvme1n1, nvme2n1")
    create = next(command for command in scratch.called if "--create" in command)
    assert "--raid-devices=8" in create
    assert "/dev/nvme0n1" not in create
    assert scratch.place.stat().st_mode & 0o7777 == 0o1777
    assert scratch.run()[:2] == (0, "unchanged")
    assert not scratch.formatted()


def test_one_disk_needs_no_array(make_node: MakeNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = make_node("g5.xlarge")
    single = Scratch(node, load("scratch", "files/gpuprov_scratch.py"), tmp_path / "s", 1, monkeypatch)
    code, out, err = single.run("--filesystem", "ext4")
    assert (code, err) == (0, "")
    assert "made ext4 over nvme1n1" in out
    assert not any(command[0] == "mdadm" for command in single.called)
    reboot(node)
    assert single.run("--filesystem", "ext4")[1] == f"changed: mounted at {single.place}"


def test_after_a_reboot_the_same_filesystem_is_mounted(scratch: Scratch) -> None:
    scratch.run()
    previous_content = storage.content()
    reboot(scratch.node)
    assert scratch.run()[:2] == (0, f"changed: mounted at {scratch.place}")
    assert storage.content() == previous_content


def test_an_array_that_nobody_assembled_is_assembled(scratch: Scratch) -> None:
    scratch.run()
    reboot(scratch.node)
    (scratch.node.root / storage.ACTIVE).unlink()
    assert scratch.run()[:2] == (0, f"changed: assembled the array; mounted at {scratch.place}")
    assert not scratch.formatted()


def test_disks_that_come_back_empty_are_made_again(scratch: Scratch) -> None:
    """A stop and a start on a cloud: other disks, nothing on them."""
    scratch.run()
    (scratch.node.root / storage.CONTENT).unlink()
    reboot(scratch.node)
    assert scratch.run()[1].startswith("changed: made xfs")


def test_a_missing_disk_is_refused_and_nothing_is_formatted(scratch: Scratch) -> None:
    change(lambda m: m["disks"].pop())
    code, _, err = scratch.run()
    assert code == 1
    assert "has 8 local NVMe disks, and 7 that are empty are there" in err
    assert "nvme0n1 is a network disk (Amazon Elastic Block Store)" in err
    assert not scratch.formatted()


def several(make_node: MakeNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scratch:
    """An Azure machine, whose disks are taken however many there are."""
    node = make_node("Standard_ND96amsr_A100_v4")
    return Scratch(node, load("scratch", "files/gpuprov_scratch.py"), tmp_path / "s", "any", monkeypatch)


def test_where_no_source_says_how_many_all_that_are_alike_are_taken(
    make_node: MakeNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = several(make_node, tmp_path, monkeypatch)
    change(lambda m: m["disks"].pop())
    code, out, err = scratch.run()
    assert (code, err) == (0, "")
    create = next(command for command in scratch.called if "--create" in command)
    assert "--raid-devices=7" in create
    assert scratch.run()[:2] == (0, "unchanged")
    reboot(scratch.node)
    assert scratch.run()[:2] == (0, f"changed: mounted at {scratch.place}")
    assert "made xfs" in out


def test_disks_of_two_kinds_are_not_put_together(
    make_node: MakeNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = several(make_node, tmp_path, monkeypatch)
    change(lambda m: m["disks"][0].update(bytes=10**12))
    code, _, err = scratch.run()
    assert code == 1 and "not of one model and size" in err
    assert not scratch.formatted()
    change(lambda m: m["disks"].clear())
    code, _, err = scratch.run()
    assert code == 1 and "not of one model and size: none" in err


def test_an_array_says_itself_how_many_disks_it_has(
    make_node: MakeNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = several(make_node, tmp_path, monkeypatch)
    scratch.run()
    change(lambda m: m["disks"].pop())
    reboot(scratch.node)
    code, _, err = scratch.run()
    assert code == 1 and "consists of 8 disks, and 7 of them are there" in err


HELD = {
    "a filesystem": ({"fstype": "ext4", "label": "data", "uuid": "1"}, "nvme3n1 holds ext4"),
    "another array": ({"fstype": "linux_raid_member", "label": "db:0", "uuid": "2"}, "nvme3n1 holds linux_raid_member"),
}


@pytest.mark.parametrize("case", HELD)
def test_a_disk_that_holds_something_is_never_taken(scratch: Scratch, case: str) -> None:
    holds, message = HELD[case]
    serial = state.hardware()["disks"][2]["serial"]
    state.write(storage.CONTENT, {serial: holds})
    code, _, err = scratch.run()
    assert code == 1
    assert message in err
    assert not scratch.formatted()
    assert storage.content() == {serial: holds}


def test_a_disk_with_partitions_is_never_taken(scratch: Scratch) -> None:
    """As the system disk of a machine without a cloud: the same model as the others."""
    part = {"name": "nvme3n1p1", "bytes": 1000, "mountpoint": "/data"}
    change(lambda m: m["disks"][2].update(partitions=[part]))
    code, _, err = scratch.run()
    assert code == 1
    assert "nvme3n1 has partitions" in err
    assert not scratch.formatted()


def test_what_lsblk_does_not_know_is_read_from_the_disk(scratch: Scratch, monkeypatch: pytest.MonkeyPatch) -> None:
    """udev's knowledge is old: lsblk shows an empty disk, blkid -p finds a filesystem."""
    blkid_result = subprocess.CompletedProcess(["blkid"], 0, "DEVNAME=/dev/nvme1n1\nTYPE=btrfs\n", "")
    scratch.called = on_node(scratch.node, monkeypatch, scratch.module, blkid=lambda _arguments: blkid_result)
    code, _, err = scratch.run()
    assert code == 1
    assert "nvme1n1 holds btrfs" in err
    assert not scratch.formatted()


def test_a_lost_member_is_said_and_the_rest_stays_as_it_is(scratch: Scratch) -> None:
    scratch.run()
    change(lambda m: m["disks"][4].update(serial="SIM-NEW"))
    reboot(scratch.node)
    previous_content = storage.content()
    code, _, err = scratch.run()
    assert code == 1
    assert "consists of 8 disks, and 7 of them are there" in err
    assert "empty: nvme5n1" in err
    assert storage.content() == previous_content


def test_files_below_the_mount_point_are_not_hidden(scratch: Scratch) -> None:
    scratch.place.mkdir()
    (scratch.place / "results.csv").write_text("1")
    code, _, err = scratch.run()
    assert code == 1
    assert "holds files on the root disk" in err
    assert "results.csv" in err


def test_a_mounted_scratch_is_not_moved(scratch: Scratch, tmp_path: Path) -> None:
    scratch.run()
    scratch.place = tmp_path / "elsewhere"
    code, _, err = scratch.run()
    assert code == 1
    assert "unmount it" in err


def test_a_tool_that_is_missing_is_named(scratch: Scratch, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(scratch.module.subprocess, "run", fail)
    assert scratch.run()[2] == "gpuprov-scratch: lsblk is not installed\n"


def test_half_made_is_said(scratch: Scratch) -> None:
    """Cut off between the array and its filesystem."""
    scratch.run()
    array = next(c["array"] for c in storage.content().values() if "array" in c)
    state.write(storage.CONTENT, {k: v for k, v in storage.content().items() if k != array})
    reboot(scratch.node)
    code, _, err = scratch.run()
    assert code == 1
    assert "has no filesystem" in err
