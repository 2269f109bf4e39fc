"""What gpuprov gives the roles is what their argument_specs ask for: the playbook does not check it on each node."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

from provisioner import catalog
from provisioner.configure import inventory
from tests.support import plans

ROLES = Path(__file__).parents[4] / "ansible" / "roles"
GIVEN_BY_THE_INVENTORY = {
    "gpuprov_obsolete": [], "gpuprov_mounts": {}, "gpuprov_listen_address": "10.0.0.4", "gpuprov_node": "train-0",
    "gpuprov_slurm": {"head": "10.0.0.3", "accounting": True, "files": {}},
}  # fmt: skip
"""What configure.inventory.write adds to the variables of a group, and of a node."""
MACHINES = sorted(machine.name for machine in catalog.load().machines())


def options(role: str) -> dict[str, Any]:
    spec = yaml.safe_load((ROLES / role / "meta" / "argument_specs.yml").read_text())["argument_specs"]["main"]
    return {name: option for name, option in spec["options"].items() if name.startswith("gpuprov_")}


def problems(role: str, variables: dict[str, Any]) -> list[str]:
    known = options(role)
    plain = {name: {k: v for k, v in o.items() if k != "description"} for name, o in known.items()}
    result = ArgumentSpecValidator(plain).validate({k: v for k, v in variables.items() if k in known})
    return list(result.error_messages)


@pytest.fixture(scope="module")
def given() -> dict[str, dict[str, Any]]:
    """Machine → variables of a group of it."""
    variables_by_machine = {}
    for machine in MACHINES:
        plan = plans.plan(plans.cluster_spec(machine, count=1))
        variables_by_machine[machine] = inventory.group_variables(plan.groups[0].name, plan) | GIVEN_BY_THE_INVENTORY
    return variables_by_machine


@pytest.mark.parametrize("role", sorted(p.name for p in ROLES.iterdir()))
def test_every_machine_gives_each_role_what_it_asks_for(role: str, given: dict[str, dict[str, Any]]) -> None:
    assert {machine: messages for machine, variables in given.items() if (messages := problems(role, variables))} == {}


@pytest.mark.parametrize("role", sorted(p.name for p in ROLES.iterdir()))
def test_each_role_declares_the_variables_that_it_reads(role: str) -> None:
    files = [
        file for file in (ROLES / role).rglob("*") if file.suffix in (".yml", ".j2") and file.parent.name != "meta"
    ]
    read = {name for file in files for name in re.findall(r"\bgpuprov_[a-z_0-9]+\b", file.read_text())}
    undeclared = sorted(read - options(role).keys())
    assert not undeclared, f"ansible/roles/{role}/meta/argument_specs.yml lacks {undeclared}"


def test_a_variable_that_is_missing_or_of_another_kind_is_seen(given: dict[str, dict[str, Any]]) -> None:
    variables = given["p4d.24xlarge"]
    without = {name: value for name, value in variables.items() if name != "gpuprov_fabric_manager"}
    assert "gpuprov_fabric_manager" in problems("nvidia_driver", without)[0]
    assert "gpuprov_stack" in problems("nvidia_driver", variables | {"gpuprov_stack": "580"})[0]
