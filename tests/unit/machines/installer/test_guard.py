"""The guard that an installer runs before it writes to a disk, over a made /sys/block and /dev."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.installer_disks import TB, Server


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path)


@pytest.mark.parametrize("hidden", ["1", None])
def test_the_paths_of_an_nvme_disk_with_two_ports_are_no_disks(server: Server, hidden: str | None) -> None:
    """md-raid-utilities/ledmon#152 and cybozu-go/sabakan#301 show what /sys/block has of such disks; a kernel before
    4.15 has no file `hidden`."""
    server.disk("nvme0c0n1", content=None, **({"hidden": hidden} if hidden else {}))
    if hidden is None:
        (server.root / "sys/block/nvme0c0n1/hidden").unlink()
    server.disk("nvme0n1")
    assert server.guard("disks") == ("", "")
    assert server.guard("smallest") == ("/dev/nvme0n1", "")


def test_a_disk_that_holds_something_is_not_overwritten(server: Server) -> None:
    server.disk("sda", content=b"\0" * 446 + b"\x80" + b"\0" * 4096)
    printed, reason = server.guard("disks")
    assert (printed, reason) == (
        "",
        "gpuprov: NOT INSTALLED: disk /dev/sda holds data or can't be read; "
        "say reinstall for this machine to overwrite it",
    )  # fmt: skip


def test_the_smallest_disk_that_is_large_enough(server: Server) -> None:
    server.disk("sda", 4 * TB)
    server.disk("sdb", 1_000_000)
    server.disk("sdc", TB)
    server.disk("sdd", TB // 2, removable="1")
    server.disk("sde", TB // 2, ro="1")
    server.disk("md0", TB // 2)
    assert server.guard("smallest") == ("/dev/sdc", "")


def test_a_machine_without_a_disk_is_told_so(server: Server) -> None:
    server.disk("nvme0c0n1", content=None, hidden="1")
    assert server.guard("disks")[1] == "gpuprov: NOT INSTALLED: no disk was found to install on"


def test_a_disk_whose_name_has_a_slash_is_guarded_like_any(server: Server) -> None:
    server.disk("cciss!c0d0", content=b"data")
    assert "disk /dev/cciss/c0d0 holds data" in server.guard("disks")[1]
    assert server.guard("smallest")[0] == "/dev/cciss/c0d0"


def test_a_disk_whose_beginning_cannot_be_read_is_not_blank(server: Server) -> None:
    server.disk("sda")
    (server.root / "bin/dd").write_text('#!/bin/sh\ncase "$*" in *skip=*) exec /bin/dd "$@" ;; *) exit 1 ;; esac\n')
    (server.root / "bin/dd").chmod(0o755)
    server.root.joinpath("dev/sda").write_bytes(b"\0" * (4 << 20))
    server.root.joinpath("sys/block/sda/size").write_text("8192\n")
    assert "can't be read" in server.guard("disks")[1]


def test_flash_of_the_firmware_and_of_a_card_is_no_disk(server: Server) -> None:
    server.disk("mtdblock0", content=b"firmware")
    server.disk("mmcblk0boot0", content=b"loader")
    server.disk("sda")
    assert server.guard("disks") == ("", "")


def test_a_disk_that_goes_meanwhile_is_none(server: Server) -> None:
    server.disk("sda")
    server.disk("sdb")
    (server.root / "sys/block/sdb/size").unlink()
    assert server.guard("smallest") == ("/dev/sda", "")
