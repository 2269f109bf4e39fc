"""The stand-in for clouds' Terraform providers: what it proves and what it imitates, by real Terraform."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from provisioner.machines.terraform.binary import find
from tests.support.schema_provider import Cloud
from tests.support.schema_provider.cloud import HERE, known, schema

MACHINE = "alicloud_instance"
ROOT = """
terraform {
  required_providers {
    alicloud = { source = "aliyun/alicloud" }
  }
}
provider "alicloud" { region = "cn-shanghai" }
variable "number" { type = number }
resource "alicloud_vpc" "site" {
  ARGUMENT   = "test"
  cidr_block = "10.0.0.0/16"
}
resource "alicloud_vswitch" "site" {
  vpc_id     = alicloud_vpc.site.id
  cidr_block = "10.0.0.0/24"
  zone_id    = "ZONE"
}
resource "alicloud_instance" "node" {
  for_each        = toset([for i in range(var.number) : "node-${i}"])
  instance_name   = each.key
  image_id        = "ubuntu"
  instance_type   = "ecs.gn7-c13g1.26xlarge"
  security_groups = ["sg"]
  vswitch_id      = alicloud_vswitch.site.id
}
"""


class Root:
    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder, self.environment = folder, environment
        self.write()
        self.run("init", "-no-color")

    def write(self, argument: str = "vpc_name", zone: str = "cn-shanghai-a") -> None:
        (self.folder / "main.tf").write_text(ROOT.replace("ARGUMENT", argument).replace("ZONE", zone), encoding="utf-8")

    def run(self, *arguments: str, check: bool = True) -> str:
        done = subprocess.run(
            [*find().argv, *arguments], cwd=self.folder, env={**os.environ, **self.environment}, check=False,
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert (done.returncode == 0) == check, done.stdout + done.stderr
        return done.stdout + done.stderr

    def apply(self, number: int, *, check: bool = True) -> str:
        return self.run("apply", "-no-color", "-auto-approve", f"-var=number={number}", check=check)

    def actions(self, number: int, *arguments: str) -> dict[str, str]:
        lines = self.run("plan", "-json", f"-var=number={number}", *arguments).splitlines()
        changes = [event["change"] for event in map(json.loads, lines) if event["type"] == "planned_change"]
        return {change["resource"]["addr"]: change["action"] for change in changes}


def test_a_fleet_is_made_widened_replaced_and_destroyed(tmp_path: Path) -> None:
    cloud = Cloud("alicloud")
    with cloud.serving() as environment:
        root = Root(tmp_path, environment)
        root.apply(2)
        assert {machine["instance_name"] for machine in cloud.of(MACHINE)} == {"node-0", "node-1"}
        assert root.actions(2) == {}
        assert root.actions(3) == {f'{MACHINE}.node["node-2"]': "create"}
        assert root.actions(2, f'-replace={MACHINE}.node["node-1"]') == {f'{MACHINE}.node["node-1"]': "replace"}
        root.write(zone="cn-shanghai-b")
        assert root.actions(2)["alicloud_vswitch.site"] == "replace", "its zone can't be changed"
        root.write(argument="vpc_nam")
        assert 'Did you mean "vpc_name"?' in root.run("validate", "-no-color", check=False)
        root.write()
        deleted_machine = cloud.of(MACHINE)[0]
        del cloud.objects[MACHINE, deleted_machine["id"]]
        assert root.actions(2) == {f'{MACHINE}.node["{deleted_machine["instance_name"]}"]': "create"}, (
            "somebody removed it"
        )
        root.run("destroy", "-no-color", "-auto-approve", "-var=number=2")
        assert cloud.objects == {}


def test_a_cloud_refuses_and_makes_half(tmp_path: Path) -> None:
    cloud = Cloud("alicloud")
    cloud.fail(MACHINE, "ErrorCode: OperationDenied.NoStock", match={"instance_name": "-1"}, times=1)
    cloud.fail("alicloud_vswitch", "it was made, and no answer came", times=1, half=True)
    with cloud.serving() as environment:
        root = Root(tmp_path, environment)
        assert "no answer came" in root.apply(2, check=False)
        assert len(cloud.of("alicloud_vswitch")) == 1
        assert root.actions(2)["alicloud_vswitch.site"] == "replace", "Terraform does not trust it"
        assert "OperationDenied.NoStock" in root.apply(2, check=False)
        assert len(cloud.of(MACHINE)) == 1
        root.apply(2)
        assert len(cloud.of(MACHINE)) == 2


@pytest.mark.parametrize("name", sorted(path.stem for path in HERE.glob("*.yaml")))
def test_what_is_known_beside_a_schema_names_what_the_schema_has(name: str) -> None:
    _, provider_schema = schema(name)
    for kind, rules in known(name).items():
        block = {**provider_schema["resource_schemas"], **provider_schema["data_source_schemas"]}[kind]["block"]
        paths = [*rules.get("values", {}), *rules.get("force_new", []), *rules.get("one_of", {})]
        paths += [path for pair in [*rules.get("conflicts", []), *rules.get("required_with", [])] for path in pair]
        missing = [path for path in paths if not has_path(block, path.split("."))]
        assert not missing, f"{kind} of {name}.yaml: {missing}"
        assert rules.get("source"), f"{kind} of {name}.yaml has no source"


def has_path(block: dict[str, Any], path: list[str]) -> bool:
    name, *remaining_path = path
    if name in block.get("attributes", {}):
        return not remaining_path
    nested = block.get("block_types", {}).get(name)
    return nested is not None and (not remaining_path or has_path(nested["block"], remaining_path))
