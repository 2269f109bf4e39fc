"""Machines without GPUs: what is installed on them, expected of them and asked of them. Nothing of a GPU."""

from __future__ import annotations

import pytest

from provisioner import catalog, stack
from provisioner.catalog.models import NO_GPU
from provisioner.configure import playbook
from provisioner.configure.inventory import group_variables
from provisioner.sandbox.hardware import hardware
from provisioner.spec.groups import Group
from provisioner.stack.conflict import StackConflict
from provisioner.verify.check import NO_GPUS
from provisioner.verify.expectations import expect
from provisioner.verify.registry import declared
from provisioner.verify.request import load_request, request_for
from tests.support.plans import cluster_spec, plan

CATALOG = catalog.load()
SIZES = tuple(CATALOG.without_gpus)


@pytest.mark.parametrize("name", SIZES)
def test_its_stack_is_the_distribution_alone(name: str) -> None:
    spec = cluster_spec(name)
    solved = stack.solve(spec)["train"]
    assert set(solved.components) == {"os"}
    assert (solved.packages, solved.images, solved.driver, solved.dcgm_exporter) == ((), (), None, None)
    variables = group_variables("train", plan(spec))
    running = {entry.role for entry in playbook.load().entries if entry.applies(variables)}
    assert running == {"base", "container_runtime"}


def test_versions_of_gpu_software_are_for_the_other_groups() -> None:
    pins = {"driver": "580", "pytorch": "2.9"}
    spec = cluster_spec("p4d.24xlarge", stack=pins)
    spec = spec.model_copy(update={"groups": {**spec.groups, "head": Group(machine="m6i.large")}})
    solved = stack.solve(spec)
    assert solved["train"].driver is not None
    assert solved["train"].driver.startswith("580.")
    assert (solved["head"].driver, solved["head"].images) == (None, ())


def test_versions_of_gpu_software_for_a_cluster_without_gpus_are_refused() -> None:
    with pytest.raises(StackConflict, match="driver is for machines with GPUs, and no group has one"):
        stack.solve(cluster_spec("m6i.large", stack={"driver": "580"}))


def test_no_check_of_gpus_applies() -> None:
    row = CATALOG.machine("m6i.large")
    group = plan(cluster_spec("m6i.large")).groups[0]
    expected = expect(row, NO_GPU, group.stack, group.spec, CATALOG, level="stress")
    applies = {check.id for check in declared() if not check.inapplicable(expected)}
    areas = {id.partition(".")[0] for id in applies}
    assert not areas & {
        "gpu",
        "nvlink",
        "nvswitch",
        "driver",
        "dcgm",
        "nccl",
        "load",
        "framework",
        "amd",
        "mig",
        "rdma",
    }
    assert {"host.memory", "storage.full", "container.runtime", "os.release"} <= applies
    refused = {check.inapplicable(expected) for check in declared() if check.id in ("gpu.count", "load.completes")}
    assert refused == {NO_GPUS}


def test_its_gpus_are_not_asked_for_and_not_loaded() -> None:
    row = CATALOG.machine("m6i.large")
    expected = expect(row, NO_GPU, None, None, CATALOG, level="standard")
    assert not [name for name in request_for(expected).files if "nvidia" in name or "rocm" in name or "dcgm" in name]
    loaded = load_request(expected)
    assert loaded is not None
    assert not {"load.json", "dcgmi-diag.json", "all_reduce.txt"} & loaded.files.keys()


def test_a_simulated_node_shows_no_gpu() -> None:
    machine = hardware(CATALOG.machine("m6i.large"), NO_GPU, "head-0", CATALOG)
    assert (machine["gpus"], machine["topology"], machine["nics"]) == ([], [], [])
