"""gc on AWS: all that the module makes is found by its tag and removed, and nothing else is ever touched."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from moto import mock_aws
from moto.ec2 import ec2_backends
from moto.ec2.responses import EC2Response

from provisioner.cli.main import run
from provisioner.machines.providers import removal
from provisioner.machines.providers.aws import orphans as module
from provisioner.machines.providers.aws import tagged_resources
from provisioner.machines.providers.aws.client import Region
from provisioner.machines.providers.aws.orphans import InRegion
from provisioner.spec import schema
from tests.support import moto_aws
from tests.support.aws_answers import Answers, ec2_error, sts_error
from tests.support.clock import Clock
from tests.support.policies import allowed_actions, documented

pytestmark = pytest.mark.heavy

REGION = "us-east-1"
IMAGE = "ami-12c6146b"
"""One that moto knows."""
POLICY = json.dumps(
    {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:GetObject", "Resource": "*"}]}
)
LACKING = [
    f"{verb}_{resource}{many}"
    for resource in ("placement_group", "instance_connect_endpoint")
    for verb, many in (("create", ""), ("describe", "s"), ("delete", ""))
]
"""What moto has not, and tests/support/moto_aws.py adds to it."""


ANSWERS = Answers()
RULED, PLACE = ANSWERS.region(REGION), Region(REGION)
"""For all tests: reading EC2's description takes longer than most of them."""


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Answers]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.chdir(tmp_path)
    for name in (*LACKING, "describe_spot_instance_requests"):
        monkeypatch.setattr(EC2Response, name, getattr(moto_aws, f"_{name}"), raising=False)
    with mock_aws():
        ANSWERS.rules.clear()
        ANSWERS.asked.clear()
        clock = Clock()
        for patched_module in (removal, module):
            monkeypatch.setattr(patched_module, "time", clock)
        monkeypatch.setattr(module, "orphans", lambda _: InRegion(RULED, wait_s=0.2, pause_s=0.01))
        yield ANSWERS
        for backend in ec2_backends[moto_aws.ACCOUNT].values():  # what the additions keep there
            for attribute in ("placement_groups", "instance_connect_endpoints"):
                if hasattr(backend, attribute):
                    delattr(backend, attribute)


def client(service: str) -> Any:
    return PLACE.client(service)


def tags(cluster: str, kind: str = "") -> Any:
    pairs = [{"Key": "gpuprov-cluster", "Value": cluster}, {"Key": "gpuprov-site", "Value": "virginia"}]
    return [{"ResourceType": kind, "Tags": pairs}] if kind else pairs


def make(cluster: str, *, protect: bool = False) -> dict[str, str]:
    """One of each kind, joined as the module joins them. Their ids by kind."""
    ec2, iam = client("ec2"), client("iam")
    vpc = ec2.create_vpc(CidrBlock="10.7.0.0/16", TagSpecifications=tags(cluster, "vpc"))["Vpc"]["VpcId"]
    default = ec2.describe_security_groups(Filters=[{"Name": "vpc-id", "Values": [vpc]}])["SecurityGroups"][0]
    ec2.create_tags(Resources=[default["GroupId"]], Tags=tags(cluster))
    subnet = ec2.create_subnet(
        VpcId=vpc, CidrBlock="10.7.0.0/24", TagSpecifications=tags(cluster, "subnet")
    )["Subnet"]["SubnetId"]  # fmt: skip
    gateway = ec2.create_internet_gateway(
        TagSpecifications=tags(cluster, "internet-gateway")
    )["InternetGateway"]["InternetGatewayId"]  # fmt: skip
    ec2.attach_internet_gateway(InternetGatewayId=gateway, VpcId=vpc)
    table = ec2.create_route_table(
        VpcId=vpc, TagSpecifications=tags(cluster, "route-table")
    )["RouteTable"]["RouteTableId"]  # fmt: skip
    ec2.associate_route_table(RouteTableId=table, SubnetId=subnet)
    groups = [
        ec2.create_security_group(
            GroupName=f"gpuprov-{cluster}{end}", Description="x", VpcId=vpc,
            TagSpecifications=tags(cluster, "security-group"),
        )["GroupId"]
        for end in ("", "-connect")
    ]  # fmt: skip
    for security_group, other in (groups, reversed(groups)):
        ec2.authorize_security_group_ingress(
            GroupId=security_group, IpPermissions=[{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": other}]}]
        )
    name = f"gpuprov-{cluster}-role"
    iam.create_role(RoleName=name, AssumeRolePolicyDocument="{}", Tags=tags(cluster))
    iam.put_role_policy(RoleName=name, PolicyName="session-manager", PolicyDocument=POLICY)
    arn = iam.create_policy(PolicyName=f"{cluster}-asked", PolicyDocument=POLICY)["Policy"]["Arn"]
    iam.attach_role_policy(RoleName=name, PolicyArn=arn)
    iam.create_instance_profile(InstanceProfileName=name, Tags=tags(cluster))
    iam.add_role_to_instance_profile(InstanceProfileName=name, RoleName=name)
    template = ec2.create_launch_template(
        LaunchTemplateName=f"gpuprov-{cluster}-train", LaunchTemplateData={"IamInstanceProfile": {"Name": name}},
        TagSpecifications=tags(cluster, "launch-template"),
    )["LaunchTemplate"]["LaunchTemplateId"]  # fmt: skip
    key = ec2.create_key_pair(KeyName=f"gpuprov-{cluster}", TagSpecifications=tags(cluster, "key-pair"))["KeyName"]
    ec2.create_placement_group(
        GroupName=f"gpuprov-{cluster}-train", Strategy="cluster", TagSpecifications=tags(cluster, "placement-group")
    )
    instance = ec2.run_instances(
        ImageId=IMAGE, InstanceType="p4d.24xlarge", MinCount=1, MaxCount=1, SubnetId=subnet,
        SecurityGroupIds=[groups[0]],
        TagSpecifications=tags(cluster, "instance") + tags(cluster, "volume"),
    )["Instances"][0]["InstanceId"]  # fmt: skip
    ec2.modify_instance_attribute(InstanceId=instance, DisableApiTermination={"Value": protect})
    address = ec2.allocate_address(Domain="vpc", TagSpecifications=tags(cluster, "elastic-ip"))["AllocationId"]
    ec2.associate_address(AllocationId=address, InstanceId=instance)
    loose = ec2.create_network_interface(
        SubnetId=subnet, Groups=[groups[0]], TagSpecifications=tags(cluster, "network-interface")
    )["NetworkInterface"]["NetworkInterfaceId"]  # fmt: skip
    volume = ec2.create_volume(
        AvailabilityZone=f"{REGION}a", Size=8, TagSpecifications=tags(cluster, "volume")
    )["VolumeId"]  # fmt: skip
    nat = ec2.create_nat_gateway(
        SubnetId=subnet, ConnectivityType="private", TagSpecifications=tags(cluster, "natgateway")
    )["NatGateway"]["NatGatewayId"]  # fmt: skip
    endpoint = ec2.create_vpc_endpoint(
        VpcId=vpc, ServiceName=f"com.amazonaws.{REGION}.s3", VpcEndpointType="Gateway", RouteTableIds=[table],
        TagSpecifications=tags(cluster, "vpc-endpoint"),
    )["VpcEndpoint"]["VpcEndpointId"]  # fmt: skip
    door = ec2.create_instance_connect_endpoint(
        SubnetId=subnet, SecurityGroupIds=[groups[1]], TagSpecifications=tags(cluster, "instance-connect-endpoint")
    )["InstanceConnectEndpoint"]["InstanceConnectEndpointId"]  # fmt: skip
    return {
        "VPC": vpc, "subnet": subnet, "internet gateway": gateway, "route table": table, "security group": groups[0],
        "role": name, "instance profile": name, "launch template": template, "key pair": key,
        "placement group": f"gpuprov-{cluster}-train", "instance": instance, "elastic IP address": address,
        "network interface": loose, "volume": volume, "NAT gateway": nat, "VPC endpoint": endpoint,
        "instance connect endpoint": door,
    }  # fmt: skip


def ids_by_kind(cluster: str) -> dict[str, list[str]]:
    """What is there now, by kind."""
    kinds: dict[str, list[str]] = {}
    for resource in tagged_resources.find(PLACE).things:
        if resource.cluster == cluster:
            kinds.setdefault(resource.kind, []).append(resource.id)
    return kinds


def gc(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    assert run(["gc", "--provider", "aws", "--region", REGION, "--json", *arguments]) == code, capsys.readouterr().err
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    jsonschema.validate(report, schema.schema("gc"))
    return report


def test_everything_that_the_module_makes_is_found_and_removed_and_the_other_cluster_stays(
    aws: Answers, capsys: pytest.CaptureFixture[str]
) -> None:
    created_ids, other = make("crashed"), make("other")
    previous_ids = ids_by_kind("other")
    present_ids = ids_by_kind("crashed")
    assert {kind: number for kind, number in created_ids.items() if number not in present_ids[kind]} == {}
    report = gc(capsys)
    assert {(c["cluster"], c["site"], c["alive"]) for c in report["clusters"]} == {
        ("crashed", "virginia", ""), ("other", "virginia", ""),
    }  # fmt: skip
    assert report["removed"] == 0
    assert ids_by_kind("crashed")  # nobody named a cluster: nothing was touched
    listed = {call for call in aws.asked if not re.match(r"\w+\.(Describe|List|Get)", call)}
    assert listed == set()

    report = gc(capsys, "--cluster", "crashed", "--yes")
    assert ids_by_kind("crashed") == {}
    assert (report["left"], report["unknown"]) == ([], [])
    resource_count = sum(len(c["things"]) for c in report["clusters"] if c["cluster"] == "crashed")
    assert report["removed"] == resource_count > 15
    assert ids_by_kind("other") == previous_ids
    assert other["role"] in [role["RoleName"] for role in client("iam").list_roles()["Roles"]]
    assert gc(capsys, "--cluster", "crashed", "--yes")["removed"] == 0  # and once more, of nothing


def test_the_policy_in_the_docs_allows_what_gc_asks_and_no_more(
    aws: Answers, capsys: pytest.CaptureFixture[str]
) -> None:
    make("crashed")
    gc(capsys, "--cluster", "crashed", "--yes")
    names = {"efs": "elasticfilesystem"}
    called_actions = {f"{names.get(s, s)}:{action}" for s, action in (call.split(".") for call in aws.asked)}
    allowed = allowed_actions(documented("aws", "gc"))
    unseen = {"ec2:CancelSpotInstanceRequests"}  # moto has no spot request with tags
    assert allowed - unseen == called_actions - {"sts:GetCallerIdentity"}


def test_a_machine_that_is_protected_stays_with_all_that_it_needs(
    aws: Answers, capsys: pytest.CaptureFixture[str]
) -> None:
    created_ids = make("crashed", protect=True)
    previous_ids = ids_by_kind("crashed")
    report = gc(capsys, "--cluster", "crashed", "--yes", code=3)
    assert ids_by_kind("crashed") == previous_ids
    assert report["left"][0].startswith(f"instance {created_ids['instance']} (running): protected, and not forced: ")
    assert "other things were not touched" in report["left"][1]
    assert report["removed"] == 0


def test_a_refusal_is_told_and_the_rest_goes(aws: Answers, capsys: pytest.CaptureFixture[str]) -> None:
    created_ids = make("crashed")
    no = "You are not authorized to perform this operation."
    aws.rules["ec2.DeleteKeyPair"] = (403, ec2_error("UnauthorizedOperation", no))
    report = gc(capsys, "--cluster", "crashed", "--yes", code=3)
    assert report["left"] == [f"key pair {created_ids['key pair']}: {no}"]
    assert ids_by_kind("crashed") == {"key pair": [created_ids["key pair"]]}


def test_what_is_in_use_is_tried_until_the_deadline(aws: Answers, capsys: pytest.CaptureFixture[str]) -> None:
    created_ids = make("crashed")
    aws.rules["ec2.DeleteSubnet"] = (400, ec2_error("DependencyViolation", "The subnet has dependencies."))
    report = gc(capsys, "--cluster", "crashed", "--yes", code=3)
    assert f"subnet {created_ids['subnet']}: The subnet has dependencies." in report["left"]
    assert aws.asked.count("ec2.DeleteSubnet") > 1


def test_what_of_somebody_else_holds_the_network_is_named_with_its_owner(
    aws: Answers, capsys: pytest.CaptureFixture[str]
) -> None:
    created_ids, ec2 = make("crashed"), client("ec2")
    stranger = ec2.create_network_interface(SubnetId=created_ids["subnet"], Description="scanner")["NetworkInterface"]
    ec2.create_tags(Resources=[stranger["NetworkInterfaceId"]], Tags=[{"Key": "Owner", "Value": "team-b"}])
    other = ec2.create_security_group(GroupName="theirs", Description="x", VpcId=created_ids["VPC"])["GroupId"]
    aws.rules["ec2.DeleteSubnet"] = (400, ec2_error("DependencyViolation", "The subnet has dependencies."))
    problems = gc(capsys, "--cluster", "crashed", "--yes", code=3)["left"]
    number = stranger["NetworkInterfaceId"]
    assert f"network interface {number} (scanner, interface) of team-b is in {created_ids['subnet']}" in problems
    assert f"security group {other} (theirs) of {moto_aws.ACCOUNT} is in {created_ids['VPC']}" in problems
    assert not [line for line in problems if "gpuprov-crashed" in line and "of " in line]


def test_a_machine_that_will_not_go_keeps_what_it_may_need(aws: Answers, capsys: pytest.CaptureFixture[str]) -> None:
    created_ids = make("crashed")
    aws.rules["ec2.TerminateInstances"] = (
        200,
        b"<TerminateInstancesResponse><instancesSet/></TerminateInstancesResponse>",
    )
    report = gc(capsys, "--cluster", "crashed", "--yes", code=3)
    assert report["left"][0] == f"instance {created_ids['instance']} (running): it was deleted, and is still there"
    assert created_ids["VPC"] in ids_by_kind("crashed")["VPC"]


@pytest.mark.parametrize("call", ["ec2.DescribeVolumes", "efs.DescribeFileSystems", "iam.ListRoles"])
def test_what_could_not_be_asked_is_no_all_clear(aws: Answers, call: str, capsys: pytest.CaptureFixture[str]) -> None:
    service = call.partition(".")[0]
    refused = {
        "ec2": ec2_error("UnauthorizedOperation", "no"),
        "iam": sts_error("AccessDenied", "no"),
        "efs": b'{"ErrorCode": "AccessDeniedException", "__type": "AccessDeniedException", "Message": "no"}',
    }[service]
    aws.rules[call] = (403, refused)
    report = gc(capsys, code=3)
    assert len(report["unknown"]) == 1
    assert "not allowed to look: no (allow " in report["unknown"][0]


def test_nobody_is_signed_in(aws: Answers, capsys: pytest.CaptureFixture[str]) -> None:
    aws.rules["sts.GetCallerIdentity"] = (403, sts_error("ExpiredToken", "The security token is expired"))
    assert run(["gc", "--provider", "aws", "--region", REGION]) == 3
    assert "they have expired" in capsys.readouterr().err


def test_file_systems_hold_data_and_are_named_only(aws: Answers, capsys: pytest.CaptureFixture[str]) -> None:
    efs = client("efs").create_file_system(CreationToken="x", Tags=tags("crashed"))["FileSystemId"]
    report = gc(capsys, "--cluster", "crashed", "--yes", code=3)
    assert report["left"] == [f"EFS file system {efs}: {tagged_resources.HOLDS_DATA}"]
    assert ids_by_kind("crashed") == {"EFS file system": [efs]}


def test_a_role_that_nothing_here_uses_may_be_another_regions(aws: Answers, capsys: pytest.CaptureFixture[str]) -> None:
    client("iam").create_role(RoleName="gpuprov-crashed-x", AssumeRolePolicyDocument="{}", Tags=tags("crashed"))
    report = gc(capsys, "--cluster", "crashed", "--yes", code=3)
    assert report["left"] == [f"role gpuprov-crashed-x: {tagged_resources.SOMEWHERE}"]


def test_without_yes_and_without_a_terminal_nothing_is_removed(
    aws: Answers, capsys: pytest.CaptureFixture[str]
) -> None:
    make("crashed")
    previous_ids = ids_by_kind("crashed")
    assert run(["gc", "--provider", "aws", "--region", REGION, "--cluster", "crashed"]) == 2
    assert "confirmation required, but stdin is not a terminal" in capsys.readouterr().err
    assert ids_by_kind("crashed") == previous_ids


def workspace(folder: Path, state: str | None, main: str = "") -> Path:
    site = folder / ".gpuprov" / "crashed" / "sites" / "virginia"
    site.mkdir(parents=True)
    (site / "main.tf").write_text(main)
    if state is not None:
        (site / "terraform.tfstate").write_text(state)
    return site


ALIVE = {
    "state": ('{"resources": [{"mode": "managed"}]}', "", True),
    "state that can't be read": ("{", "", True),
    "state elsewhere": (None, 'terraform {\n  backend "s3" {}\n}', True),
    "state of nothing": ('{"resources": []}', 'terraform {\n  backend "local" {}\n}', False),
    "no state": (None, 'terraform {\n  backend "local" {}\n}', False),
}


@pytest.mark.parametrize("name", list(ALIVE))
def test_a_cluster_that_is_alive_here_is_downs(
    aws: Answers, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state, main, alive = ALIVE[name]
    client("ec2").create_key_pair(KeyName="x", TagSpecifications=tags("crashed", "key-pair"))
    workspace(tmp_path, state, main)
    below = tmp_path / "deep" / "down"
    below.mkdir(parents=True)
    os.chdir(below)  # also seen from a folder below
    code = run(["gc", "--provider", "aws", "--region", REGION, "--cluster", "crashed", "--yes"])
    captured = capsys.readouterr()
    assert code == (2 if alive else 0)
    assert bool(ids_by_kind("crashed")) is alive
    assert ("alive here" in captured.out) is alive


def test_a_file_names_its_regions_and_its_state_elsewhere_is_alive(
    aws: Answers, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    client("ec2").create_key_pair(KeyName="x", TagSpecifications=tags("crashed", "key-pair"))
    file = tmp_path / "cluster.yaml"
    text = "name: crashed\nsites: {virginia: {provider: aws, region: us-east-1}}\ngroups: {a: {machine: g5.xlarge}}\n"
    file.write_text(text)
    assert run(["gc", str(file)]) == 0
    output = capsys.readouterr().out
    assert "us-east-1: cluster crashed, site virginia: 1 things" in output
    assert "nobody on this machine knows it" in output


NOWHERE = {
    "nothing said": ([], "nothing to scan"),
    "no such provider": (["--region", "x", "--provider", "baremetal"], "cannot look for leftovers at baremetal"),
    "no such region": (["--region", "us_gov"], "--region us_gov needs --provider"),
    "a region of two clouds": (["--region", REGION], f"--region {REGION} needs --provider\n  one of alicloud, aws"),
}


@pytest.mark.parametrize("name", list(NOWHERE))
def test_somebody_has_to_say_where(aws: Answers, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, message = NOWHERE[name]
    assert run(["gc", *arguments]) == 2
    assert message in capsys.readouterr().err
