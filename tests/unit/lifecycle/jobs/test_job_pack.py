"""What of a folder goes to the nodes."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from provisioner.common.errors import GpuprovError
from provisioner.lifecycle.jobs import pack


def names(folder: Path) -> set[str]:
    stream = io.BytesIO()
    pack.pack(folder, stream)
    stream.seek(0)
    with tarfile.open(fileobj=stream) as archive:
        assert {(member.uid, member.gid, member.uname) for member in archive} <= {(0, 0, "root")}
        return {member.name for member in archive}


def test_files_and_folders_but_what_is_ignored(tmp_path: Path) -> None:
    for name in (
        "train.py",
        "data/a.bin",
        "data/keep.txt",
        ".git/config",
        ".gpuprov/x/key",
        "src/__pycache__/a.pyc",
        "src/a.py",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / ".gpuprovignore").write_text("data/*\n!data/keep.txt\n")
    assert names(tmp_path) == {"train.py", "data", "data/keep.txt", "src", "src/a.py"}


def test_content_and_links_arrive(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(bytes(range(256)) * 1000)
    (tmp_path / "empty").touch()
    (tmp_path / "link").symlink_to("a.bin")
    stream = io.BytesIO()
    packed = pack.pack(tmp_path, stream)
    assert (packed.files, packed.size) == (2, 256_000)
    stream.seek(0)
    with tarfile.open(fileobj=stream) as archive:
        content = archive.extractfile("a.bin")
        assert content is not None and content.read() == bytes(range(256)) * 1000
        assert archive.getmember("link").linkname == "a.bin"


def test_a_private_key_stays_here(tmp_path: Path) -> None:
    (tmp_path / "id").write_text("-----BEGIN OPENSSH PRIVATE " + "KEY-----\nabc\n")
    with pytest.raises(GpuprovError, match="id is a private key"):
        names(tmp_path)
    (tmp_path / ".gpuprovignore").write_text("id\n")
    assert names(tmp_path) == set()


def test_a_folder_of_data_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack, "LIMIT", 1000)
    (tmp_path / "data").write_bytes(b"x" * 1001)
    with pytest.raises(GpuprovError, match="more than"):
        names(tmp_path)
