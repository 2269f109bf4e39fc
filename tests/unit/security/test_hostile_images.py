"""The builds of a golden image come out of git: a pull request can put links, nested texts and names that lead out into
their folder, and an older signed manifest in the place of a newer one."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from provisioner.common.errors import GpuprovError
from provisioner.lifecycle.images import signing
from provisioner.lifecycle.images.book import Book, sha256

BUILD = "20260131-031500"
Make = Callable[[Path], None]


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def pipe(path: Path) -> None:
    os.mkfifo(path)


def nested(path: Path) -> None:
    path.write_text("[" * 200_000 + "]" * 200_000 + "\n")


def large(path: Path) -> None:
    with path.open("wb") as stream:
        stream.truncate(1 << 40)


HOSTILE = [endless, pipe, nested, large]


@pytest.fixture
def registry(tmp_path: Path) -> Book:
    (tmp_path / "pytorch" / "builds" / BUILD).mkdir(parents=True)
    return Book("pytorch", tmp_path / "pytorch")


@pytest.mark.parametrize("make", HOSTILE)
def test_a_manifest_that_has_no_end(make: Make, registry: Book) -> None:
    make(registry.build(BUILD) / "manifest.json")
    with pytest.raises(GpuprovError, match="is not a manifest"):
        registry.resolve(BUILD)


@pytest.mark.parametrize("make", HOSTILE)
def test_a_book_that_has_no_end(make: Make, registry: Book) -> None:
    make(registry.folder / "book.json")
    with pytest.raises(GpuprovError, match="is damaged"):
        registry.channels()


@pytest.mark.parametrize("make", HOSTILE)
def test_nights_that_have_no_end(make: Make, registry: Book) -> None:
    make(registry.nights)
    try:
        assert registry.told_nights() == []
    except GpuprovError as error:
        assert "cannot be read" in str(error)


@pytest.mark.parametrize("name", [signing.KEY, signing.SIGNATURE])
@pytest.mark.parametrize("make", HOSTILE)
def test_a_signature_that_has_no_end(make: Make, name: str, registry: Book) -> None:
    folder = registry.build(BUILD)
    for file in (registry.folder / signing.KEY, folder / signing.SIGNATURE):
        if file.name == name:
            make(file)
        else:
            file.write_text("x")
    with pytest.raises(GpuprovError, match="the manifest is not signed by"):
        signing.verify(folder, b"{}", "A" * 40)


@pytest.mark.parametrize("make", [endless, pipe])
def test_a_file_that_was_proven_is_a_regular_one(make: Make, tmp_path: Path) -> None:
    make(tmp_path / "sbom.json")
    with pytest.raises(OSError, match="not a regular file"):
        sha256(tmp_path / "sbom.json")


@pytest.mark.parametrize("build", ["../../..", "/etc", "..", f"{BUILD}/../../../x", "a\0b"])
def test_no_build_leads_out_of_the_folder(build: str, registry: Book) -> None:
    (registry.folder / "book.json").write_text(json.dumps({"channels": {"stable": build}, "history": []}))
    with pytest.raises(GpuprovError):
        registry.manifest(registry.resolve("stable"))
