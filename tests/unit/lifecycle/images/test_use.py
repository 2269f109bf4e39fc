"""`groups.*.image`: which build a fleet starts from, and what is refused at its line."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from provisioner import spec
from provisioner.common.errors import GpuprovError
from provisioner.common.events import Events
from provisioner.lifecycle import locking
from provisioner.lifecycle.images import signing
from provisioner.lifecycle.images.use import book_of, choose
from provisioner.lifecycle.session import open_cluster
from tests.support.builds import RECIPE, keep, manifest, recipe, target

BUILD, LATER = "20260130-031500", "20260131-031500"


def cluster(folder: Path, image: str = "pytorch@nightly", machine: str = "p4d.24xlarge", region: str = "us-east-1",
            stack: str = "{}") -> Path:  # fmt: skip
    file = folder / "cluster.yaml"
    file.write_text(
        f"name: fleet\nsites: {{ here: {{ provider: aws, region: {region} }} }}\nstack: {stack}\n"
        f"groups:\n  train: {{ machine: {machine}, image: {image} }}\n"
    )
    return file


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    keep(book_of(recipe(tmp_path), "pytorch", sandbox=False), manifest(BUILD))
    recipe(tmp_path, name="other")  # that was never built
    return tmp_path


def chosen(file: Path) -> tuple[str, str, str]:
    golden = choose(spec.load(file), "train", file, sandbox=False).golden
    return golden.name, golden.build, golden.id


def test_a_channel_a_build_and_a_path_lead_to_the_image_of_the_region(folder: Path) -> None:
    assert chosen(cluster(folder)) == ("pytorch@nightly", BUILD, "ami-1")
    assert chosen(cluster(folder, f"pytorch@{BUILD}"))[1:] == (BUILD, "ami-1")
    (folder / "fleets").mkdir()
    assert chosen(cluster(folder / "fleets", "../images/pytorch@nightly"))[1:] == (BUILD, "ami-1")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"image": "pytorch"}, "channel stable of pytorch has no build yet"),
        ({"image": "pytorch@stable"}, "channel stable of pytorch has no build yet"),
        ({"image": "other@nightly"}, "there is no image other yet"),
        ({"image": "pytorch@20200101-000000"}, "has no build 20200101-000000"),
        ({"region": "eu-west-1"}, "is not in aws eu-west-1"),
        ({"machine": "p5.48xlarge"}, "does not fit p5.48xlarge"),
    ],
)
def test_what_leads_to_no_image_is_refused(folder: Path, keys: dict[str, str], message: str) -> None:
    with pytest.raises(GpuprovError, match=message):
        chosen(cluster(folder, **keys))


@pytest.mark.parametrize("image", ["Pytorch", "pytorch@beta", "/etc/passwd", "pytorch@", "a b"])
def test_what_is_no_reference_is_refused_at_its_line(tmp_path: Path, image: str) -> None:
    (problem,) = spec.check(cluster(tmp_path, f'"{image}"'))
    assert (problem.line, problem.path) == (5, "groups.train.image")
    assert "a channel (nightly, candidate, stable) or a build" in problem.message


def test_the_machine_of_a_target_comes_before_one_that_is_alike(folder: Path) -> None:
    both = manifest(LATER, a=target("p4de.24xlarge", ids={"us-east-1": "ami-e"}), b=target(ids={"us-east-1": "ami-d"}))
    keep(book_of(folder / "images" / "pytorch.yaml", "pytorch", sandbox=False), both)
    assert chosen(cluster(folder))[2] == "ami-d"
    assert chosen(cluster(folder, machine="p4de.24xlarge"))[2] == "ami-e"


def test_a_machine_without_gpus_starts_from_an_image_without_locked_packages(folder: Path) -> None:
    store = book_of(folder / "images" / "pytorch.yaml", "pytorch", sandbox=False)
    keep(store, manifest(LATER, head=target("m6i.xlarge")))
    assert target("m6i.xlarge").stack.packages == ()
    assert chosen(cluster(folder, machine="m7i.large"))[1:] == (LATER, "ami-1")
    keep(store, manifest(BUILD, train=target(stack=target("m6i.xlarge").stack)))
    with pytest.raises(GpuprovError, match="no proof of this image"):
        chosen(cluster(folder, f"pytorch@{BUILD}"))


def test_the_lock_has_the_build_and_its_versions_until_it_is_upgraded(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locking, "_sources", lambda *_: pytest.fail("nothing of an image is read from a vendor"))
    monkeypatch.setattr(locking, "_solved", lambda cluster, _events, _keep, **_: locking.stack.solve(cluster.spec))
    store = book_of(folder / "images" / "pytorch.yaml", "pytorch", sandbox=False)
    keep(store, manifest(BUILD, g6=target("g6.xlarge")))
    opened_cluster = open_cluster(cluster(folder, machine="g6.xlarge"))
    first = locking.renew(opened_cluster, Events())
    assert (first.images["train"].build, first.images["train"].id) == (BUILD, "ami-1")
    assert first.groups["train"] == target("g6.xlarge").stack
    assert first.bases == {"here": {}}
    keep(store, manifest(LATER, g6=target("g6.xlarge")))
    locked_versions = locking.kept(first, upgrade=False, names=())
    assert locking.renew(opened_cluster, Events(), locked_versions).images["train"].build == BUILD
    assert locking.current(opened_cluster, Events()).images["train"].build == BUILD
    assert locking.renew(opened_cluster, Events(), {}).images["train"].build == LATER


def test_a_pin_that_the_image_does_not_have_is_refused_at_its_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        locking, "_solved", lambda cluster, _events, keep, **_: locking.stack.solve(cluster.spec, keep=keep)
    )
    file = cluster(folder, stack='{ driver: "570" }')
    with pytest.raises(GpuprovError, match=r"has driver 5[89].*; cluster.yaml asks for driver 570") as error:
        locking.renew(open_cluster(file), Events())
    assert error.value.where == f"{file}:5:35"


@pytest.fixture
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A key of one's own, in a gpg that knows no other."""
    home = tmp_path / "gpg"
    home.mkdir(mode=0o700)
    monkeypatch.setenv("GNUPGHOME", str(home))
    make = ["gpg", "--batch", "--passphrase", "", "--quick-generate-key", "images@example.com", "ed25519", "sign"]
    subprocess.run(make, check=True, capture_output=True, timeout=60)
    listed = subprocess.run(["gpg", "--list-keys", "--with-colons"], check=True, capture_output=True, text=True)
    return next(line.split(":")[9] for line in listed.stdout.splitlines() if line.startswith("fpr"))


def test_a_build_that_the_recipes_key_has_not_signed_is_refused(folder: Path, key: str) -> None:
    recipe(folder, RECIPE.replace("keep: 2", f"signed_by: {key}"))
    file = cluster(folder)
    with pytest.raises(GpuprovError, match="is not signed by"):
        chosen(file)
    build_folder = folder / "images" / "pytorch" / "builds" / BUILD
    text = (build_folder / "manifest.json").read_text()
    signing.sign(build_folder, text, key)
    assert chosen(file)[1] == BUILD
    (build_folder / "manifest.json").write_text(text.replace("ami-1", "ami-2"))
    with pytest.raises(GpuprovError, match="is not signed by"):
        chosen(file)


def test_a_key_that_gpg_does_not_have_is_said(folder: Path, key: str) -> None:
    build_folder = folder / "images" / "pytorch" / "builds" / BUILD
    with pytest.raises(GpuprovError, match="gpg cannot sign with"):
        signing.sign(build_folder, "x", "0" * 40)
