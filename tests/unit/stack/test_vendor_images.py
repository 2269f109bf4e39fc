"""`base: vendor-hpc`: what a cloud's own GPU image brings is locked as it is, and neither installed nor held."""

from __future__ import annotations

from pathlib import Path

import pytest

from provisioner import stack
from provisioner.catalog import load
from provisioner.configure import inventory
from provisioner.rundir.release import identity
from provisioner.spec.models import ClusterSpec
from provisioner.stack import StackConflict, lockfile, vendor_images
from provisioner.stack.facts import rows
from provisioner.stack.models import Lock, on_node
from tests.support import plans

AZURE = {"provider": "azure", "region": "eastus"}
AWS = {"provider": "aws", "region": "us-east-1"}


def spec(site: dict[str, str], machine: str, **more: object) -> ClusterSpec:
    group = {"machine": machine, "base": "vendor-hpc"} | more.pop("group", {})  # type: ignore[operator]
    return ClusterSpec.model_validate({"name": "t", "sites": {"here": site}, "groups": {"train": group}, **more})


def test_what_the_image_holds_is_locked_and_not_installed() -> None:
    solved = stack.solve(spec(AZURE, "Standard_ND96asr_v4"))["train"]
    assert solved.vendor is not None
    assert solved.vendor.name == "microsoft-dsvm:ubuntu-hpc:2404:24.04.2026072901"
    assert solved.vendor.parts == {
        "driver": "580.173.02", "cuda": "13.0", "nccl": "2.30.4", "ofed": "3.2.3", "gdrcopy": "2.6", "dcgm": "4.6.0",
        "fabric_manager": "580.173.02",
    }  # fmt: skip
    assert (solved.driver, solved.nccl, solved.ofed) == ("580.173.02", "2.30.4", "3.2.3")
    assert {p.part for p in solved.packages} == {"container_toolkit", "dcgm_exporter"}
    assert {r.name for r in solved.repositories} == {"container-toolkit", "cuda"}
    assert {"nvidia-open", "libnccl2", "doca-ofed"} <= {p.name for p in solved.vendor.packages}
    assert all(solved.has(part) for part in solved.vendor.parts) and solved.has("dcgm_exporter")
    assert solved.components["nccl"].why.startswith("in microsoft-dsvm:ubuntu-hpc")


@pytest.mark.parametrize("machine", ["p4d.24xlarge", "p5.48xlarge", "g5.xlarge", "p6-b200.48xlarge", "g4dn.xlarge"])
def test_aws_machines_have_theirs(machine: str) -> None:
    solved = stack.solve(spec(AWS, machine))["train"]
    known = load().machine(machine)
    assert solved.vendor is not None and solved.vendor.parts["driver"] == solved.driver == "595.91.07"
    assert ("fabric_manager" in solved.vendor.parts) == known.fabric_manager_required
    assert ("efa" in solved.vendor.parts) == (solved.efa is not None) == (known.network.kind == "efa")
    assert solved.dcgm == "4.7.0" and solved.dcgm_exporter is not None
    assert solved.package("libnccl2") is not None, "the image has no NCCL that is known, so the lock has one"


def refused(cluster_spec: ClusterSpec) -> str:
    with pytest.raises(StackConflict) as caught:
        stack.solve(cluster_spec, place=lambda path: f"cluster.yaml:{path}")
    return f"{caught.value.where}: {caught.value.message} ({caught.value.hint})"


def test_a_pin_that_contradicts_the_image_is_refused_with_what_is_right() -> None:
    error_text = refused(spec(AZURE, "Standard_ND96asr_v4", stack={"driver": "570"}))
    assert (
        error_text.startswith("cluster.yaml:stack.driver: ")
        and "base: vendor-hpc (cluster.yaml:groups.train.base)" in error_text
    )
    assert "has driver 580.173.02 [Azure/azhpc-images" in error_text and 'stack.driver: "580"' in error_text


@pytest.mark.parametrize(
    ("site", "machine", "more", "message"),
    [
        ({"provider": "alicloud", "region": "cn-hangzhou"}, "ecs.gn7-c13g1.26xlarge", {}, "not available at alicloud"),
        ({"provider": "tencent", "region": "ap-guangzhou"}, "GN10Xp.20XLARGE320", {}, "not available at tencent"),
        (AZURE, "Standard_ND40rs_v2", {}, "runs on ampere, hopper"),
        (AZURE, "Standard_ND96asr_v4", {"stack": {"os": "debian-12"}}, 'stack.os: "ubuntu-2'),
        (AWS, "p4d.24xlarge", {"group": {"storage": {"scratch": "/scratch"}}}, "at /opt/dlami/nvme"),
    ],
)  # fmt: skip
def test_what_no_image_does_is_refused(
    site: dict[str, str], machine: str, more: dict[str, object], message: str
) -> None:
    assert message in refused(spec(site, machine, **more))


@pytest.mark.parametrize("os", ["ubuntu-24.04", "ubuntu-22.04"])
def test_azures_image_leaves_the_local_disks_to_role_scratch(os: str) -> None:
    """Its setup_nvme.sh is called by nothing (vendor_images.yaml)."""
    group: dict[str, object] = {"storage": {"scratch": "/scratch"}}
    cluster_spec = spec(AZURE, "Standard_ND96isr_H100_v5", group=group, stack={"os": os})
    solved = stack.solve(cluster_spec)["train"]
    assert solved.vendor is not None
    assert cluster_spec.groups["train"].storage.scratch == "/scratch"


def test_plain_images_stay_the_default_and_an_older_lock_the_release_that_it_was() -> None:
    plain = ClusterSpec.model_validate(
        {"name": "t", "sites": {"here": AZURE}, "groups": {"train": {"machine": "Standard_ND96asr_v4"}}}
    )
    solved = stack.solve(plain)["train"]
    assert solved.vendor is None and "vendor" not in on_node(solved)
    assert "groups.train.base" not in stack.request(plain)
    assert stack.request(spec(AZURE, "Standard_ND96asr_v4"))["groups.train.base"] == "vendor-hpc"


def test_a_lock_with_such_an_image_is_read_back(tmp_path: Path) -> None:
    cluster_spec = spec(AZURE, "Standard_ND96asr_v4")
    lock = Lock(request=stack.request(cluster_spec), simulated=False, groups=stack.solve(cluster_spec))
    lockfile.write(tmp_path / "cluster.lock", lock)
    read_lock = lockfile.read(tmp_path / "cluster.lock")
    assert read_lock == lock
    assert read_lock is not None and identity(read_lock) == identity(lock)


def test_each_row_names_known_components_and_a_source() -> None:
    for row in rows(vendor_images.NAME):
        assert row["source"] and row["has"].keys() <= rows_of_components()
        assert vendor_images.images(row["provider"])


def rows_of_components() -> set[str]:
    return {row["name"] for row in rows("components")}


def test_what_a_plain_machine_of_azures_gets_that_one_of_its_hpc_image_has_already() -> None:
    """The fleet from nothing to nothing at Azure boots the HPC image; this is what differs from it for the roles."""
    group = {"machine": "Standard_ND96asr_v4", "storage": {"scratch": "/scratch"}}
    plain = plans.plan(ClusterSpec.model_validate({"name": "t", "sites": {"here": AZURE}, "groups": {"train": group}}))
    hpc = plans.plan(spec(AZURE, "Standard_ND96asr_v4"))
    variables, other = (inventory.group_variables("train", fleet_plan) for fleet_plan in (plain, hpc))
    assert {key for key, value in variables.items() if other[key] != value} == {"gpuprov_stack", "gpuprov_scratch"}
    (of_plain,), (of_hpc,) = plain.groups, hpc.groups
    assert (of_plain.boots, of_hpc.boots) == ("ubuntu-24.04", "microsoft-dsvm:ubuntu-hpc:2404:24.04.2026072901")
    installed = {package.part for package in of_plain.stack.packages}
    assert installed - {package.part for package in of_hpc.stack.packages} == {
        "cuda", "dcgm", "driver", "fabric_manager", "nccl",
    }  # fmt: skip
    assert of_hpc.stack.vendor is not None
    # InfiniBand is the distribution's own: what else the image brings a plain node has not, and no role asks for it.
    assert set(of_hpc.stack.vendor.parts) - installed == {"gdrcopy", "ofed"}
    assert not any(of_plain.stack.has(part) for part in ("gdrcopy", "ofed"))
    assert all(package.version for package in of_plain.stack.packages)
