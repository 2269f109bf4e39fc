"""What keeps `up` from working in a region of Alibaba Cloud, against a stand-in that speaks its wire format."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from provisioner import catalog
from provisioner.common.errors import GpuprovError
from provisioner.common.preflight import Finding
from provisioner.machines.providers.alicloud import client, quotas
from provisioner.machines.providers.alicloud import preflight as alicloud_preflight
from provisioner.machines.providers.alicloud.provider import Alicloud
from provisioner.machines.providers.base import Place
from provisioner.plan.models import Plan
from provisioner.spec.models import ClusterSpec
from provisioner.stack.models import BaseImage
from tests.support import plans
from tests.support.alicloud_api import Account, Refusal, serving, stock

MACHINE = "ecs.gn7-c13g1.26xlarge"
IMAGE = "ubuntu_24_04_x64_20G_alibase_20260916.vhd"
SITE = {"provider": "alicloud", "region": "cn-shanghai", "zones": ("cn-shanghai-b", "cn-shanghai-g"), "internet": "nat"}
QUOTA = "q_ecs_gn7v_postpay_g"


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> Iterator[Account]:
    served_account = Account(
        answers={
            "DescribeZones": {"Zones": {"Zone": [{"ZoneId": f"cn-shanghai-{letter}"} for letter in "bglm"]}},
            "DescribeAvailableResource": stock(MACHINE, cn_shanghai_b="WithStock", cn_shanghai_m="WithoutStock"),
            "ListProductQuotas": quota(16, 0),
            "DescribeDeploymentSetSupportedInstanceTypeFamily": {"InstanceTypeFamilies": "ecs.g7,ecs.gn7i"},
        }
    )
    with serving(served_account) as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(client, "PAUSE_S", 0.01)
        yield served_account
    assert served_account.wrong == []


def quota(total: float, used: float | None, code: str = QUOTA) -> dict[str, Any]:
    return {"Quotas": [{"QuotaActionCode": code, "TotalQuota": total, "TotalUsage": used, "QuotaUnit": "GPU"}]}


def planned(site: dict[str, Any] = SITE, count: int = 1, **group: Any) -> Plan:
    keys = {"machine": MACHINE, "count": count, **group}
    spec = ClusterSpec.model_validate({"name": "speech", "sites": {"here": site}, "groups": {"train": keys}})
    offline_plan = plans.plan(spec)
    bases = {"here": {offline_plan.groups[0].stack.os: BaseImage(id=IMAGE, why="test")}}
    return Plan(spec=offline_plan.spec, groups=offline_plan.groups, simulated=False, bases=bases)


def preflight(plan: Plan, workspace: Path, existing: tuple[str, ...] = ()) -> dict[str, Finding]:
    provider = Alicloud(Place("speech", "here", plan.spec.sites["here"], workspace))
    findings = provider.preflight(plan, existing)
    return {f"{finding.subject}/{number}" if number else finding.subject: finding
            for number, finding in ((sum(other.subject == finding.subject for other in findings[:i]), finding)
                                for i, finding in enumerate(findings))}  # fmt: skip


def test_all_is_well(account: Account, tmp_path: Path) -> None:
    findings = preflight(planned(), tmp_path)
    assert {finding.status for finding in findings.values()} == {"ok"}
    assert findings["credentials"].message == "acs:ram::1234567890123456:user/tester, account 1234567890123456"
    assert findings["group train"].message == f"{MACHINE} is sold in cn-shanghai-b (WithStock)"
    assert findings["group train/1"].message == "ECS would start a machine (dry run)"
    assert findings[f"quota {QUOTA}"].message == "16 GPUs, 0 in use, 8 wanted"
    dry = account.asked("RunInstances")
    assert [(request["DryRun"], request["ImageId"], request["SpotStrategy"]) for request in dry] == [
        ("true", IMAGE, "NoSpot")
    ]


@pytest.mark.parametrize(
    ("action", "answer", "subject", "status", "message"),
    [
        ("GetCallerIdentity", Refusal("InvalidSecurityToken.Expired", "Specified SecurityToken is expired.", 400),
         "credentials", "blocks", "they have expired"),
        ("DescribeZones", {"Zones": {"Zone": [{"ZoneId": "cn-shanghai-m"}]}}, "zones", "blocks", "has cn-shanghai-m"),
        ("DescribeAvailableResource", {}, "group train", "blocks", "is not sold in cn-shanghai"),
        ("DescribeAvailableResource", stock(MACHINE, cn_shanghai_m="WithStock"), "group train", "blocks",
         "is sold in cn-shanghai-m, not in cn-shanghai-b, cn-shanghai-g"),
        ("DescribeAvailableResource", stock(MACHINE, cn_shanghai_b="WithoutStock"), "group train", "warning",
         "is out of stock now in cn-shanghai-b"),
        ("DescribeAvailableResource", Refusal("Forbidden.RAM", "User not authorized."), "group train", "unknown",
         "not allowed to look"),
        ("ListProductQuotas", quota(8, 4), f"quota {QUOTA}", "blocks", "8 GPUs, 4 in use, 8 wanted"),
        ("ListProductQuotas", quota(0, None), f"quota {QUOTA}", "blocks", "0 GPUs, an unknown number in use"),
        ("ListProductQuotas", quota(16, None), f"quota {QUOTA}", "unknown", "an unknown number in use"),
        ("ListProductQuotas", {"Quotas": []}, f"quota {QUOTA}", "unknown", "no such quota"),
        ("RunInstances", Refusal("RealNameAuthenticationError", "Your account has not passed it yet."),
         "group train/1", "blocks", "ECS would start no machine: Your account has not passed it yet."),
        ("RunInstances", Refusal("InvalidAccountStatus.NotEnoughBalance", "Not enough balance."), "group train/1",
         "blocks", "Not enough balance"),
        ("RunInstances", Refusal("Forbidden.RiskControl", "Forbidden by Aliyun RiskControl system."), "group train/1",
         "blocks", "RiskControl"),
        ("RunInstances", Refusal("InvalidImageId.NotFound", "It does not exist.", 404), "group train/1", "blocks",
         f"ECS does not start {IMAGE}"),
        ("RunInstances", Refusal("OperationDenied.NoStock", "Sold out in the zone."), "group train/1", "warning",
         "Sold out"),
        ("RunInstances", Refusal("QuotaExceed.ElasticQuota", "No additional quota."), "group train/1", "blocks",
         "No additional quota"),
        ("RunInstances", {"InstanceIdSets": {"InstanceIdSet": ["i-1"]}}, "group train/1", "blocks", "without DryRun"),
        ("RunInstances", Refusal("InternalError", "It failed.", 500), "group train/1", "unknown", "no answer in time"),
        ("RunInstances", Refusal("MissingParameter", "It is missing.", 400), "group train/1", "unknown", "MissingP"),
    ],
)  # fmt: skip
def test_what_is_in_the_way_is_told(
    account: Account, tmp_path: Path, action: str, answer: Any, subject: str, status: str, message: str
) -> None:
    account.answers[action] = answer
    findings = preflight(planned(), tmp_path)
    assert findings[subject].status == status and message in findings[subject].message
    assert findings[subject].action


def test_a_shortage_with_a_fallback_is_a_warning(account: Account, tmp_path: Path) -> None:
    account.answers["DescribeAvailableResource"] = {}
    account.answers["RunInstances"] = Refusal("InvalidSpotAuthorized", "The specified Spot param is unauthorized.", 400)
    account.answers["ListProductQuotas"] = lambda request: quota(0, 0, request["QuotaActionCode"])
    findings = preflight(planned(capacity={"kind": "spot", "fallback": ("on-demand",)}), tmp_path)
    assert {finding.status for finding in findings.values()} <= {"ok", "warning"}
    assert {f"quota {QUOTA}", "quota q_ecs_gn7v_spot_g"} <= set(findings)


def test_machines_without_gpus_are_counted_in_vcpus(account: Account, tmp_path: Path) -> None:
    account.answers["DescribeAvailableResource"] = stock("ecs.g7.xlarge", cn_shanghai_b="WithStock")
    account.answers["ListProductQuotas"] = lambda request: quota(8, 6, request["QuotaActionCode"])
    findings = preflight(planned(machine="ecs.g7.xlarge"), tmp_path)
    finding = findings["quota q_ecs_enterprise_postpay_c"]
    assert (finding.status, finding.message) == ("blocks", "8 vCPUs, 6 in use, 4 wanted")
    assert finding.action.startswith("ask for 10 vCPUs: ")
    spot = preflight(planned(machine="ecs.g7.large", capacity={"kind": "spot"}), tmp_path)
    assert spot["quota q_ecs_enterprise_spot_c"].status == "ok"


@pytest.mark.parametrize("machine", [machine.name for machine in catalog.load().without_gpus.values()
                                     if machine.provider == "alicloud"])  # fmt: skip
def test_every_machine_without_gpus_has_a_quota(machine: str) -> None:
    assert quotas.of_machine(machine, "on-demand") == quotas.Quota("q_ecs_enterprise_postpay_c", "vCPUs")


def test_nodes_that_stand_need_no_room(account: Account, tmp_path: Path) -> None:
    account.answers["ListProductQuotas"] = quota(8, 8)
    assert preflight(planned(), tmp_path, existing=("train-0",))[f"quota {QUOTA}"].status == "ok"


def test_vswitches_that_do_not_fit(account: Account, tmp_path: Path) -> None:
    vpc = {
        "id": "vpc-uf6f7l4fg90",
        "vswitches": {f"cn-shanghai-{letter}": f"vsw-uf6f7l4fg9{letter}" for letter in "bglm"},
    }
    account.rows["DescribeVSwitches"] = [
        {"VSwitchId": "vsw-uf6f7l4fg9b", "VpcId": vpc["id"], "ZoneId": "cn-shanghai-b", "AvailableIpAddressCount": 8},
        {"VSwitchId": "vsw-uf6f7l4fg9g", "VpcId": vpc["id"], "ZoneId": "cn-shanghai-m", "AvailableIpAddressCount": 8},
        {"VSwitchId": "vsw-uf6f7l4fg9l", "VpcId": vpc["id"], "ZoneId": "cn-shanghai-l", "AvailableIpAddressCount": 0},
    ]  # fmt: skip
    findings = preflight(planned({**SITE, "zones": (), "vpc": vpc}), tmp_path)
    statuses = [
        (finding.status, finding.message) for subject, finding in findings.items() if subject.startswith("vSwitch")
    ]
    assert statuses == [
        ("ok", "in cn-shanghai-b, 8 free addresses"), ("blocks", "it is in cn-shanghai-m, not in cn-shanghai-g"),
        ("blocks", "it has no free addresses"), ("blocks", "it is not there"),
    ]  # fmt: skip
    assert account.asked("RunInstances")[0]["VSwitchId"] == "vsw-uf6f7l4fg9b"


@pytest.mark.parametrize(("network", "warnings"), [({}, 1), ({"rdma": False}, 0)])
def test_elastic_rdma_that_is_not_set_up_is_said(account: Account, network: dict[str, bool], warnings: int) -> None:
    (group,) = planned(machine="ecs.gn8is.2xlarge", network=network).groups
    findings = list(alicloud_preflight._network(group))
    assert [finding.status for finding in findings] == ["warning"] * warnings
    assert all("does not set up" in finding.message for finding in findings)


def test_a_deployment_set_that_does_not_take_the_type(account: Account, tmp_path: Path) -> None:
    findings = preflight(planned(placement="cluster", capacity={"kind": "spot"}), tmp_path)
    assert (findings["group train/1"].status, findings["group train/2"].status) == ("blocks", "warning")
    account.answers["DescribeDeploymentSetSupportedInstanceTypeFamily"] = {"InstanceTypeFamilies": "ecs.gn7, ecs.g7"}
    assert preflight(planned(placement="cluster"), tmp_path)["group train/1"].message.startswith("ECS would start")


def test_more_addresses_than_an_account_usually_has_are_a_warning(account: Account, tmp_path: Path) -> None:
    account.rows["DescribeEipAddresses"] = [{"AllocationId": f"eip-{n}"} for n in range(20)]
    finding = preflight(planned(), tmp_path)["elastic IP addresses"]
    assert (finding.status, "20 in use, 1 required" in finding.message) == ("warning", True)


def test_the_newest_image_is_pinned(account: Account, tmp_path: Path) -> None:
    ids = [
        "ubuntu_24_04_x64_20G_alibase_20250117.vhd", IMAGE, "ubuntu_24_04_x64_20G_alibase_20240812.vhd",
        "ubuntu_24_04_x64_100G_with_gpu_driver_and_cuda_alibase_20270101.vhd",
        "debian_12_11_x64_20G_alibase_20241201.vhd",
    ]  # fmt: skip
    account.rows["DescribeImages"] = [{"ImageId": image_id} for image_id in ids]
    provider = Alicloud(Place("speech", "here", planned().spec.sites["here"], tmp_path))
    assert provider.base_image("ubuntu-24.04").id == IMAGE
    assert provider.base_image("debian-12").id == ids[-1]
    with pytest.raises(GpuprovError, match="has no image of ubuntu-22"):
        provider.base_image("ubuntu-22.04")
    account.answers["DescribeImages"] = Refusal("Forbidden.RAM", "User not authorized.")
    with pytest.raises(GpuprovError) as caught:
        provider.base_image("ubuntu-24.04")
    assert caught.value.hint == "allow ecs:DescribeImages"


def test_zones_with_stock_are_asked_first(account: Account, tmp_path: Path) -> None:
    account.answers["DescribeAvailableResource"] = stock(
        MACHINE, cn_shanghai_b="WithoutStock", cn_shanghai_g="WithStock", cn_shanghai_l="ClosedWithStock"
    )
    plan = planned({**SITE, "zones": ()})
    capacity = Alicloud(Place("speech", "here", plan.spec.sites["here"], tmp_path)).capacity
    assert capacity is not None
    assert capacity.zones(plan) == ("cn-shanghai-g", "cn-shanghai-l", "cn-shanghai-b")
    assert capacity.zones(plan) and account.counted()["DescribeAvailableResource"] == 1


def test_a_probe_takes_the_first_zone_that_lists_stock(account: Account, tmp_path: Path) -> None:
    stock_by_zone = stock(MACHINE, cn_shanghai_b="WithoutStock", cn_shanghai_g="WithStock")
    account.answers["DescribeAvailableResource"] = stock_by_zone
    plan = planned(capacity={"probe": True})
    provider = Alicloud(Place("speech", "here", plan.spec.sites["here"], tmp_path))
    assert provider.capacity is not None and provider.module is not None
    assert [finding.status for finding in provider.capacity.probe(plan, ())] == ["ok"]
    assert provider.module.inputs(plan)["groups"]["train"]["zone"] == "cn-shanghai-g"
    account.answers["DescribeAvailableResource"] = stock(MACHINE, cn_shanghai_b="WithoutStock")
    assert [finding.status for finding in provider.capacity.probe(plan, ())] == ["blocks"]
