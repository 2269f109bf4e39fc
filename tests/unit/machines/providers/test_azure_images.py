"""Versions of a compute gallery at Azure's API on loopback: made, replicated, used, removed; cut off after every single
call and gone on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from provisioner.common.errors import ProviderError
from provisioner.machines.providers import actions
from provisioner.machines.providers.azure.client import Subscription
from provisioner.machines.providers.azure.images import GalleryImages, _action
from provisioner.machines.providers.base import Place
from provisioner.rundir.fleet import Node
from tests.support.azure_api import REGION, SCOPE, Api, error, machine, serving
from tests.support.plans import planned_group

GROUP = "gpuprov-pytorch-build-01234567"
NUMBER = "aaaaaaaa-0000-4000-8000-000000000000"
NAME = "gpuprov-pytorch-train-20260131-031500-ffab12cd"
TAGS = {"gpuprov-image": "pytorch", "gpuprov-build": "20260131-031500"}
REGIONS = ("westus2", "westeurope")
NODE = Node("train-0", "train", "here", "Standard_D8s_v5", NUMBER, "", "203.0.113.7", "10.0.0.7")


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    with serving(monkeypatch) as served:
        served.groups = [{"id": f"{SCOPE}/resourceGroups/{GROUP}", "name": GROUP, "location": REGION, "tags": {}}]
        served.resources = [machine(GROUP, "train-0", NUMBER, {})]
        yield served


def images_of_site(api: Api, folder: Path, **site: Any) -> GalleryImages:
    subscription = api.subscription(**site)
    return GalleryImages(Place("pytorch", "here", subscription.site, folder), subscription, pause_s=0)


@pytest.fixture
def images(api: Api, tmp_path: Path) -> GalleryImages:
    return images_of_site(api, tmp_path)


def quiet(_line: str) -> None:
    """Nobody listens."""


def of(api: Api, kind: str) -> list[dict[str, Any]]:
    return [row for row in api.resources if row["type"] == f"Microsoft.Compute/{kind}"]


def test_a_version_is_made_once_of_a_machine_that_stands_still(api: Api, images: GalleryImages) -> None:
    assert images.find(NAME) is None
    number = images.capture(NODE, NAME, TAGS, quiet)
    assert images.capture(NODE, NAME, TAGS, quiet) == number
    (version,), (definition,) = of(api, "galleries/images/versions"), of(api, "galleries/images")
    assert number == version["id"]
    assert number.endswith("/images/gpuprov-pytorch-train/versions/20260131.31500.2141917901")
    assert max(int(part) for part in version["name"].split(".")) < 2**31
    assert version["tags"] == TAGS and definition["tags"] == {"gpuprov-image": "pytorch"}
    assert version["properties"]["storageProfile"]["source"]["virtualMachineId"] == api.resources[0]["id"]
    assert (definition["properties"]["osState"], definition["properties"]["hyperVGeneration"]) == ("Generalized", "V2")
    done = [path.rpartition("/")[2] for method, path in api.calls if method == "POST"]
    assert done == ["deallocate", "generalize"]
    image = images.find(NAME)
    assert image is not None and (image.id, image.ready, image.why) == (number, True, "")
    assert [row["name"] for row in api.groups] == [GROUP, f"gpuprov-images-{REGION}"]


def test_it_is_replicated_and_removed_with_its_definition(api: Api, tmp_path: Path) -> None:
    key = f"{SCOPE}/resourceGroups/keys/providers/Microsoft.Compute/diskEncryptionSets/mine"
    images = images_of_site(api, tmp_path, disk_encryption_set=key, resource_group="mine")
    api.groups.append({"name": "mine", "location": REGION, "id": "x", "tags": {}})
    number = images.capture(NODE, NAME, TAGS, quiet)
    ids = images.publish(number, NAME, REGIONS, (), TAGS, quiet)
    assert ids == dict.fromkeys((REGION, *REGIONS), number) and images.copies(NAME, REGIONS) == ids
    assert images.copies(NAME, ("uksouth",)) == {REGION: number}
    (version,) = of(api, "galleries/images/versions")
    profile = version["properties"]["publishingProfile"]
    assert [target_region.get("encryption") for target_region in profile["targetRegions"]] == [
        {"osDiskImage": {"diskEncryptionSetId": key}}, None, None,
    ]  # fmt: skip
    assert re.fullmatch(r"20[0-9]{2}-[0-9]{2}-[0-9]{2}T00:00:00Z", profile["endOfLifeDate"])
    profile["targetRegions"][1]["name"] = "West US 2"
    api.calls.clear()
    assert images.publish(number, NAME, REGIONS, (), TAGS, quiet) == ids
    assert not [method for method, _ in api.calls if method != "GET"], "it is everywhere already"
    images.delete(ids, TAGS)
    images.delete(ids, TAGS)  # what is gone is fine
    assert [row["type"].rpartition("/")[2] for row in api.resources] == ["virtualMachines", "galleries"]
    assert [row["name"] for row in api.groups] == [GROUP, "mine"], "no group was made where one is named"


def test_of_two_builds_the_definition_stays_until_the_last_is_gone(api: Api, images: GalleryImages) -> None:
    first = images.capture(NODE, NAME, TAGS, quiet)
    other = NAME.replace("031500", "041500")
    second = images.capture(NODE, other, {**TAGS, "gpuprov-build": "20260131-041500"}, quiet)
    images.delete({REGION: first}, TAGS)
    assert [row["id"] for row in of(api, "galleries/images/versions")] == [second] and of(api, "galleries/images")
    with pytest.raises(ProviderError, match="has not the tags of this build: it stays"):
        images.delete({REGION: second}, TAGS)
    assert of(api, "galleries/images/versions")


def test_machines_that_were_made_of_it_are_known(api: Api, images: GalleryImages) -> None:
    number = images.capture(NODE, NAME, TAGS, quiet)
    assert images.used({REGION: number}) == []
    api.resources[0]["properties"]["storageProfile"] = {"imageReference": {"id": number.upper()}}
    assert images.used({REGION: number, "westus2": number}) == [api.resources[0]["id"]]
    api.rules = [("GET", "/virtualMachines$", error("AuthorizationFailed", "you may not", 403))]
    with pytest.raises(ProviderError, match="you may not"):
        images.used({REGION: number})


def test_accounts_are_refused_before_anything_is_made_with_the_command(images: GalleryImages, api: Api) -> None:
    with pytest.raises(ProviderError) as caught:
        images.check(REGIONS, ("someone",))
    assert "az role assignment create --role Reader" in str(caught.value.hint) and api.calls == []
    images.check(REGIONS, ())


def test_a_version_that_was_never_made_says_why_and_a_no_which_permission(api: Api, images: GalleryImages) -> None:
    failed = {"provisioningState": "Failed", "replicationStatus": {
        "summary": [{"region": "East US", "details": "the disk is gone"}]}}  # fmt: skip
    path = images._version(NAME)
    api.others[path] = {"id": path, "properties": failed}
    with pytest.raises(ProviderError, match="East US: the disk is gone"):
        images.capture(NODE, NAME, TAGS, quiet)
    del api.others[path]
    api.rules = [("POST", "deallocate$", error("AuthorizationFailed", "no", 403))]
    with pytest.raises(ProviderError) as caught:
        images.capture(NODE, NAME, TAGS, quiet)
    assert "allow Microsoft.Compute/virtualMachines/deallocate/action" in str(caught.value.hint)


class Cut(BaseException):
    """As Ctrl-C, or the power."""


def test_cut_off_after_every_single_call_it_goes_on_and_leaves_nothing(
    api: Api, images: GalleryImages, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is lost, too: what was asked for has been made, and nobody was told."""
    real, remaining_calls = Subscription.send, [0]

    def send(self: Subscription, method: str, path: str, version: str, *more: Any, **query: Any) -> dict[str, Any]:
        answer = real(self, method, path, version, *more, **query)
        remaining_calls[0] -= 1
        if remaining_calls[0] == 0:
            raise Cut
        return answer

    def built() -> dict[str, str]:
        return images.publish(images.capture(NODE, NAME, TAGS, quiet), NAME, REGIONS[:1], (), TAGS, quiet)

    monkeypatch.setattr(Subscription, "send", send)
    for number in range(1, 100):
        remaining_calls[0] = number
        try:
            ids = built()
            complete = True
        except Cut:
            complete = False
            remaining_calls[0] = 0
            ids = built()
        assert len(of(api, "galleries/images/versions")) == 1 and set(ids) == {REGION, REGIONS[0]}
        remaining_calls[0] = number
        try:
            images.delete(ids, TAGS)
        except Cut:
            remaining_calls[0] = 0
            images.delete(ids, TAGS)
        remaining_calls[0] = 0
        assert {row["type"].rpartition("/")[2] for row in api.resources} == {"virtualMachines", "galleries"}
        api.resources = [row for row in api.resources if "galleries" not in row["type"]]
        if complete:
            break
    assert number > 12


def test_it_is_built_on_a_machine_without_a_gpu(images: GalleryImages) -> None:
    group = planned_group("Standard_ND96asr_v4")
    assert images.builder(group, None) == "Standard_D8s_v5"
    assert images.builder(group, "Standard_D16s_v5") == "Standard_D16s_v5"


def test_the_table_has_the_permissions_that_are_asked_and_no_more(api: Api, images: GalleryImages) -> None:
    ids = images.publish(images.capture(NODE, NAME, TAGS, quiet), NAME, REGIONS, (), TAGS, quiet)
    images.used(ids)
    images.delete(ids, TAGS)
    called_actions = {_action(method, path).replace("/locations", "") for method, path in api.calls}
    assert called_actions == set(actions.load("azure").calls["images"])
