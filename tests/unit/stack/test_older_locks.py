"""Locks of earlier formats, as an earlier gpuprov wrote them: each is read, and is the same release that it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from provisioner.rundir import release
from provisioner.stack import lockfile
from provisioner.stack.models import on_node

LOCKS = sorted((Path(__file__).parent / "locks").glob("*.lock"))


@pytest.mark.parametrize("file", LOCKS, ids=lambda f: f.stem)
def test_it_is_read_and_is_what_it_was(file: Path, tmp_path: Path) -> None:
    """The identity beside it was computed by the gpuprov that wrote it: it goes with what nodes carry."""
    lock = lockfile.read(file)
    assert lock is not None
    assert release.identity(lock) == file.with_suffix(".txt").read_text().strip()
    lockfile.write(tmp_path / "again.lock", lock)
    assert (tmp_path / "again.lock").read_text() == file.read_text()


def test_there_are_some() -> None:
    assert "before-archives" in {file.stem for file in LOCKS}


def test_a_field_that_came_later_is_no_reason_to_configure_a_node_again() -> None:
    lock = lockfile.read(next(f for f in LOCKS if f.stem == "before-archives"))
    assert lock is not None
    variables = on_node(lock.groups["train"])
    assert not any("archives" in r or "packages" in r for r in variables["repositories"])
    assert all(set(p) == {"name", "version", "repository", "part"} for p in variables["packages"])
    assert not any({"basis", "config"} & set(i) for i in variables["images"])
