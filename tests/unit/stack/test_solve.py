"""What is chosen, what is refused and why, and the lock on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from provisioner import catalog, stack
from provisioner.common.errors import GpuprovError
from provisioner.stack import lockfile
from provisioner.stack.components import COMPONENTS
from provisioner.stack.facts import rows
from provisioner.stack.models import Lock
from tests.support.plans import cluster_spec

NVIDIA = [m.name for m in catalog.load().listed.values() if catalog.load().gpu(m.gpu_model).vendor == "nvidia"]
AMD = [m.name for m in catalog.load().listed.values() if catalog.load().gpu(m.gpu_model).vendor == "amd"]


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
    assert ("cuda-drivers" in names) == volta
    assert ("nvidia-open" in names) != volta
    assert ("nvlsm" in names) == known.subnet_manager_required
    assert ("nvidia-imex" in names) == known.imex_required
    assert {p.repository for p in chosen.packages} == {r.name for r in chosen.repositories}
    assert all("{" not in p.name + p.version for p in chosen.packages)
    assert len(names) == len(chosen.packages)


@pytest.mark.parametrize("machine", AMD)
def test_amd_machines_get_rocm_and_nothing_of_nvidia(machine: str) -> None:
    chosen = stack.solve(cluster_spec(machine))["train"]
    assert chosen.rocm is not None
    assert chosen.driver is chosen.cuda_toolkit is chosen.nccl is None
    assert {p.part for p in chosen.packages} == {"rocm"}
    assert all(len(r.fingerprint) == 40 for r in chosen.repositories)


def test_efa_where_the_machine_has_it_and_nobody_turned_it_off() -> None:
    on = stack.solve(cluster_spec("p4d.24xlarge"))["train"]
    assert on.package("libfabric-aws-bin") is not None
    spec = cluster_spec("p4d.24xlarge", groups={"train": {"machine": "p4d.24xlarge", "network": {"rdma": False}}})
    assert stack.solve(spec)["train"].package("libfabric-aws-bin") is None
    assert stack.solve(cluster_spec("dgx-h100"))["train"].package("libfabric-aws-bin") is None


@pytest.mark.parametrize("pin", ["580", "580.173", "580.173.02"])
def test_a_pin_may_be_short(pin: str) -> None:
    assert stack.solve(cluster_spec("p4d.24xlarge", stack={"driver": pin}))["train"].driver == "580.173.02"


SEEDS: list[tuple[str, dict[str, object], dict[str, str | None]]] = [
    ("p4d.24xlarge", {}, {"driver": "580.173.02", "cuda_toolkit": "13.0", "nccl": "2.27.7", "os": "ubuntu-24.04"}),
    ("p4d.24xlarge", {"driver": "535"}, {"driver": "535.247.01", "cuda_toolkit": "12.2", "os": "ubuntu-22.04"}),
    ("p4d.24xlarge", {"driver": "595"}, {"driver": "595.91.07", "cuda_toolkit": "13.1"}),
    ("p4d.24xlarge", {"driver": "580.95.05"}, {"driver": "580.95.05"}),
    ("p4d.24xlarge", {"driver": "580.142.11"}, {"driver": "580.142.11", "driver_branch": "580"}),
    ("p4d.24xlarge", {"pytorch": "1.13.1"}, {"pytorch": "1.13.1+cu117", "cuda_toolkit": "11.7"}),
    ("p4d.24xlarge", {"tensorflow": "2.12", "cuda": "11.8"}, {"tensorflow": "2.12.0", "cuda_toolkit": "11.8"}),
    ("p4d.24xlarge", {"tensorflow": "2.12", "pytorch": "2.9.1"}, {"tensorflow": "2.12.0", "pytorch": "2.9.1+cu128"}),
    ("p5.48xlarge", {}, {"kernel_modules": "open", "fabric_manager": "580.173.02"}),
    ("dgx-h200", {"ofed": "3.2"}, {"ofed": "3.2.3", "efa": None}),
    ("dgx-b200", {"pytorch": "2.7"}, {"kernel_modules": "open", "pytorch": "2.7.0a0+79aa17489c"}),
    ("p3.2xlarge", {}, {"kernel_modules": "proprietary", "cuda_toolkit": "12.9"}),
    ("p3.2xlarge", {"pytorch": "2.13"}, {"pytorch": "2.13.0+cu126", "cuda_toolkit": "12.6"}),
    ("g4dn.xlarge", {"os": "debian-12"}, {"os": "debian-12", "fabric_manager": None}),
    ("workstation-rtx4090", {"pytorch": "1.13.1"}, {"pytorch": "1.13.1+cu117"}),
    ("workstation-rtx4090", {"cudnn": "9.10", "cuda": "12.8"}, {"cudnn": "9.10.2.21", "cuda_toolkit": "12.8"}),
    ("amd-mi300x-node", {"pytorch": "2.9"}, {"pytorch": "2.9.1+rocm6.4", "rocm": "6.4.4"}),
    ("amd-mi250-node", {"pytorch": "2.9.1+rocm6.3"}, {"pytorch": "2.9.1+rocm6.3"}),
]


@pytest.mark.parametrize(("machine", "pins", "expected"), SEEDS, ids=lambda value: str(value)[:60])
def test_what_is_solved(machine: str, pins: dict[str, object], expected: dict[str, str | None]) -> None:
    chosen = stack.solve(cluster_spec(machine, stack=pins))["train"]
    assert {key: getattr(chosen, key) for key in expected} == expected


REFUSED: list[tuple[str, dict[str, object], str, str]] = [
    ("p4d.24xlarge", {"pytorch": "1.13.1+cu118", "cuda": "11.8", "tensorflow": "2.12"},
     "PyTorch 1.13.1+cu118 is not known to this release", 'stack.pytorch: "1.13.1+cu117"'),
    ("p4d.24xlarge", {"pytorch": "1.13.1", "cuda": "11.8"},
     "PyTorch 1.13.1 for CUDA 11.8 (cu118) is not known to this release", 'stack.cuda: "11.7"'),
    ("p4d.24xlarge", {"driver": "535", "cuda": "13.0"},
     "CUDA 13.0.2 needs driver 580.65.06 or newer", 'stack.cuda: "12.9"'),
    ("p4d.24xlarge", {"driver": "535", "os": "ubuntu-24.04"},
     "driver 535.247.01 is packaged for ubuntu-22.04", 'stack.os: "ubuntu-22.04"'),
    ("p4d.24xlarge", {"driver": "999"}, "driver branch 999 is not known", 'stack.driver: "610"'),
    ("p4d.24xlarge", {"driver": "580.173.0"}, "driver 580.173.0 is not known", 'stack.driver: "580"'),
    ("p4d.24xlarge", {"cuda": "12.7"}, "CUDA 12.7 is not known", 'stack.cuda: "12.8"'),
    ("p4d.24xlarge", {"nccl": "2.2"}, "NCCL 2.2 is not known", 'stack.nccl: "2.16.5"'),
    ("p4d.24xlarge", {"driver": "535", "containers": ("nvcr.io/nvidia/pytorch:25.10-py3",)},
     "nvcr.io/nvidia/pytorch:25.10-py3 needs driver 580 or newer", "nvcr.io/nvidia/pytorch:23.10-py3"),
    ("p3.2xlarge", {"cuda": "13.0"}, "CUDA 13.0.2 runs on turing, ampere", 'stack.cuda: "12.9"'),
    ("p3.2xlarge", {"driver": "595"}, "driver 595.91.07 runs on turing, ampere", 'stack.driver: "580"'),
    ("p3dn.24xlarge", {"containers": ("nvcr.io/nvidia/pytorch:25.10-py3",)}, "runs on turing", "25.06-py3"),
    ("dgx-b200", {"pytorch": "2.6+cu124"}, "PyTorch 2.6.0+cu124 runs on volta", "stack.pytorch"),
    ("dgx-b200", {"tensorflow": "2.12"}, "TensorFlow 2.12.0 runs on volta", "leave out stack.tensorflow"),
    ("p3.16xlarge", {"driver": "595", "cuda": "13.0"}, "runs on turing", '"580" and stack.cuda: "12.9"'),
    ("p5.48xlarge", {"nccl": "2.16.5"}, "p5.48xlarge needs NCCL 2.18.0 or newer", 'stack.nccl: "2.18.1"'),
    ("amd-mi300x-node", {"driver": "580"}, "driver is NVIDIA software", "leave it out"),
    ("amd-mi300x-node", {"pytorch": "2.9.1+cu130"}, "cu130 is a build for NVIDIA GPUs", "2.9.1+rocm6.4"),
    ("p4d.24xlarge", {"pytorch": "2.9.1+rocm6.4"}, "rocm6.4 is a build for AMD GPUs", "2.9.1+cu1"),
]  # fmt: skip


@pytest.mark.parametrize(("machine", "pins", "reason", "nearest"), REFUSED, ids=lambda value: str(value)[:60])
def test_what_is_refused_and_why(machine: str, pins: dict[str, object], reason: str, nearest: str) -> None:
    with pytest.raises(stack.StackConflict) as caught:
        stack.solve(cluster_spec(machine, stack=pins), place=lambda key: f"cluster.yaml:{len(key)}")
    message = str(caught.value)
    assert reason in message
    assert nearest in caught.value.hint
    assert len(message.splitlines()) <= 5
    assert all(
        f"(cluster.yaml:{len(path)})" in message for path in caught.value.paths if reason != "driver is NVIDIA software"
    )


@pytest.mark.parametrize(("machine", "pins", "reason", "nearest"), REFUSED[:9], ids=lambda value: str(value)[:60])
def test_the_nearest_set_really_works(machine: str, pins: dict[str, object], reason: str, nearest: str) -> None:
    """What the hint says to write instead is written, and solves."""
    with pytest.raises(stack.StackConflict) as caught:
        stack.solve(cluster_spec(machine, stack=pins))
    for offer in caught.value.hint.removeprefix("nearest that works: ").split(" or "):
        key, _, value = offer.removeprefix("stack.").partition(": ")
        pin = (value.strip("[]"),) if value.startswith("[") else value.strip('"')
        stack.solve(cluster_spec(machine, stack={**pins, key: pin}))


@pytest.mark.parametrize("build", ["cu118", "cu121", "cu124"])
def test_a_release_is_not_nvidia_s_build_of_its_series(build: str) -> None:
    """2.4.0 was built for these three; NVIDIA's 2.4.0a0 is something else."""
    solved = stack.solve(cluster_spec("p4d.24xlarge", stack={"pytorch": f"2.4.0+{build}"}))["train"]
    assert solved.pytorch == f"2.4.0+{build}"
    cuda = f"{build[2:4]}.{build[4]}"
    alone = stack.solve(cluster_spec("p4d.24xlarge", stack={"pytorch": "2.4.0", "cuda": cuda}))["train"]
    assert alone.pytorch == f"2.4.0+{build}"
    assert alone.images[0].reference == f"docker.io/pytorch/pytorch:2.4.0-cuda{cuda}-cudnn9-runtime"
    series = stack.solve(cluster_spec("p4d.24xlarge", stack={"pytorch": "2.4"}))["train"]
    assert series.images[0].reference.startswith("nvcr.io/nvidia/pytorch:24.")


def test_every_release_from_1_12_on_is_known() -> None:
    """The releases of torch in the package index on 2026-11-22."""
    known = {row["version"] for row in rows("pytorch")}
    assert known == {
        "1.12.0", "1.12.1", "1.13.0", "1.13.1", "2.0.0", "2.0.1", "2.1.0", "2.1.1", "2.1.2", "2.2.0", "2.2.1", "2.2.2",
        "2.3.0", "2.3.1", "2.4.0", "2.4.1", "2.5.0", "2.5.1", "2.6.0", "2.7.0", "2.7.1", "2.8.0", "2.9.0", "2.9.1",
        "2.10.0", "2.11.0", "2.12.0", "2.12.1", "2.13.0", "2.14.0", "2.14.1",
        "2.15.0",
    }  # fmt: skip


def test_pytorch_chooses_the_image() -> None:
    chosen = stack.solve(cluster_spec("p5.48xlarge", stack={"pytorch": "2.8"}))["train"]
    assert chosen.images[0].reference == "nvcr.io/nvidia/pytorch:25.08-py3"


def test_an_image_that_is_not_named_is_added_where_a_pin_needs_it() -> None:
    pins = {"pytorch": "2.8", "containers": ("ghcr.io/acme/train:1", "nvcr.io/nvidia/pytorch:25.10-py3")}
    chosen = stack.solve(cluster_spec("p4d.24xlarge", stack=pins))["train"]
    assert [i.reference for i in chosen.images] == [
        "ghcr.io/acme/train:1", "nvcr.io/nvidia/pytorch:25.10-py3", "nvcr.io/nvidia/pytorch:25.08-py3",
    ]  # fmt: skip
    pins["pytorch"] = "2.9"
    assert len(stack.solve(cluster_spec("p4d.24xlarge", stack=pins))["train"].images) == 2


def test_what_is_kept_stays_and_what_no_longer_fits_moves() -> None:
    spec = cluster_spec("p4d.24xlarge")
    locked_versions = {"train": {"driver": "580.105.08", "nccl": "2.28.9", "cuda": "12.8.1"}}
    chosen = stack.solve(spec, keep=locked_versions)["train"]
    assert (chosen.driver, chosen.nccl, chosen.cuda_toolkit) == ("580.105.08", "2.28.9", "12.8")
    pinned = cluster_spec("p4d.24xlarge", stack={"cuda": "13.0"})
    chosen = stack.solve(pinned, keep=locked_versions)["train"]
    assert (chosen.driver, chosen.nccl, chosen.cuda_toolkit) == ("580.105.08", "2.28.9", "13.0")


def test_groups_are_solved_one_by_one() -> None:
    groups = {"a": {"machine": "p4d.24xlarge"}, "v": {"machine": "p3.2xlarge"}}
    stacks = stack.solve(cluster_spec("p4d.24xlarge", groups=groups))
    assert stacks["a"].cuda_toolkit != stacks["v"].cuda_toolkit
    assert stacks["a"].driver == stacks["v"].driver


def test_every_component_says_why() -> None:
    for machine in ("p4d.24xlarge", "dgx-b200", "amd-mi300x-node"):
        chosen = stack.solve(cluster_spec(machine))["train"]
        assert all("[" in c.why for c in chosen.components.values())
        assert "gpu" not in chosen.components


def test_alternatives_are_explained() -> None:
    lines = stack.alternatives(cluster_spec("p4d.24xlarge"), "train", "driver", "580.173.02", str)
    assert any(line.startswith("610.60: compatible") for line in lines)
    pinned = cluster_spec("p4d.24xlarge", stack={"driver": "535"})
    lines = stack.alternatives(pinned, "train", "cuda", "12.2.2", str)
    assert any(line.startswith("13.2.0: ") and "driver 580.65.06 or newer" in line for line in lines)


def test_a_version_that_a_pin_of_the_same_component_excludes_says_so() -> None:
    pinned = cluster_spec("p4d.24xlarge", stack={"driver": "580"})
    lines = stack.alternatives(pinned, "train", "driver", "580.173.02", lambda key: f"cluster.yaml:7 {key}")
    assert "610.60: cluster.yaml asks for 580 (cluster.yaml:7 stack.driver)" in lines
    assert not any(line.endswith("conflicts with ") for line in lines)


def test_a_strangers_image_has_no_known_versions() -> None:
    chosen = stack.solve(cluster_spec("p4d.24xlarge", stack={"containers": ("ghcr.io/acme/train:1",)}))["train"]
    assert [(i.reference, i.torch) for i in chosen.images] == [("ghcr.io/acme/train:1", None)]


SOLVED = [component.name for component in COMPONENTS.values() if component.solved]


@pytest.mark.parametrize("name", (*SOLVED, "ngc_pytorch", "pytorch_gpus", "proven", "machines", "packages"))
def test_every_row_has_a_source(name: str) -> None:
    assert rows(name)
    assert all(row["source"] for row in rows(name))


def test_repositories_are_signed_or_say_that_there_is_none() -> None:
    for name, row in rows("repositories").items():
        assert row["source"], name
        places = [archive[key] for archive in row.get("archives", ()) for key in ("url", "signature") if key in archive]
        assert all(url.startswith("https://") for url in (*places, row.get("uri"), row["key_url"]) if url), name
        assert ("uri" in row) != ("archives" in row), name
        assert row["fingerprint"] is None or len(row["fingerprint"]) == 40, name
        if "archives" in row:
            assert row["basis"] in ("documented", "measured"), name
            assert any("signature" in archive for archive in row["archives"]) == bool(
                row["fingerprint"] and row["key_url"]
            ), name
            assert all(
                len(published_hash["sha256"]) == 64 and published_hash["sources"] for published_hash in row["hashes"]
            ), name
    # Where no independent sources tell the vendor's key (lustre), or a vendor signs nothing, cluster.yaml has to.
    unsigned = {n for n, row in rows("repositories").items() if not row["fingerprint"]}
    assert unsigned == {"lustre", "doca", "gdrcopy"}


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
    ("text", "message"),
    [
        ("version: 9\n", "format 9"),
        ("version: 3\n", "not a lock"),
        ("a: [", "not YAML"),
        ("- 1\n", "not a lock"),
        ("", "not a lock"),
    ],
)
def test_a_damaged_lock_is_an_error(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "c.lock").write_text(text)
    with pytest.raises(GpuprovError, match=message) as caught:
        lockfile.read(tmp_path / "c.lock")
    assert "gpuprov" in caught.value.hint


def test_differences_are_named() -> None:
    previous, after = cluster_spec("p4d.24xlarge"), cluster_spec("p5.48xlarge", stack={"driver": "580"})
    lock = Lock(request=stack.request(previous), simulated=True, groups=stack.solve(previous))
    assert lockfile.differences(lock, stack.request(previous)) == []
    assert lockfile.differences(lock, stack.request(after)) == [
        "groups.train.machine: p4d.24xlarge when locked, p5.48xlarge now",
        "stack.driver: not there when locked, 580 now",
    ]
