"""Custom images of CVM on an imitated account with two regions: made, copied, shared, used, removed; cut off after
every single call and gone on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from provisioner.errors import ProviderError
from provisioner.fleet import Node
from provisioner.providers import actions
from provisioner.providers.base import Place
from provisioner.providers.tencent.client import Region
from provisioner.providers.tencent.images import CvmImages, short
from provisioner.providers.tencent.settings import TencentDisk
from provisioner.providers.tencent.site import TencentSite
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

    def machines(self, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        mine = {"InstanceId": "ins-1", "InstanceState": self.state, "ImageId": "img-base0000"}
        rows = [mine, *self.started] if "InstanceIds" not in asked else [mine]
        return {"InstanceSet": rows[int(asked.get("Offset") or 0) :], "TotalCount": len(rows)}

    def stop(self, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        self.state = "STOPPED"
        return {}

    def create(self, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        assert self.state == "STOPPED" and len(asked["ImageName"]) <= 60
        (marks,) = asked["TagSpecification"]
        assert marks["ResourceType"] == "image"
        return {"ImageId": self._new(asked["ImageName"], HOME, marks["Tags"])}

    def sync(self, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        assert self.api.region == HOME and asked["ImageIds"][0] in self.images
        for region in asked["DestinationRegions"]:
            self._new(asked["ImageName"], region, [])
        return {}

    def _new(self, name: str, region: str, tags: list[dict[str, str]]) -> str:
        if any((one["name"], one["region"]) == (name, region) for one in self.images.values()):
            raise Refused("InvalidImageName.Duplicate", "the name is taken")
        number = f"img-{len(self.images):08d}"
        self.images[number] = {"name": name, "region": region, "tags": tags, "state": "CREATING"}
        self.snapshots.add(number)
        return number

    def listed(self, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        wanted = {one["Name"]: one["Values"][0] for one in asked["Filters"]}
        assert wanted["image-type"] == "PRIVATE_IMAGE"
        rows = []
        for number, one in self.images.items():
            alike = wanted.get("image-name", "") in one["name"] and wanted.get("image-id", number) == number
            if alike and one["region"] == self.api.region:
                rows.append({"ImageId": number, "ImageName": one["name"], "ImageState": one["state"],
                             "ImageType": "PRIVATE_IMAGE", "Tags": one["tags"]})  # fmt: skip
                one["state"] = "NORMAL" if one["state"] == "CREATING" else one["state"]
        return {"ImageSet": rows[int(asked["Offset"]) :], "TotalCount": len(rows)}

    def tag(self, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        (resource,) = asked["ResourceList"]
        region, number = re.fullmatch(rf"qcs::cvm:([\w-]+):uin/{ACCOUNT}:image/(img-\w+)", resource).groups()  # type: ignore[union-attr]
        assert self.images[number]["region"] == region
        self.images[number]["tags"] = [{"Key": one["TagKey"], "Value": one["TagValue"]} for one in asked["Tags"]]
        return {"FailedResources": []}

    def delete(self, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        (number,) = asked["ImageIds"]
        if number not in self.images:
            raise Refused("InvalidImageId.NotFound", "it is gone")
        if self.images[number]["state"] == "CREATING":
            raise Refused("FailedOperation.InvalidImageState", "it is being made")
        del self.images[number]
        if asked["DeleteBindedSnap"]:
            self.snapshots.discard(number)
        return {}

    def share(self, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        assert asked["Permission"] == "SHARE"
        self.shared[asked["ImageId"]] = asked["AccountIds"]
        return {}


@pytest.fixture
def cvm(api: TencentApi) -> Cvm:
    return Cvm(api)


def made(folder: Path, **keys: Any) -> CvmImages:
    site = TencentSite(provider="tencent", region=HOME, **keys)
    return CvmImages(Place("pytorch", "here", site, folder), site, pause_s=0)


@pytest.fixture
def images(cvm: Cvm, tmp_path: Path) -> CvmImages:
    return made(tmp_path, disk=PLAIN)


def quiet(_line: str) -> None:
    """Nobody listens."""


def test_an_image_is_made_once_of_a_stopped_machine_with_its_tags(cvm: Cvm, images: CvmImages) -> None:
    assert images.find(NAME) is None
    number = images.capture(NODE, NAME, TAGS, quiet)
    assert images.capture(NODE, NAME, TAGS, quiet) == number and len(cvm.images) == 1 and cvm.state == "STOPPED"
    found = images.find(NAME)
    assert found is not None and (found.id, found.ready, found.why) == (number, True, "")
    assert images.find(NAME[:-1]) is None, "the filter by name finds what is alike"


def test_it_is_copied_shared_and_removed_with_its_snapshots(cvm: Cvm, images: CvmImages) -> None:
    number = images.capture(NODE, NAME, TAGS, quiet)
    ids = images.publish(number, NAME, (OTHER,), (FRIEND,), TAGS, quiet)
    assert images.publish(number, NAME, (OTHER, HOME), (), TAGS, quiet) == ids == images.copies(NAME, (OTHER,))
    assert {region: cvm.images[one]["region"] for region, one in ids.items()} == {HOME: HOME, OTHER: OTHER}
    assert cvm.shared == {number: [FRIEND] for number in ids.values()}
    images.delete(ids, TAGS)
    images.delete(ids, TAGS)  # what is gone is fine
    assert (cvm.images, cvm.snapshots) == ({}, set())


def test_a_copy_that_would_not_be_encrypted_is_refused_before_a_build(images: CvmImages, tmp_path: Path) -> None:
    with pytest.raises(ProviderError, match=f"encrypts no copy in another region \\({OTHER}\\)"):
        made(tmp_path).check((HOME, OTHER), ())
    made(tmp_path).check((HOME,), (FRIEND,))
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
    real, left = Region.ask, [0]

    def ask(self: Region, service: str, action: str, **arguments: Any) -> dict[str, Any]:
        answer = real(self, service, action, **arguments)
        left[0] -= 1
        if left[0] == 0:
            raise Cut
        return answer

    def built() -> dict[str, str]:
        return images.publish(images.capture(NODE, NAME, TAGS, quiet), NAME, (OTHER,), (), TAGS, quiet)

    monkeypatch.setattr(Region, "ask", ask)
    for number in range(1, 100):
        left[0] = number
        try:
            ids = built()
            whole = True
        except Cut:
            whole = False
            left[0] = 0
            images.delete(images.copies(NAME, (OTHER,)), TAGS)
            assert (cvm.images, cvm.snapshots) == ({}, set())
            ids = built()
        assert sorted(one["region"] for one in cvm.images.values()) == sorted(ids)
        left[0] = number
        try:
            images.delete(ids, TAGS)
        except Cut:
            left[0] = 0
            images.delete(ids, TAGS)
        left[0] = 0
        assert (cvm.images, cvm.snapshots) == ({}, set())
        cvm.state = "RUNNING"
        if whole:
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
