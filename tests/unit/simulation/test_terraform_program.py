"""The simulated Terraform writes plans, logs and states as the real one does: both are given the same orders."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from provisioner.machines.terraform import binary
from tests.simulation.terraform_program import STATE, Failed, Terraform
from tests.simulation.world import World

pytestmark = pytest.mark.heavy

NAMES = {"terraform_data.site": "aws_vpc.site", "terraform_data.node": "aws_instance.node"}
REAL = """
module "site" {
  source = "./module"
  nodes  = %s
}
output "nodes" { value = module.site.nodes }
"""
MODULE = """
variable "nodes" { type = set(string) }
resource "terraform_data" "site" { input = "network" }
resource "terraform_data" "node" {
  for_each = var.nodes
  input    = each.key
}
output "nodes" { value = { for name, node in terraform_data.node : name => { id = node.id } } }
"""
SIMULATED = """
provider "aws" {{
  region = "us-east-2"
}}
module "site" {{
  groups = {{"train" = {{"count" = {count}, "machine" = "g5.xlarge"}}}}
  tags = {{"gpuprov-cluster" = "fleet", "gpuprov-site" = "east", "gpuprov-id" = "000000000001"}}
  aws = {{"groups" = {{"train" = {{"zone" = "us-east-2a"}}}}}}
}}
"""


class Pair:
    """A folder of the real Terraform and one of the simulated, with the same nodes."""

    def __init__(self, folder: Path) -> None:
        self.real, self.simulated = folder / "real", folder / "simulated"
        (self.real / "module").mkdir(parents=True)
        self.simulated.mkdir()
        (self.real / "module" / "main.tf").write_text(MODULE)
        self.world = World(folder)

    def order(self, count: int) -> None:
        """What main.tf wants from now on."""
        names = json.dumps([f"train-{number}" for number in range(count)])
        (self.real / "main.tf").write_text(REAL % names)
        (self.simulated / "main.tf").write_text(SIMULATED.format(count=count))

    def run(self, *arguments: str) -> tuple[str, str]:
        """The output of both."""
        argv = [
            *binary.find().argv,
            *(argument.replace("aws_instance.node", "terraform_data.node") for argument in arguments),
        ]
        done = subprocess.run(argv, cwd=self.real, capture_output=True, text=True, check=True)
        return done.stdout, "\n".join(self._simulate(arguments))

    def _simulate(self, arguments: Sequence[str]) -> list[str]:
        world = self.world
        program = Terraform(
            self.simulated, world.cloud, world.processes, world.bucket, "111111111111", _write, world.removing
        )
        return list(
            program.run([argument for argument in arguments if argument != "-json" or arguments[0] == "output"])
        )

    def states(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return json.loads((self.real / STATE).read_text()), json.loads((self.simulated / STATE).read_text())


def _write(path: Path, text: str) -> None:
    path.write_text(text)


def log_rows(log: str) -> list[Any]:
    """What gpuprov reads from a log, in an order of its own: parallel work has none."""
    rows = []
    for line in log.splitlines():
        record = json.loads(line) if line.startswith("{") else {}
        kind = record.get("type")
        if kind == "planned_change":
            rows.append((kind, record["change"]["action"], _renamed_resource(record["change"]["resource"])))
        elif kind in ("apply_start", "apply_complete"):
            action = record["hook"]["action"]
            rows.append((kind, action, _renamed_resource(record["hook"]["resource"])))
        elif kind == "change_summary":
            counts = {key: record["changes"][key] for key in ("add", "change", "remove", "operation")}
            rows.append((kind, json.dumps(counts, sort_keys=True)))
        elif kind == "outputs" and "action" in record["outputs"].get("nodes", {}):
            rows.append((kind, record["outputs"]["nodes"]["action"]))
    return sorted(rows, key=repr)


def _renamed_resource(resource: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((key, _renamed(str(value))) for key, value in resource.items() if key != "implied_provider"))


def _renamed(text: str) -> str:
    for real, simulated in NAMES.items():
        text = text.replace(real, simulated)
    return re.sub(r"^terraform_data$", "*", re.sub(r"^aws_\w+$", "*", text))


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    test_pair = Pair(tmp_path)
    test_pair.order(2)
    test_pair.run("init")
    return test_pair


def applied(pair: Pair, *flags: str) -> None:
    for arguments in (("plan", "-json", "-out=plan.bin", *flags), ("apply", "-json", "plan.bin")):
        real, simulated = map(log_rows, pair.run(*arguments))
        # Terraform's replace is a delete and a create while it is applied
        assert _split_replacements(real) == _split_replacements(simulated), arguments


def _split_replacements(rows: list[Any]) -> list[Any]:
    split = []
    for row in rows:
        if row[0].startswith("apply_") and row[1] == "replace":
            split += [(row[0], "delete", row[2]), (row[0], "create", row[2])]
        else:
            split.append(row)
    return sorted(split, key=repr)


def test_what_it_prints_is_what_terraform_prints(pair: Pair) -> None:
    applied(pair)
    applied(pair)  # nothing to do
    pair.order(3)
    applied(pair)
    pair.order(1)
    applied(pair)
    applied(pair, '-replace=module.site.aws_instance.node["train-0"]')
    real, simulated = map(log_rows, pair.run("destroy", "-json", "-auto-approve"))
    assert real == simulated


def test_its_state_is_one_of_terraforms(pair: Pair) -> None:
    applied(pair)
    real, simulated = pair.states()
    assert set(simulated) == set(real) and simulated["version"] == real["version"] == 4
    for ours, theirs in zip(_resources(simulated), _resources(real), strict=True):
        assert set(ours) == set(theirs)
        for instance, model in zip(ours["instances"], theirs["instances"], strict=True):
            assert set(instance) - {"attributes"} <= set(model) | {"status"}
            assert instance.get("index_key") == model.get("index_key")
    listed, pulled = pair.run("state", "list"), pair.run("state", "pull")
    assert _renamed(listed[0]).split() == listed[1].split()
    assert set(json.loads(pulled[0])) == set(json.loads(pulled[1]))
    outputs = [json.loads(text) for text in pair.run("output", "-json")]
    assert set(outputs[0]["nodes"]) == set(outputs[1]["nodes"])
    assert set(outputs[0]["nodes"]["value"]) == set(outputs[1]["nodes"]["value"])


def _resources(state: dict[str, Any]) -> list[dict[str, Any]]:
    return sorted(state["resources"], key=lambda resource: str(resource["name"]))


def test_a_plan_of_an_older_state_is_refused(pair: Pair) -> None:
    pair.run("plan", "-json", "-out=plan.bin")
    pair.run("plan", "-json", "-out=old.bin")
    pair.run("apply", "-json", "plan.bin")
    (pair.simulated / "old.bin").write_text((pair.simulated / "plan.bin").read_text())
    with pytest.raises(subprocess.CalledProcessError) as real:
        pair.run("apply", "-json", "old.bin")
    with pytest.raises(Failed, match="Saved plan is stale"):
        pair._simulate(["apply", "old.bin"])
    assert "Saved plan is stale" in real.value.stdout
