"""terraform/tencent by real Terraform, against the schema of Tencent Cloud's provider."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from provisioner import catalog
from provisioner.common.paths import data
from provisioner.machines.terraform.binary import find
from tests.support.schema_provider import Cloud

MACHINE = "tencentcloud_instance"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIE5NBmjM4Jb6n3v8vXxkq8r6Zt3TtV7JwN0c0yWb0000 person@here"
IMAGE = "img-487zeit5"
ROOT = """
terraform {
  required_providers {
    tencentcloud = { source = "tencentcloudstack/tencentcloud", version = ">= 1.83.25, < 2.0" }
  }
}
provider "tencentcloud" { region = "ap-guangzhou" }
variable "groups" { type = any }
variable "tencent" { type = any }
module "site" {
  source         = "./tencent"
  name           = "test"
  groups         = var.groups
  ssh_public_key = "KEY"
  user_data      = "#cloud-config\\n{}\\n"
  tags           = { gpuprov-site = "here", gpuprov-id = "0123456789abcdef" }
  tencent        = var.tencent
}
output "nodes" { value = module.site.nodes }
"""
pytestmark = [pytest.mark.heavy, pytest.mark.heavy]


class Root:
    """A root module that calls terraform/tencent, with these groups and this `tencent` until they are changed."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder, self.environment = folder, environment
        shutil.copytree(data("terraform") / "tencent", folder / "tencent")
        (folder / "main.tf").write_text(ROOT.replace("KEY", KEY), encoding="utf-8")
        self.groups: dict[str, Any] = {"train": {"machine": "GN10Xp.20XLARGE320", "count": 2}}
        self.tencent: dict[str, Any] = {
            "zones": ["ap-guangzhou-3", "ap-guangzhou-4"],
            "groups": {"train": {"image_id": IMAGE}},
            "access": {"allow": ["203.0.113.7/32"]},
        }
        self.run("init", "-no-color")

    def run(self, *arguments: str, check: bool = True) -> str:
        variables = {"groups": self.groups, "tencent": self.tencent}
        (self.folder / "terraform.tfvars.json").write_text(json.dumps(variables), encoding="utf-8")
        done = subprocess.run(
            [*find().argv, *arguments], cwd=self.folder, env={**os.environ, **self.environment}, check=False,
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert (done.returncode == 0) == check, done.stdout + done.stderr
        return re.sub(r"[│╷╵\s]+", " ", done.stdout + done.stderr) if "-json" not in arguments else done.stdout

    def apply(self) -> None:
        self.run("apply", "-no-color", "-auto-approve")

    def actions(self, *arguments: str) -> dict[str, str]:
        changes = [event["change"] for event in map(json.loads, self.run("plan", "-json", *arguments).splitlines())
                 if event["type"] == "planned_change"]  # fmt: skip
        return {change["resource"]["addr"].removeprefix("module.site."): change["action"] for change in changes}

    def nodes(self) -> dict[str, Any]:
        output: dict[str, Any] = json.loads(self.run("output", "-json", "nodes"))
        return output


def node(name: str) -> str:
    return f'{MACHINE}.node["{name}"]'


@pytest.mark.slow  # a fifth of a minute of both processors
def test_a_fleet_of_every_machine_type_is_made_changed_and_destroyed(tmp_path: Path) -> None:
    cloud, types = Cloud("tencentcloud"), catalog.load().names("tencent")
    with cloud.serving() as environment:
        root = Root(tmp_path, environment)
        root.groups = {f"g{number}": {"machine": name, "count": 1} for number, name in enumerate(types)}
        root.groups["train"] = {
            "machine": "GN10Xp.20XLARGE320", "count": 2, "root_gb": 300, "zone": "ap-guangzhou-4",
            "capacity": {"kind": "spot", "fallback": ["on-demand"]},
        }  # fmt: skip
        root.tencent |= {"groups": {name: {"image_id": IMAGE} for name in root.groups}, "spread": "rack"}
        root.apply()
        assert root.actions() == {}, "a second run has nothing to do"
        assert {machine["instance_type"] for machine in cloud.of(MACHINE)} == set(types)
        first = next(machine for machine in cloud.of(MACHINE) if machine["instance_name"] == "gpuprov-test-train-0")
        assert_is_as_asked_for(cloud, first)
        assert root.nodes()["train-1"] == {
            "id": root.nodes()["train-1"]["id"], "group": "train",
            "zone": "ap-guangzhou-4", "machine": "GN10Xp.20XLARGE320", "capacity": "spot", "mounts": [],
            "private_ip": root.nodes()["train-1"]["private_ip"], "public_ip": root.nodes()["train-1"]["public_ip"],
        }  # fmt: skip

        root.groups["train"]["count"] = 3
        assert root.actions() == {node("train-2"): "create"}
        root.groups["train"]["count"] = 1
        assert root.actions() == {node("train-1"): "delete"}
        root.groups["train"]["count"] = 2
        assert root.actions(f"-replace=module.site.{node('train-1')}") == {node("train-1"): "replace"}
        root.tencent["groups"]["train"] = {"image_id": "img-00000000", "zone": "ap-guangzhou-3", "kind": "on-demand"}
        root.groups["train"] |= {"root_gb": 500, "machine": "GT4.41XLARGE948"}
        assert root.actions() == {}, "what stands stays as it was made"
        main = tmp_path / "main.tf"
        main.write_text(main.read_text().replace("Jb6n3v8v", "Kb6n3v8v"))
        assert root.actions() == {}, "machines have the key pair: it is not removed for another key"
        root.tencent["site"] = "guangzhou-of-a-site-with-a-name-of-fifty-letters-x"
        assert set(root.actions().values()) == {"update"} and "tencentcloud_key_pair.access[0]" not in root.actions()
        root.apply()
        names = [subnet["name"] for subnet in cloud.of("tencentcloud_subnet")]
        assert len(set(names)) == 2 and max(map(len, names)) <= 60
        del root.tencent["site"]
        root.apply()
        root.tencent["internet"] = "public"
        assert "would lose their way out" in root.run("plan", "-no-color", check=False)
        del root.tencent["internet"]
        root.tencent["groups"]["train"]["without"] = ["train-1"]
        assert root.actions() == {node("train-1"): "delete"}
        root.tencent["zones"].append("ap-guangzhou-6")
        assert root.actions() == {
            node("train-1"): "delete", 'tencentcloud_subnet.nodes["ap-guangzhou-6"]': "create",
        }  # fmt: skip
        root.run("destroy", "-no-color", "-auto-approve")
        assert cloud.objects == {}


def assert_is_as_asked_for(cloud: Cloud, machine: Mapping[str, Any]) -> None:
    (vpc,), (group,) = cloud.of("tencentcloud_vpc"), cloud.of("tencentcloud_security_group")
    (rules,) = cloud.of("tencentcloud_security_group_rule_set")
    subnet = next(row for row in cloud.of("tencentcloud_subnet") if row["availability_zone"] == "ap-guangzhou-4")
    spread = next(row for row in cloud.of("tencentcloud_placement_group") if row["name"] == "gpuprov-test-train")
    (key,) = cloud.of("tencentcloud_key_pair")
    assert {name: machine[name] for name in (
        "instance_charge_type", "spot_max_price", "image_id", "availability_zone", "vpc_id", "subnet_id",
        "system_disk_size", "system_disk_encrypt", "system_disk_type", "placement_group_id", "key_ids",
        "orderly_security_groups", "allocate_public_ip", "internet_max_bandwidth_out", "disable_automation_service",
        "user_data_raw",
    )} == {
        "instance_charge_type": "SPOTPAID", "spot_max_price": None, "image_id": IMAGE,
        "availability_zone": "ap-guangzhou-4", "vpc_id": vpc["id"], "subnet_id": subnet["id"],
        "system_disk_size": 300, "system_disk_encrypt": True, "system_disk_type": "CLOUD_HSSD",
        "placement_group_id": spread["id"], "key_ids": [key["id"]], "orderly_security_groups": [group["id"]],
        "allocate_public_ip": False, "internet_max_bandwidth_out": 0, "disable_automation_service": True,
        "user_data_raw": "#cloud-config\n{}\n",
    }  # fmt: skip
    assert machine["tags"] == {
        "gpuprov-cluster": "test", "gpuprov-site": "here", "gpuprov-id": "0123456789abcdef",
        "gpuprov-group": "train", "gpuprov-node": "train-0",
    }  # fmt: skip
    assert re.fullmatch(r"[A-Za-z0-9_]{1,25}", key["key_name"])
    assert key["public_key"] == KEY.rpartition(" ")[0]
    assert subnet["cidr_block"] == "10.77.64.0/20"
    assert spread["type"] == "RACK"
    (nat,), (route,) = cloud.of("tencentcloud_nat_gateway"), cloud.of("tencentcloud_route_table_entry")
    assert (route["next_hub"], route["route_table_id"]) == (nat["id"], vpc["default_route_table_id"])
    opened = [(rule["cidr_block"], rule["source_security_id"], rule["port"]) for rule in rules["ingress"]]
    assert opened == [(None, group["id"], "ALL"), ("203.0.113.7/32", None, "22")]
    assert all("gpuprov-cluster" in (row["tags"] or {}) for (kind, _), row in cloud.objects.items() if "tags" in row), (
        "clean and gc find by tag what has one"
    )


def test_a_network_of_ones_own_and_file_systems(tmp_path: Path) -> None:
    cloud = Cloud("tencentcloud")
    with cloud.serving() as environment:
        root = Root(tmp_path, environment)
        root.tencent |= {
            "vpc": {"id": "vpc-99999999", "subnets": {"ap-guangzhou-3": "subnet-99999999"}}, "internet": "public",
            "zones": ["ap-guangzhou-3"], "key_pair": "skey-99999999", "security_groups": ["sg-99999999"],
            "root": {"encrypt": True, "kms_key": "kms-abcd1234"},
            "bandwidth": {"charge": "package", "mbps": 500, "package": "bwp-99999999"},
            "cfs": {"path": "/cfs"}, "nfs": [{"source": "10.0.0.5:/", "path": "/data"}], "role": "gpu-nodes",
        }  # fmt: skip
        root.apply()
        kinds = {kind for kind, _ in cloud.objects}
        assert kinds == {MACHINE, "tencentcloud_cfs_file_system", "tencentcloud_security_group",
                        "tencentcloud_security_group_rule_set"}  # fmt: skip
        machine = cloud.of(MACHINE)[0]
        assert (machine["allocate_public_ip"], machine["internet_charge_type"]) == (True, "BANDWIDTH_PACKAGE")
        assert (machine["key_ids"], machine["cam_role_name"]) == (["skey-99999999"], "gpu-nodes")
        assert machine["system_disk_kms_key_id"] == "kms-abcd1234"
        mounts = root.nodes()["train-0"]["mounts"]
        assert [(mount["type"], mount["source"], mount["path"]) for mount in mounts] == [
            ("nfs4", "10.77.48.251:/", "/cfs"), ("nfs4", "10.0.0.5:/", "/data"),
        ]  # fmt: skip
        assert mounts[1]["options"].startswith("ro,")


REFUSED = [
    ({"zones": []}, {}, "zones has at least one zone"),
    ({"zones": ["ap-guangzhou-17"]}, {}, "room for the zones 1 to 15"),
    ({"access": {"allow": ["0.0.0.0/0"]}}, {}, "never opened to every address"),
    ({"vpc": {"id": "vpc-99999999"}}, {}, "needs its subnets by zone"),
    ({"vpc": {"id": "vpc-9", "subnets": {"ap-guangzhou-6": "subnet-9"}}}, {}, "VPC is in ap-guangzhou-3"),
    ({"groups": {"train": {"image_id": "ubuntu"}}}, {}, "names move"),
    ({"bandwidth": {"mbps": 500}}, {}, "1 to 200 by traffic"),
    ({"bandwidth": {"charge": "package"}}, {}, "goes with charge"),
    ({"spread": "zone"}, {}, "spread is host, switch or rack"),
    ({"root": {"type": "LOCAL_SSD"}}, {}, "root.type is"),
    ({"root": {"encrypt": False, "kms_key": "kms-1"}}, {}, "goes with root.encrypt"),
    ({"cfs": {"type": "TB"}}, {}, "cfs.type is SD"),
    ({}, {"placement": "cluster"}, "no placement that packs machines"),
    ({}, {"capacity": {"kind": "reservation"}}, "kind is on-demand or spot"),
    ({}, {"capacity": {"id": "x"}}, "there is no capacity.id"),
]  # fmt: skip


def test_what_cannot_work_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    cloud = Cloud("tencentcloud")
    with cloud.serving() as environment:
        root = Root(tmp_path, environment)
        tencent, group = root.tencent, root.groups["train"]
        for more, of_group, message in REFUSED:
            root.tencent, root.groups = {**tencent, **more}, {"train": {**group, **of_group}}
            assert message in root.run("plan", "-no-color", check=False)
    assert cloud.calls == []


def test_for_buckets_a_role_is_made_that_may_do_nothing_else(tmp_path: Path) -> None:
    cloud = Cloud("tencentcloud")
    with cloud.serving() as environment:
        root = Root(tmp_path, environment)
        root.apply()
        root.tencent["buckets"] = [
            {"bucket": "data-1250000000", "prefix": "a/b/"}, {"bucket": "out-1250000000", "write": True},
        ]  # fmt: skip
        assert set(root.actions().values()) == {"create"}, "machines that stand are left alone"
        root.run("destroy", "-no-color", "-auto-approve")
        root.apply()
        (role,), (policy,) = cloud.of("tencentcloud_cam_role"), cloud.of("tencentcloud_cam_policy")
        assert {machine["cam_role_name"] for machine in cloud.of(MACHINE)} == {role["name"]} and len(role["name"]) <= 64
        assert "cvm.qcloud.com" in role["document"] and role["console_login"] is False
        listed, read, _, written = json.loads(policy["document"])["statement"]
        assert listed["condition"] == {"string_like": {"cos:prefix": ["a%2Fb%2F*"]}}
        assert (read["action"], read["resource"]) == (
            ["name/cos:GetObject", "name/cos:HeadObject"], ["qcs::cos::uid/1250000000:data-1250000000/a/b/*"],
        )  # fmt: skip
        assert "name/cos:PutObject" in written["action"] and not [
            action for action in written["action"] if "*" in action
        ]
        assert root.actions() == {}
        root.tencent["role"] = "mine"
        assert "leave role out" in root.run("plan", "-no-color", check=False)
