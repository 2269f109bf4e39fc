"""What Alibaba Cloud's module is told, which files are refused, and that the policy has every call."""

from __future__ import annotations

import ast
import re
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from provisioner import spec
from provisioner.common.paths import data
from provisioner.machines.providers import actions
from provisioner.machines.providers.alicloud import orphans, quotas, tagged_resources
from provisioner.machines.providers.alicloud.provider import Alicloud
from provisioner.machines.providers.alicloud.settings import AlicloudNas
from provisioner.machines.providers.base import Place
from provisioner.machines.providers.capacity import Choices, Way
from provisioner.plan.models import Plan
from provisioner.spec.models import ClusterSpec
from provisioner.stack.models import BaseImage
from tests.support import plans
from tests.support.sandbox_cluster import ROOT

FOLDER = ROOT / "provisioner" / "machines" / "providers" / "alicloud"
MACHINE, IMAGE = "ecs.gn7-c13g1.26xlarge", "ubuntu_24_04_x64_20G_alibase_20260916.vhd"
SITE = {"provider": "alicloud", "region": "cn-shanghai", "zones": ("cn-shanghai-b",)}


def module_inputs(
    folder: Path, site: dict[str, Any], machine: str = MACHINE, os: str | None = None, **group: Any
) -> dict[str, Any]:
    allow = (ip_network("203.0.113.0/24"),)
    document = {"name": "speech", "sites": {"here": {**SITE, **site}}, "access": {"allow": allow},
                "groups": {"train": {"machine": machine, **group}}}  # fmt: skip
    document |= {"stack": {"os": os}} if os else {}
    offline_plan = plans.plan(ClusterSpec.model_validate(document))
    bases = {"here": {offline_plan.groups[0].stack.os: BaseImage(id=IMAGE, why="test")}}
    plan = Plan(spec=offline_plan.spec, groups=offline_plan.groups, simulated=False, bases=bases)
    module = Alicloud(Place("speech", "here", plan.spec.sites["here"], folder)).module
    assert module is not None
    return module.inputs(plan)


def test_what_the_file_does_not_say_the_module_is_not_told(tmp_path: Path) -> None:
    assert module_inputs(tmp_path, {}) == {
        "site": "here", "zones": ["cn-shanghai-b"], "groups": {"train": {"image_id": IMAGE}}, "internet": "public",
        "bandwidth": 100, "root": {"performance_level": "PL1"}, "access": {"allow": ["203.0.113.0/24"]},
    }  # fmt: skip


def test_what_it_says_the_module_is_told(tmp_path: Path) -> None:
    Choices(taken={"train": Way("spot", "cn-shanghai-g")}, without={"train": ["train-1"]}).write(tmp_path)
    site = {
        "vpc": {"id": "vpc-00000000", "vswitches": {"cn-shanghai-b": "vsw-00000000"}}, "internet": "nat",
        "ram_role": "nodes", "kms_key": "0e478b7a-4262", "disk_level": "PL2", "spot_max_price": 31.5,
        "security_groups": ("sg-00000000",), "resource_group": "rg-00000000", "storage": {"nas": {"path": "/data"}},
        "bandwidth_mbps": 200,
    }  # fmt: skip
    inputs = module_inputs(tmp_path, site, "ecs.gn8is.2xlarge", count=2, storage={"root_gb": 500})
    assert inputs["groups"] == {"train": {
        "image_id": IMAGE, "zone": "cn-shanghai-g", "kind": "spot", "without": ["train-1"]}}  # fmt: skip
    assert inputs["root"] == {"performance_level": "PL2", "kms_key_id": "0e478b7a-4262"}
    assert inputs["vpc"] == site["vpc"] and inputs["nas"] == {"path": "/data", "storage_type": "Performance"}
    assert (inputs["ram_role"], inputs["resource_group_id"], inputs["security_groups"]) == (
        "nodes", "rg-00000000", ["sg-00000000"],
    )  # fmt: skip
    assert module_inputs(tmp_path, {"buckets": ({"bucket": "data-sets", "prefix": "a/"},)})["buckets"] == [
        {"bucket": "data-sets", "prefix": "a/", "write": False}
    ]


def test_debian_12_is_not_asked_for_a_token_that_its_cloud_init_does_not_have(tmp_path: Path) -> None:
    assert module_inputs(tmp_path, {}, os="debian-12")["groups"] == {
        "train": {"image_id": IMAGE, "metadata_tokens": "optional"}
    }


def test_the_module_takes_the_file_system_as_it_is() -> None:
    text = (data("terraform") / "alicloud" / "variables.tf").read_text(encoding="utf-8")
    (block,) = re.findall(r"nas = optional\(object\(\{(.*?)\}\)\)", text, re.S)
    assert set(re.findall(r"(\w+)\s*= optional", block)) == set(AlicloudNas.model_fields)


@pytest.mark.parametrize(
    ("site", "group", "key_path", "message"),
    [
        ("", "storage: {root_gb: 4096}", "groups.train.storage.root_gb", "at most 2048 GiB"),
        ("disk_level: PL3", "", "groups.train.storage.root_gb", "PL3 has at least 1261 GiB"),
        ("security_groups: [sg-00000000]", "", "sites.here.security_groups", "requires vpc"),
        ("tags: {'acs:x': y}", "", "sites.here.tags.acs:x", "no tag begins with"),
        ("zones: [cn-shanghai-b], vpc: {id: vpc-00000000, vswitches: {cn-shanghai-g: vsw-00000000}}", "",
         "sites.here.zones", "no vSwitch of the VPC is named for cn-shanghai-b"),
        ("storage: {nas: {zone: cn-shanghai-x}}", "", "sites.here.storage.nas.zone", "is not among the site's zones"),
        ("ram_role: nodes, buckets: [{bucket: data-sets}]", "", "sites.here.buckets", "with ram_role it makes none"),
        ("storage: {cpfs: {path: /cpfs}}", "", "sites.here.storage.cpfs", "CPFS is not mounted: its NFS client"),
        ("", "capacity: {kind: reservation, id: cr-1}", "groups.train.capacity.id", "is not a private pool ID"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_at_its_place(
    tmp_path: Path, site: str, group: str, key_path: str, message: str
) -> None:
    file = tmp_path / "cluster.yaml"
    keys = ", ".join(filter(None, ("provider: alicloud, region: cn-shanghai", site)))
    group_keys = f", {group}" if group else ""
    file.write_text(
        f"name: speech\nsites: {{here: {{{keys}}}}}\ngroups: {{train: {{machine: {MACHINE}{group_keys}}}}}\n"
    )
    (problem,) = spec.check(file)
    assert problem.path == key_path and message in problem.message and problem.hint


@pytest.mark.parametrize(
    ("machine", "kind", "code"),
    [
        (MACHINE, "on-demand", "q_ecs_gn7v_postpay_g"), ("ecs.ebmgn7ex.32xlarge", "spot", "q_ecs_gn7e_spot_g"),
        ("ecs.gn8v-8x.48xlarge", "reservation", "q_ecs_gn8v_postpay_g"),
        ("ecs.gn8is-4x.16xlarge", "spot", "q_ecs_gn8i_spot_g"),
        ("ecs.g7.large", "spot", "q_ecs_enterprise_spot_c"),
        ("ecs.t6-c1m1.large", "on-demand", None),
    ],
)  # fmt: skip
def test_a_machine_counts_towards_its_familys_quota(machine: str, kind: str, code: str | None) -> None:
    quota = quotas.of_machine(machine, kind)
    assert (quota and quota.code) == code


def calls() -> set[str]:
    """service:Action of every question in the code: `ask(service, action)`, `all(…)`, and the two tables."""
    called_actions = {kind.permission for kind in tagged_resources.KINDS}
    called_actions |= {f"{service}:{action}" for service, action, _ in orphans.HOW.values()}
    for file in FOLDER.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("ask", "all"):
                arguments = [argument.value for argument in node.args[:2] if isinstance(argument, ast.Constant)]
                if len(arguments) == 2:
                    called_actions.add(":".join(map(str, arguments)))
    source = (FOLDER / "ram_roles.py").read_text(encoding="utf-8")
    called_actions |= {f"ram:{action}" for action in re.findall(r'_delete_if_present\(region, "(\w+)"', source)}
    return called_actions - {"sts:GetCallerIdentity"}


def test_the_lists_of_actions_have_every_call_and_no_other() -> None:
    listed = actions.load("alicloud").calls
    assert calls() == {name for key in ("preflight", "console", "cost", "find", "remove") for name in listed[key]}
