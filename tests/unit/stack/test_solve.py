"""Tested sets: what is chosen, what is refused, and the lock on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from provisioner import catalog, stack
from provisioner.errors import GpuprovError
from provisioner.stack import lockfile
from provisioner.stack.models import Lock
from provisioner.stack.solve import data
from tests.support.plans import cluster_spec

NVIDIA = [m.name for m in catalog.load().machines() if catalog.load().gpu(m.gpu_model).vendor == "nvidia"]
AMD = [m.name for m in catalog.load().machines() if catalog.load().gpu(m.gpu_model).vendor == "amd"]


@pytest.mark.parametrize("machine", NVIDIA)
def test_every_nvidia_machine_has_a_stack_that_holds_together(machine: str) -> None:
    known = catalog.load().machine(machine)
    chosen = stack.solve(cluster_spec(machine))["train"]
    names = {p.name for p in chosen.packages}
    assert chosen.driver is not None
    assert chosen.driver.startswith(f"{chosen.driver_branch}.")
    assert ("nvidia-fabricmanager" in names) == known.fabric_manager_required
    assert (chosen.fabric_manager == chosen.driver) == known.fabric_manager_required
    volta = known.gpu_arch == "volta"
    assert chosen.kernel_modules == ("proprietary" if volta else "open")
    assert ("cuda-drivers" in names) == volta
    assert ("nvidia-open" in names) != volta
    assert (chosen.cuda_toolkit or "").startswith("12." if volta else "13.")
    assert {p.repository for p in chosen.packages} == {r.name for r in chosen.repositories}
    assert all("{" not in p.name + p.version for p in chosen.packages)
    assert len(names) == len(chosen.packages)


@pytest.mark.parametrize("machine", AMD)
def test_amd_is_refused_with_the_reason(machine: str) -> None:
    with pytest.raises(GpuprovError, match="tested sets for NVIDIA GPUs only"):
        stack.solve(cluster_spec(machine))


def test_efa_where_the_machine_has_it_and_nobody_turned_it_off() -> None:
    on = stack.solve(cluster_spec("p4d.24xlarge"))["train"]
    assert on.package("libfabric-aws-bin") is not None
    spec = cluster_spec("p4d.24xlarge", groups={"train": {"machine": "p4d.24xlarge", "network": {"efa": False}}})
    assert stack.solve(spec)["train"].package("libfabric-aws-bin") is None
    assert stack.solve(cluster_spec("dgx-h100"))["train"].package("libfabric-aws-bin") is None


@pytest.mark.parametrize("pin", ["580", "580.173", "580.173.02"])
def test_a_pin_may_be_short(pin: str) -> None:
    assert stack.solve(cluster_spec("p4d.24xlarge", stack={"driver": pin}))["train"].driver == "580.173.02"


@pytest.mark.parametrize(
    ("pins", "said"),
    [
        ({"driver": "535"}, "stack.driver: 535"),
        ({"driver": "580.173.0"}, "stack.driver: 580.173.0"),
        ({"cuda": "12.4"}, "stack.cuda: 12.4"),
        ({"nccl": "2.2"}, "stack.nccl: 2.2"),
        ({"pytorch": "1.13.1"}, "stack.pytorch: 1.13.1"),
    ],
)
def test_a_pin_that_no_set_has_is_refused_with_what_exists(pins: dict[str, str], said: str) -> None:
    with pytest.raises(GpuprovError) as caught:
        stack.solve(cluster_spec("p4d.24xlarge", stack=pins))
    assert said in caught.value.message
    assert "driver 580.173.02, CUDA 13.0" in caught.value.hint


def test_pytorch_chooses_the_image() -> None:
    chosen = stack.solve(cluster_spec("p5.48xlarge", stack={"pytorch": "2.8"}))["train"]
    assert chosen.images[0].reference == "nvcr.io/nvidia/pytorch:25.08-py3"


def test_an_image_that_the_driver_does_not_run_is_refused() -> None:
    pins = {"containers": ("nvcr.io/nvidia/pytorch:25.10-py3",)}
    with pytest.raises(GpuprovError, match="does not go with") as caught:
        stack.solve(cluster_spec("p3dn.24xlarge", stack=pins))
    assert "25.06-py3" in caught.value.hint


def test_a_strangers_image_has_no_known_versions() -> None:
    chosen = stack.solve(cluster_spec("p4d.24xlarge", stack={"containers": ("ghcr.io/acme/train:1",)}))["train"]
    assert [(i.reference, i.torch) for i in chosen.images] == [("ghcr.io/acme/train:1", None)]


def test_every_row_has_a_source() -> None:
    rows = [*data()["sets"], *data()["ngc_pytorch"], *data()["repositories"].values()]
    assert all(row["source"] for row in rows)


def test_the_lock_survives_the_disk(tmp_path: Path) -> None:
    spec = cluster_spec("p4d.24xlarge")
    lock = Lock(request=stack.request(spec), simulated=True, groups=stack.solve(spec))
    lockfile.write(tmp_path / "c.lock", lock)
    text = (tmp_path / "c.lock").read_text()
    assert lockfile.read(tmp_path / "c.lock") == lock
    lockfile.write(tmp_path / "c.lock", lock)
    assert (tmp_path / "c.lock").read_text() == text


def test_no_lock_is_none(tmp_path: Path) -> None:
    assert lockfile.read(tmp_path / "none.lock") is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("version: 9\n", "format 9"),
        ("version: 2\n", "not a lock"),
        ("a: [", "not YAML"),
        ("- 1\n", "not a lock"),
        ("", "not a lock"),
    ],
)
def test_a_damaged_lock_is_an_error(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "c.lock").write_text(text)
    with pytest.raises(GpuprovError, match=said) as caught:
        lockfile.read(tmp_path / "c.lock")
    assert "gpuprov" in caught.value.hint


def test_differences_are_named() -> None:
    before, after = cluster_spec("p4d.24xlarge"), cluster_spec("p5.48xlarge", stack={"driver": "580"})
    lock = Lock(request=stack.request(before), simulated=True, groups=stack.solve(before))
    assert lockfile.differences(lock, stack.request(before)) == []
    assert lockfile.differences(lock, stack.request(after)) == [
        "groups.train.machine: p4d.24xlarge when locked, p5.48xlarge now",
        "stack.driver: not there when locked, 580 now",
    ]
