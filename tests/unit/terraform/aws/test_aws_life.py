"""The AWS module from nothing to nothing, by the real provider against moto: made, looked at, changed, removed."""

from __future__ import annotations

import re

import pytest

from provisioner.machines.providers import actions
from tests.support.aws_life import REGION, Life
from tests.support.moto_aws import Cloud
from tests.support.policies import documented

pytestmark = [pytest.mark.heavy, pytest.mark.shares("aws"), pytest.mark.begins(1)]

NODE_KEYS = {"id", "group", "zone", "private_ip", "public_ip", "machine"}

NOT_SEEN = {
    # what moto can't show: calls that the tests don't make, and permissions that are no calls
    "ec2:CreateNatGateway": "NAT gateways are only planned in the tests",
    "ec2:DeleteNatGateway": "as above",
    "ec2:DescribeNatGateways": "as above",
    "ec2:DescribeAvailabilityZones": "only where no zone is named",
    "ec2:CreateLaunchTemplateVersion": "a template that changes",
    "ec2:ModifyLaunchTemplate": "as above",
    "ec2:DeleteTags": "tags that change",
    "ec2:ModifySecurityGroupRules": "networks of `access.allow` that change",
    "ec2:ReplaceRoute": "internet = nat that becomes public",
    "ec2:ModifyVpcEndpoint": "a zone more",
    "iam:PassRole": "no call: RunInstances with a profile needs it",
    "iam:CreateServiceLinkedRole": "no call of ours: the first spot request, FSx and EFS make their role",
    "iam:AttachRolePolicy": "only where `policies` are given",
    "iam:DetachRolePolicy": "as above",
    "iam:TagRole": "no call: a role made with tags needs it",
    "iam:TagInstanceProfile": "no call: a profile made with tags needs it",
    "elasticfilesystem:TagResource": "no call: a file system made with tags needs it",
    "elasticfilesystem:UntagResource": "tags that change",
    "elasticfilesystem:UpdateFileSystem": "a throughput mode that changes",
    "ec2:CreateNetworkInterface": "no call: a mount target is made with one",
    "ec2:DeleteNetworkInterface": "no call: it goes with its mount target",
    "ec2:DescribeInstanceCreditSpecifications": "burstable machine types",
    "iam:UntagRole": "tags that change",
    "iam:UntagInstanceProfile": "as above",
    "fsx:CreateFileSystem": "moto's FSx never becomes available",
    "fsx:DescribeFileSystems": "as above",
    "fsx:UpdateFileSystem": "as above",
    "fsx:DeleteFileSystem": "as above",
    "fsx:TagResource": "as above",
    "fsx:UntagResource": "as above",
    "fsx:ListTagsForResource": "as above",
}


LOOKING = {"iam:GetRole", "iam:ListInstanceProfiles", "iam:ListRoles", "iam:SimulatePrincipalPolicy"}


def test_nodes_come_out_as_the_contract_says(life: Life) -> None:
    assert set(life.nodes) == {"train-0", "train-1", "infer-0"}
    for name, node in life.nodes.items():
        assert set(node) >= NODE_KEYS
        assert node["group"] == name.rsplit("-", 1)[0]
        assert node["zone"] == f"{REGION}a"
        assert re.fullmatch(r"i-[0-9a-f]{17}", node["id"])
        assert node["private_ip"].startswith("10.77.")
        assert node["public_ip"]
    assert {n: life.nodes[n]["machine"] for n in life.nodes} == {
        "train-0": "p4d.24xlarge",
        "train-1": "p4d.24xlarge",
        "infer-0": "g5.xlarge",
    }
    assert life.nodes["train-0"]["capacity"] == "spot"
    assert life.nodes["infer-0"]["capacity"] == "on-demand"
    assert [mount["type"] for mount in life.nodes["train-0"]["mounts"]] == ["nfs4", "s3"]


def test_machines_are_what_the_template_says(life: Life) -> None:
    for name, node in life.nodes.items():
        instance, interfaces = life.alive[name]["instance"], life.alive[name]["interfaces"]
        group = f"gpuprov-test-train-{REGION}a" if node["group"] == "train" else ""
        assert instance["Placement"].get("GroupName", "") == group
        assert instance["MetadataOptions"]["HttpTokens"] == "required"
        assert instance["MetadataOptions"]["HttpPutResponseHopLimit"] == 1
        tags = {tag["Key"]: tag["Value"] for tag in instance["Tags"]}
        assert (tags["gpuprov-cluster"], tags["gpuprov-node"], tags["cost-centre"]) == ("test", name, "42")
        assert len(interfaces) == (4 if node["group"] == "train" else 1)
        (volume,) = life.alive[name]["volumes"]
        assert volume["Encrypted"]
        for tag_set in (*(nic["TagSet"] for nic in interfaces), volume["Tags"]):
            assert {tag["Key"]: tag["Value"] for tag in tag_set}["gpuprov-cluster"] == "test"


def test_a_changed_template_touches_no_node_that_exists(life: Life) -> None:
    """Another image, zone, size, kind and user data: for new nodes alone."""
    assert life.grown == {
        'aws_launch_template.group["train"]': "update",
        'aws_instance.node["train-2"]': "create",
        'aws_eip.node["train-2"]': "create",
        'aws_eip_association.node["train-2"]': "create",
    }


def test_a_second_site_in_the_file_replaces_nothing_that_nodes_need(life: Life) -> None:
    """Names have the site's then; what was made keeps its own."""
    replaced = {address for address, action in life.renamed.items() if action == "replace"}
    assert replaced <= {
        "aws_key_pair.access",
        'aws_launch_template.group["train"]',
        'aws_launch_template.group["infer"]',
    }


def test_a_second_plan_is_empty_but_for_the_node_that_is_to_be_made_anew(life: Life) -> None:
    assert life.replaced == {
        'aws_instance.node["train-1"]': "replace",
        'aws_eip_association.node["train-1"]': "replace",
    }


def test_nothing_is_left(life: Life, cloud: Cloud) -> None:
    ec2, iam = cloud.client("ec2", REGION), cloud.client("iam")
    instances = [i for r in ec2.describe_instances()["Reservations"] for i in r["Instances"]]
    assert {i["State"]["Name"] for i in instances if i["InstanceId"] in {n["id"] for n in life.nodes.values()}} == {
        "terminated"
    }
    filters = [{"Name": "tag:gpuprov-cluster", "Values": ["test"]}]
    assert not ec2.describe_vpcs(Filters=filters)["Vpcs"]
    assert not ec2.describe_network_interfaces(Filters=filters)["NetworkInterfaces"]
    assert not ec2.describe_volumes(Filters=filters)["Volumes"]
    assert not ec2.describe_addresses(Filters=filters)["Addresses"]
    assert not ec2.describe_placement_groups()["PlacementGroups"]
    assert not ec2.describe_key_pairs()["KeyPairs"]
    assert not ec2.describe_launch_templates()["LaunchTemplates"]
    assert not ec2.describe_instance_connect_endpoints()["InstanceConnectEndpoints"]
    names = [role["RoleName"] for role in iam.list_roles()["Roles"]]
    names += [profile["InstanceProfileName"] for profile in iam.list_instance_profiles()["InstanceProfiles"]]
    assert not [name for name in names if name.startswith("gpuprov-test")]
    assert not cloud.client("efs", REGION).describe_file_systems()["FileSystems"]


def test_the_table_of_actions_has_every_call_of_the_provider_and_no_other(life: Life) -> None:
    """docs/guides/aws.md has policies that are made of it (tests/unit/machines/providers/test_policies.py)."""
    table = actions.load("aws")
    listed = table.of_resources(table.resources)
    services = {"efs": "elasticfilesystem"}
    observed = {
        f"{services.get(service, service)}:{action}" for service, action in (call.split(":") for call in life.calls)
    }
    observed.discard("sts:GetCallerIdentity")  # everybody may ask
    assert sorted(observed - listed) == []
    assert sorted(listed - observed) == sorted(NOT_SEEN)
    recorded = {
        action.name for rows in table.resources.values() for row in rows.values() for action in row
        if action.source == "recorded"
    }  # fmt: skip
    assert recorded <= observed


def test_the_policy_gives_no_role_of_others_away() -> None:
    """Roles that gpuprov makes have a name of its own: it may touch no others, and hand them to EC2 alone."""
    for statement in documented("aws", "up")["Statement"]:
        for action in statement["Action"]:
            if action.startswith("iam:") and action not in LOOKING | {"iam:CreateServiceLinkedRole"}:
                assert all(":role/gpuprov-" in r or ":instance-profile/gpuprov-" in r for r in statement["Resource"])
            if action in ("iam:PassRole", "iam:CreateServiceLinkedRole"):
                assert "Condition" in statement
