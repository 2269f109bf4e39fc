"""A saved Redfish tree comes with a bundle: it may hold pipes, links, files without an end, and bombs."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from provisioner.lifecycle.bmc_facts import with_tree
from provisioner.machines.redfish import tree
from provisioner.machines.redfish.errors import BmcError
from provisioner.verify.bundle import Bundle

SECRET = {"/redfish/v1/Systems/1": {"@odata.id": "/redfish/v1/Systems/1", "SerialNumber": "ROOTS-SECRET"}}


def pipe(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def link(path: Path) -> None:
    elsewhere = path.parents[2] / "elsewhere.json"
    elsewhere.write_text(json.dumps(SECRET))
    path.symlink_to(elsewhere)


def sparse(path: Path) -> None:
    with path.open("wb") as stream:
        stream.truncate(1 << 40)


def bomb(path: Path) -> None:
    path.write_bytes(gzip.compress(b" " * (2 << 20)))


def damaged(path: Path) -> None:
    path.write_bytes(gzip.compress(b'{"/redfish/v1": {}}' * 50)[:30] + b"\xff" * 30)


def nested(path: Path) -> None:
    path.write_bytes(b'{"/redfish/v1":' * 100_000)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "LARGEST_SAVED", 1 << 20)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (pipe, "a pipe"), (device, "a symbolic link"), (link, "a symbolic link"), (sparse, "larger than 1 MiB"),
        (nested, "not a saved Redfish tree"),
    ],
)  # fmt: skip
def test_one_file(make: Callable[[Path], None], reason: str, tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    make(tmp_path / "a" / "b" / "host.redfish.json")
    output = with_tree(Bundle(), tmp_path / "a" / "b").files["bmc.json"]
    assert reason in output.error and "SECRET" not in output.text


@pytest.mark.parametrize(
    ("make", "reason"), [(bomb, "unpacks to more than 1 MiB"), (damaged, "not a saved Redfish tree")]
)
def test_one_compressed_file(make: Callable[[Path], None], reason: str, tmp_path: Path) -> None:
    make(tmp_path / "host.redfish.json.gz")
    assert reason in with_tree(Bundle(), tmp_path).files["bmc.json"].error


@pytest.mark.parametrize("make", [pipe, device, link, sparse])
def test_a_file_of_a_folder(make: Callable[[Path], None], tmp_path: Path) -> None:
    folder = tmp_path / "bundle" / "redfish" / "v1"
    folder.mkdir(parents=True)
    (folder / "index.json").write_text("{}")
    make(folder / "x.json")
    output = with_tree(Bundle(), tmp_path / "bundle").files["bmc.json"]
    assert "SECRET" not in output.text
    assert output.error or make in (device, link)  # a link is left out, the rest of the tree is read


def test_files_of_a_folder_are_bounded_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "redfish" / "v1"
    folder.mkdir(parents=True)
    for number in range(8):
        (folder / f"{number}.json").write_text(json.dumps({"x": "y" * 200_000}))
    with pytest.raises(BmcError, match="more than 1 MiB together"):
        tree.saved(tmp_path)
    monkeypatch.setattr(tree, "MOST_FILES", 5)
    with pytest.raises(BmcError, match="more than 5 files"):
        tree.saved(tmp_path)


@pytest.mark.parametrize("name", ["n.redfish.json", "n.redfish.json.gz"])
def test_a_link_to_a_folder_in_the_place_of_a_tree_is_not_followed(name: str, tmp_path: Path) -> None:
    elsewhere, bundle = tmp_path / "elsewhere", tmp_path / "bundle"
    elsewhere.mkdir()
    bundle.mkdir()
    (elsewhere / "redfish_v1_Systems_1.json").write_text(json.dumps(SECRET["/redfish/v1/Systems/1"]))
    (bundle / name).symlink_to(elsewhere)
    output = with_tree(Bundle(), bundle).files["bmc.json"]
    assert output.missing
    assert "symbolic link" in output.error


def test_a_bundle_may_be_named_by_a_link(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "redfish_v1_Systems_1.json").write_text(json.dumps(SECRET["/redfish/v1/Systems/1"]))
    (tmp_path / "bundle").symlink_to(elsewhere)
    assert not with_tree(Bundle(), tmp_path / "bundle").files["bmc.json"].missing
