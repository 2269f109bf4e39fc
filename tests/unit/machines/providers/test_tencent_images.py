"""Custom images of CVM on an imitated account with two regions: made, copied, shared, used, removed; cut off after
every single call and gone on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from provisioner.common.errors import ProviderError
from provisioner.machines.providers import actions
from provisioner.machines.providers.base import Place
from provisioner.machines.providers.tencent.client import Region
from provisioner.machines.providers.tencent.images import CvmImages, short
from provisioner.machines.providers.tencent.settings import TencentDisk
from provisioner.machines.providers.tencent.site import TencentSite
from provisioner.rundir.fleet import Node
from tests.support.plans import planned_group
from tests.support.tencent_api import ACCOUNT, Refused, TencentApi
from tests.support.tencent_site import api

__all__ = ["api"]
HOME, OTHER = "ap-guangzhou", "ap-shanghai"
NAME = "gpuprov-pytorch-train-20260131-031500-ffab12cd"
TAGS = {"gpuprov-image": "pytorch", "gpuprov-build": "20260131-031500"}
FRIEND = "100000000002"
NODE = Node("train-0", "train", "here", "S5.2XLARGE16", "ins-1", f"{HOME}-3", "203.0.113.7", "10.0.0.7")
PLAIN = TencentDisk(encrypt=False)


class Cvm:
    """CVM with what images need: a machine, and in each region images, which are being made until they were looked at
    once."""

    def __init__(self, api: TencentApi) -> None:
        self.api, self.state = api, "RUNNING"
        self.images: dict[str, dict[str, Any]] = {}
        self.snapshots: set[str] = set()
        self.shared: dict[str, list[str]] = {}
        self.started: list[dict[str, str]] = []
        api.answers |= {
            "DescribeInstances": self.machines, "StopInstances": self.stop, "CreateImage": self.create,
            "SyncImages": self.sync, "DescribeImages": self.listed, "DeleteImages": self.delete,
            "ModifyImageSharePermission": self.share, "TagResources": self.tag,
        }  # fmt: skip

    def machines(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        own_machine = {"InstanceId": "ins-1", "InstanceState": self.state, "ImageId": "img-base0000"}
        rows = [own_machine, *self.started] if "InstanceIds" not in request else [own_machine]
        return {"InstanceSet": rows[int(request.get("Offset") or 0) :], "TotalCount": len(rows)}

    def stop(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        self.state = "STOPPED"
        return {}

    def create(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        assert self.state == "STOPPED" and len(request["ImageName"]) <= 60
        (marks,) = request["TagSpecification"]
        assert marks["ResourceType"] == "image"
        return {"ImageId": self._new(request["ImageName"], HOME, marks["Tags"])}

    def sync(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        assert self.api.region == HOME and request["ImageIds"][0] in self.images
        for region in request["DestinationRegions"]:
            self._new(request["ImageName"], region, [])
        return {}

    def _new(self, name: str, region: str, tags: list[dict[str, str]]) -> str:
        if any((image["name"], image["region"]) == (name, region) for image in self.images.values()):
            raise Refused("InvalidImageName.Duplicate", "the name is taken")
        number = f"img-{len(self.images):08d}"
        self.images[number] = {"name": name, "region": region, "tags": tags, "state": "CREATING"}
        self.snapshots.add(number)
        return number

    def listed(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        filters = {request_filter["Name"]: request_filter["Values"][0] for request_filter in request["Filters"]}
        assert filters["image-type"] == "PRIVATE_IMAGE"
        rows = []
        for number, image in self.images.items():
            alike = filters.get("image-name", "") in image["name"] and filters.get("image-id", number) == number
            if alike and image["region"] == self.api.region:
                rows.append({"ImageId": number, "ImageName": image["name"], "ImageState": image["state"],
                             "ImageType": "PRIVATE_IMAGE", "Tags": image["tags"]})  # fmt: skip
                image["state"] = "NORMAL" if image["state"] == "CREATING" else image["state"]
        return {"ImageSet": rows[int(request["Offset"]) :], "TotalCount": len(rows)}

    def tag(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        (resource,) = request["ResourceList"]
        region, number = re.fullmatch(rf"qcs::cvm:([\w-]+):uin/{ACCOUNT}:image/(img-\w+)", resource).groups()  # type: ignore[union-attr]
        assert self.images[number]["region"] == region
        self.images[number]["tags"] = [{"Key": tag["TagKey"], "Value": tag["TagValue"]} for tag in request["Tags"]]
        return {"FailedResources": []}

    def delete(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        (number,) = request["ImageIds"]
        if number not in self.images:
            raise Refused("InvalidImageId.NotFound", "it is gone")
        if self.images[number]["state"] == "CREATING":
            raise Refused("FailedOperation.InvalidImageState", "it is being made")
        del self.images[number]
        if request["DeleteBindedSnap"]:
            self.snapshots.discard(number)
        return {}

    def share(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        assert request["Permission"] == "SHARE"
        self.shared[request["ImageId"]] = request["AccountIds"]
        return {}


@pytest.fixture
def cvm(api: TencentApi) -> Cvm:
    return Cvm(api)


def images_of_site(folder: Path, **keys: Any) -> CvmImages:
    site = TencentSite(provider="tencent", region=HOME, **keys)
    return CvmImages(Place("pytorch", "here", site, folder), site, pause_s=0)


@pytest.fixture
def images(cvm: Cvm, tmp_path: Path) -> CvmImages:
    return images_of_site(tmp_path, disk=PLAIN)


def quiet(_line: str) -> None:
    """Nobody listens."""


def test_an_image_is_made_once_of_a_stopped_machine_with_its_tags(cvm: Cvm, images: CvmImages) -> None:
    assert images.find(NAME) is None
    number = images.capture(NODE, NAME, TAGS, quiet)
    assert images.capture(NODE, NAME, TAGS, quiet) == number and len(cvm.images) == 1 and cvm.state == "STOPPED"
    image = images.find(NAME)
    assert image is not None and (image.id, image.ready, image.why) == (number, True, "")
    assert images.find(NAME[:-1]) is None, "the filter by name finds what is alike"


def test_it_is_copied_shared_and_removed_with_its_snapshots(cvm: Cvm, images: CvmImages) -> None:
    number = images.capture(NODE, NAME, TAGS, quiet)
    ids = images.publish(number, NAME, (OTHER,), (FRIEND,), TAGS, quiet)
    assert images.publish(number, NAME, (OTHER, HOME), (), TAGS, quiet) == ids == images.copies(NAME, (OTHER,))
    assert {region: cvm.images[image_id]["region"] for region, image_id in ids.items()} == {HOME: HOME, OTHER: OTHER}
    assert cvm.shared == {number: [FRIEND] for number in ids.values()}
    images.delete(ids, TAGS)
    images.delete(ids, TAGS)  # what is gone is fine
    assert (cvm.images, cvm.snapshots) == ({}, set())


def test_a_copy_that_would_not_be_encrypted_is_refused_before_a_build(images: CvmImages, tmp_path: Path) -> None:
    with pytest.raises(ProviderError, match=f"encrypts no copy in another region \\({OTHER}\\)"):
        images_of_site(tmp_path).check((HOME, OTHER), ())
    images_of_site(tmp_path).check((HOME,), (FRIEND,))
    images.check((OTHER,), (FRIEND,))


def test_an_image_without_its_tags_is_somebody_elses_and_one_that_failed_says_so(cvm: Cvm, images: CvmImages) -> None:
    number = images.capture(NODE, NAME, {}, quiet)
    with pytest.raises(ProviderError, match="has not the tags of this build: it stays"):
        images.delete({HOME: number}, TAGS)
    cvm.images[number]["state"] = "CREATEFAILED"
    with pytest.raises(ProviderError, match="Tencent Cloud says CREATEFAILED"):
        images.capture(NODE, NAME, TAGS, quiet)
    cvm.api.refuse("DescribeImages", "UnauthorizedOperation", "you may not")
    with pytest.raises(ProviderError) as caught:
        images.find(NAME)
    assert "allow cvm:DescribeImages" in str(caught.value.hint)


def test_machines_that_were_made_of_it_are_known(cvm: Cvm, images: CvmImages) -> None:
    assert images.used({HOME: "img-0"}) == []
    cvm.started = [{"InstanceId": "ins-7", "ImageId": "img-0"}]
    assert images.used({HOME: "img-0"}) == ["ins-7"]


class Cut(BaseException):
    """As Ctrl-C, or the power."""


def test_cut_off_after_every_single_call_it_goes_on_and_leaves_nothing(
    cvm: Cvm, images: CvmImages, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is lost, too: what was asked for has been made, and nobody was told. It is given up then, and
    begun anew: a copy that has not got its tags yet is removed all the same."""
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
            images.delete(images.copies(NAME, (OTHER,)), TAGS)
            assert (cvm.images, cvm.snapshots) == ({}, set())
            ids = built()
        assert sorted(image["region"] for image in cvm.images.values()) == sorted(ids)
        remaining_calls[0] = number
        try:
            images.delete(ids, TAGS)
        except Cut:
            remaining_calls[0] = 0
            images.delete(ids, TAGS)
        remaining_calls[0] = 0
        assert (cvm.images, cvm.snapshots) == ({}, set())
        cvm.state = "RUNNING"
        if complete:
            break
    assert number > 8


def test_a_name_fits_and_the_builder_has_no_gpu(images: CvmImages) -> None:
    assert short(NAME) == NAME
    long = f"gpuprov-{'r' * 32}-{'g' * 32}-20260131-031500-ffab12cd"
    assert len(short(long)) == 60 and short(long) != short(long.replace("ffab12cd", "ffab12ce"))
    assert images.builder(planned_group("GN10Xp.20XLARGE320"), None) == "S5.2XLARGE16"


def test_the_table_has_what_is_asked_and_no_more(cvm: Cvm, images: CvmImages) -> None:
    ids = images.publish(images.capture(NODE, NAME, TAGS, quiet), NAME, (OTHER,), (FRIEND,), TAGS, quiet)
    images.used(ids)
    images.delete(ids, TAGS)
    assert set(actions.load("tencent").calls["images"]) == cvm.api.actions()
