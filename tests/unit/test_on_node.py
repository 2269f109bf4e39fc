"""What gpuprov changes on a machine that was there before it, recorded by the roles' modules and undone."""

from __future__ import annotations

import json
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
    made: list[tuple[str, ...]] = []

    def run(*argv: str) -> tuple[int, str]:
        made.append(argv)
        return 0, ""

    monkeypatch.setattr(on_node, "_run", run)
    return made


def begin(folder: Path, identity: str = "abc") -> dict[str, Any]:
    return on_node.begin({"folder": str(folder), "cluster": "lab", "identity": identity})


def undo(folder: Path, home: Path, identity: str = "abc") -> dict[str, Any]:
    return on_node.undo({"folder": str(folder), "identity": identity, "key": KEY, "home": str(home)})


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
    link, gone = tmp_path / "link", tmp_path / "gone"
    link.symlink_to("elsewhere")
    gone.write_text("theirs")
    begin(folder)
    module.note_file(str(link), "ours", str(folder))
    link.unlink()
    link.write_text("ours")
    module.note_file(str(gone), None, str(folder))
    gone.unlink()
    undo(folder, tmp_path)
    assert link.is_symlink() and str(link.readlink()) == "elsewhere"
    assert gone.read_text() == "theirs"


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


def test_a_machine_of_another_cluster_is_left_alone(record: Any, calls: list[Any], tmp_path: Path) -> None:
    _, folder = record
    begin(folder)
    assert begin(folder, "other") == {"foreign": "lab"}
    assert undo(folder, tmp_path, "other") == {"foreign": "lab"}
    assert json.loads((folder / "record.json").read_text())["identity"] == "abc"
    assert begin(folder) == {"ok": True}


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
    asked = {"folder": str(folder), "dgx": str(tmp_path / "dgx-release"), "cluster": "lab", "identity": "abc"}
    assert on_node.begin(asked) == {"vendors": "DGX OS 5.2.0 (DGX Server for DGX A100)"}
    assert not folder.exists()


def test_nothing_is_noted_where_no_record_was_begun(record: Any, tmp_path: Path) -> None:
    module, folder = record
    module.note_file(str(tmp_path / "file"), "ours", str(folder))
    module.note("holds", ["cuda"], str(folder))
    assert not folder.exists()
