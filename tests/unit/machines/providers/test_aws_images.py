"""AMIs against moto: made, copied, shared, used, removed; cut off after every single call and gone on.

moto 5.2 lacks tags of an image's snapshots and deprecation, which are added here.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto import mock_aws
from moto.core.responses import ActionResult
from moto.ec2 import ec2_backends
from moto.ec2.models.amis import AmiBackend
from moto.ec2.responses import EC2Response

from provisioner.common.errors import ProviderError
from provisioner.machines.providers import actions
from provisioner.machines.providers.aws.client import Region
from provisioner.machines.providers.aws.images import Ec2Images
from provisioner.machines.providers.aws.site import AwsSite
from provisioner.machines.providers.base import Place
from provisioner.rundir.fleet import Node
from tests.support.plans import planned_group

REGION, ACCOUNT = "us-east-1", "123456789012"
KNOWN = "ami-12c6146b"
"""One that moto has."""
NAME = "gpuprov-pytorch-train-20260131-031500"
TAGS = {"gpuprov-image": "pytorch", "gpuprov-build": "20260131-031500"}
REGIONS = ("us-west-2", "eu-central-1")
FRIEND = "210987654321"


class Cloud:
    """EC2 in this process."""

    def __init__(self) -> None:
        self._clients: dict[str, Any] = {}

    def client(self, service: str, region: str = REGION) -> Any:
        if region not in self._clients:
            self._clients[region] = boto3.client(service, region_name=region)
        return self._clients[region]


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    real = AmiBackend.create_image
    deprecated: dict[str, str] = {}

    def create_image(self: Any, *arguments: Any, **keywords: Any) -> Any:
        specifications = keywords["tag_specifications"]
        keywords["tag_specifications"] = [
            specification for specification in specifications if specification["ResourceType"] != "snapshot"
        ]
        return real(self, *arguments, **keywords)

    def enable_image_deprecation(self: Any) -> ActionResult:
        deprecated[self._get_param("ImageId")] = self._get_param("DeprecateAt")
        return ActionResult({"Return": True})

    monkeypatch.setattr(AmiBackend, "create_image", create_image)
    monkeypatch.setattr(EC2Response, "enable_image_deprecation", enable_image_deprecation, raising=False)
    with mock_aws():
        for region in (REGION, *REGIONS):  # moto's hundreds of public images are gone through at every question
            amis = ec2_backends[ACCOUNT][region].amis
            for number in [number for number in amis if number != KNOWN]:
                del amis[number]
        yield Cloud()


@pytest.fixture
def images(cloud: Cloud, tmp_path: Path) -> Ec2Images:
    site = AwsSite(provider="aws", region=REGION)
    return Ec2Images(Place("vision", "here", site, tmp_path), site, pause_s=0)


@pytest.fixture
def machine(cloud: Cloud) -> Node:
    instance_id = cloud.client("ec2").run_instances(ImageId=KNOWN, MinCount=1, MaxCount=1)["Instances"][0]["InstanceId"]
    return Node("train-0", "train", "here", "m7i.2xlarge", instance_id, f"{REGION}a", "203.0.113.7", "10.0.0.7")


def quiet(_line: str) -> None:
    """Nobody listens."""


def own_images(cloud: Cloud, region: str) -> list[dict[str, Any]]:
    return [
        row for row in cloud.client("ec2", region).describe_images(Owners=["self"])["Images"] if row["Name"] == NAME
    ]


def snapshots(cloud: Cloud, region: str) -> set[str]:
    rows = cloud.client("ec2", region).describe_snapshots(OwnerIds=["self"])["Snapshots"]
    return {row["SnapshotId"] for row in rows}


def test_an_image_is_made_once_with_its_tags_and_of_a_stopped_machine(
    cloud: Cloud, images: Ec2Images, machine: Node
) -> None:
    assert images.find(NAME) is None
    number = images.capture(machine, NAME, TAGS, quiet)
    assert images.capture(machine, NAME, TAGS, quiet) == number
    (row,) = own_images(cloud, REGION)
    assert {tag["Key"]: tag["Value"] for tag in row["Tags"]} == {**TAGS, "Name": NAME}
    state = cloud.client("ec2").describe_instances(InstanceIds=[machine.id])["Reservations"][0]["Instances"][0]["State"]
    assert state["Name"] == "stopped"
    image = images.find(NAME)
    assert image is not None
    assert (image.id, image.ready, image.why) == (number, True, "")


def test_it_is_copied_shared_and_removed_with_its_snapshots(cloud: Cloud, images: Ec2Images, machine: Node) -> None:
    previous_snapshots = {region: snapshots(cloud, region) for region in (REGION, *REGIONS)}
    number = images.capture(machine, NAME, TAGS, quiet)
    ids = images.publish(number, NAME, REGIONS, [FRIEND], TAGS, quiet)
    assert images.publish(number, NAME, REGIONS, [FRIEND], TAGS, quiet) == ids
    assert list(ids) == [REGION, *REGIONS]
    assert ids[REGION] == number
    for region, copy in ids.items():
        ec2 = cloud.client("ec2", region)
        assert [row["ImageId"] for row in own_images(cloud, region)] == [copy]
        allowed = ec2.describe_image_attribute(ImageId=copy, Attribute="launchPermission")["LaunchPermissions"]
        assert allowed == [{"UserId": FRIEND}]
    images.delete(ids, TAGS)
    images.delete(ids, TAGS)  # what is gone is fine
    assert {region: own_images(cloud, region) for region in ids} == {region: [] for region in ids}
    assert {region: snapshots(cloud, region) for region in ids} == previous_snapshots


def test_an_image_without_its_tags_is_somebody_elses(cloud: Cloud, images: Ec2Images, machine: Node) -> None:
    number = cloud.client("ec2").create_image(InstanceId=machine.id, Name="company", TagSpecifications=[])["ImageId"]
    with pytest.raises(ProviderError, match="has not the tags of this build: it stays"):
        images.delete({REGION: number}, TAGS)
    assert [r["Name"] for r in cloud.client("ec2").describe_images(ImageIds=[number])["Images"]] == ["company"]


def test_machines_that_were_made_of_it_are_known_until_they_are_gone(
    cloud: Cloud, images: Ec2Images, machine: Node
) -> None:
    number = images.capture(machine, NAME, TAGS, quiet)
    assert images.used({REGION: number}) == []
    ec2 = cloud.client("ec2")
    instance_id = ec2.run_instances(ImageId=number, MinCount=1, MaxCount=1)["Instances"][0]["InstanceId"]
    assert images.used({REGION: number}) == [instance_id]
    ec2.terminate_instances(InstanceIds=[instance_id])
    assert images.used({REGION: number}) == []


class Cut(BaseException):
    """As Ctrl-C, or the power."""


def test_cut_off_after_every_single_call_it_goes_on_and_leaves_nothing(
    cloud: Cloud, images: Ec2Images, machine: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is lost, too: what was asked for has been made, and nobody was told."""
    previous_snapshots = {region: snapshots(cloud, region) for region in (REGION, *REGIONS)}
    real, remaining_calls = Region.ask, [0]

    def ask(self: Region, service: str, call: str, **arguments: Any) -> dict[str, Any]:
        answer = real(self, service, call, **arguments)
        remaining_calls[0] -= 1
        if remaining_calls[0] == 0:
            raise Cut
        return answer

    monkeypatch.setattr(Region, "ask", ask)
    for number in range(1, 100):
        remaining_calls[0] = number
        try:
            ids = images.publish(images.capture(machine, NAME, TAGS, quiet), NAME, REGIONS[:1], [FRIEND], TAGS, quiet)
            complete = True
        except Cut:
            complete = False
            remaining_calls[0] = 0
            ids = images.publish(images.capture(machine, NAME, TAGS, quiet), NAME, REGIONS[:1], [FRIEND], TAGS, quiet)
        assert all(len(own_images(cloud, region)) == 1 for region in ids)
        remaining_calls[0] = number
        try:
            images.delete(ids, TAGS)
        except Cut:
            remaining_calls[0] = 0
            images.delete(ids, TAGS)
        remaining_calls[0] = 0
        assert {region: own_images(cloud, region) for region in ids} == {region: [] for region in ids}
        if complete:
            break
    assert number > 8
    orphans = {region: snapshots(cloud, region) - previous_snapshots[region] for region in previous_snapshots}
    assert orphans == {region: set() for region in previous_snapshots}


def test_an_image_that_was_never_made_says_why(
    images: Ec2Images, machine: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {"ImageId": "ami-1", "State": "failed", "StateReason": {"Message": "Client.InternalError: the disk is gone"}}
    real = Region.ask

    def ask(self: Region, service: str, call: str, **arguments: Any) -> dict[str, Any]:
        return {"Images": [row]} if call == "describe_images" else real(self, service, call, **arguments)

    monkeypatch.setattr(Region, "ask", ask)
    with pytest.raises(ProviderError, match="the disk is gone"):
        images.capture(machine, NAME, TAGS, quiet)


def test_it_is_built_on_a_machine_without_a_gpu(images: Ec2Images) -> None:
    group = planned_group("p4d.24xlarge")
    assert images.builder(group, None) == "m7i.2xlarge"
    assert images.builder(group, "c7i.4xlarge") == "c7i.4xlarge"


def test_the_table_has_the_permissions_that_are_needed_and_no_more() -> None:
    source = Path(inspect.getfile(Ec2Images)).read_text(encoding="utf-8")
    calls = set(re.findall(r'"((?:describe|create|copy|modify|enable|deregister|delete|stop)_[a-z_]+)"', source))
    listed = set(actions.load("aws").calls["images"])
    assert listed == {"ec2:" + "".join(part.capitalize() for part in call.split("_")) for call in calls}
