"""Builds and channels: what is promoted was proven, what is rolled back was there, what is damaged is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from provisioner.common.errors import GpuprovError
from provisioner.lifecycle.images.book import Book
from provisioner.lifecycle.images.manifest import RoleOnImage, differences
from tests.support.builds import keep, manifest, target

A, B, C = "20260129-031500", "20260130-031500", "20260131-031500"


@pytest.fixture
def registry(tmp_path: Path) -> Book:
    store = Book("pytorch", tmp_path / "pytorch")
    keep(store, manifest(A), manifest(B))
    return store


def test_a_build_goes_through_the_channels(registry: Book) -> None:
    assert registry.channels() == {"nightly": B}
    assert registry.promote("candidate").build == B
    assert registry.promote("stable").before == ""
    second_move = registry.promote("stable")
    assert (second_move.before, second_move.build, second_move.why) == (B, B, "is there already")
    keep(registry, manifest(C))
    assert registry.channels() == {"nightly": C, "candidate": B, "stable": B}
    assert [(move.channel, move.build, move.why) for move in registry.history()] == [
        ("nightly", A, "built"), ("nightly", B, "built"), ("candidate", B, "promoted"), ("stable", B, "promoted"),
        ("nightly", C, "built"),
    ]  # fmt: skip


def test_a_channel_goes_back_to_what_it_had_and_no_further(registry: Book) -> None:
    keep(registry, manifest(C))
    for build in (A, B, C):
        registry.promote("stable", build)
    assert registry.rollback("stable").build == B
    assert registry.rollback("stable").build == A
    with pytest.raises(GpuprovError, match="had no other build"):
        registry.rollback("stable")
    registry.promote("stable", C)
    assert registry.rollback("stable").build == A


def test_a_build_that_a_channel_had_twice_is_gone_back_to_step_by_step(registry: Book) -> None:
    keep(registry, manifest(C))
    for build in (A, B, A, C):
        registry.promote("stable", build)
    assert [registry.rollback("stable").build for _ in range(2)] == [A, B]


def test_a_way_back_that_was_pruned_is_none(registry: Book) -> None:
    registry.promote("stable", A)
    registry.promote("stable", B)
    registry.forget(A)
    with pytest.raises(GpuprovError, match="had no other build"):
        registry.rollback("stable")


@pytest.mark.parametrize(
    ("channel", "build", "message"),
    [
        ("nightly", None, "builds cannot be promoted to channel nightly"),
        ("stable", None, "channel candidate of pytorch has no build yet"),
        ("stable", "20250101-000000", "has no build 20250101-000000"),
        ("candidate", "../../etc", "points outside"),
    ],
)
def test_what_was_not_proven_is_not_promoted(registry: Book, channel: str, build: str | None, message: str) -> None:
    with pytest.raises(GpuprovError, match=message):
        registry.promote(channel, build)
    assert registry.channels() == {"nightly": B}


def test_a_build_that_a_channel_has_stays(registry: Book) -> None:
    with pytest.raises(GpuprovError, match="is in a channel"):
        registry.forget(B)
    registry.forget(A)
    assert registry.builds() == [B]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"channels": 1, "history": []}', '{"channels": {"stable": 1}, "history": []}',
             '{"channels": {}, "history": [{"channel": "stable"}]}']
)  # fmt: skip
def test_a_damaged_book_is_an_error_with_its_file(registry: Book, text: str) -> None:
    (registry.folder / "book.json").write_text(text)
    with pytest.raises(GpuprovError, match="is damaged"):
        registry.channels()


def test_a_manifest_of_another_build_is_refused(registry: Book) -> None:
    file = registry.build(A) / "manifest.json"
    file.write_text((registry.build(B) / "manifest.json").read_text())
    with pytest.raises(GpuprovError, match=f"is the manifest of pytorch, build {B}"):
        registry.manifest(A)
    file.write_text("{}")
    with pytest.raises(GpuprovError, match="is not a manifest"):
        registry.manifest(A)


def test_differences_name_what_is_new_and_nothing_else() -> None:
    old = manifest(A)
    assert differences(old, manifest(B)) == []
    new = target(
        base="ami-9",
        packages={"nvidia-open": "590", "jq": "1.7"},
        roles={"base": RoleOnImage(digest="x", installed="b")},
    )
    rows = differences(old, manifest(B, p4d=new))
    assert [(row.what, row.name, row.before, row.after) for row in rows] == [
        ("base", "base image", "ami-0", "ami-9"), ("package", "jq", None, "1.7"),
        ("package", "nvidia-open", "580", "590"), ("role", "base", "a", "x"),
    ]  # fmt: skip
    assert [row.what for row in differences(old, manifest(B, p5=target()))] == ["target", "target"]


def test_a_night_that_was_cut_in_half_does_not_hide_the_others(registry: Book) -> None:
    night = {"at": "2026-01-31T03:15:00Z", "outcome": "built", "build": B, "changed": []}
    registry.note_night(night)
    with registry.nights.open("a") as stream:
        stream.write('{}\n{"at": 1, "outcome": {}}\n[]\n{"outcome": "fai')
    assert registry.told_nights() == [night]
