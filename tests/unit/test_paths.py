"""Files are written whole or not at all, and what keeps one from being written is told with its name."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from provisioner.cli.main import run
from provisioner.events import Events, jsonl_writer
from provisioner.paths import write_whole


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
        events = Events(jsonl_writer(stream))
        with pytest.raises(OSError, match="No space left") as caught:
            events("run", "started", "begins")
        assert caught.value.filename == "/dev/full"
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # or closing it fails again
