"""terraform/alicloud by real Terraform, against the real provider's schema over an imitated cloud."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from provisioner import catalog
from provisioner.common.paths import data
from provisioner.machines.providers.alicloud import module
from tests.support.schema_provider import Cloud
from tests.support.terraform_run import terraform

pytestmark = [pytest.mark.heavy, pytest.mark.heavy]
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJuoz4Y3nV3+3mY2YlqHOZzNmU8bUvMpWIOu0aYJvBqV test"
IMAGE = "ubuntu_24_04_x64_20G_alibase_20260916.vhd"
MACHINES = [name for name in catalog.load().names() if catalog.load().machine(name).provider == "alicloud"]
NODE = "alicloud_instance.node"
SITE: dict[str, Any] = {
    "zones": ["cn-shanghai-b", "cn-shanghai-g"], "internet": "public", "access": {"allow": ["203.0.113.0/24"]},
}  # fmt: skip


class Root:
    """A root module around terraform/alicloud."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder, self.environment = folder, {**os.environ, **environment}
        shutil.copytree(data("terraform") / "alicloud", folder / "module")

    def write(self, groups: dict[str, Any], site: dict[str, Any] | None = None, **common: Any) -> None:
        names = {name: {"image_id": IMAGE, **group.pop("here", {})} for name, group in groups.items()}
        call = {
            "source": "./module", "name": "test", "ssh_public_key": KEY, "user_data": "#cloud-config\n{}\n",
            "tags": {"gpuprov-site": "here", "gpuprov-id": "1a2b3c4d5e6f"}, "groups": groups,
            "alicloud": {**SITE, **(site or {}), "groups": names}, **common,
        }  # fmt: skip
        root = {
            "terraform": {"required_providers": {"alicloud": {"source": "aliyun/alicloud"}}},
            "provider": {"alicloud": {"region": "cn-shanghai"}}, "module": {"site": call},
            "output": {"nodes": {"value": "${module.site.nodes}"}},
        }  # fmt: skip
        (self.folder / "main.tf.json").write_text(json.dumps(root), encoding="utf-8")

    def run(self, *arguments: str, check: bool = True) -> str:
        return terraform(self.folder, self.environment, *arguments, check=check, timeout_s=120)

    def apply(self, *arguments: str) -> dict[str, Any]:
        self.run("apply", "-auto-approve", "-no-color", *arguments)
        nodes: dict[str, Any] = json.loads(self.run("output", "-json", "nodes"))
        return nodes

    def changes(self, *arguments: str) -> dict[str, str]:
        """Address below the module → what a plan would do."""
        lines = [
            json.loads(line) for line in self.run("plan", "-json", *arguments).splitlines() if line.startswith("{")
        ]
        planned = [line["change"] for line in lines if line["type"] == "planned_change"]
        return {change["resource"]["addr"].removeprefix("module.site."): change["action"] for change in planned}

    def refusal(self) -> str:
        output = self.run("plan", "-no-color", check=False)
        assert "Error:" in output, output
        return " ".join(re.sub("[│╷╵]", " ", output).split())


@pytest.fixture
def cloud() -> Cloud:
    return Cloud("alicloud")


@pytest.fixture
def root(cloud: Cloud, tmp_path: Path) -> Iterator[Root]:
    with cloud.serving() as environment:
        test_root = Root(tmp_path, environment)
        test_root.write({"train": {"machine": MACHINES[0], "count": 1}})
        test_root.run("init", "-no-color")
        yield test_root


@pytest.mark.slow  # a fifth of a minute of both processors
def test_every_machine_type_lives_through_it(root: Root, cloud: Cloud) -> None:
    groups = {f"g{number}": {"machine": name, "count": 1} for number, name in enumerate(MACHINES)}
    spot = {"count": 2, "capacity": {"kind": "spot"}, "placement": "cluster"}
    groups["g0"] |= {**spot, "here": {"zone": "cn-shanghai-g"}}
    groups["g1"] |= {"capacity": {"kind": "reservation", "id": "eap-bp1"}, "here": {"metadata_tokens": "optional"}}
    wide = {"nas": {"path": "/data"}, "ram_role": "nodes", "resource_group_id": "rg-1", "spot_price_limit": 31.5}
    root.write(json.loads(json.dumps(groups)), wide)
    nodes = root.apply()
    assert set(nodes) == {f"{name}-0" for name in groups} | {"g0-1"}
    assert {node["machine"] for node in nodes.values()} == set(MACHINES)
    assert (nodes["g0-0"]["capacity"], nodes["g1-0"]["capacity"], nodes["g2-0"]["capacity"]) == (
        "spot", "reservation", "on-demand",
    )  # fmt: skip
    assert nodes["g0-0"]["public_ip"].startswith("203.0.113.") and nodes["g0-0"]["mounts"][0]["path"] == "/data"
    machines = {machine["tags"]["gpuprov-node"]: machine for machine in cloud.of("alicloud_instance")}
    first, plain = machines["g0-0"], machines["g2-0"]
    assert (first["spot_strategy"], first["spot_price_limit"]) == ("SpotWithPriceLimit", 31.5)
    assert not first.get("network_interface_traffic_mode")
    assert plain["spot_strategy"] == "NoSpot" and plain["system_disk_category"] == "cloud_essd"
    for machine in machines.values():
        tokens = "optional" if machine is machines["g1-0"] else "required"
        assert (machine["system_disk_encrypted"], machine["http_tokens"], machine["http_put_response_hop_limit"]) == (
            True, tokens, 1,
        )  # fmt: skip
        assert (
            {"gpuprov-cluster": "test", "gpuprov-site": "here", "gpuprov-id": "1a2b3c4d5e6f"}.items()
            <= machine["tags"].items()
            == machine["volume_tags"].items()
        )
    (rule,) = cloud.of("alicloud_security_group_rule")
    assert (rule["type"], rule["cidr_ip"], rule["port_range"]) == ("ingress", "203.0.113.0/24", "22/22")
    (deployment_set,) = cloud.of("alicloud_ecs_deployment_set")
    assert deployment_set["description"] == "gpuprov-cluster=test gpuprov-id=1a2b3c4d5e6f gpuprov-site=here"

    assert root.changes() == {}
    # What is changed holds for new nodes only; one more is made, and no other is touched.
    changed = json.loads(json.dumps(groups))
    changed["g2"] |= {"count": 2, "root_gb": 500, "here": {"image_id": IMAGE.replace("0916", "1016")}}
    changed["g0"] |= {"here": {"kind": "on-demand", "zone": "cn-shanghai-b"}}
    root.write(changed, wide)
    assert root.changes() == {
        f'{NODE}["g2-1"]': "create", 'alicloud_eip_address.node["g2-1"]': "create",
        'alicloud_eip_association.node["g2-1"]': "create", 'alicloud_ecs_ram_role_attachment.node["g2-1"]': "create",
    }  # fmt: skip
    root.write(json.loads(json.dumps(groups)), wide)
    assert root.changes(f'-replace=module.site.{NODE}["g0-1"]') == {
        f'{NODE}["g0-1"]': "replace", 'alicloud_eip_association.node["g0-1"]': "replace",
        'alicloud_ecs_ram_role_attachment.node["g0-1"]': "replace",
    }  # fmt: skip
    root.run("destroy", "-auto-approve", "-no-color")
    assert cloud.objects == {}


def test_without_its_first_zone_the_nat_gateway_keeps_the_vswitch_that_it_stands_in(root: Root, cloud: Cloud) -> None:
    group = {"train": {"machine": "ecs.gn7i-c8g1.2xlarge", "count": 1, "zone": "cn-shanghai-g"}}
    root.write(json.loads(json.dumps(group)), {"internet": "nat"})
    root.apply()
    (gateway,) = cloud.of("alicloud_nat_gateway")
    root.write(json.loads(json.dumps(group)), {"internet": "nat", "zones": ["cn-shanghai-g"]})
    assert root.changes() == {}
    assert gateway["vswitch_id"] in {vswitch["id"] for vswitch in cloud.of("alicloud_vswitch")}
    root.run("destroy", "-auto-approve", "-no-color")
    assert cloud.objects == {}


def test_a_network_of_ones_own_is_left_alone_and_nodes_leave_by_nat(root: Root, cloud: Cloud) -> None:
    vpc = {"id": "vpc-mine", "vswitches": {"cn-shanghai-b": "vsw-b", "cn-shanghai-g": "vsw-g"}}
    group = {"train": {"machine": MACHINES[0], "count": 1, "here": {"zone": "cn-shanghai-g"}}}
    root.write(json.loads(json.dumps(group)), {"vpc": vpc, "internet": "nat", "security_groups": ["sg-mine"]})
    root.apply()
    (node,) = cloud.of("alicloud_instance")
    assert node["vswitch_id"] == "vsw-g" and "sg-mine" in node["security_groups"]
    assert {kind for kind, _ in cloud.objects} == {
        "alicloud_instance", "alicloud_security_group", "alicloud_security_group_rule", "alicloud_ecs_key_pair",
    }  # fmt: skip
    root.run("destroy", "-auto-approve", "-no-color")
    root.write(json.loads(json.dumps(group)), {"internet": "nat"})
    root.apply()
    assert {entry["source_vswitch_id"] for entry in cloud.of("alicloud_snat_entry")} == {
        vswitch["id"] for vswitch in cloud.of("alicloud_vswitch")
    }
    assert len(cloud.of("alicloud_eip_address")) == 1
    assert {vswitch["cidr_block"] for vswitch in cloud.of("alicloud_vswitch")} == {"10.77.16.0/20", "10.77.96.0/20"}

    # ECS removes no key pair that a node has, and a gateway that moves takes the way out of every node.
    other = {"internet": "nat", "zones": SITE["zones"][::-1]}
    root.write(json.loads(json.dumps(group)), other, ssh_public_key=KEY.replace("test", "else").replace("Juo", "Kuo"))
    assert root.changes() == {}
    root.write(json.loads(json.dumps(group)), {"internet": "nat", "site": "shanghai"})
    assert set(root.changes().values()) == {"update"} and "alicloud_ecs_key_pair.access" not in root.changes()


def test_for_buckets_a_role_is_made_that_may_do_nothing_else(root: Root, cloud: Cloud) -> None:
    group = {"train": {"machine": MACHINES[0], "count": 1}}
    buckets = [{"bucket": "data", "prefix": "imagenet/"}, {"bucket": "results", "write": True}]
    root.write(json.loads(json.dumps(group)), {"buckets": buckets, "site": "a-site-with-a-name-of-many-letters"})
    root.apply()
    (role,), (policy,) = cloud.of("alicloud_ram_role"), cloud.of("alicloud_ram_policy")
    assert len(role["role_name"]) <= 64 and "gpuprov-id=1a2b3c4d5e6f" in role["description"]
    assert json.loads(role["assume_role_policy_document"])["Statement"][0]["Principal"] == {
        "Service": ["ecs.aliyuncs.com"]
    }
    statements = json.loads(policy["policy_document"])["Statement"]
    assert [(statement["Action"], statement["Resource"]) for statement in statements] == [
        (["oss:ListObjects"], ["acs:oss:*:*:data"]), (["oss:GetObject"], ["acs:oss:*:*:data/imagenet/*"]),
        (["oss:ListObjects"], ["acs:oss:*:*:results"]),
        (["oss:GetObject", "oss:PutObject", "oss:DeleteObject", "oss:AbortMultipartUpload"],
         ["acs:oss:*:*:results/*"]),
    ]  # fmt: skip
    assert (
        statements[0]["Condition"] == {"StringLike": {"oss:Prefix": ["imagenet/*"]}}
        and "Condition" not in statements[2]
    )
    (attached,) = cloud.of("alicloud_ecs_ram_role_attachment")
    assert attached["ram_role_name"] == role["role_name"]
    root.write(json.loads(json.dumps(group)), {"buckets": buckets, "ram_role": "nodes"})
    assert "leave ram_role out" in root.refusal()
    root.write(json.loads(json.dumps(group)), {"buckets": buckets})
    root.run("destroy", "-auto-approve", "-no-color")
    assert cloud.objects == {}


def test_what_cannot_work_is_refused_before_anything_is_made(root: Root, cloud: Cloud) -> None:
    def refusal(site: dict[str, Any], **group: Any) -> str:
        root.write({"train": {"machine": MACHINES[0], "count": 2, **group}}, site)
        return root.refusal()

    assert "has an id: that of its private pool" in refusal({}, capacity={"kind": "reservation"})
    assert "kind is on-demand, spot or reservation" in refusal({}, capacity={"kind": "block", "id": "x"})
    assert "A system disk of PL2 has at least 461 GiB" in refusal({"root": {"performance_level": "PL2"}})
    assert "A spot node can't be protected" in refusal({"protect": True}, capacity={"kind": "spot"})
    other = {"vpc": {"id": "vpc-mine", "vswitches": {"cn-shanghai-m": "vsw-m"}}}
    assert "No vSwitch of the VPC is named for cn-shanghai-b" in refusal(other)
    several = {"access": {"allow": ["0.0.0.0/0"]}, "bandwidth": 500, "security_groups": ["sg-1"], "internet": "all"}
    text = refusal(several, root_gb=4096)
    for part in ("never opened to every address", "1 to 200 Mbit/s", "name it as vpc.id", "nat, public or none",
                 "20 to 2048"):  # fmt: skip
        assert part in text, part
    assert cloud.objects == {}


def test_a_misspelled_argument_is_caught(root: Root) -> None:
    file = root.folder / "module" / "main.tf"
    file.write_text(file.read_text(encoding="utf-8").replace("system_disk_encrypted ", "system_disk_encryption "))
    assert "Unsupported argument" in root.run("validate", "-no-color", check=False)


def test_the_version_of_the_provider_is_the_modules() -> None:
    text = (data("terraform") / "alicloud" / "versions.tf").read_text(encoding="utf-8")
    assert f'version = "{module.VERSION}"' in text and 'source  = "aliyun/alicloud"' in text
