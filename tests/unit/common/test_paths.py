"""Files are written whole or not at all, and what keeps one from being written is told with its name."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

from provisioner.cli.main import run
from provisioner.common.events import Event, jsonl_writer
from provisioner.common.paths import private_dir, remove_tree, write_whole


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", refuses)


def test_a_full_disk_leaves_what_was_there_and_names_the_file(tmp_path: Path, full: None) -> None:
    file = tmp_path / "state.json"
    file.write_text("before")
    with pytest.raises(OSError, match="No space left") as caught:
        write_whole(file, "after")
    assert caught.value.filename == str(file)
    assert file.read_text() == "before"
    assert list(tmp_path.iterdir()) == [file]


def test_init_on_a_full_disk_leaves_nothing_and_can_be_repeated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, full: None
) -> None:
    file = tmp_path / "cluster.yaml"
    assert run(["init", str(file)]) == 2
    assert capsys.readouterr().err == f"{file}: cannot be written: No space left on device\n"
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    assert run(["init", str(file)]) == 0
    assert file.stat().st_mode & 0o777 == 0o644
    assert run(["init", str(file)]) == 2


def test_events_that_can_not_be_written_name_their_file() -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as stream:
        write = jsonl_writer(stream)
        with pytest.raises(OSError, match="No space left") as caught:
            write(Event("run", "started", "begins"))
        assert caught.value.filename == "/dev/full"
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # or closing it fails again


def test_a_directory_into_which_somebody_still_writes_is_removed_all_the_same(tmp_path: Path) -> None:
    folder, over = tmp_path / "job_events", threading.Event()
    folder.mkdir()

    def write() -> None:
        for number in range(2000):
            if over.is_set():
                return
            with contextlib.suppress(FileNotFoundError):
                (folder / str(number)).touch()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(20):
            remove_tree(folder)
            assert not folder.exists()
            folder.mkdir()
    finally:
        over.set()
        writer.join()


def test_a_directory_that_may_not_be_removed_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(path: object, dir_fd: int) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(shutil, "rmtree", refuses)
    with pytest.raises(PermissionError):
        remove_tree(tmp_path)


def test_git_never_sees_a_run_directory_and_its_keys(tmp_path: Path) -> None:
    git = ["git", "-C", str(tmp_path), "-c", "core.excludesFile=/dev/null"]
    subprocess.run([*git, "init", "--quiet"], check=True)
    (private_dir(tmp_path / ".gpuprov" / "vision" / "ssh") / "id_ed25519").write_text("secret")
    (tmp_path / "cluster.yaml").write_text("name: vision\n")
    git_status = subprocess.run(
        [*git, "status", "--porcelain", "--untracked-files=all"], check=True, capture_output=True
    )
    assert git_status.stdout == b"?? cluster.yaml\n"
