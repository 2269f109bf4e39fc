"""What gpuprov changes on a machine that was there before it, recorded by the roles' modules and undone."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from provisioner.machines import on_node
from tests.support.ansible_modules import shared

KEY = "ssh-ed25519 AAAA gpuprov-lab"


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The roles' module, noting in a folder of the test's."""
    folder = tmp_path / "lib" / "before"
    monkeypatch.setattr(on_node, "OWN_FILES", (str(tmp_path / "own"),))
    monkeypatch.setattr(on_node, "OWN_FOLDERS", (str(tmp_path / "lib" / "repositories"),))
    monkeypatch.setattr(on_node, "UNITS", tmp_path / "units")
    return shared("gpuprov_record"), folder


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    commands: list[tuple[str, ...]] = []

    def run(*argv: str) -> tuple[int, str]:
        commands.append(argv)
        return 0, ""

    monkeypatch.setattr(on_node, "_run", run)
    return commands


def request(
    folder: Path, identity: str = "abc", host: str = "dgx01", other_hosts: tuple[str, ...] = ()
) -> dict[str, Any]:
    return {"folder": str(folder), "cluster": "lab", "identity": identity, "host": host, "others": [*other_hosts]}


def begin(folder: Path, identity: str = "abc") -> dict[str, Any]:
    return on_node.begin(request(folder, identity))


def undo(folder: Path, home: Path, identity: str = "abc") -> dict[str, Any]:
    return on_node.undo({**request(folder, identity), "key": KEY, "home": str(home)})


def test_another_host_of_the_cluster_is_left_alone(calls: list[Any], record: Any, tmp_path: Path) -> None:
    """Two hosts have each other's address, and their keys were pinned anew."""
    _, folder = record
    begin(folder)
    previous_text = (folder / "record.json").read_text()
    other = request(folder, host="dgx02", other_hosts=("dgx01", "dgx03"))
    assert on_node.begin(other) == {"other": "dgx01"} == on_node.undo({**other, "key": KEY, "home": str(tmp_path)})
    assert (folder / "record.json").read_text() == previous_text and calls == []


def test_a_host_may_get_another_name(record: Any, tmp_path: Path) -> None:
    module, folder = record
    begin(folder)
    module.note("holds", ["cuda"], str(folder))
    renamed = request(folder, host="dgx01.lab", other_hosts=("dgx02",))
    assert on_node.begin(renamed) == {"ok": True, "new": False}
    written = json.loads((folder / "record.json").read_text())
    assert (written["host"], written["holds"]) == ("dgx01.lab", ["cuda"])
    assert on_node.begin(request(folder, host="dgx02", other_hosts=("dgx01.lab",))) == {"other": "dgx01.lab"}


def test_files_are_put_back_as_they_were(record: Any, calls: list[Any], tmp_path: Path) -> None:
    module, folder = record
    theirs, ours, both = tmp_path / "daemon.json", tmp_path / "gpuprov.d" / "new", tmp_path / "both"
    theirs.write_text("theirs")
    theirs.chmod(0o640)
    begin(folder)
    ours.parent.mkdir()
    for path in (theirs, ours, both):
        for text in ("ours", "ours again"):
            module.note_file(str(path), text, str(folder))
            path.write_text(text)
    both.write_text("ours, and a line of theirs")
    answer = undo(folder, tmp_path)
    assert (theirs.read_text(), theirs.stat().st_mode & 0o777) == ("theirs", 0o640)
    assert not ours.parent.exists()
    assert both.read_text() == "ours, and a line of theirs"
    assert f"{both}: changed since gpuprov wrote it" in answer["stays"]
    assert not folder.parent.exists()


def test_a_link_and_a_removed_file_come_back(record: Any, calls: list[Any], tmp_path: Path) -> None:
    module, folder = record
    link, removed_file = tmp_path / "link", tmp_path / "gone"
    link.symlink_to("elsewhere")
    removed_file.write_text("theirs")
    begin(folder)
    module.note_file(str(link), "ours", str(folder))
    link.unlink()
    link.write_text("ours")
    module.note_file(str(removed_file), None, str(folder))
    removed_file.unlink()
    undo(folder, tmp_path)
    assert link.is_symlink() and str(link.readlink()) == "elsewhere"
    assert removed_file.read_text() == "theirs"


def test_units_and_holds_are_those_of_the_record(record: Any, calls: list[Any], tmp_path: Path) -> None:
    module, folder = record
    begin(folder)
    (tmp_path / "units").mkdir()
    unit = tmp_path / "units" / "gpuprov-tuning.service"
    module.note_file(str(unit), "[Unit]", str(folder))
    unit.write_text("[Unit]")
    module.note("units", ["x.timer"], str(folder))
    module.note("holds", ["nvidia-open", "cuda"], str(folder))
    module.note("packages", ["cuda=13"], str(folder))
    answer = undo(folder, tmp_path)
    assert calls[:2] == [("systemctl", "disable", "--now", "x.timer"), ("systemctl", "disable", "--now", unit.name)]
    assert ("apt-mark", "unhold", "cuda", "nvidia-open") in calls
    assert any("1 packages: cuda=13" in sentence for sentence in answer["stays"])


def test_the_owners_keys_stay(calls: list[Any], record: Any, tmp_path: Path) -> None:
    _, folder = record
    (tmp_path / ".ssh").mkdir()
    keys = tmp_path / ".ssh" / "authorized_keys"
    theirs = "ssh-ed25519 AAAA me@desk\nssh-ed25519 BBBB gpuprov-lab\n"
    keys.write_text(theirs + KEY + "\n")
    begin(folder)
    undo(folder, tmp_path)
    assert keys.read_text() == theirs
    assert undo(folder, tmp_path) == {"done": [], "stays": []}, "once more, after a run that was killed"


def test_a_file_whose_backup_is_gone_stays(record: Any, calls: list[Any], tmp_path: Path) -> None:
    module, folder = record
    theirs = tmp_path / "daemon.json"
    theirs.write_text("theirs")
    begin(folder)
    module.note_file(str(theirs), "ours", str(folder))
    theirs.write_text("ours")
    (folder / "1").unlink()
    answer = undo(folder, tmp_path)
    assert theirs.read_text() == "ours"
    assert f"{theirs}: its backup {folder / '1'} is missing" in answer["stays"]


def test_a_file_that_can_not_be_put_back_holds_up_nothing(record: Any, calls: list[Any], tmp_path: Path) -> None:
    """And its backup is kept where it is said to be."""
    module, folder = record
    paths = [tmp_path / name / "file" for name in ("gone.d", "link.d", "there.d")]
    for path in paths:
        path.parent.mkdir()
        path.write_text(f"theirs: {path}")
    paths[1].unlink()
    paths[1].symlink_to("elsewhere")
    begin(folder)
    for path in paths:
        module.note_file(str(path), "ours", str(folder))
        path.unlink()
        path.write_text("ours")
    for path in paths[:2]:
        path.unlink()
        path.parent.rmdir()
    answer = undo(folder, tmp_path)
    assert paths[2].read_text() == f"theirs: {paths[2]}"
    assert f"{paths[2]} as it was before" in answer["done"]
    (message,) = (sentence for sentence in answer["stays"] if sentence.startswith(str(paths[0])))
    assert "not put back: No such file or directory" in message
    assert Path(message.rpartition(" ")[2]).read_text() == f"theirs: {paths[0]}"
    assert any(sentence.startswith(f"{paths[1]}: not put back: No such file") for sentence in answer["stays"])
    assert not folder.exists()
    assert undo(folder, tmp_path) == {"done": [], "stays": []}


def test_a_file_that_can_not_be_removed_holds_up_nothing(
    record: Any, calls: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, folder = record
    begin(folder)
    for name in ("fixed", "other"):
        module.note_file(str(tmp_path / name), "ours", str(folder))
        (tmp_path / name).write_text("ours")
    unlink = Path.unlink

    def refuse(path: Path, *, missing_ok: bool = False) -> None:
        if path.name == "fixed":
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(path))
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse)
    answer = undo(folder, tmp_path)
    assert f"{tmp_path / 'fixed'}: not removed: Operation not permitted" in answer["stays"]
    assert not (tmp_path / "other").exists() and not folder.exists()


def test_keys_are_all_there_when_the_disk_is_full(
    record: Any, calls: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, folder = record
    (tmp_path / ".ssh").mkdir()
    keys = tmp_path / ".ssh" / "authorized_keys"
    keys.write_text(f"ssh-ed25519 AAAA me@desk\n{KEY}\n")
    begin(folder)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        answer = undo(folder, tmp_path)
    assert answer["failed"] == f"gpuprov's key could not be taken out of {keys}: No space left on device"
    assert keys.read_text() == f"ssh-ed25519 AAAA me@desk\n{KEY}\n"
    assert [path.name for path in keys.parent.iterdir()] == [keys.name]
    assert undo(folder, tmp_path)["done"] == [f"gpuprov's key taken out of {keys}"]


def test_keys_keep_owner_mode_and_link(calls: list[Any], record: Any, tmp_path: Path) -> None:
    _, folder = record
    (tmp_path / ".ssh").mkdir()
    real, link = tmp_path / "keys", tmp_path / ".ssh" / "authorized_keys"
    real.write_text(f"{KEY}\nssh-ed25519 AAAA me@desk\n")
    real.chmod(0o640)
    owner = (1234, 1234) if os.getuid() == 0 else (os.getuid(), os.getgid())
    os.chown(real, *owner)
    link.symlink_to(real)
    undo(folder, tmp_path)
    status = real.stat()
    assert link.is_symlink() and real.read_text() == "ssh-ed25519 AAAA me@desk\n"
    assert (status.st_mode & 0o777, status.st_uid, status.st_gid) == (0o640, *owner)


@pytest.mark.parametrize(
    "text", ["", '{"cluster": "lab", "ident', "[]", "{}",
             '{"identity": "abc", "cluster": "lab", "host": "x", "files": {"/x": {}}}',
             '{"identity": "abc", "cluster": "lab", "host": "x", "files": {}, "units": 3}', "[" * 5000]
)  # fmt: skip
@pytest.mark.parametrize("do", ["begin", "undo"])
def test_a_damaged_record_is_said_and_nothing_is_touched(
    record: Any, calls: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, do: str
) -> None:
    _, folder = record
    begin(folder)
    (folder / "record.json").write_text(text)
    on_node.main({"do": do, "folder": str(folder), "cluster": "lab", "identity": "abc"})
    answer = json.loads(capsys.readouterr().out.removeprefix("gpuprov:"))
    assert answer["damaged"].startswith(f"{folder / 'record.json'}: ")
    assert (folder / "record.json").read_text() == text and calls == []


def test_what_the_system_refuses_is_an_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    on_node.main({"do": "begin", "folder": str(tmp_path / "file" / "before"), "cluster": "lab", "identity": "abc"})
    assert "Not a directory" in json.loads(capsys.readouterr().out.removeprefix("gpuprov:"))["failed"]


def test_a_machine_of_another_cluster_is_left_alone(record: Any, calls: list[Any], tmp_path: Path) -> None:
    _, folder = record
    begin(folder)
    assert begin(folder, "other") == {"foreign": "lab", "identity": "abc"}
    assert undo(folder, tmp_path, "other") == {"foreign": "lab", "identity": "abc"}
    assert json.loads((folder / "record.json").read_text())["identity"] == "abc"
    assert begin(folder) == {"ok": True, "new": False}


DGX = """\
DGX_NAME="DGX Server"
DGX_PRETTY_NAME="NVIDIA DGX Server"
DGX_SWBUILD_DATE="2021-08-18-20-11-12"
DGX_SWBUILD_VERSION="5.1.0"
DGX_COMMIT_ID="6933cd7"
DGX_PLATFORM="DGX Server for DGX A100"

DGX_OTA_VERSION="5.2.0"
DGX_OTA_DATE="Thu 24 Mar 2022 01:43:22 PM PDT"
"""
"""/etc/dgx-release of a DGX A100 after an update over the air, but for its serial number (a public terminal log)."""


def test_dgx_os_is_told_and_left_alone(record: Any, tmp_path: Path) -> None:
    _, folder = record
    (tmp_path / "dgx-release").write_text(DGX)
    dgx_request = {"folder": str(folder), "dgx": str(tmp_path / "dgx-release"), "cluster": "lab", "identity": "abc"}
    assert on_node.begin(dgx_request) == {"vendors": "DGX OS 5.2.0 (DGX Server for DGX A100)"}
    assert not folder.exists()


def test_nothing_is_noted_where_no_record_was_begun(record: Any, tmp_path: Path) -> None:
    module, folder = record
    module.note_file(str(tmp_path / "file"), "ours", str(folder))
    module.note("holds", ["cuda"], str(folder))
    assert not folder.exists()
