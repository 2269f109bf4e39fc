"""A Tencent Cloud site for tests: an account on loopback that can work, and a provider object of a site in it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from provisioner.common.preflight import Finding
from provisioner.machines.providers.base import Place
from provisioner.machines.providers.tencent import client, orphans
from provisioner.machines.providers.tencent.provider import Tencent
from provisioner.plan.models import Plan
from provisioner.stack.models import BaseImage
from tests.support import plans
from tests.support.tencent_api import TencentApi, serving, tags

MACHINE = "GN10Xp.20XLARGE320"
ZONES = ("ap-guangzhou-3", "ap-guangzhou-4")
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIE5NBmjM4Jb6n3v8vXxkq8r6Zt3TtV7JwN0c0yWb0000 me"
IDENTITY = "0123456789ab"


def offer(zone: str, status: str = "SELL", **more: Any) -> dict[str, Any]:
    stock = {"StatusCategory": "EnoughStock" if status == "SELL" else "WithoutStock"}
    return {"Zone": zone, "InstanceType": MACHINE, "Status": status, "Cpu": 80, "Gpu": 8, **stock, **more}


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[TencentApi]:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "https_proxy", "TENCENTCLOUD_DOMAIN", "TENCENTCLOUD_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(client, "PAUSE_S", 0.01)
    monkeypatch.setattr(orphans, "PAUSE_S", 0.01)
    tencent_api = TencentApi()
    images = [("img-uefi", "UEFI 版"), ("img-487zeit5", ""), ("img-older000", "")]
    tencent_api.answers = {
        "DescribeZones": {"ZoneSet": [{"Zone": zone, "ZoneState": "AVAILABLE"} for zone in ZONES]},
        "DescribeZoneInstanceConfigInfos": {"InstanceTypeQuotaSet": [offer(zone) for zone in ZONES]},
        "DescribeAccountQuota": {"AccountQuotaOverview": {"AccountQuota": {
            "PostPaidQuotaSet": [{"Zone": zone, "RemainingQuota": 500} for zone in ZONES],
            "SpotPaidQuotaSet": [{"Zone": zone, "RemainingQuota": 500} for zone in ZONES],
        }}},
        "DescribeVpcLimits": {"VpcLimitSet": [{"LimitType": "appid-max-vpcs", "LimitValue": 20}]},
        "DescribeAddressQuota": {"QuotaSet": [{"QuotaId": "TOTAL_EIP_QUOTA", "QuotaCurrent": 1, "QuotaLimit": 20}]},
        "DescribeDisasterRecoverGroupQuota": {"GroupQuota": 10, "CurrentNum": 1, "CvmInHostGroupQuota": 50,
                                              "CvmInSwitchGroupQuota": 20, "CvmInRackGroupQuota": 30},
        "RunInstances": {"InstanceIdSet": []},
        "DescribeImages": {"TotalCount": 3, "ImageSet": [
            {"ImageId": number, "ImageName": f"Ubuntu Server 22.04 LTS 64位{more and ' ' + more}",
             "Architecture": "x86_64", "ImageState": "NORMAL",
             "CreatedTime": "2020-01-01" if number == "img-older000" else "2024-01-01"}
            for number, more in images
        ]},
    }  # fmt: skip
    with serving(tencent_api) as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        yield tencent_api


def provider_and_plan(tmp_path: Path, *, group: dict[str, Any] | None = None, **site: Any) -> tuple[Tencent, Plan]:
    """The provider of a site with two machines, and its plan."""
    spec = plans.cluster_spec(MACHINE, count=2)
    sites = {"here": {**plans.SITES["tencent"], "zones": ZONES, "internet": "nat", **site}}
    document = {**spec.model_dump(mode="json", exclude_unset=True), "sites": sites}
    document["groups"]["train"] |= group or {}
    spec = type(spec).model_validate_json(json.dumps(document))
    planned = plans.plan(spec)
    bases = {"here": {planned.groups[0].stack.os: BaseImage(id="img-487zeit5", why="test")}}
    plan = replace(planned, bases=bases)
    workspace = tmp_path / ".gpuprov" / "sites" / "here"
    workspace.mkdir(parents=True)
    return Tencent(Place("test", "here", spec.sites["here"], workspace)), plan


def finding_lines(findings: list[Finding], status: str) -> str:
    return "\n".join(
        f"{finding.subject}: {finding.message} | {finding.action}" for finding in findings if finding.status == status
    )


def account(api: TencentApi, *, identity: str = IDENTITY) -> None:
    """A cluster's things, as terraform/tencent makes them."""
    ours = {"gpuprov_cluster": "test", "gpuprov_site": "here", "gpuprov_id": identity}
    rows: dict[str, dict[str, Any]] = {
        "instance": {"InstanceId": "ins-00000001", "InstanceState": "RUNNING", "_group": "sg-00000001",
                     "_subnet": "subnet-00000001", "_key": "skey-00000001", "_spread": "ps-00000001",
                     "CreatedTime": "2026-11-01T00:00:00Z"},
        "nat": {"NatGatewayId": "nat-00000001", "VpcId": "vpc-00000001", "_address": "eip-00000001"},
        "address": {"AddressId": "eip-00000001"}, "spread": {"DisasterRecoverGroupId": "ps-00000001"},
        "key": {"KeyId": "skey-00000001"}, "group": {"SecurityGroupId": "sg-00000001"},
        "subnet": {"SubnetId": "subnet-00000001", "VpcId": "vpc-00000001"},
        "vpc": {"VpcId": "vpc-00000001", "CreatedTime": "2026-11-01 08:00:00"},
    }  # fmt: skip
    for kind, row in rows.items():
        api.things[kind].append(row | tags(kind, **ours))
