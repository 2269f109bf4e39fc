"""What a crash left in a region of Alibaba Cloud: found by tag, removed in the order that it accepts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from provisioner.common.errors import ProviderError
from provisioner.common.events import Event, Events
from provisioner.machines.providers import removal
from provisioner.machines.providers.alicloud import client
from provisioner.machines.providers.alicloud import orphans as module
from provisioner.machines.providers.alicloud.client import Region
from provisioner.machines.providers.alicloud.orphans import InRegion
from provisioner.machines.providers.alicloud.provider import Alicloud
from provisioner.machines.providers.base import Place
from provisioner.machines.providers.removal import SOMEWHERE
from tests.support import plans
from tests.support.alicloud_api import Account, Refusal, serving, tagged
from tests.support.clock import Clock

MINE = tagged(cluster="speech", site="here", id="1a2b3c4d5e6f")
DESCRIPTION = "gpuprov-cluster=speech gpuprov-id=1a2b3c4d5e6f gpuprov-site=here"


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> Iterator[Account]:
    """A cluster that Terraform has forgotten, and things of others."""
    theirs = {"Tags": {"Tag": [{"Key": "team", "Value": "other"}]}}
    vpc_tags = {"Tags": {"Tag": [{"Key": tag["TagKey"], "Value": tag["TagValue"]} for tag in MINE["Tags"]["Tag"]]}}
    served_account = Account(
        {
            "DescribeInstances": [
                {"InstanceId": "i-1", "InstanceName": "gpuprov-speech-train-0", "Status": "Running",
                 "CreationTime": "2026-11-22T18:40Z", **MINE},
                {"InstanceId": "i-2", "Status": "Running", **theirs},
            ],
            "DescribeDisks": [{"DiskId": "d-1", "Status": "Available", **MINE},
                              {"DiskId": "d-2", "Status": "In_use", "InstanceId": "i-1", **MINE}],
            "DescribeNatGateways": [{"NatGatewayId": "ngw-1", "Status": "Available", **vpc_tags}],
            "DescribeEipAddresses": [{"AllocationId": "eip-1", "Status": "InUse", **vpc_tags}],
            "DescribeKeyPairs": [{"KeyPairName": "gpuprov-speech-12345678", **MINE}],
            "DescribeDeploymentSets": [
                {"DeploymentSetId": "ds-1", "DeploymentSetName": "gpuprov-speech-train",
                 "DeploymentSetDescription": DESCRIPTION},
                {"DeploymentSetId": "ds-2", "DeploymentSetName": "another", "DeploymentSetDescription": "of others"},
            ],
            "DescribeSecurityGroups": [{"SecurityGroupId": "sg-1", **MINE}, {"SecurityGroupId": "sg-2", **theirs}],
            "DescribeVSwitches": [{"VSwitchId": "vsw-1", "Status": "Pending", **vpc_tags}],
            "DescribeVpcs": [{"VpcId": "vpc-1", "CreationTime": "2026-11-22T18:40:01Z", **vpc_tags}],
            "DescribeFileSystems": [],
        }
    )  # fmt: skip
    with serving(served_account) as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(client, "PAUSE_S", 0.01)
        monkeypatch.setattr(removal, "time", Clock())
        monkeypatch.setattr(module, "orphans", lambda region: InRegion(Region(region), wait_s=0.3, pause_s=0.01))
        yield served_account
    assert served_account.wrong == []


def removed(account: Account) -> list[str]:
    return [name for name, _ in account.calls if name.startswith(("Delete", "Release"))]


def test_everything_with_the_tag_is_found_and_nothing_else(account: Account) -> None:
    search = module.orphans("cn-shanghai").find()
    assert [str(resource) for resource in search.things] == [
        "instance i-1", "disk d-1", "NAT gateway ngw-1", "elastic IP address eip-1", "key pair gpuprov-speech-12345678",
        "deployment set ds-1", "security group sg-1", "vSwitch vsw-1 (Pending)", "VPC vpc-1",
    ]  # fmt: skip
    assert {(resource.cluster, resource.site, resource.identity) for resource in search.things} == {
        ("speech", "here", "1a2b3c4d5e6f")
    }
    assert search.unknown == () and str(search.things[0].since) == "2026-11-22 18:40:00+00:00"


def test_it_is_removed_in_the_order_that_the_cloud_accepts(account: Account) -> None:
    account.once["ReleaseEipAddress"] = [Refusal("TaskConflict", "The operation is too frequent.", 400)]
    account.once["DeleteSecurityGroup"] = [Refusal("DependencyViolation", "There is still instance(s) in it.")]
    account.once["DeleteVSwitch"] = [Refusal("DependencyViolation.NetworkInterface", "It is used.", 400)] * 2
    orphans = module.orphans("cn-shanghai")
    lines: list[str] = []
    assert orphans.remove(orphans.find().things, lines.append) == []
    assert removed(account) == [
        "DeleteInstance", "DeleteNatGateway", "ReleaseEipAddress", "ReleaseEipAddress", "DeleteDisk", "DeleteKeyPairs",
        "DeleteDeploymentSet", "DeleteSecurityGroup", "DeleteSecurityGroup", "DeleteVSwitch", "DeleteVSwitch",
        "DeleteVSwitch", "DeleteVpc",
    ]  # fmt: skip
    assert account.asked("DeleteInstance")[0]["Force"] == "true"
    assert [row["InstanceId"] for row in account.rows["DescribeInstances"]] == ["i-2"]
    assert "cn-shanghai: removing 1 instance" in lines


def test_a_protected_machine_stays_and_all_that_it_may_need(account: Account) -> None:
    message = "The operation is not allowed: deletion protection is enabled."
    account.answers["DeleteInstance"] = Refusal("InvalidOperation.DeletionProtection", message)
    orphans = module.orphans("cn-shanghai")
    assert orphans.remove(orphans.find().things, lambda _: None) == [
        f"instance i-1: protected, and not forced: {message}",
        "8 other things were not touched: the machines that are left may need them",
    ]
    assert removed(account) == ["DeleteInstance"]


def test_what_stays_in_use_is_told_when_time_is_up(account: Account) -> None:
    account.answers["DeleteVSwitch"] = Refusal("DependencyViolation", "Somebody else's machine is in it.", 400)
    account.answers["DeleteVpc"] = Refusal("DependencyViolation.VSwitch", "It has a vSwitch.", 400)
    orphans = module.orphans("cn-shanghai")
    assert orphans.remove(orphans.find().things, lambda _: None) == [
        "vSwitch vsw-1 (Pending): Somebody else's machine is in it.", "VPC vpc-1: It has a vSwitch.",
    ]  # fmt: skip


def test_a_machine_that_does_not_go_is_told(account: Account) -> None:
    account.answers["DeleteInstance"] = {}
    orphans = module.orphans("cn-shanghai")
    problems = orphans.remove(orphans.find().things, lambda _: None)
    assert problems[0] == "instance i-1: it was deleted, and is still there"


def test_data_is_never_removed_and_neither_is_its_network(account: Account) -> None:
    account.rows["DescribeFileSystems"] = [
        {"FileSystemId": "0123", "Tags": {"Tag": [{"Key": "gpuprov-cluster", "Value": "speech"}]}}
    ]
    orphans = module.orphans("cn-shanghai")
    resources = orphans.find().things
    assert "it holds data" in next(resource.kept for resource in resources if resource.kind == "NAS file system")
    problems = orphans.remove(resources, lambda _: None)
    assert problems == ["3 things of the network were not touched: the file system stands in it"]


def test_a_question_without_an_answer_is_told(account: Account) -> None:
    account.answers["DescribeFileSystems"] = Refusal("Forbidden.RAM", "User not authorized.")
    (line,) = module.orphans("cn-shanghai").find().unknown
    assert line == (
        "whether there are NAS file systems: not allowed to look: User not authorized. (allow nas:DescribeFileSystems)"
    )
    account.answers["GetCallerIdentity"] = Refusal("InvalidAccessKeyId.NotFound", "It is not found.", 404)
    with pytest.raises(ProviderError, match="not found"):
        module.orphans("cn-shanghai").find()


def provider(folder: Path, identity: str = "1a2b3c4d5e6f") -> Alicloud:
    workspace = folder / "sites" / "here"
    workspace.mkdir(parents=True, exist_ok=True)
    (workspace / "main.tf").touch()
    (folder / "id").write_text(identity)
    site = plans.cluster_spec("ecs.gn7-c13g1.26xlarge").sites["here"]
    return Alicloud(Place("speech", "here", site, workspace))


def test_down_removes_what_the_state_forgot_of_this_cluster_alone(account: Account, tmp_path: Path) -> None:
    events: list[Event] = []
    assert provider(tmp_path, "9f9f9f9f9f9f").clean(Events(events.append)) == []
    assert removed(account) == []
    assert provider(tmp_path).clean(Events(events.append)) == []
    assert [row["VpcId"] for row in account.rows["DescribeVpcs"]] == []


def test_machines_that_stand_are_told_from_those_of_another_folder(account: Account, tmp_path: Path) -> None:
    for row in account.rows["DescribeInstances"][:1]:
        row["Tags"]["Tag"].append({"TagKey": "gpuprov-node", "TagValue": "train-0"})
    own_module = provider(tmp_path).module
    assert own_module is not None
    assert [(instance.node, instance.id, instance.ours) for instance in own_module.standing()] == [
        ("train-0", "i-1", True)
    ]
    other: Any = provider(tmp_path, "9f9f9f9f9f9f").module
    assert [instance.ours for instance in other.standing()] == [False]
    account.answers["DescribeInstances"] = Refusal("Forbidden.RAM", "User not authorized.")
    with pytest.raises(ProviderError, match="which machines stand"):
        own_module.standing()


def test_a_role_of_buckets_is_the_accounts_and_goes_with_its_own_cluster(account: Account, tmp_path: Path) -> None:
    first = {"Roles": {"Role": [{"RoleName": "AliyunECSRole", "Description": DESCRIPTION}]}, "IsTruncated": True,
             "Marker": "m1"}  # fmt: skip
    own_role = {"RoleName": "gpuprov-speech-here-01234567", "Description": DESCRIPTION}
    other = {"RoleName": "gpuprov-speech-x", "Description": DESCRIPTION.replace("1a2b", "ffff")}
    account.answers["ListRoles"] = lambda request: (
        {"Roles": {"Role": [own_role, other]}, "IsTruncated": False} if request.get("Marker") == "m1" else first
    )
    deletions: list[str] = []
    for action in ("DetachPolicyFromRole", "DeleteRole"):
        account.answers[action] = lambda request, action=action: (
            deletions.append(f"{action} {request['RoleName']}") or {}
        )
    account.answers["DeletePolicy"] = Refusal("EntityNotExist.Policy", "The policy does not exist.", 404)
    orphans = module.orphans("cn-shanghai")
    search = orphans.find()
    roles = [resource for resource in search.things if resource.kind == "RAM role"]
    assert [(role.id, role.kept) for role in roles] == [
        (own_role["RoleName"], SOMEWHERE),
        (other["RoleName"], SOMEWHERE),
    ]
    orphans.remove(search.things, lambda _: None)
    assert deletions == [], "gc looks at one region"
    workspace = tmp_path / "sites" / "here"
    workspace.mkdir(parents=True)
    (workspace / "main.tf").write_text("")
    (tmp_path / "id").write_text("1a2b3c4d5e6f\n")
    site = plans.cluster_spec("ecs.gn7-c13g1.26xlarge", name="speech").sites["here"]
    site_context = Place("speech", "here", site.model_copy(update={"region": "cn-shanghai"}), workspace)
    Alicloud(site_context).clean(Events())
    assert deletions == [f"{action} {own_role['RoleName']}" for action in ("DetachPolicyFromRole", "DeleteRole")]
