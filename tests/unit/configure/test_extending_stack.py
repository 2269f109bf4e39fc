"""docs/extending/role.md, component.md and distribution.md are true: what they say works in a copy of the code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.extending import copied, python

pytestmark = pytest.mark.heavy

ROLE = """
import json
from provisioner.common import paths
from provisioner.plan import roles
from provisioner.configure import drift, playbook, stamps
from provisioner.configure.inventory import group_variables
from provisioner.verify.bundle import Bundle, Output
from tests.support.plans import cluster_spec, plan

found = {}
for machine in ("p4d.24xlarge", "g6.xlarge"):
    fleet = plan(cluster_spec(machine))
    group = fleet.groups[0]
    units = roles.units(group.machine, group.gpu, group.stack, group.spec)
    wanted = stamps.desired(fleet, "train", {})
    lock = drift.desired_state(fleet, group, wanted, ("irqbalance.service",))
    there = {name: stamp.to_json() for name, stamp in wanted.items()} | {"irqbalance": {"digest": "old"}}
    text = "Id=irqbalance.service\\nLoadState=loaded\\nActiveState=failed\\nSubState=failed\\nUnitFileState=enabled\\n"
    answers = {"units.txt": Output(text, 0), "stamp.json": Output(json.dumps({"roles": there}), 0)}
    told = [d for d in drift.differences(Bundle(answers), lock) if d.kind in ("unit", "stamp")]
    found[machine] = {
        "variable": group_variables("train", fleet)["gpuprov_numa_nodes"],
        "unit": "irqbalance.service" in units,
        "recorded": "irqbalance" in wanted,
        "drift": sorted(d.message for d in told),
        "runs": [sorted(drift.passes(told)[0].roles), drift.passes(told)[0].half],
        "second": playbook.load().roles[1],
    }
print(json.dumps(found))
"""

COMPONENT = """
import json
from provisioner.configure import stamps
from provisioner.rundir.release import changes
from provisioner.stack import solve
from provisioner.stack.conflict import StackConflict
from tests.support.plans import cluster_spec

plain = solve(cluster_spec("p4d.24xlarge"))["train"]
stack = solve(cluster_spec("p4d.24xlarge", stack={"nccl_tests": "2.17", "nccl": "2.27.7"}))["train"]
try:
    solve(cluster_spec("p4d.24xlarge", stack={"nccl_tests": "2.17", "nccl": "2.25"}))
    conflict = ""
except StackConflict as error:
    conflict = error.message
print(json.dumps({
    "plain": "nccl_tests" in plain.components,
    "package": [(p.name, p.version, p.part) for p in stack.packages if p.part == "nccl_tests"],
    "changes": changes(plain.model_copy(update={"packages": (), "nccl": stack.nccl}), stack)[0],
    "conflict": conflict,
}))
"""

DISTRIBUTION = """
import json
from provisioner.common.errors import GpuprovError
from provisioner.machines.providers.aws.image import PARAMETERS
from provisioner.sandbox.systems import system
from provisioner.stack import solve
from tests.support.plans import cluster_spec

stack = solve(cluster_spec("p4d.24xlarge", stack={"os": "debian-13"}))["train"]
try:
    shown = str(system("debian-13"))
except GpuprovError as error:
    shown = str(error)
print(json.dumps({
    "stack": [stack.os, stack.driver, stack.cuda_toolkit],
    "repository": next(r.uri for r in stack.repositories if r.name == "cuda"),
    "debian's names": stack.package("nvidia-kernel-open-dkms") is not None,
    "image": "debian-13" in PARAMETERS,
    "sandbox": shown,
}))
"""


@pytest.fixture(scope="module")
def role(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    root = tmp_path_factory.mktemp("role")
    return root, copied("role.md", root)


@pytest.fixture(scope="module")
def component(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    root = tmp_path_factory.mktemp("component")
    return root, copied("component.md", root)


@pytest.fixture(scope="module")
def distribution(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    root = tmp_path_factory.mktemp("distribution")
    return root, copied("distribution.md", root)


def script_output(root: Path, script: str) -> Any:
    done = python(root, "-c", script)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def passes(root: Path, *tests: str) -> None:
    done = python(root, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *tests)
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout


def test_a_role_is_used_as_the_page_says(role: tuple[Path, list[str]]) -> None:
    root, touched = role
    assert len(touched) == 8
    report = script_output(root, ROLE)
    assert report["p4d.24xlarge"] == {
        "variable": 2,
        "unit": True,
        "recorded": True,
        "drift": ["irqbalance.service is failed", "role irqbalance is installed and not configured yet"],
        "runs": [["irqbalance"], ""],
        "second": "irqbalance",
    }
    assert report["g6.xlarge"]["unit"] is False
    assert report["g6.xlarge"]["recorded"] is False


@pytest.mark.slow
def test_the_tests_of_roles_hold_for_it(role: tuple[Path, list[str]]) -> None:
    tests = ("configure/test_stamps.py", "configure/test_drift.py", "ansible/roles/test_role_arguments.py")
    passes(role[0], *(f"tests/unit/{name}" for name in tests))


def test_a_component_is_used_as_the_page_says(component: tuple[Path, list[str]]) -> None:
    root, touched = component
    assert len(touched) == 6
    report = script_output(root, COMPONENT)
    assert report["plain"] is False
    assert report["package"] == [["nccl-tests", "2.17.6-1", "nccl_tests"]]
    assert report["changes"] == "nccl-tests none → 2.17.6"
    assert 'stack.nccl_tests "2.17" (stack.nccl_tests)' in report["conflict"]
    assert "nccl-tests 2.17.6 needs NCCL 2.27 or newer" in report["conflict"]


@pytest.mark.slow
def test_the_tests_of_components_hold_for_it(component: tuple[Path, list[str]]) -> None:
    passes(component[0], "tests/unit/stack/test_components.py", "tests/unit/configure/test_drift.py",
           "tests/unit/configure/test_stamps.py")  # fmt: skip


def test_a_distribution_is_used_as_the_page_says(distribution: tuple[Path, list[str]]) -> None:
    root, touched = distribution
    assert len(touched) == 3
    report = script_output(root, DISTRIBUTION)
    assert report["stack"] == ["debian-13", "580.173.02", "13.0"]
    assert "/repos/debian13/" in report["repository"]
    assert report["debian's names"] is True
    assert report["image"] is True
    assert "sandbox nodes can be ubuntu-24.04, ubuntu-22.04, debian-12" in report["sandbox"]
