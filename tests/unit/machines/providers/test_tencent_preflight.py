"""Images, preflight, capacity and prices: what is asked of Tencent Cloud before anything is spent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from provisioner.common.errors import Diagnostic, GpuprovError
from provisioner.machines.providers.capacity import Choices, Way
from provisioner.machines.providers.market import Unanswered
from provisioner.machines.providers.tencent.market import Cvm
from tests.support.tencent_api import SECRET_KEY, Refused, TencentApi, tags
from tests.support.tencent_site import KEY, MACHINE, ZONES, api, finding_lines, offer, provider_and_plan

__all__ = ["api"]


def test_the_newest_plain_image_is_pinned(api: TencentApi, tmp_path: Path) -> None:
    provider, _ = provider_and_plan(tmp_path)
    image = provider.base_image("ubuntu-22.04")
    assert image.id == "img-487zeit5"
    assert "Ubuntu Server 22.04 LTS 64位" in image.why
    with pytest.raises(GpuprovError, match="no public image of debian-12"):
        provider.base_image("debian-12")
    api.refuse("DescribeImages", "UnauthorizedOperation", "you are not authorized")
    with pytest.raises(GpuprovError) as error:
        provider.base_image("ubuntu-22.04")
    assert error.value.hint == "allow cvm:DescribeImages"


def test_a_site_that_can_work_has_no_objection(api: TencentApi, tmp_path: Path) -> None:
    provider, plan = provider_and_plan(tmp_path, spread="host")
    findings = provider.preflight(plan, ())
    assert (
        finding_lines(findings, "blocks")
        == finding_lines(findings, "warning")
        == finding_lines(findings, "unknown")
        == ""
    )
    ok = finding_lines(findings, "ok")
    assert "account 100000000001" in ok
    assert f"{MACHINE} is sold as on-demand in ap-guangzhou-3 (EnoughStock), ap-guangzhou-4 (EnoughStock)" in ok
    assert f"would start 2 × {MACHINE} as on-demand in ap-guangzhou-3 (dry run)" in ok
    (run,) = [request for _, action, request in api.calls if action == "RunInstances"]
    assert run["DryRun"] is True
    assert run["SystemDisk"] == {"DiskType": "CLOUD_HSSD", "DiskSize": 200, "Encrypt": True}


def test_a_machine_that_is_not_as_the_catalogue_has_it_is_told(api: TencentApi, tmp_path: Path) -> None:
    rows = [offer(zone, Cpu=90, Memory=320) for zone in ZONES]
    api.answers["DescribeZoneInstanceConfigInfos"] = {"InstanceTypeQuotaSet": rows}
    provider, plan = provider_and_plan(tmp_path)
    assert f"{MACHINE} has 90 vCPUs, not 80, as gpuprov's catalogue" in finding_lines(
        provider.preflight(plan, ()), "warning"
    )


def test_what_stands_is_not_asked_for_again(api: TencentApi, tmp_path: Path) -> None:
    provider, plan = provider_and_plan(tmp_path)
    provider.preflight(plan, plan.groups[0].node_names())
    assert "cvm:RunInstances" not in api.actions()


@pytest.mark.parametrize(
    ("code", "message", "status", "text"),
    [
        ("LimitExceeded.InstanceQuota", "no more", "blocks", "by ticket"),
        ("ResourcesSoldOut.SpecifiedInstanceType", "已售罄", "warning", "would not start"),
        ("UnauthorizedOperation", "you are not authorized (cvm:RunInstances)", "blocks", "gpuprov docs tencent"),
        ("InvalidAccount.InsufficientBalance", "The balance of account is not enough.", "blocks", "money"),
        ("UnsupportedOperation.InvalidRegionDiskEncrypt", "encrypt", "blocks", "disk.encrypt"),
        ("RequestLimitExceeded", "too often", "unknown", "asked too often"),
        ("UnsupportedOperation.NoVpcNetwork", "no VPC", "unknown", "before there is a VPC"),
    ],
)  # fmt: skip
def test_a_dry_run_says_why_not(
    api: TencentApi, tmp_path: Path, code: str, message: str, status: str, text: str
) -> None:
    provider, plan = provider_and_plan(tmp_path)
    api.refuse("RunInstances", code, message)
    assert text in finding_lines(provider.preflight(plan, ()), status)


def test_what_the_account_and_the_region_lack_is_found(api: TencentApi, tmp_path: Path) -> None:
    api.answers |= {
        "DescribeZones": {"ZoneSet": [{"Zone": "ap-guangzhou-3", "ZoneState": "AVAILABLE"}]},
        "DescribeZoneInstanceConfigInfos": {"InstanceTypeQuotaSet": [offer("ap-guangzhou-6")]},
        "DescribeAccountQuota": {"AccountQuotaOverview": {"AccountQuota": {
            "PostPaidQuotaSet": [{"Zone": "ap-guangzhou-3", "RemainingQuota": 1}]}}},
        "DescribeVpcLimits": {"VpcLimitSet": [{"LimitType": "appid-max-vpcs", "LimitValue": 0}]},
        "DescribeAddressQuota": {"QuotaSet": [{"QuotaId": "TOTAL_EIP_QUOTA", "QuotaCurrent": 20, "QuotaLimit": 20}]},
    }  # fmt: skip
    provider, plan = provider_and_plan(tmp_path)
    blocks = finding_lines(provider.preflight(plan, ()), "blocks")
    for text in (
        "ap-guangzhou-4 cannot be used", "is sold as on-demand in ap-guangzhou-6, not in ap-guangzhou-3",
        "1 left in ap-guangzhou-3, 2 machines with 160 vCPUs", "VPCs: 0 of 0", "elastic IP addresses: limit 20",
    ):  # fmt: skip
        assert text in blocks


def test_a_quota_between_machines_and_vcpus_is_unknown(api: TencentApi, tmp_path: Path) -> None:
    quota = [{"Zone": "ap-guangzhou-3", "RemainingQuota": 100}]
    api.answers["DescribeAccountQuota"] = {"AccountQuotaOverview": {"AccountQuota": {
        "PostPaidQuotaSet": quota, "SpotPaidQuotaSet": quota}}}  # fmt: skip
    provider, plan = provider_and_plan(tmp_path / "1")
    assert "whether machines or vCPUs are counted" in finding_lines(provider.preflight(plan, ()), "unknown")
    provider, plan = provider_and_plan(tmp_path / "2", group={"capacity": {"kind": "spot"}})
    assert "100 left in ap-guangzhou-3" in finding_lines(provider.preflight(plan, ()), "blocks"), (
        "spot is counted in vCPUs"
    )


def test_subnets_of_ones_own_are_looked_at(api: TencentApi, tmp_path: Path) -> None:
    rows = [
        ("subnet-00000003", "vpc-00000001", "ap-guangzhou-3", 1),
        ("subnet-00000004", "vpc-00000002", "ap-guangzhou-4", 9),
        ("subnet-00000006", "vpc-00000001", "ap-guangzhou-4", 9),
    ]
    api.things["subnet"] = [{"SubnetId": number, "VpcId": vpc, "Zone": zone, "AvailableIpAddressCount": free}
                            for number, vpc, zone, free in rows]  # fmt: skip
    subnets = {
        "ap-guangzhou-3": "subnet-00000003",
        "ap-guangzhou-4": "subnet-00000004",
        "ap-guangzhou-6": "subnet-00000006",
    }
    provider, plan = provider_and_plan(tmp_path, vpc={"id": "vpc-00000001", "subnets": subnets}, zones=[])
    findings = provider.preflight(plan, ())
    assert "subnet-00000004 is not a subnet of vpc-00000001" in finding_lines(findings, "blocks")
    assert "subnet-00000006 is in ap-guangzhou-4, not in ap-guangzhou-6" in finding_lines(findings, "blocks")
    assert "has 1 free addresses, 2 required" in finding_lines(findings, "warning")


def test_a_public_key_that_the_account_has_is_named(api: TencentApi, tmp_path: Path) -> None:
    (tmp_path / "fleet").write_text("private", encoding="utf-8")
    (tmp_path / "fleet.pub").write_text(KEY + "\n", encoding="utf-8")
    api.things["key"] = [{"KeyId": "skey-00000001", "KeyName": "other", "PublicKey": KEY.rpartition(" ")[0]}]
    provider, plan = provider_and_plan(tmp_path)
    access = plan.spec.access.model_copy(update={"ssh_key": str(tmp_path / "fleet")})
    plan = replace(plan, spec=plan.spec.model_copy(update={"access": access}))
    assert "sites.*.key_pair: skey-00000001" in finding_lines(provider.preflight(plan, ()), "blocks")
    api.things["key"][0] |= tags("key", gpuprov_cluster="test", gpuprov_site="here")
    assert finding_lines(provider.preflight(plan, ()), "blocks") == "", "it is the cluster's own"


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("AuthFailure.SecretIdNotFound", "sign in"), ("AuthFailure.TokenFailure", "they have expired"),
        ("AuthFailure.SignatureExpire", "clock"), ("UnauthorizedOperation", "may do nothing here"),
    ],
)  # fmt: skip
def test_nobody_is_signed_in(api: TencentApi, tmp_path: Path, code: str, text: str) -> None:
    provider, plan = provider_and_plan(tmp_path)
    api.refuse("GetCallerIdentity", code, "no")
    findings = provider.preflight(plan, ())
    assert text in finding_lines(findings, "blocks")
    assert SECRET_KEY not in str(findings)


def test_what_is_not_answered_is_unknown(api: TencentApi, tmp_path: Path) -> None:
    provider, plan = provider_and_plan(tmp_path, spread="rack")
    for action in (*api.answers, "DescribeVpcs", "DescribeKeyPairs"):
        api.refuse(action, "UnauthorizedOperation", f"no {action}")
    api.refuse("RunInstances", "InternalError", "down")
    findings = provider.preflight(plan, ())
    assert [finding.status for finding in findings if finding.status not in ("unknown", "blocks")] == ["ok"], (
        "who they are"
    )
    actions = {action for action in api.answers if f"allow cvm:{action}" in finding_lines(findings, "unknown")}
    assert {"DescribeZones", "DescribeZoneInstanceConfigInfos", "DescribeAccountQuota"} <= actions


def test_zones_are_those_that_sell_every_machine_best_stocked_first(api: TencentApi, tmp_path: Path) -> None:
    offers = [
        offer("ap-guangzhou-3", StatusCategory="UnderStock"),
        offer("ap-guangzhou-4"),
        offer("ap-guangzhou-6", "SOLD_OUT"),
    ]
    api.answers["DescribeZoneInstanceConfigInfos"] = {"InstanceTypeQuotaSet": offers}
    provider, plan = provider_and_plan(tmp_path, zones=[])
    assert list(provider.capacity.zones(plan)) == ["ap-guangzhou-4", "ap-guangzhou-3", "ap-guangzhou-6"]
    api.refuse("DescribeZoneInstanceConfigInfos", "InternalError")
    assert len(provider.capacity.zones(plan)) == 3, "found once and kept"


def test_a_probe_finds_the_way_that_has_all_machines(api: TencentApi, tmp_path: Path) -> None:
    def run(request: Any) -> dict[str, Any]:
        if (request["InstanceChargeType"], request["Placement"]["Zone"]) != ("POSTPAID_BY_HOUR", "ap-guangzhou-4"):
            raise Refused("ResourceInsufficient.SpecifiedInstanceType", "understocked")
        return {}

    api.answers["RunInstances"] = run
    capacity = {"kind": "spot", "fallback": ["on-demand"], "probe": True}
    provider, plan = provider_and_plan(tmp_path, group={"capacity": capacity}, spot_max_price="30")
    findings = provider.capacity.probe(plan, ())
    assert "would start 2" in finding_lines(findings, "ok")
    assert Choices.read(provider.place.workspace).taken["train"] == Way("on-demand", "ap-guangzhou-4")
    first = next(request for _, action, request in api.calls if action == "RunInstances")
    assert first["InstanceMarketOptions"] == {
        "MarketType": "spot", "SpotOptions": {"MaxPrice": "30", "SpotInstanceType": "one-time"},
    }  # fmt: skip
    assert provider.capacity.ends(plan) == {}
    diagnostic = Diagnostic("[TencentCloudSDKError] Code=LimitExceeded.UserSpotQuota, Message=no, RequestId=1", "", "x")
    assert provider.capacity.error(diagnostic, plan.groups[0], Way("spot", "ap-guangzhou-3")).then == "kind"


def test_the_market_has_todays_prices(api: TencentApi) -> None:
    offers = [
        offer("ap-guangzhou-3", Price={"UnitPrice": 80.0, "UnitPriceDiscount": 16.5}),
        offer("ap-guangzhou-4", "SOLD_OUT"),
    ]
    api.answers["DescribeZoneInstanceConfigInfos"] = {"InstanceTypeQuotaSet": offers}
    market = Cvm()
    assert market.zones("ap-guangzhou", MACHINE) == ["ap-guangzhou-3", "ap-guangzhou-4"]
    (price,) = market.spot("ap-guangzhou", MACHINE, 7)
    assert (price.zone, price.now, price.median, price.currency) == ("ap-guangzhou-3", 16.5, None, "CNY")
    api.refuse("GetCallerIdentity", "AuthFailure.TokenFailure", "expired")
    with pytest.raises(Unanswered, match="not signed in: they have expired"):
        Cvm().zones("ap-guangzhou", MACHINE)
