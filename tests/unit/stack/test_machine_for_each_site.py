"""A group whose machine type depends on its site: one stack for each site in the lock, and nothing new for others."""

from __future__ import annotations

from pathlib import Path

import pytest

from provisioner import spec, stack
from provisioner.common.errors import GpuprovError
from provisioner.plan.models import build_plan
from provisioner.rundir.release import identity
from provisioner.spec.models import ClusterSpec
from provisioner.stack import lockfile
from provisioner.stack.models import Lock

FILE = """
name: vision
sites:
  ohio: {provider: aws, region: us-east-2, storage: {fsx: {capacity_gib: 1200}}}
  oregon: {provider: aws, region: us-west-2}
  west: {provider: azure, region: westus2, subscription: 00000000-0000-0000-0000-000000000000}
groups:
  train: {machine: MACHINE, count: 2, site: SITES}
  infer: {machine: g5.xlarge, site: oregon}
stack: {kernel: 6.8.0-1021-aws}
"""
AWS, AZURE = "p4d.24xlarge", "Standard_ND96asr_v4"
OLDER = "580.126.16"
"""A driver that is not the newest."""
BY_SITE = f"{{ohio: {AWS}, west: {AZURE}}}"


def loaded(folder: Path, machine: str = BY_SITE, sites: str = "[ohio, west]") -> ClusterSpec:
    file = folder / "cluster.yaml"
    file.write_text(FILE.replace("MACHINE", machine).replace("SITES", sites))
    return spec.load(file)


def locked(fleet_spec: ClusterSpec) -> Lock:
    return Lock(request=stack.request(fleet_spec), simulated=True, groups=stack.solve(fleet_spec))


def test_a_group_has_the_machine_of_the_site_where_it_is(tmp_path: Path) -> None:
    fleet_spec = loaded(tmp_path)
    assert (fleet_spec.site_of("train"), fleet_spec.machine("train").name) == ("ohio", AWS)
    moved = fleet_spec.with_sites({"train": "west"})
    assert (moved.machine("train").name, moved.machine("train", "ohio").name) == (AZURE, AWS)
    assert moved.machine("infer").name == "g5.xlarge"


def test_the_lock_has_a_stack_for_each_site(tmp_path: Path) -> None:
    lock = locked(loaded(tmp_path))
    assert list(lock.groups) == ["train@ohio", "train@west", "infer"]
    assert lock.groups["train@ohio"].efa and not lock.groups["train@west"].efa
    assert lock.request["groups.train@west.machine"] == AZURE
    has_lustre = {name: "lustre" in group_stack.components for name, group_stack in lock.groups.items()}
    assert has_lustre == {"train@ohio": True, "train@west": False, "infer": False}, "what one site mounts"


def test_it_is_written_and_read(tmp_path: Path) -> None:
    lock = locked(loaded(tmp_path))
    groups = {name: group_stack.model_copy(update={"repositories": ()}) for name, group_stack in lock.groups.items()}
    lock = lock.model_copy(update={"groups": groups})
    lockfile.write(tmp_path / "cluster.lock", lock)
    assert lockfile.read(tmp_path / "cluster.lock") == lock


def test_the_plan_is_of_the_site_that_was_chosen(tmp_path: Path) -> None:
    fleet_spec = loaded(tmp_path)
    lock = locked(fleet_spec)
    for site, machine, gpu in (("ohio", AWS, "A100-SXM4-40GB"), ("west", AZURE, "A100-SXM4-40GB")):
        placed = fleet_spec.with_sites({"train": site})
        group = build_plan(placed, lock).group("train")
        assert (group.site, group.machine.name, group.gpu.model) == (site, machine, gpu)
        assert group.spec.machine == machine
        assert group.stack == lock.groups[f"train@{site}"]
        assert list(lock.at(placed.group_sites()).groups) == ["train", "infer"]


def test_a_lock_without_the_stack_of_a_site_is_refused(tmp_path: Path) -> None:
    fleet_spec = loaded(tmp_path)
    lock = locked(fleet_spec)
    del lock.groups["train@west"]
    build_plan(fleet_spec, lock)
    with pytest.raises(GpuprovError, match=r"cluster\.lock has no group train"):
        build_plan(fleet_spec.with_sites({"train": "west"}), lock)


@pytest.mark.parametrize("machine", [AWS, f"{{ohio: {AWS}, oregon: {AWS}}}"], ids=["text", "the same in a block"])
def test_a_group_with_one_machine_type_has_one_stack(tmp_path: Path, machine: str) -> None:
    plain, fleet_spec = loaded(tmp_path, AWS, "[ohio, oregon]"), loaded(tmp_path, machine, "[ohio, oregon]")
    assert list(stack.solve(fleet_spec)) == ["train", "infer"]
    assert (stack.request(fleet_spec), locked(fleet_spec)) == (stack.request(plain), locked(plain))
    lock = locked(fleet_spec)
    assert lock.at({"train": "oregon", "infer": "oregon"}) is lock


def test_versions_stay_where_a_machine_type_becomes_one_for_each_site(tmp_path: Path) -> None:
    plain = loaded(tmp_path, AWS, "ohio")
    keep = lockfile.versions(locked(plain)) | {"train": {"driver": OLDER}}
    solved = stack.solve(loaded(tmp_path), keep=keep)
    assert {solved[name].driver for name in ("train@ohio", "train@west")} == {OLDER}


def test_nodes_of_a_group_that_gets_a_list_keep_their_release(tmp_path: Path) -> None:
    plain, fleet_spec = loaded(tmp_path, AWS, "ohio"), loaded(tmp_path)
    assert identity(locked(plain)) == identity(locked(fleet_spec).at(fleet_spec.group_sites()))


def test_an_error_of_one_site_is_at_its_machine_type(tmp_path: Path) -> None:
    loaded(tmp_path)
    position_of = spec.placer(tmp_path / "cluster.yaml")
    line = f"{tmp_path / 'cluster.yaml'}:8"
    assert position_of("groups.train@west.machine") == f"{line}:41"
    assert position_of("groups.train@west.base") == position_of("groups.train") == f"{line}:3"
