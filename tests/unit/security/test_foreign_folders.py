"""As root in a folder of somebody else's: its owner renames files and puts links in their place at the worst moment."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from provisioner.cli.main import run
from provisioner.common import directories
from provisioner.common.ownership import refuse_foreign_output
from provisioner.common.paths import private_dir, remove_tree, touch, write_whole

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be made to write what a user may not")
OTHER = 65534
"""User id of nobody, who owns the folder."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    foreign_folder = tmp_path / "theirs"
    foreign_folder.mkdir(mode=0o755)
    os.chown(foreign_folder, OTHER, OTHER)
    return foreign_folder


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    secret_file = tmp_path / "roots" / "secret"
    secret_file.parent.mkdir()
    secret_file.write_text("a secret")
    secret_file.chmod(0o600)
    return secret_file


def foreign_link(path: Path, target: Path) -> Path:
    path.symlink_to(target)
    os.lchown(path, OTHER, OTHER)
    return path


def at_fsync(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    fsync = os.fsync

    def watched(handle: int) -> None:
        fsync(handle)
        act()

    monkeypatch.setattr(os, "fsync", watched)


@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_a_file_that_is_swapped_for_a_link_while_it_is_written(
    folder: Path, secret: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    secret.chmod(0o640)

    def swap() -> None:
        (temporary,) = folder.iterdir()
        temporary.rename(folder / "elsewhere")
        foreign_link(temporary, secret)

    at_fsync(monkeypatch, swap)
    with pytest.raises(OSError, match="another process replaced the file"):
        write_whole(folder / "cluster.lock", "text", mode=mode)
    assert (secret.stat().st_mode & 0o777, secret.read_text()) == (0o640, "a secret")


def test_init_in_such_a_folder(
    folder: Path, secret: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    at_fsync(monkeypatch, lambda: [foreign_link(path, secret) for path in folder.iterdir() if not path.unlink()])
    assert run(["init", str(folder / "c1.yaml")]) == 2
    assert "c1.yaml: cannot be written: another process replaced the file" in capsys.readouterr().err
    assert secret.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "write",
    [
        lambda at: write_whole(at / "new", "text"),
        lambda at: private_dir(at / "a" / "b"),
        lambda at: touch(at / "new"),
        lambda at: directories.append(at / "new"),
        lambda at: remove_tree(at / "secret"),
        remove_tree,
    ],
)
def test_no_directory_is_reached_through_a_link_of_theirs(
    folder: Path, secret: Path, write: Callable[[Path], object]
) -> None:
    link = foreign_link(folder / ".gpuprov", secret.parent)
    with pytest.raises(OSError, match=r"symbolic link|Not a directory"):
        write(link)
    assert [path.name for path in secret.parent.iterdir()] == ["secret"]


def test_links_of_root_and_of_who_called_sudo_are_followed(
    folder: Path, secret: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "roots").symlink_to(secret.parent)
    write_whole(private_dir(folder / "roots" / "a") / "file", "text")
    foreign_link(folder / "theirs", secret.parent)
    monkeypatch.setenv("SUDO_UID", str(OTHER))
    monkeypatch.setenv("SUDO_GID", str(OTHER))
    write_whole(private_dir(folder / "theirs" / "b") / "file", "text")
    assert (secret.parent / "a" / "file").read_text() == (secret.parent / "b" / "file").read_text() == "text"


def test_a_circle_of_links_ends(folder: Path) -> None:
    (folder / "a").symlink_to("b")
    (folder / "b").symlink_to("a")
    with pytest.raises(OSError, match="Too many levels"):
        write_whole(folder / "a" / "file", "text")


def test_nothing_is_appended_to_what_is_not_a_plain_file_of_one_name(folder: Path, secret: Path) -> None:
    foreign_link(folder / "link", secret)
    os.link(secret, folder / "second-name")
    os.mkfifo(folder / "pipe")
    for name in ("link", "second-name", "pipe"):
        with pytest.raises(OSError):
            directories.append(folder / name)
    with pytest.raises(OSError):
        directories.move(folder / "link", folder / "target", mode=0o644)
    assert (secret.stat().st_mode & 0o777, secret.read_text()) == (0o600, "a secret")


def test_a_file_of_another_program_gets_its_mode_and_its_name(folder: Path) -> None:
    (folder / "made").write_text("whole")
    directories.move(folder / "made", folder / "out.iso")
    assert ((folder / "out.iso").stat().st_mode & 0o777, [p.name for p in folder.iterdir()]) == (0o600, ["out.iso"])


@pytest.mark.parametrize(
    ("owner", "mode", "message"),
    [
        (OTHER, 0o777, "uid 65534, whose folder it is, can change it"),
        (OTHER, 0o755, "uid 65534, whose folder it is, can change it"),
        (0, 0o777, "others may write to the folder (mode 0777)"),
    ],
)
def test_a_report_that_another_user_can_change_is_not_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], owner: int, mode: int, message: str
) -> None:
    reports, bundle = tmp_path / "reports", tmp_path / "bundle"
    reports.mkdir()
    os.chown(reports, owner, owner)
    reports.chmod(mode)
    bundle.mkdir()
    (bundle / "smi.txt").write_text("GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)\n")
    assert run(["verify", "--bundle", str(bundle), "--machine", "dgx-h100", "--report", str(reports)]) == 2
    assert message in capsys.readouterr().err
    assert list(reports.iterdir()) == []


@pytest.mark.parametrize("mode", [0o700, 0o1777])
def test_a_folder_of_ones_own_or_a_sticky_one_takes_the_report(tmp_path: Path, mode: int) -> None:
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports").chmod(mode)
    refuse_foreign_output(tmp_path / "reports", "report")
