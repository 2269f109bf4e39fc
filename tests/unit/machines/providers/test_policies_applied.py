"""The documented policies are enough: real Terraform applies the modules over a cloud that denies everything else.

A site is applied, applied again, changed, has a node replaced, and is destroyed, with each create, read, update and
delete of a resource expanded to the calls that the provider makes for it (actions.yaml).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from provisioner.machines.providers.base import Place, provider_of
from provisioner.machines.terraform.render import render
from provisioner.plan.models import Plan
from provisioner.spec.models import ClusterSpec
from provisioner.stack.models import BaseImage
from tests.support import plans
from tests.support.policies import Guard, Policy, documented, without
from tests.support.schema_provider import Cloud
from tests.support.terraform_run import terraform

pytestmark = pytest.mark.heavy
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJuoz4Y3nV3+3mY2YlqHOZzNmU8bUvMpWIOu0aYJvBqV test"
SUBSCRIPTION = "11111111-2222-3333-4444-555555555555"
SHARED = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/shared/providers"
RESERVATION = f"{SHARED}/Microsoft.Compute/capacityReservationGroups/mine"
MANAGED = f"{SHARED}/Microsoft.ManagedIdentity/userAssignedIdentities/mine"
BUCKETS = [{"bucket": "data-1250000000", "prefix": "imagenet/"}]


@dataclass(frozen=True)
class Case:
    """A site. `changed`: what it says later; `source`: Terraform's name of the provider."""

    provider: str
    source: str
    image: str
    site: Mapping[str, Any]
    group: Mapping[str, Any]
    changed: Mapping[str, Any]


ALICLOUD = {"provider": "alicloud", "region": "cn-shanghai", "zones": ["cn-shanghai-b"]}
TENCENT = {"provider": "tencent", "region": "ap-guangzhou", "zones": ["ap-guangzhou-3"]}
AZURE = {"provider": "azure", "region": "eastus", "subscription": SUBSCRIPTION}
URN = "Canonical:ubuntu-24_04-lts:server:24.04.202511100"
CASES = {
    "alicloud-nat": Case(
        "alicloud", "alicloud", "ubuntu_24_04_x64_20G_alibase_20260916.vhd",
        {**ALICLOUD, "internet": "nat", "jump": "me@bastion", "buckets": BUCKETS, "storage": {"nas": {"path": "/nas"}}},
        {"machine": "ecs.gn8v-8x.48xlarge", "placement": "cluster"},
        {"tags": {"team": "b"}, "resource_group": "rg-acfm00000000", "buckets": [{**BUCKETS[0], "write": True}]},
    ),
    "alicloud-public": Case(
        "alicloud", "alicloud", "ubuntu_24_04_x64_20G_alibase_20260916.vhd",
        {**ALICLOUD, "internet": "public", "ram_role": "gpuprov-mine"}, {"machine": "ecs.gn7-c13g1.26xlarge"},
        {"tags": {"team": "b"}, "bandwidth_mbps": 50},
    ),
    "tencent-nat": Case(
        "tencent", "tencentcloud", "img-487zeit5",
        {**TENCENT, "internet": "nat", "jump": "me@bastion", "buckets": BUCKETS, "spread": "rack",
         "storage": {"cfs": {"path": "/cfs"}}},
        {"machine": "GN10Xp.20XLARGE320"}, {"tags": {"team": "b"}, "bandwidth": {"charge": "bandwidth", "mbps": 50}},
    ),
    "tencent-public": Case(
        "tencent", "tencentcloud", "img-487zeit5", {**TENCENT, "internet": "public", "role": "mine"},
        {"machine": "GN10Xp.20XLARGE320"}, {"tags": {"team": "b"}, "security_groups": ["sg-00000000"]},
    ),
    "azure-nat": Case(
        "azure", "azurerm", URN, {**AZURE, "internet": "nat", "jump": "me@bastion", "storage": {"files": {}}},
        {"machine": "Standard_NC24ads_A100_v4", "placement": "cluster"}, {"tags": {"team": "b"}},
    ),
    "azure-public": Case(
        "azure", "azurerm", URN, {**AZURE, "internet": "public", "identities": [MANAGED]},
        {"machine": "Standard_NC24ads_A100_v4", "capacity": {"kind": "reservation", "id": RESERVATION}},
        {"tags": {"team": "b"}},
    ),
}  # fmt: skip


class Root:
    """A site's workspace as gpuprov writes it, and Terraform in it."""

    def __init__(self, folder: Path, environment: Mapping[str, str], case: Case) -> None:
        self.case, self.environment = case, {**os.environ, **environment}
        self.workspace = folder / "sites" / "here"
        self.workspace.mkdir(parents=True)
        self.write()
        self.run("init", "-no-color", "-input=false")

    def write(self, **changed: Any) -> None:
        case = self.case
        site = {**case.site, "tags": {"team": "a", "gone": "later"}, **changed}
        groups = {"train": {"count": 2, "storage": {"root_gb": 500}, **case.group}}
        access = {"allow": ["203.0.113.7/32"]}
        document = {"name": "test", "sites": {"here": site}, "groups": groups, "access": access}
        spec = ClusterSpec.model_validate_json(json.dumps(document))
        planned = plans.plan(spec)
        bases = {"here": {group.stack.os: BaseImage(id=case.image, why="test") for group in planned.groups}}
        plan = Plan(spec=planned.spec, groups=planned.groups, simulated=False, bases=bases)
        provider = provider_of(case.provider, Place("test", "here", spec.sites["here"], self.workspace))
        assert provider.module is not None
        render(plan, "here", provider.module, self.workspace, ssh_public_key=KEY, identity="0123456789ab")

    def run(self, *arguments: str, check: bool = True) -> str:
        return terraform(self.workspace, self.environment, *arguments, check=check)

    def apply(self, *arguments: str, check: bool = True) -> str:
        return self.run("apply", "-no-color", "-auto-approve", "-input=false", *arguments, check=check)

    def is_unchanged(self) -> bool:
        return "No changes." in self.run("plan", "-no-color", "-input=false")


@pytest.fixture
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Root, Cloud]]:
    case = CASES[request.param]
    cloud = Cloud(case.source)
    with cloud.serving() as environment:
        yield Root(tmp_path, environment, case), cloud


def guard(root: Root, cloud: Cloud, policy: Policy) -> Guard:
    watching = Guard(root.case.provider, policy)
    cloud.guard = watching
    return watching


@pytest.mark.parametrize("root", CASES, indirect=True)
def test_the_policy_of_up_takes_a_site_from_nothing_to_nothing(root: tuple[Root, Cloud]) -> None:
    site, cloud = root
    watching = guard(site, cloud, documented(site.case.provider, "up"))
    site.apply()
    kinds = {kind for _, kind, _ in cloud.calls}
    site.apply()
    guard(site, cloud, documented(site.case.provider, "plan"))
    assert site.is_unchanged(), "the policy of plan is enough to look at what is there"
    cloud.guard = watching
    site.write(**site.case.changed)
    site.apply()
    address = site.run("state", "list").split()
    (node,) = [
        resource_address
        for resource_address in address
        if resource_address.endswith('node["train-1"]')
        and ("_instance." in resource_address or "_machine." in resource_address)
    ]
    site.apply(f"-replace={node}")
    site.run("destroy", "-no-color", "-auto-approve", "-input=false")
    assert (cloud.objects, watching.denied) == ({}, set())
    assert {(operation, kind) for operation in ("create", "delete") for kind in kinds} <= {
        (operation, kind) for operation, kind, _ in cloud.calls
    }


@pytest.mark.parametrize(
    ("root", "missing"),
    [
        ("alicloud-nat", "ecs:DescribeNetworkInterfaces"), ("alicloud-nat", "vpc:DescribeNatGateways"),
        ("tencent-nat", "cbs:DescribeDisks"), ("tencent-nat", "vpc:ModifySubnetAttribute"),
        ("azure-nat", "Microsoft.Compute/disks/read"),
    ], indirect=["root"],
)  # fmt: skip
def test_without_one_action_terraform_ends_there(root: tuple[Root, Cloud], missing: str) -> None:
    site, cloud = root
    watching = guard(site, cloud, without(documented(site.case.provider, "up"), missing))
    assert f"denied: {missing}" in " ".join(site.apply(check=False).replace("│", " ").split())
    assert watching.denied == {missing}
    cloud.guard = None
    assert cloud.objects, "what is made before stands, and is paid for"


@pytest.mark.parametrize(
    ("root", "missing"),
    [
        ("alicloud-nat", "vpc:DeleteVpc"), ("tencent-nat", "vpc:DescribeUsedIpAddress"),
        ("azure-nat", "Microsoft.Resources/subscriptions/resourceGroups/resources/read"),
    ], indirect=["root"],
)  # fmt: skip
def test_without_one_action_a_site_cannot_be_destroyed(root: tuple[Root, Cloud], missing: str) -> None:
    site, cloud = root
    site.apply()
    watching = guard(site, cloud, without(documented(site.case.provider, "up"), missing))
    site.run("destroy", "-no-color", "-auto-approve", "-input=false", check=False)
    assert watching.denied == {missing} and cloud.objects
