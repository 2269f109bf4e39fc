"""What the program on a node makes of the outputs of apt, docker and /proc. tests/sandbox/test_maintain.py runs it with
the real ones."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from provisioner.lifecycle.maintain import on_node
from provisioner.lifecycle.maintain.on_node import Apt, NoAnswer

DEBIAN = """\
Inst libgnutls30 [3.7.9-2+deb12u5] (3.7.9-2+deb12u7 Debian-Security:12/oldstable-security [amd64]) []
Inst libnew (1.0-1 Debian-Security:12/oldstable-security [amd64])
Inst tzdata [2025b-0+deb12u1] (2026a-0+deb12u1 Debian:12-updates/oldstable-updates [all])
Inst libc6:i386 [2.36-9+deb12u13] (2.36-9+deb12u14 Debian-Security:12/oldstable-security [i386])
Conf libgnutls30 (3.7.9-2+deb12u7 Debian-Security:12/oldstable-security [amd64])
"""
UBUNTU = """\
Inst libssl3 [3.0.2-0ubuntu1.10] (3.0.2-0ubuntu1.18 Ubuntu:22.04/jammy-updates, Ubuntu:22.04/jammy-security [amd64])
Inst jq [1.6-2.1ubuntu3] (1.6-2.1ubuntu3.1 Ubuntu:22.04/jammy-updates [amd64])
Inst cuda-nvcc [12.8.1-1] (12.9.0-1 NVIDIA CUDA:jammy-security/jammy-security [amd64])
Inst linux-image-6.8.0-1 [6.8.0-1.1] (6.8.0-1.2 Ubuntu:22.04/jammy-security [amd64])
"""


@pytest.fixture
def outputs(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Part of a command → what it prints."""
    answers: dict[str, str] = {}

    def call(*argv: str, **_: Any) -> str:
        line = " ".join(argv)
        return next((text for part, text in answers.items() if part in line), "")

    monkeypatch.setattr(on_node, "call", call)
    return answers


def apt(monkeypatch: pytest.MonkeyPatch, folder: Path, identity: str, codename: str) -> Apt:
    monkeypatch.setattr(on_node, "distribution", lambda: (identity, codename))
    return Apt(str(folder), private=False)


def test_updates_of_debians_security_suite(
    tmp_path: Path, outputs: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs["upgrade"] = DEBIAN
    expected = {"libgnutls30": "3.7.9-2+deb12u7", "libc6:i386": "2.36-9+deb12u14"}
    assert apt(monkeypatch, tmp_path, "debian", "bookworm").updates() == expected


def test_updates_of_ubuntus_security_suite(
    tmp_path: Path, outputs: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs["upgrade"] = UBUNTU
    ubuntu = apt(monkeypatch, tmp_path, "ubuntu", "jammy")
    assert [*ubuntu.updates()] == ["libssl3", "linux-image-6.8.0-1"]
    assert on_node.choose(ubuntu, ["libssl3"]) == (
        {}, {"libssl3": "in the lock", "linux-image-6.8.0-1": "a kernel: not taken yet"},
    )  # fmt: skip


def test_what_is_on_hold_waits(tmp_path: Path, outputs: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    outputs |= {"--ignore-hold": UBUNTU, "upgrade": UBUNTU.splitlines()[1]}
    chosen = on_node.choose(apt(monkeypatch, tmp_path, "ubuntu", "jammy"), [])
    assert chosen == ({}, {"libssl3": "on hold", "linux-image-6.8.0-1": "a kernel: not taken yet"})


def test_other_distributions_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NoAnswer, match="'rocky'"):
        apt(monkeypatch, tmp_path, "rocky", "")


def test_without_a_source_of_security_updates_nobody_can_tell(
    tmp_path: Path, outputs: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ubuntu = apt(monkeypatch, tmp_path, "ubuntu", "jammy")
    outputs["policy"] = "     release v=22.04,o=Ubuntu,a=jammy-updates,n=jammy,l=Ubuntu,c=main,b=amd64\n"
    with pytest.raises(NoAnswer, match="no source for jammy-security"):
        ubuntu.update()
    outputs["policy"] += "     release v=22.04,o=Ubuntu,a=jammy-security,n=jammy,l=Ubuntu,c=main,b=amd64\n"
    ubuntu.update()


@pytest.mark.parametrize(
    ("name", "is_kernel"),
    [("linux-image-generic", True), ("linux-modules-6.8.0-1", True), ("linux-libc-dev", False), ("linux-base", False),
     ("linux-libc-dev:arm64", False), ("util-linux", False)],
)  # fmt: skip
def test_kernels(name: str, is_kernel: bool) -> None:
    assert on_node.is_kernel(name) is is_kernel


def test_files_by_age(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    for file in (old, new):
        file.write_text("x")
    (tmp_path / "link").symlink_to(old)
    (tmp_path / "folder").mkdir()
    os.utime(old, (time.time() - 40 * on_node.DAY_S,) * 2)
    assert on_node.files_of((f"{tmp_path}/*",), 30) == [str(old)]
    assert {*on_node.files_of((f"{tmp_path}/*",), 0)} == {str(old), str(new)}


def test_images_of_the_lock_and_of_containers_stay(outputs: dict[str, str]) -> None:
    images = [
        {"Id": "sha256:1", "RepoTags": ["nvcr.io/nvidia/pytorch:25.10-py3"], "RepoDigests": [], "Size": 1},
        {"Id": "sha256:2", "RepoTags": [], "RepoDigests": ["mirror:5000/x@sha256:beef"], "Size": 2},
        {"Id": "sha256:3", "RepoTags": ["in-use:1"], "RepoDigests": None, "Size": 4},
        {"Id": "sha256:4", "RepoTags": ["stale:1"], "RepoDigests": [], "Size": 8},
    ]
    outputs |= {
        "image ls": "sha256:1\nsha256:2\nsha256:3\nsha256:4\n",
        "ps --all": "c1\n",
        "container inspect": json.dumps([{"Image": "sha256:3"}]),
        "image inspect": json.dumps(images),
    }
    assert on_node.unused_images(["nvcr.io/nvidia/pytorch:25.10-py3", "sha256:beef"], []) == {"sha256:4": 8}


def test_containers_by_the_time_of_their_end(outputs: dict[str, str]) -> None:
    def ended(days: float) -> str:
        return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time.time() - days * on_node.DAY_S)) + ".123456789Z"

    rows = [{"Id": f"c{days}", "State": {"FinishedAt": ended(days)}} for days in (29, 31)]
    outputs |= {"ps --all": "c29\nc31\n", "container inspect": json.dumps(rows)}
    assert on_node.stopped_containers(30) == ["c31"]


@pytest.mark.parametrize(
    ("line", "is_replaced"),
    [
        ("7f1 r-xp 0002 08:01 1 /usr/lib/x86_64-linux-gnu/libc.so.6 (deleted)\n", True),
        ("7f1 r-xp 0002 08:01 1 /lib/x86_64-linux-gnu/libc-2.31.so (deleted)\n", True),
        ("7f1 r-xp 0002 08:01 1 /usr/lib/x86_64-linux-gnu/libc.so.6\n", False),
        ("7f1 rw-s 0002 00:01 1 /memfd:libc.so.6x (deleted)\n", False),
    ],
)
def test_a_replaced_libc(line: str, is_replaced: bool) -> None:
    assert bool(on_node.REPLACED_LIBC.search(line)) is is_replaced


@pytest.mark.parametrize(
    ("running", "age_s", "expected"),
    [
        ("6.8.0-100-generic", -60, "6.11.0-9-generic"),
        ("6.11.0-9-generic", -60, ""),
        ("6.8.0-100-generic", 60, ""),
    ],
)
def test_a_kernel_that_was_installed_since_the_last_boot(
    running: str, age_s: float, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`age_s`: seconds from its installation to the last boot."""
    names = ["6.8.0-100-generic", "6.8.0-99-generic", "6.11.0-9-generic", "5.15.0-1-generic"]
    booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    monkeypatch.setattr(on_node.glob, "glob", lambda _: [f"/boot/vmlinuz-{name}" for name in names])
    monkeypatch.setattr(on_node.os, "stat", lambda _: SimpleNamespace(st_ctime=booted - age_s))
    assert on_node.new_kernel(running) == expected
