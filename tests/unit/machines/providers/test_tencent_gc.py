"""What a crash left at Tencent Cloud, machines that stand, and the policy that all of it takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from provisioner.common.errors import ProviderError
from provisioner.common.events import Events
from provisioner.machines.providers import actions
from provisioner.machines.providers.removal import SOMEWHERE
from provisioner.machines.providers.tencent import orphans
from provisioner.machines.providers.tencent.client import Region
from tests.support.tencent_api import TencentApi
from tests.support.tencent_site import IDENTITY, account, api, provider_and_plan

__all__ = ["api"]


def test_orphans_are_found_by_tag_and_removed_in_order(api: TencentApi) -> None:
    account(api)
    api.things["vpc"].append({"VpcId": "vpc-other000", "VpcName": "somebody's"})
    api.slow = 2
    region_orphans = orphans.InRegion(Region("ap-guangzhou"), pause_s=0.01)
    search = region_orphans.find()
    assert len(search.things) == 8 and not search.unknown
    moments = {resource.since for resource in search.things if resource.since}
    assert len(moments) == 1, "08:00 in China is midnight UTC"
    lines: list[str] = []
    assert region_orphans.remove(search.things, lines.append) == []
    assert [row for rows in api.things.values() for row in rows] == [{"VpcId": "vpc-other000", "VpcName": "somebody's"}]
    assert region_orphans.find().things == ()


def test_a_protected_machine_stays_and_everything_with_it(api: TencentApi) -> None:
    account(api)
    api.things["instance"][0]["DisableApiTermination"] = True
    region_orphans = orphans.InRegion(Region("ap-guangzhou"), pause_s=0.01)
    problems = region_orphans.remove(region_orphans.find().things, lambda _: None)
    assert problems[0].startswith("instance ins-00000001 (RUNNING): protected, and not forced")
    assert problems[1] == "7 other things were not touched: the machines that are left may need them"
    assert sum(map(len, api.things.values())) == 8


def test_a_file_system_keeps_its_data_and_its_network(api: TencentApi) -> None:
    account(api)
    api.things["instance"].clear()
    pairs = [{"TagKey": "gpuprov-cluster", "TagValue": "test"}, {"TagKey": "gpuprov-site", "TagValue": "here"}]
    api.things["cfs"] = [{"FileSystemId": "cfs-00000001", "Tags": pairs, "LifeCycleState": "available"}]
    region_orphans = orphans.InRegion(Region("ap-guangzhou"), pause_s=0.01)
    search = region_orphans.find()
    assert [resource.kept for resource in search.things if resource.kind == "CFS file system"] == [
        orphans.tagged_resources.HOLDS_DATA
    ]
    assert region_orphans.remove(search.things, lambda _: None) == [
        "3 things of the network were not touched: the file system stands in it"
    ]


def test_time_is_up_and_questions_are_denied(api: TencentApi) -> None:
    account(api)
    api.slow = 1000
    api.refuse("DescribeKeyPairs", "UnauthorizedOperation", "no")
    region_orphans = orphans.InRegion(Region("ap-guangzhou"), wait_s=0.05, pause_s=0.01)
    search = region_orphans.find()
    assert search.unknown[0].startswith("whether there are key pairs: not allowed to look")
    problems = region_orphans.remove(search.things, lambda _: None)
    assert (problems[0] != "" and "still there" in problems[0]) or "gone" in problems[0]
    api.refuse("GetCallerIdentity", "AuthFailure.SecretIdNotFound", "no")
    with pytest.raises(ProviderError):
        region_orphans.find()


def test_clean_removes_what_has_the_clusters_own_identity(api: TencentApi, tmp_path: Path) -> None:
    provider, _ = provider_and_plan(tmp_path)
    assert provider.clean(Events()) == [], "nothing was made from here"
    (tmp_path / ".gpuprov" / "id").write_text(IDENTITY + "\n", encoding="utf-8")
    (provider.place.workspace / "main.tf").write_text("", encoding="utf-8")
    account(api)
    account(api, identity="f" * 12)
    for rows in api.things.values():
        for row in rows[1:]:
            for name, value in row.items():
                if isinstance(value, str) and value.endswith("00000001"):
                    row[name] = value.replace("00000001", "00000002")
    assert provider.clean(Events()) == []
    assert {len(rows) for kind, rows in api.things.items() if kind != "cfs"} == {1}, "another cluster of the name stays"


def test_machines_that_stand_are_asked_for_by_tag(api: TencentApi, tmp_path: Path) -> None:
    provider, _ = provider_and_plan(tmp_path)
    (tmp_path / ".gpuprov" / "id").write_text(IDENTITY + "\n", encoding="utf-8")
    account(api)
    account(api, identity="f" * 12)
    for number, row in enumerate(api.things["instance"]):
        row["Tags"].append({"Key": "gpuprov-node", "Value": f"train-{number}"})
    assert provider.module is not None
    assert [(instance.node, instance.ours) for instance in provider.module.standing()] == [
        ("train-0", True),
        ("train-1", False),
    ]
    api.refuse("DescribeInstances", "InternalError", "down")
    with pytest.raises(ProviderError, match="which machines stand in ap-guangzhou"):
        provider.module.standing()


def test_the_table_has_what_is_asked_and_no_more(api: TencentApi, tmp_path: Path) -> None:
    listed = actions.load("tencent").calls
    provider, plan = provider_and_plan(tmp_path, spread="host")
    provider.preflight(plan, ())
    provider.base_image("ubuntu-22.04")
    assert provider.module is not None
    provider.module.standing()
    account(api)
    region_orphans = orphans.InRegion(Region("ap-guangzhou"), pause_s=0.01)
    region_orphans.remove(region_orphans.find().things, lambda _: None)
    assert len(api.actions()) > 20
    roles = {"cam:DeletePolicy", "cam:DeleteRole", "cam:DetachRolePolicy", "cam:ListPolicies"}  # tried below
    assert api.actions() == {name for key in ("preflight", "find", "remove") for name in listed[key]} - roles


def test_a_role_of_buckets_is_the_accounts_and_goes_with_its_own_cluster(api: TencentApi, tmp_path: Path) -> None:
    description = f"gpuprov-cluster=test gpuprov-id={IDENTITY} gpuprov-site=here"
    rows = [
        {"RoleName": "CVM_QCSRole", "Description": description},
        {"RoleName": "gpuprov-test-here-01234567", "Description": description},
        {"RoleName": "gpuprov-test-there", "Description": description.replace(IDENTITY, "ffffffffffff")},
    ]  # fmt: skip
    deletions: list[str] = []

    def done(action: str, key: str) -> None:
        api.answers[action] = lambda request: deletions.append(f"{action} {request[key]}") or {}  # type: ignore[func-returns-value]

    api.answers["DescribeRoleList"] = {"List": rows, "TotalNum": 3}
    policies = [(7, "gpuprov-test-here-01234567"), (8, "gpuprov-test-here-01234567-more")]
    api.answers["ListPolicies"] = {"List": [{"PolicyId": number, "PolicyName": name} for number, name in policies]}
    done("DetachRolePolicy", "DetachRoleName")
    done("DeletePolicy", "PolicyId")
    done("DeleteRole", "RoleName")
    region_orphans = orphans.InRegion(Region("ap-guangzhou"), pause_s=0.01)
    roles = [resource for resource in region_orphans.find().things if resource.kind == "CAM role"]
    assert [(role.id, role.kept) for role in roles] == [(row["RoleName"], SOMEWHERE) for row in rows[1:]]
    region_orphans.remove(roles, lambda _: None)
    assert deletions == [], "gc looks at one region"
    provider, _ = provider_and_plan(tmp_path)
    (provider.place.workspace / "main.tf").write_text("")
    (provider.place.workspace.parent.parent / "id").write_text(f"{IDENTITY}\n")
    assert provider.clean(Events()) == []
    name = "gpuprov-test-here-01234567"
    assert deletions == [f"DetachRolePolicy {name}", "DeletePolicy [7]", f"DeleteRole {name}"]
