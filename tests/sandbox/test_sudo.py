"""With sudo: what is made in a person's folder is theirs, nothing else is touched, and without sudo they are told."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from provisioner.cli.main import run
from provisioner.common import ownership
from provisioner.common.paths import private_dir, write_whole
from provisioner.lifecycle.images import commands
from provisioner.lifecycle.images.recipe import open_recipe
from provisioner.lifecycle.session import open_cluster
from tests.support.person import GID, UID, not_theirs, their_folder, without_sudo
from tests.support.sandbox_cluster import SandboxCluster

pytestmark = pytest.mark.sandbox
__all__ = ["their_folder"]
RECIPE = """
name: vision
sites: {virginia: {provider: aws, region: us-east-1}}
groups: {p4d: {machine: p4d.24xlarge, count: 1}}
image: {}
"""


def test_files_and_directories_in_their_folder_are_theirs(their_folder: Path) -> None:
    assert run(["init", str(their_folder / "cluster.yaml")]) == 0
    write_whole(private_dir(their_folder / "a" / "b") / "c", "text")
    assert {p.name for p in their_folder.rglob("*")} == {"cluster.yaml", "a", "b", "c"}
    assert not_theirs(their_folder) == []


def test_what_lies_elsewhere_stays_as_it_is(their_folder: Path, tmp_path: Path) -> None:
    write_whole(private_dir(tmp_path / "a") / "c", "text")
    assert {p.lstat().st_uid for p in tmp_path.rglob("*")} == {0}


def test_what_other_programs_wrote_is_handed_over_in_the_end(their_folder: Path) -> None:
    root = private_dir(their_folder / ".gpuprov" / "vision.sandbox")
    (root / "deep" / "er").mkdir(parents=True)
    (root / "deep" / "er" / "log").write_text("x")
    (root / "link").symlink_to("/etc/passwd")
    ownership.watch(root)
    assert run(["catalog", "no-such-machine"]) == 2  # also where the command fails
    assert not_theirs(their_folder) == []
    assert Path("/etc/passwd").stat().st_uid == 0


def test_what_is_left_of_images_is_theirs(their_folder: Path) -> None:
    """Of a sandbox in the run directory of the recipe, else beside the recipe."""
    file = their_folder / "vision.yaml"
    file.write_text(RECIPE)
    for sandbox in (True, False):
        recipe = open_recipe(file, sandbox=sandbox)
        with commands.locked_recipe(recipe, "nightly") as run_dir:
            recipe.book.note_night({"at": "x"})
            assert not_theirs(run_dir) == not_theirs(recipe.book.folder) == []  # also where it is killed here
            (run_dir / "terraform.log").write_text("x")
    shutil.chown(file, UID, GID)
    assert run(["catalog", "no-such-machine"]) == 2
    assert not_theirs(their_folder) == []


@pytest.mark.parametrize("which", [".gpuprov", ".gpuprov/vision.sandbox"])
def test_no_link_is_followed(their_folder: Path, tmp_path: Path, which: str) -> None:
    """Somebody pointed the run directory, or the one above it, at what is root's."""
    target = tmp_path / "roots"
    (target / "vision.sandbox").mkdir(parents=True)
    (target / "vision.sandbox" / "secret").write_text("x")
    (their_folder / which).parent.mkdir(exist_ok=True)
    (their_folder / which).symlink_to(target if which == ".gpuprov" else target / "vision.sandbox")
    ownership.settle_one(their_folder / ".gpuprov" / "vision.sandbox")
    assert {p.lstat().st_uid for p in [target, *target.rglob("*")]} == {0}


def test_a_file_with_a_second_name_and_somebody_elses_stay(their_folder: Path) -> None:
    root = private_dir(their_folder / ".gpuprov" / "vision.sandbox")
    outside = their_folder / "outside"
    outside.write_text("root's")
    (root / "twice").hardlink_to(outside)
    (root / "daemon's").write_text("x")
    os.chown(root / "daemon's", 1, 1)
    ownership.settle_one(root)
    assert (outside.stat().st_uid, (root / "daemon's").stat().st_uid) == (0, 1)


def test_a_folder_of_somebody_else_is_not_touched(their_folder: Path) -> None:
    root = private_dir(their_folder / ".gpuprov" / "vision.sandbox")
    (root / "file").write_text("x")
    os.chown(their_folder, 1, 1)
    ownership.settle_one(root)
    assert (root / "file").stat().st_uid == 0


@pytest.mark.parametrize(("uid", "gid"), [("0", "0"), ("x", "1"), ("", ""), ("-1", "0")])
def test_only_an_ordinary_user_is_somebody(uid: str, gid: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_UID", uid)
    monkeypatch.setenv("SUDO_GID", gid)
    assert ownership.person() is None


def test_without_sudo_they_meet_the_lock_of_a_run_with_it(their_folder: Path) -> None:
    theirs = without_sudo(SandboxCluster.of_example("rtx4090", their_folder, count=1))
    with open_cluster(theirs.file, sandbox=True).alone_here("up"):
        refused = theirs.run("unlock", theirs.file, "--sandbox")
    assert refused.status == 5, refused.stderr
    assert "is locked by another run" in refused.stderr and "`gpuprov up`" in refused.stderr
    assert theirs.run("unlock", theirs.file, "--sandbox").status == 0


def test_without_sudo_they_are_told_what_needs_it(their_folder: Path) -> None:
    """Also where a run with sudo was killed before it could hand over what it had made."""
    theirs = without_sudo(SandboxCluster.of_example("rtx4090", their_folder, count=1))
    for arguments in (["up", "--yes"], ["plan"], ["lock"]):
        refused = theirs.run(arguments[0], theirs.file, "--sandbox", *arguments[1:])
        assert refused.status == 2
        assert "the sandbox needs root" in refused.stderr and "sudo" in refused.stderr
    assert theirs.run("validate", theirs.file, "--sandbox").status == 0
    assert not (their_folder / ".gpuprov").exists()

    private_dir(theirs.root)
    write_whole(theirs.root / "state.json", "{}\n")
    for path in (theirs.root / "state.json", theirs.root):
        os.chown(path, 0, 0)
    for arguments in (
        ["status"],
        ["status", "--offline"],
        ["verify"],
        ["ssh", "desk-0"],
        ["exec", "true"],
        ["down", "--yes"],
    ):
        refused = theirs.run(arguments[0], theirs.file, *arguments[1:])
        assert refused.status == 2, arguments
        assert f"{theirs.root} belongs to root: run the same command with sudo" in refused.stderr, (
            arguments,
            refused.stderr,
        )
