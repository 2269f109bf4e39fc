"""Custom images of ECS on an imitated account with two regions: made, copied, shared, used, removed; cut off after
every single call and gone on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from provisioner.common.errors import ProviderError
from provisioner.machines.providers import actions, regional_images
from provisioner.machines.providers.alicloud.client import Region
from provisioner.machines.providers.alicloud.images import EcsImages
from provisioner.machines.providers.alicloud.site import AlicloudSite
from provisioner.machines.providers.base import Place
from provisioner.rundir.fleet import Node
from tests.support.alicloud_api import Account, Refusal, serving
from tests.support.plans import planned_group
from tests.support.sandbox_cluster import ROOT

HOME, OTHER = "cn-shanghai", "cn-beijing"
NAME = "gpuprov-pytorch-train-20260131-031500-ffab12cd"
TAGS = {"gpuprov-image": "pytorch", "gpuprov-build": "20260131-031500"}
FRIEND = "210987654321"
NODE = Node("train-0", "train", "here", "ecs.g7.2xlarge", "i-1", f"{HOME}-b", "203.0.113.7", "10.0.0.7")


class Ecs(Account):
    """ECS with what images need: a machine, and in each region images and snapshots. An image is being made until it
    was looked at once."""

    def __init__(self) -> None:
        super().__init__()
        self.state, self.images, self.snapshots = "Running", dict[str, dict[str, Any]](), dict[str, dict[str, Any]]()
        self.shared: dict[str, list[str]] = {}
        self.started: list[dict[str, str]] = []
        self.answers |= {
            "DescribeInstances": self.instances, "StopInstance": self.stopped, "CreateImage": self.made,
            "CopyImage": self.copied, "DescribeImages": self.listed, "TagResources": self.marked,
            "DeleteImage": self.removed, "DescribeSnapshots": self.parts, "DeleteSnapshot": self.swept,
            "ModifyImageSharePermission": self.given,
        }  # fmt: skip

    def instances(self, request: dict[str, str]) -> Any:
        if "ImageId" in request:
            rows = [instance for instance in self.started if instance["ImageId"] == request["ImageId"]]
        else:
            rows = [{"InstanceId": "i-1", "Status": self.state}] if request["InstanceIds"] == '["i-1"]' else []
        return {"Instances": {"Instance": rows}, "TotalCount": len(rows)}

    def stopped(self, request: dict[str, str]) -> Any:
        self.state = "Stopped"
        return {}

    def made(self, request: dict[str, str]) -> Any:
        if self.state != "Stopped":
            return Refusal("IncorrectInstanceStatus", "the instance runs", 403)
        return self._new(request["ImageName"], HOME, request)

    def copied(self, request: dict[str, str]) -> Any:
        assert request["Encrypted"] == "true"
        return self._new(request["DestinationImageName"], request["DestinationRegionId"], request)

    def _new(self, name: str, region: str, request: dict[str, str]) -> Any:
        known = [number for number, image in self.images.items() if image["token"] == request["ClientToken"]]
        if known:
            return {"ImageId": known[0]}
        if any((image["name"], image["region"]) == (name, region) for image in self.images.values()):
            return Refusal("InvalidImageName.Duplicated", "the name is taken", 400)
        number, snapshot = f"m-{len(self.snapshots)}", f"s-{len(self.snapshots)}"
        tags = {request[f"Tag.{n}.Key"]: request[f"Tag.{n}.Value"] for n in range(1, 9) if f"Tag.{n}.Key" in request}
        self.snapshots[snapshot] = {"region": region, "tags": {}}
        self.images[number] = {
            "name": name, "region": region, "tags": tags, "snapshot": snapshot, "state": "Creating",
            "token": request["ClientToken"],
        }  # fmt: skip
        return {"ImageId": number}

    def listed(self, request: dict[str, str]) -> Any:
        assert (request["ImageOwnerAlias"], request["Status"].count(",")) == ("self", 5)
        rows = []
        for number, image in self.images.items():
            filters = request.get("ImageName", image["name"]), request.get("ImageId", number), request["RegionId"]
            if filters == (image["name"], number, image["region"]):
                tags = [{"TagKey": key, "TagValue": value} for key, value in image["tags"].items()]
                disks = {"DiskDeviceMapping": [{"SnapshotId": image["snapshot"]}]}
                rows.append({"ImageId": number, "ImageName": image["name"], "Status": image["state"],
                             "Tags": {"Tag": tags}, "DiskDeviceMappings": disks})  # fmt: skip
                image["state"] = "Available" if image["state"] == "Creating" else image["state"]
        return {"Images": {"Image": rows}, "TotalCount": len(rows)}

    def marked(self, request: dict[str, str]) -> Any:
        assert request["ResourceType"] == "snapshot"
        self.snapshots[request["ResourceId.1"]]["tags"][request["Tag.1.Key"]] = request["Tag.1.Value"]
        return {}

    def removed(self, request: dict[str, str]) -> Any:
        if request["ImageId"] not in self.images:
            return Refusal("InvalidImageId.NotFound", "The specified ImageId does not exist.", 404)
        if self.images[request["ImageId"]]["state"] == "Creating":
            return Refusal("IncorrectImageStatus", "it is being made", 403)
        del self.images[request["ImageId"]]
        return {}

    def parts(self, request: dict[str, str]) -> Any:
        key, value = request["Tag.1.Key"], request["Tag.1.Value"]
        rows = [
            {"SnapshotId": number, "Tags": {"Tag": [{"TagKey": key, "TagValue": value}]}}
            for number, snapshot in self.snapshots.items()
            if snapshot["tags"].get(key) == value and snapshot["region"] == request["RegionId"]
        ]
        return {"Snapshots": {"Snapshot": rows}, "TotalCount": len(rows)}

    def swept(self, request: dict[str, str]) -> Any:
        if any(image["snapshot"] == request["SnapshotId"] for image in self.images.values()):
            return Refusal("SnapshotCreatedImage", "an image was made of it", 403)
        del self.snapshots[request["SnapshotId"]]
        return {}

    def given(self, request: dict[str, str]) -> Any:
        self.shared[request["ImageId"]] = [request["AddAccount.1"]]
        return {}


@pytest.fixture
def ecs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ecs]:
    account = Ecs()
    with serving(account) as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        yield account
    assert account.wrong == []


def images_of_site(folder: Path, **keys: Any) -> EcsImages:
    site = AlicloudSite(provider="alicloud", region=HOME, **keys)
    return EcsImages(Place("pytorch", "here", site, folder), site, pause_s=0)


@pytest.fixture
def images(ecs: Ecs, tmp_path: Path) -> EcsImages:
    return images_of_site(tmp_path)


def quiet(_line: str) -> None:
    """Nobody listens."""


def test_an_image_is_made_once_of_a_stopped_machine_with_its_tags(ecs: Ecs, images: EcsImages) -> None:
    assert images.find(NAME) is None
    number = images.capture(NODE, NAME, TAGS, quiet)
    assert images.capture(NODE, NAME, TAGS, quiet) == number and ecs.counted()["CreateImage"] == 1
    assert ecs.images[number]["tags"] == TAGS and ecs.state == "Stopped"
    image = images.find(NAME)
    assert image is not None and (image.id, image.ready, image.why) == (number, True, "")


def test_it_is_copied_shared_and_removed_with_its_snapshots(ecs: Ecs, images: EcsImages, tmp_path: Path) -> None:
    number = images.capture(NODE, NAME, TAGS, quiet)
    ids = images.publish(number, NAME, (OTHER,), (), TAGS, quiet)
    assert images.publish(number, NAME, (OTHER, HOME), (), TAGS, quiet) == ids == images.copies(NAME, (OTHER,))
    assert {region: ecs.images[image_id]["region"] for region, image_id in ids.items()} == {HOME: HOME, OTHER: OTHER}
    encrypted_images = images_of_site(tmp_path, kms_key="0e478b7a-4262-4802")
    encrypted_images.check((), (FRIEND,))
    encrypted_images.publish(number, NAME, (), (FRIEND,), TAGS, quiet)
    assert ecs.shared == {number: [FRIEND]}
    images.delete(ids, TAGS)
    images.delete(ids, TAGS)  # what is gone is fine
    assert (ecs.images, ecs.snapshots) == ({}, {})


def test_sharing_what_ecss_own_key_has_encrypted_is_refused_before_a_build(images: EcsImages, tmp_path: Path) -> None:
    with pytest.raises(ProviderError, match="the image is encrypted with ECS's own key") as caught:
        images.check((), (FRIEND,))
    assert "sites.*.kms_key" in str(caught.value.hint)
    with pytest.raises(ProviderError, match=f"copies in {OTHER} are encrypted"):
        images_of_site(tmp_path, kms_key="0e478b7a-4262-4802").check((OTHER,), (FRIEND,))
    images.check((OTHER,), ())


def test_an_image_without_its_tags_is_somebody_elses_and_one_that_failed_says_so(ecs: Ecs, images: EcsImages) -> None:
    number = images.capture(NODE, NAME, {}, quiet)
    with pytest.raises(ProviderError, match="has not the tags of this build: it stays"):
        images.delete({HOME: number}, TAGS)
    assert number in ecs.images
    ecs.images[number]["state"] = "CreateFailed"
    with pytest.raises(ProviderError, match="Alibaba Cloud says CreateFailed"):
        images.capture(NODE, NAME, TAGS, quiet)
    ecs.answers["DescribeImages"] = Refusal("Forbidden.RAM", "User not authorized to operate on the resource")
    with pytest.raises(ProviderError) as caught:
        images.find(NAME)
    assert "allow ecs:DescribeImages" in str(caught.value.hint)


def test_one_that_is_being_made_is_removed_once_it_is_there(ecs: Ecs, images: EcsImages) -> None:
    ecs.state = "Stopped"
    number = images.create("i-1", NAME, TAGS)
    images.delete({HOME: number}, TAGS)
    assert (ecs.images, ecs.snapshots) == ({}, {})


def test_one_that_takes_hours_to_be_made_is_left_to_the_next_run(
    ecs: Ecs, images: EcsImages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(regional_images, "SETTLED_S", 0)
    ecs.state = "Stopped"
    number = images.create("i-1", NAME, TAGS)
    ecs.images[number]["state"] = "Waiting"
    with pytest.raises(ProviderError, match="cannot be removed while it is being made") as caught:
        images.delete({HOME: number}, TAGS)
    assert (caught.value.hint, list(ecs.images)) == ("run it again", [number])


def test_machines_that_were_made_of_it_are_known(ecs: Ecs, images: EcsImages) -> None:
    assert images.used({HOME: "m-0"}) == []
    ecs.started = [{"InstanceId": "i-7", "ImageId": "m-0"}]
    assert images.used({HOME: "m-0"}) == ["i-7"]


class Cut(BaseException):
    """As Ctrl-C, or the power."""


def test_cut_off_after_every_single_call_it_goes_on_and_leaves_nothing(
    ecs: Ecs, images: EcsImages, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is lost, too: what was asked for has been made, and nobody was told."""
    real, remaining_calls = Region.ask, [0]

    def ask(self: Region, service: str, action: str, **arguments: Any) -> dict[str, Any]:
        answer = real(self, service, action, **arguments)
        remaining_calls[0] -= 1
        if remaining_calls[0] == 0:
            raise Cut
        return answer

    def built() -> dict[str, str]:
        return images.publish(images.capture(NODE, NAME, TAGS, quiet), NAME, (OTHER,), (), TAGS, quiet)

    monkeypatch.setattr(Region, "ask", ask)
    for number in range(1, 100):
        remaining_calls[0] = number
        try:
            ids = built()
            complete = True
        except Cut:
            complete = False
            remaining_calls[0] = 0
            ids = built()
        assert sorted(image["region"] for image in ecs.images.values()) == sorted(ids) == [OTHER, HOME]
        remaining_calls[0] = number
        try:
            images.delete(ids, TAGS)
        except Cut:
            remaining_calls[0] = 0
            images.delete(ids, TAGS)
        remaining_calls[0] = 0
        assert (ecs.images, ecs.snapshots) == ({}, {})
        ecs.state = "Running"
        if complete:
            break
    assert number > 8


def test_it_is_built_on_a_machine_without_a_gpu(images: EcsImages) -> None:
    assert images.builder(planned_group("ecs.gn7-c13g1.26xlarge"), None) == "ecs.g7.2xlarge"


def test_the_table_has_what_is_asked_and_no_more() -> None:
    source = (ROOT / "provisioner/machines/providers/alicloud/images.py").read_text(encoding="utf-8")
    calls = {
        f"ecs:{name}" for name in re.findall(r'"((?:Describe|Create|Copy|Modify|Tag|Delete|Stop)[A-Z]\w+)"', source)
    }
    assert set(actions.load("alicloud").calls["images"]) == calls
