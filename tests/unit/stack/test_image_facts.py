"""What images say of themselves, against registries on loopback that have configurations as NVIDIA and PyTorch publish
them: names and values of NGC's PyTorch 23.10 and 26.03 from public logs of `env` in these images."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from provisioner import spec, stack
from provisioner.cli.main import run
from provisioner.common.image_reference import parse
from provisioner.sandbox.keys import Keys
from provisioner.stack import explain, image_facts, lockfile, registry
from provisioner.stack.facts import rows
from provisioner.stack.fetch import Fetch
from provisioner.stack.image_facts import ImageFacts
from provisioner.stack.models import Lock
from tests.support.vendors import Vendors
from tests.unit.stack.test_lock import cluster_yaml

NGC_2310 = (
    "NVIDIA_REQUIRE_CUDA=cuda>=9.0", "NCCL_VERSION=2.19.3", "CUDA_VERSION=12.2.2.009", "CUDNN_VERSION=8.9.5.29",
    "PYTORCH_VERSION=2.1.0a0+32f93b1", "PYTORCH_BUILD_VERSION=2.1.0a0+32f93b1", "PYTORCH_BUILD_NUMBER=0",
    "CUDA_DRIVER_VERSION=535.104.05", "NVIDIA_PRODUCT_NAME=PyTorch", "NVIDIA_PYTORCH_VERSION=23.10",
)  # fmt: skip
NGC_2603 = (
    "CUDA_VERSION=13.2.0.046", "CUDA_DRIVER_VERSION=595.45.04", "NCCL_VERSION=2.29.7", "NVIDIA_PRODUCT_NAME=PyTorch",
    "PYTORCH_BUILD_VERSION=2.11.0a0+a6c236b", "PYTORCH_VERSION=2.11.0a0+a6c236b", "NVIDIA_PYTORCH_VERSION=26.03",
)  # fmt: skip
"""CUDA_DRIVER_VERSION of 26.03 is not of the log."""
OTHER_NCCL = (
    "CUDA_VERSION=13.0.2.006", "NCCL_VERSION=2.30.4", "PYTORCH_VERSION=2.9.0a0+145a3a7", "NVIDIA_PYTORCH_VERSION=25.10",
)  # fmt: skip
"""25.10 with another NCCL than the table's, which is from memory."""


@pytest.fixture
def ngc(vendors: Vendors, monkeypatch: pytest.MonkeyPatch) -> Vendors:
    for host in ("nvcr.io", "docker.io"):
        monkeypatch.setitem(registry.HOSTS, host, f"127.0.0.1:{vendors.port}")
    return vendors


def lock_of(vendors: Vendors, keys: Keys, folder: Path, reference: str, **pins: object) -> Lock:
    file = cluster_yaml(vendors, keys, folder, containers=[reference], **pins)
    assert run(["lock", str(file)]) == 0
    written_lock = lockfile.read(file.with_name("cluster.lock"))
    assert written_lock is not None
    return written_lock


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        (NGC_2310, ImageFacts("c", "12.2.2", "535.104.05", "2.19.3", "8.9.5.29", "2.1.0a0+32f93b1", "", "23.10")),
        (NGC_2603, ImageFacts("c", "13.2.0", "595.45.04", "2.29.7", "", "2.11.0a0+a6c236b", "", "26.03")),
        (("PYTORCH_VERSION=2.4.0", "NVIDIA_VISIBLE_DEVICES=all"), ImageFacts("c", pytorch="2.4.0")),
        (("CUDA_VERSION=12.4.1", "NCCL_VERSION=2.21.5-1"), ImageFacts("c", cuda="12.4.1", nccl="2.21.5")),
        (("CUDA_VERSION={{ x }}", "PYTORCH_VERSION=latest", "NCCL_VERSION", 7, None), ImageFacts("c")),
        (("CUDA_VERSION=" + "1." * 4000,), ImageFacts("c")),
    ],
)
def test_what_an_environment_says(env: tuple[object, ...], expected: ImageFacts) -> None:
    assert image_facts.read(env, "c") == expected


def test_an_image_that_is_newer_than_every_table(
    ngc: Vendors, keys: Keys, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """26.03 has CUDA 13.2: it runs on 580 by NVIDIA's compatibility of data-centre GPUs, and that is what is pinned."""
    assert "26.03" not in {row["tag"] for row in rows("ngc_pytorch")}
    digest = ngc.image("nvidia/pytorch", "26.03-py3", NGC_2603)
    lock = lock_of(ngc, keys, tmp_path, "nvcr.io/nvidia/pytorch:26.03-py3", cuda="13.0", nccl="2.30.4")
    train = lock.groups["train"]
    (image,) = train.images
    assert (image.digest, image.torch, image.cuda, image.nccl) == (digest, "2.11.0a0+a6c236b", "13.2", "2.29.7")
    assert image.basis == "measured" and image.config.startswith("sha256:")
    assert train.pytorch == "2.11.0a0+a6c236b"
    assert train.driver == "580.173.02"
    assert "the image's own configuration" in train.components[f"image {image.reference}"].why
    assert "nothing is known" not in capsys.readouterr().err


def test_what_an_image_said_counts_when_a_version_is_explained(
    ngc: Vendors, keys: Keys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it any driver would go with an image that no table has."""
    monkeypatch.setattr(explain, "MOST", 40)
    ngc.image("nvidia/pytorch", "26.03-py3", NGC_2603)
    reference = "nvcr.io/nvidia/pytorch:26.03-py3"
    lock = lock_of(ngc, keys, tmp_path, reference, cuda="13.0", nccl="2.30.4")
    loaded = spec.load(tmp_path / "cluster.yaml")
    free = loaded.model_copy(update={"stack": loaded.stack.model_copy(update={"driver": None, "cuda": None})})
    images = lock.groups["train"].images
    line_by_version = {
        line.split(":")[0]: line for line in stack.alternatives(free, "train", "driver", "580.173.02", str, images)
    }
    assert f"{reference} needs driver 580.65.06 or newer" in line_by_version["570.172.08"]
    assert line_by_version["595.91.07"].endswith("compatible, but 580.173.02 is preferred")


def test_a_driver_that_is_too_old_for_what_the_image_says(
    ngc: Vendors, keys: Keys, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No row says so: only the image does."""
    ngc.image("nvidia/pytorch", "26.03-py3", NGC_2603)
    file = cluster_yaml(ngc, keys, tmp_path, containers=["nvcr.io/nvidia/pytorch:26.03-py3"], driver="570")
    assert run(["lock", str(file)]) == 2
    error_text = capsys.readouterr().err
    assert 'stack.driver "570"' in error_text and "nvcr.io/nvidia/pytorch:26.03-py3 needs driver" in error_text
    assert "the image's own configuration" in error_text


def test_where_table_and_image_differ_the_image_is_right(
    ngc: Vendors, keys: Keys, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ngc.image("nvidia/pytorch", "25.10-py3", OTHER_NCCL)
    lock = lock_of(ngc, keys, tmp_path, "nvcr.io/nvidia/pytorch:25.10-py3")
    error_text = capsys.readouterr().err
    assert "nvcr.io/nvidia/pytorch:25.10-py3 has NCCL 2.30.4; the table of this release (as of" in error_text
    assert (
        "says 2.27.7: the image is right" in error_text
        and "has CUDA" not in error_text
        and "has PyTorch" not in error_text
    )
    train = lock.groups["train"]
    assert train.nccl == train.images[0].nccl == "2.30.4"
    assert train.pytorch == "2.9.0a0+145a3a7bda", "the same commit, told more exactly by the table"


def test_the_image_that_is_chosen_by_a_pin_is_asked_too(ngc: Vendors, keys: Keys, tmp_path: Path) -> None:
    ngc.image("nvidia/pytorch", "25.10-py3", OTHER_NCCL)
    file = cluster_yaml(ngc, keys, tmp_path, pytorch="2.9")
    document = yaml.safe_load(file.read_text())
    del document["stack"]["containers"]
    file.write_text(yaml.safe_dump(document))
    assert run(["lock", str(file)]) == 0
    lock = lockfile.read(file.with_name("cluster.lock"))
    assert lock is not None
    assert (lock.groups["train"].nccl, lock.groups["train"].images[0].basis) == ("2.30.4", "measured")


def test_an_image_that_says_nothing_is_said(
    ngc: Vendors, keys: Keys, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ngc.image("acme/train", "1")
    reference = f"127.0.0.1:{ngc.port}/acme/train:1"
    lock = lock_of(ngc, keys, tmp_path, reference)
    assert f"nothing is known of what {reference} holds" in capsys.readouterr().err
    assert lock.groups["train"].images[0].basis == ""
    assert "nothing is known" in lock.groups["train"].components[f"image {reference}"].why


def test_a_second_lock_reads_no_configuration_again(ngc: Vendors, keys: Keys, tmp_path: Path) -> None:
    ngc.image("nvidia/pytorch", "26.03-py3", NGC_2603)
    first = lock_of(ngc, keys, tmp_path, "nvcr.io/nvidia/pytorch:26.03-py3", cuda="13.0", nccl="2.30.4")
    ngc.seen.clear()
    assert lock_of(ngc, keys, tmp_path, "nvcr.io/nvidia/pytorch:26.03-py3", cuda="13.0", nccl="2.30.4") == first
    assert ngc.asked("/blobs/") == []


def test_a_tag_that_moved_is_read_by_the_locked_digest(ngc: Vendors, keys: Keys, tmp_path: Path) -> None:
    reference = "nvcr.io/nvidia/pytorch:26.03-py3"
    ngc.image("nvidia/pytorch", "26.03-py3", NGC_2603)
    first = lock_of(ngc, keys, tmp_path, reference, cuda="13.0", nccl="2.30.4")
    ngc.image("nvidia/pytorch", "26.03-py3", NGC_2310)
    second = lock_of(ngc, keys, tmp_path, reference, cuda="13.0", nccl="2.30.4")
    assert second.groups["train"].images == first.groups["train"].images


def test_a_configuration_that_is_not_what_its_digest_says(
    ngc: Vendors, keys: Keys, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ngc.image("nvidia/pytorch", "26.03-py3", NGC_2603)
    for key, body in list(ngc.manifests.items()):
        if b'"Env"' in body:
            ngc.manifests[key] = body.replace(b"13.2.0.046", b"12.2.0.046")
    file = cluster_yaml(ngc, keys, tmp_path, containers=["nvcr.io/nvidia/pytorch:26.03-py3"])
    assert run(["lock", str(file)]) == 2
    assert "digest mismatch" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"architecture": "arm64", "config": {}}, "not available for linux/amd64; it is for arm64"),
        ({"config": {"Env": "CUDA_VERSION=13"}}, ""),
        ({"config": None}, ""),
        ([], ""),
    ],
)
def test_configurations_of_any_shape(document: object, message: str, ngc: Vendors) -> None:
    config = ngc.put("a/b", document)
    digest = ngc.put("a/b", {"schemaVersion": 2, "config": {"digest": config}})
    registries = registry.Registries(Fetch(deadline_s=5))
    if message:
        with pytest.raises(Exception, match=message):
            registries.facts(parse(f"127.0.0.1:{ngc.port}/a/b:1"), digest)
    else:
        assert registries.facts(parse(f"127.0.0.1:{ngc.port}/a/b:1"), digest) == ImageFacts(config)
    assert json.loads(ngc.manifests["a/b", config]) == document
