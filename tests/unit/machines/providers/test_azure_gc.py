"""What is left at Azure: found by tag, removed in its order, and nothing of somebody else's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from provisioner.common.errors import ProviderError
from provisioner.common.events import Events
from provisioner.machines.providers import actions
from provisioner.machines.providers.azure import client
from provisioner.machines.providers.azure.machines import of_site
from provisioner.machines.providers.azure.orphans import InRegion
from provisioner.machines.providers.azure.provider import Azure
from provisioner.machines.providers.base import Place
from provisioner.machines.providers.removal import HOLDS_DATA
from provisioner.machines.providers.trouble import Trouble
from tests.support.azure_api import REGION, SCOPE, Api, Token, error, machine, permission, resource_document, serving

GROUP = "gpuprov-test-01234567"
TAGS = {"gpuprov-cluster": "test", "gpuprov-site": "here", "gpuprov-id": "0123456789ab"}
COMPUTE, NETWORK = "Microsoft.Compute", "Microsoft.Network"
NUMBER = "aaaaaaaa-0000-4000-8000-000000000000"


def fleet(group: str, prefix: str = "") -> list[dict[str, object]]:
    return [
        resource_document(group, f"{NETWORK}/virtualNetworks", "gpuprov", TAGS),
        machine(group, f"{prefix}train-0", NUMBER, {**TAGS, "gpuprov-node": "train-0"}),
        resource_document(group, f"{COMPUTE}/disks", f"{prefix}train-0-os"),
        resource_document(
            group, f"{NETWORK}/networkInterfaces", f"{prefix}train-0", {**TAGS, "gpuprov-node": "train-0"}
        ),
        resource_document(group, f"{NETWORK}/publicIPAddresses", f"{prefix}train-0", TAGS),
        resource_document(group, f"{NETWORK}/networkSecurityGroups", "gpuprov", TAGS),
        resource_document(group, f"{COMPUTE}/availabilitySets", "gpuprov-train", TAGS),
    ]


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    with serving(monkeypatch) as served:
        served.resources = fleet(GROUP)
        served.groups = [{"id": f"{SCOPE}/resourceGroups/{GROUP}", "name": GROUP, "location": REGION, "tags": TAGS}]
        yield served


def region(api: Api) -> InRegion:
    return InRegion(api.subscription(), wait_s=0.5, pause_s=0.01)


def test_everything_of_a_cluster_is_found_and_removed_in_order(api: Api) -> None:
    api.resources.append(resource_document("elsewhere", f"{COMPUTE}/disks", "far-os", TAGS, location="westus"))
    search = region(api).find()
    assert search.unknown == ()
    assert {(resource.kind, resource.cluster, resource.identity, resource.kept) for resource in search.things} == {
        (kind, "test", "0123456789ab", "")
        for kind in ("machine", "disk", "network interface", "public IP address", "network security group",
                     "availability set", "virtual network")
    } | {("resource group", "test", "0123456789ab", "")}  # fmt: skip
    lines: list[str] = []
    api.calls.clear()
    assert region(api).remove(search.things, lines.append) == []
    deleted_types = [path.rpartition("/")[0].rpartition("/")[2] for verb, path in api.calls if verb == "DELETE"]
    assert deleted_types == [
        "virtualMachines", "networkInterfaces", "disks", "availabilitySets", "virtualNetworks", "publicIPAddresses",
        "networkSecurityGroups", "resourcegroups",
    ]  # fmt: skip
    assert lines[0] == "eastus: removing 1 machine"
    assert api.groups == []


def test_the_table_has_what_is_asked_and_no_more(api: Api) -> None:
    placed = [
        resource_document(GROUP, kind, "gpuprov", TAGS)
        for kind in (
            f"{NETWORK}/natGateways",
            f"{COMPUTE}/proximityPlacementGroups",
            "Microsoft.Storage/storageAccounts",
        )
    ]
    api.resources += placed[:2]
    orphans = region(api)
    orphans.remove(orphans.find().things, lambda _: None)
    called_permissions = {permission(method, path) for method, path in api.calls}
    listed = actions.load("azure").calls
    with_data = {"Microsoft.Storage/storageAccounts/read"}  # found in the list of what may be read, and left alone
    assert called_permissions == {*listed["find"], *listed["remove"]} - with_data


def test_a_group_with_somebody_elses_things_stays(api: Api) -> None:
    api.resources.append(resource_document(GROUP, "Microsoft.Storage/storageAccounts", "theirs"))
    api.resources.append(resource_document(GROUP, f"{COMPUTE}/disks", "their-data"))
    search = region(api).find()
    (group,) = [resource for resource in search.things if resource.kind == "resource group"]
    assert group.kept == "theirs, their-data in it are not gpuprov's"
    region(api).remove(search.things, lambda line: None)
    assert {row["name"] for row in api.resources} == {"theirs", "their-data"} and api.groups


def test_a_file_share_keeps_its_data_its_network_and_its_group(api: Api) -> None:
    api.resources.append(resource_document(GROUP, "Microsoft.Storage/storageAccounts", "gpuprov0123", TAGS))
    search = region(api).find()
    reasons = {resource.kind: resource.kept for resource in search.things if resource.kept}
    assert reasons == {"storage account": HOLDS_DATA, "resource group": f"gpuprov0123 in it: {HOLDS_DATA}"}
    problems = region(api).remove(search.things, lambda line: None)
    assert problems == ["3 things of the network were not touched: the file system stands in it"]
    names = {row["type"].rpartition("/")[2] for row in api.resources}
    assert names == {"storageAccounts", "virtualNetworks", "publicIPAddresses", "networkSecurityGroups"} and api.groups


def test_what_is_refused_keeps_what_it_may_need(api: Api) -> None:
    api.rules = [("DELETE", "virtualMachines", error("ScopeLocked", "locked by keep-me", 409))]
    resources = region(api).find().things
    problems = region(api).remove(resources, lambda line: None)
    assert "protected, and not forced: locked by keep-me" in problems[0]
    assert problems[1] == "7 other things were not touched: the machines that are left may need them"
    api.rules = [("DELETE", "networkInterfaces", error("NicReservedForAnotherVm", "wait 180 s", 400))]
    problems = region(api).remove(region(api).find().things, lambda line: None)
    assert "wait 180 s" in problems[0] and problems[-1].endswith("something of it is left")
    assert api.groups, "a resource group would take all of it along"
    assert sum(verb == "DELETE" and "networkInterfaces" in path for verb, path in api.calls) > 1, "it was tried again"


def test_in_a_resource_group_of_yours_the_disks_go_by_name(api: Api) -> None:
    api.groups = [{"id": f"{SCOPE}/resourceGroups/mine", "name": "mine", "location": REGION, "tags": {}}]
    api.resources = fleet("mine", "gpuprov-01234567-")
    api.resources.append(resource_document("mine", f"{COMPUTE}/disks", "gpuprov-fedcba98-train-0-os"))
    resources = region(api).find().things
    assert [resource.name for resource in resources if resource.kind == "disk"] == ["gpuprov-01234567-train-0-os"]
    assert region(api).remove(resources, lambda line: None) == []
    assert [row["name"] for row in api.resources] == ["gpuprov-fedcba98-train-0-os"] and api.groups


def test_what_could_not_be_asked_is_said(api: Api) -> None:
    api.rules = [("GET", "/resourcegroups$", error("AuthorizationFailed", "no", 403))]
    search = region(api).find()
    assert len(search.things) == 7 - 1, "a disk has no tag of its own"
    assert search.unknown == (
        "whether there are resource groups: not allowed to look: no "
        "(allow Microsoft.Resources/subscriptions/resources/read)",
    )
    api.rules = [("GET", "5555$", error("InvalidAuthenticationToken", "who are you", 401))]
    with pytest.raises(ProviderError, match="who are you"):
        region(api).find()


def test_machines_that_stand(api: Api) -> None:
    api.resources.append(machine(GROUP.upper(), "train-1", NUMBER, {**TAGS, "gpuprov-node": "train-1"}, "Failed"))
    api.resources.append(machine("x", "other", NUMBER, {**TAGS, "gpuprov-site": "there"}))
    instances = of_site(api.subscription(), "test", "here")
    assert [instance.name for instance in instances] == ["train-0"], (
        "what was never allocated is made over by Terraform"
    )
    api.views["train-1"] = ["ProvisioningState/failed/OSProvisioningTimedOut", "PowerState/running"]
    instances = of_site(api.subscription(), "test", "here")
    assert [instance.id for instance in instances] == [
        f"{SCOPE}/resourceGroups/{GROUP}/providers/Microsoft.Compute/virtualMachines/train-{n}" for n in range(2)
    ], "as Terraform's state has them, whatever capitals Azure uses"
    api.rules = [("GET", "instanceView", error("TooManyRequests", "slow", 429))]
    with pytest.raises(Trouble, match="slow"):
        of_site(api.subscription(), "test", "here")


def test_clean_removes_what_the_state_forgot_and_no_other_clusters(
    api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "credential_of", lambda cloud: Token())
    workspace = tmp_path / "sites" / "here"
    workspace.mkdir(parents=True)
    settings = api.subscription().site
    provider = Azure(Place("test", "here", settings, workspace))
    assert provider.clean(Events()) == [] and len(api.resources) == 7, "nothing was ever made here"
    (workspace / "main.tf").write_text("")
    (tmp_path / "id").write_text("ffffffffffff\n")
    assert provider.clean(Events()) == [] and len(api.resources) == 7, "of another folder"
    (tmp_path / "id").write_text("0123456789ab\n")
    assert provider.module is not None
    assert [(instance.node, instance.ours) for instance in provider.module.standing()] == [("train-0", True)]
    assert provider.clean(Events()) == []
    assert (api.resources, api.groups) == ([], [])
    api.rules = [("GET", "5555$", error("InvalidAuthenticationToken", "who are you", 401))]
    assert provider.clean(Events()) == ["whether anything is left in eastus could not be asked: who are you"]
