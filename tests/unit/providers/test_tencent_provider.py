"""What gpuprov asks of Tencent Cloud, and what it makes of the answers: the SDK against an account on loopback."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from provisioner.errors import Diagnostic, GpuprovError, ProviderError
from provisioner.events import Events
from provisioner.plan import Plan
from provisioner.preflight import Finding
from provisioner.providers.base import Place
from provisioner.providers.capacity import Choices, Way
from provisioner.providers.market import Unanswered
from provisioner.providers.tencent import client, credentials, orphans
from provisioner.providers.tencent.client import Region
from provisioner.providers.tencent.market import Cvm
from provisioner.providers.tencent.module import VERSION
from provisioner.providers.tencent.provider import Tencent
from provisioner.providers.trouble import Trouble
from provisioner.stack.models import BaseImage
from tests.support import plans
from tests.support.rehearsal import ROOT
from tests.support.tencent_api import SECRET_KEY, Refused, TencentApi, serving, tags

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
    found = TencentApi()
    images = [("img-uefi", "UEFI 版"), ("img-487zeit5", ""), ("img-older000", "")]
    found.answers = {
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
    with serving(found) as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        yield found


def made(tmp_path: Path, *, group: dict[str, Any] | None = None, **site: Any) -> tuple[Tencent, Plan]:
    """The provider of a site with two machines, and its plan."""
    spec = plans.cluster_spec(MACHINE, count=2)
    sites = {"here": {**plans.SITES["tencent"], "zones": ZONES, "internet": "nat", **site}}
    told = {**spec.model_dump(mode="json", exclude_unset=True), "sites": sites}
    told["groups"]["train"] |= group or {}
    spec = type(spec).model_validate_json(json.dumps(told))
    found = plans.plan(spec)
    bases = {"here": {found.groups[0].stack.os: BaseImage(id="img-487zeit5", why="test")}}
    plan = replace(found, bases=bases)
    workspace = tmp_path / ".gpuprov" / "sites" / "here"
    workspace.mkdir(parents=True)
    return Tencent(Place("test", "here", spec.sites["here"], workspace)), plan


def told(found: list[Finding], status: str) -> str:
    return "\n".join(f"{one.subject}: {one.message} | {one.action}" for one in found if one.status == status)


# --- images


def test_the_newest_plain_image_is_pinned(api: TencentApi, tmp_path: Path) -> None:
    provider, _ = made(tmp_path)
    found = provider.base_image("ubuntu-22.04")
    assert found.id == "img-487zeit5"
    assert "Ubuntu Server 22.04 LTS 64位" in found.why
    with pytest.raises(GpuprovError, match="no public image of debian-12"):
        provider.base_image("debian-12")
    api.refuse("DescribeImages", "UnauthorizedOperation", "you are not authorized")
    with pytest.raises(GpuprovError) as error:
        provider.base_image("ubuntu-22.04")
    assert error.value.hint == "allow cvm:DescribeImages"


# --- preflight


def test_a_site_that_can_work_has_no_objection(api: TencentApi, tmp_path: Path) -> None:
    provider, plan = made(tmp_path, spread="host")
    found = provider.preflight(plan, ())
    assert told(found, "blocks") == told(found, "warning") == told(found, "unknown") == ""
    ok = told(found, "ok")
    assert "account 100000000001" in ok
    assert f"{MACHINE} is sold as on-demand in ap-guangzhou-3 (EnoughStock), ap-guangzhou-4 (EnoughStock)" in ok
    assert f"would start 2 × {MACHINE} as on-demand in ap-guangzhou-3 (dry run)" in ok
    (run,) = [asked for _, action, asked in api.calls if action == "RunInstances"]
    assert run["DryRun"] is True
    assert run["SystemDisk"] == {"DiskType": "CLOUD_HSSD", "DiskSize": 200, "Encrypt": True}


def test_what_stands_is_not_asked_for_again(api: TencentApi, tmp_path: Path) -> None:
    provider, plan = made(tmp_path)
    provider.preflight(plan, plan.groups[0].node_names())
    assert "cvm:RunInstances" not in api.actions()


@pytest.mark.parametrize(
    ("code", "message", "status", "said"),
    [
        ("LimitExceeded.InstanceQuota", "no more", "blocks", "by ticket"),
        ("ResourcesSoldOut.SpecifiedInstanceType", "已售罄", "warning", "would not start"),
        ("UnauthorizedOperation", "you are not authorized (cvm:RunInstances)", "blocks", "docs/tencent.md"),
        ("InvalidAccount.InsufficientBalance", "The balance of account is not enough.", "blocks", "money"),
        ("UnsupportedOperation.InvalidRegionDiskEncrypt", "encrypt", "blocks", "disk.encrypt"),
        ("RequestLimitExceeded", "too often", "unknown", "asked too often"),
    ],
)  # fmt: skip
def test_a_dry_run_says_why_not(
    api: TencentApi, tmp_path: Path, code: str, message: str, status: str, said: str
) -> None:
    provider, plan = made(tmp_path)
    api.refuse("RunInstances", code, message)
    assert said in told(provider.preflight(plan, ()), status)


def test_what_the_account_and_the_region_lack_is_found(api: TencentApi, tmp_path: Path) -> None:
    api.answers |= {
        "DescribeZones": {"ZoneSet": [{"Zone": "ap-guangzhou-3", "ZoneState": "AVAILABLE"}]},
        "DescribeZoneInstanceConfigInfos": {"InstanceTypeQuotaSet": [offer("ap-guangzhou-6")]},
        "DescribeAccountQuota": {"AccountQuotaOverview": {"AccountQuota": {
            "PostPaidQuotaSet": [{"Zone": "ap-guangzhou-3", "RemainingQuota": 1}]}}},
        "DescribeVpcLimits": {"VpcLimitSet": [{"LimitType": "appid-max-vpcs", "LimitValue": 0}]},
        "DescribeAddressQuota": {"QuotaSet": [{"QuotaId": "TOTAL_EIP_QUOTA", "QuotaCurrent": 20, "QuotaLimit": 20}]},
    }  # fmt: skip
    provider, plan = made(tmp_path)
    blocks = told(provider.preflight(plan, ()), "blocks")
    for said in (
        "ap-guangzhou-4 cannot be used", "is sold as on-demand in ap-guangzhou-6, not in ap-guangzhou-3",
        "1 left in ap-guangzhou-3, 2 machines with 160 vCPUs", "VPCs: 0 of 0", "elastic IP addresses: 20 may be had",
    ):  # fmt: skip
        assert said in blocks


def test_a_quota_between_machines_and_vcpus_is_unknown(api: TencentApi, tmp_path: Path) -> None:
    quota = [{"Zone": "ap-guangzhou-3", "RemainingQuota": 100}]
    api.answers["DescribeAccountQuota"] = {"AccountQuotaOverview": {"AccountQuota": {
        "PostPaidQuotaSet": quota, "SpotPaidQuotaSet": quota}}}  # fmt: skip
    provider, plan = made(tmp_path / "1")
    assert "whether machines or vCPUs are counted" in told(provider.preflight(plan, ()), "unknown")
    provider, plan = made(tmp_path / "2", group={"capacity": {"kind": "spot"}})
    assert "100 left in ap-guangzhou-3" in told(provider.preflight(plan, ()), "blocks"), "spot is counted in vCPUs"


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
    provider, plan = made(tmp_path, vpc={"id": "vpc-00000001", "subnets": subnets}, zones=[])
    found = provider.preflight(plan, ())
    assert "subnet-00000004 is no subnet of vpc-00000001" in told(found, "blocks")
    assert "subnet-00000006 is in ap-guangzhou-4, not in ap-guangzhou-6" in told(found, "blocks")
    assert "has 1 free addresses, 2 are wanted" in told(found, "warning")


def test_a_public_key_that_the_account_has_is_named(api: TencentApi, tmp_path: Path) -> None:
    (tmp_path / "fleet").write_text("private", encoding="utf-8")
    (tmp_path / "fleet.pub").write_text(KEY + "\n", encoding="utf-8")
    api.things["key"] = [{"KeyId": "skey-00000001", "KeyName": "other", "PublicKey": KEY.rpartition(" ")[0]}]
    provider, plan = made(tmp_path)
    access = plan.spec.access.model_copy(update={"ssh_key": str(tmp_path / "fleet")})
    plan = replace(plan, spec=plan.spec.model_copy(update={"access": access}))
    assert "sites.*.key_pair: skey-00000001" in told(provider.preflight(plan, ()), "blocks")
    api.things["key"][0] |= tags("key", gpuprov_cluster="test", gpuprov_site="here")
    assert told(provider.preflight(plan, ()), "blocks") == "", "it is the cluster's own"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("AuthFailure.SecretIdNotFound", "sign in"), ("AuthFailure.TokenFailure", "they have expired"),
        ("AuthFailure.SignatureExpire", "clock"), ("UnauthorizedOperation", "may do nothing here"),
    ],
)  # fmt: skip
def test_nobody_is_signed_in(api: TencentApi, tmp_path: Path, code: str, said: str) -> None:
    provider, plan = made(tmp_path)
    api.refuse("GetCallerIdentity", code, "no")
    found = provider.preflight(plan, ())
    assert said in told(found, "blocks")
    assert SECRET_KEY not in str(found)


def test_what_is_not_answered_is_unknown(api: TencentApi, tmp_path: Path) -> None:
    provider, plan = made(tmp_path, spread="rack")
    for action in (*api.answers, "DescribeVpcs", "DescribeKeyPairs"):
        api.refuse(action, "UnauthorizedOperation", f"no {action}")
    api.refuse("RunInstances", "InternalError", "down")
    found = provider.preflight(plan, ())
    assert [one.status for one in found if one.status not in ("unknown", "blocks")] == ["ok"], "who they are"
    asked = {action for action in api.answers if f"allow cvm:{action}" in told(found, "unknown")}
    assert {"DescribeZones", "DescribeZoneInstanceConfigInfos", "DescribeAccountQuota"} <= asked


# --- capacity


def test_zones_are_those_that_sell_every_machine_best_stocked_first(api: TencentApi, tmp_path: Path) -> None:
    offers = [
        offer("ap-guangzhou-3", StatusCategory="UnderStock"),
        offer("ap-guangzhou-4"),
        offer("ap-guangzhou-6", "SOLD_OUT"),
    ]
    api.answers["DescribeZoneInstanceConfigInfos"] = {"InstanceTypeQuotaSet": offers}
    provider, plan = made(tmp_path, zones=[])
    assert list(provider.capacity.zones(plan)) == ["ap-guangzhou-4", "ap-guangzhou-3", "ap-guangzhou-6"]
    api.refuse("DescribeZoneInstanceConfigInfos", "InternalError")
    assert len(provider.capacity.zones(plan)) == 3, "found once and kept"


def test_a_probe_finds_the_way_that_has_all_machines(api: TencentApi, tmp_path: Path) -> None:
    def run(asked: Any) -> dict[str, Any]:
        if (asked["InstanceChargeType"], asked["Placement"]["Zone"]) != ("POSTPAID_BY_HOUR", "ap-guangzhou-4"):
            raise Refused("ResourceInsufficient.SpecifiedInstanceType", "understocked")
        return {}

    api.answers["RunInstances"] = run
    capacity = {"kind": "spot", "fallback": ["on-demand"], "probe": True}
    provider, plan = made(tmp_path, group={"capacity": capacity}, spot_max_price="30")
    found = provider.capacity.probe(plan, ())
    assert "would start 2" in told(found, "ok")
    assert Choices.read(provider.place.workspace).taken["train"] == Way("on-demand", "ap-guangzhou-4")
    first = next(asked for _, action, asked in api.calls if action == "RunInstances")
    assert first["InstanceMarketOptions"] == {
        "MarketType": "spot", "SpotOptions": {"MaxPrice": "30", "SpotInstanceType": "one-time"},
    }  # fmt: skip
    assert provider.capacity.ends(plan) == {}
    said = Diagnostic("[TencentCloudSDKError] Code=LimitExceeded.UserSpotQuota, Message=no, RequestId=1", "", "x")
    assert provider.capacity.error(said, plan.groups[0], Way("spot", "ap-guangzhou-3")).then == "kind"


# --- the market


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


# --- what is left


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


def test_orphans_are_found_by_tag_and_removed_in_order(api: TencentApi) -> None:
    account(api)
    api.things["vpc"].append({"VpcId": "vpc-other000", "VpcName": "somebody's"})
    api.slow = 2
    there = orphans.InRegion(Region("ap-guangzhou"), pause_s=0.01)
    found = there.find()
    assert len(found.things) == 8 and not found.unknown
    moments = {thing.since for thing in found.things if thing.since}
    assert len(moments) == 1, "08:00 in China is midnight UTC"
    lines: list[str] = []
    assert there.remove(found.things, lines.append) == []
    assert [row for rows in api.things.values() for row in rows] == [{"VpcId": "vpc-other000", "VpcName": "somebody's"}]
    assert there.find().things == ()


def test_a_protected_machine_stays_and_everything_with_it(api: TencentApi) -> None:
    account(api)
    api.things["instance"][0]["DisableApiTermination"] = True
    there = orphans.InRegion(Region("ap-guangzhou"), pause_s=0.01)
    left = there.remove(there.find().things, lambda _: None)
    assert left[0].startswith("instance ins-00000001 (RUNNING): protected, and not forced")
    assert left[1] == "7 other things were not touched: the machines that are left may need them"
    assert sum(map(len, api.things.values())) == 8


def test_a_file_system_keeps_its_data_and_its_network(api: TencentApi) -> None:
    account(api)
    api.things["instance"].clear()
    pairs = [{"TagKey": "gpuprov-cluster", "TagValue": "test"}, {"TagKey": "gpuprov-site", "TagValue": "here"}]
    api.things["cfs"] = [{"FileSystemId": "cfs-00000001", "Tags": pairs, "LifeCycleState": "available"}]
    there = orphans.InRegion(Region("ap-guangzhou"), pause_s=0.01)
    found = there.find()
    assert [thing.kept for thing in found.things if thing.kind == "CFS file system"] == [
        orphans.tagged_resources.HOLDS_DATA
    ]
    assert there.remove(found.things, lambda _: None) == [
        "3 things of the network were not touched: the file system stands in it"
    ]


def test_time_is_up_and_questions_are_denied(api: TencentApi) -> None:
    account(api)
    api.slow = 1000
    api.refuse("DescribeKeyPairs", "UnauthorizedOperation", "no")
    there = orphans.InRegion(Region("ap-guangzhou"), wait_s=0.05, pause_s=0.01)
    found = there.find()
    assert found.unknown[0].startswith("whether there are key pairs: not allowed to look")
    left = there.remove(found.things, lambda _: None)
    assert (left[0] != "" and "still there" in left[0]) or "gone" in left[0]
    api.refuse("GetCallerIdentity", "AuthFailure.SecretIdNotFound", "no")
    with pytest.raises(ProviderError):
        there.find()


def test_clean_removes_what_has_the_clusters_own_identity(api: TencentApi, tmp_path: Path) -> None:
    provider, _ = made(tmp_path)
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
    provider, _ = made(tmp_path)
    (tmp_path / ".gpuprov" / "id").write_text(IDENTITY + "\n", encoding="utf-8")
    account(api)
    account(api, identity="f" * 12)
    for number, row in enumerate(api.things["instance"]):
        row["Tags"].append({"Key": "gpuprov-node", "Value": f"train-{number}"})
    assert provider.module is not None
    assert [(one.node, one.ours) for one in provider.module.standing()] == [("train-0", True), ("train-1", False)]
    api.refuse("DescribeInstances", "InternalError", "down")
    with pytest.raises(ProviderError, match="which machines stand in ap-guangzhou"):
        provider.module.standing()


# --- the client


def test_pages_are_followed_and_throttling_is_waited_for(api: TencentApi) -> None:
    api.things["vpc"] = [{"VpcId": f"vpc-{number:08d}"} for number in range(230)]
    assert len(Region("ap-guangzhou").all("vpc", "DescribeVpcs", "VpcSet", number=str)) == 230
    answers = iter([Refused("RequestLimitExceeded"), Refused("InternalError")])

    def twice(_: Any) -> dict[str, Any]:
        if (refused := next(answers, None)) is not None:
            raise refused
        return {"ZoneSet": []}

    api.answers["DescribeZones"] = twice
    assert Region("ap-guangzhou").ask("cvm", "DescribeZones")["ZoneSet"] == []


def test_what_makes_something_is_not_asked_twice(api: TencentApi) -> None:
    api.refuse("RunInstances", "InternalError", "nobody knows whether it was made")
    with pytest.raises(Trouble):
        Region("ap-guangzhou").ask("cvm", "RunInstances", DryRun=True)
    assert len(api.calls) == 1


def test_nothing_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "PAUSE_S", 0.01)
    for name, value in {"http_proxy": "http://127.0.0.1:9", "TENCENTCLOUD_PROTOCOL": "http", "no_proxy": "",
                        "TENCENTCLOUD_SECRET_ID": "x", "TENCENTCLOUD_SECRET_KEY": "y"}.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    with pytest.raises(Trouble) as error:
        Region("ap-guangzhou").ask("cvm", "DescribeZones")
    assert error.value.kind == "silent"


def test_credentials_are_those_of_terraforms_provider(
    api: TencentApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert credentials.found()[0].secret_id == "AKIDtest"
    assert "secret-of-the-tests" not in repr(credentials.found()[0])
    monkeypatch.delenv("TENCENTCLOUD_SECRET_KEY")
    with pytest.raises(Trouble, match="TENCENTCLOUD_SECRET_KEY is not set"):
        credentials.found()
    monkeypatch.delenv("TENCENTCLOUD_SECRET_ID")
    with pytest.raises(Trouble, match="no credentials"):
        credentials.found()
    monkeypatch.setenv("TENCENTCLOUD_SHARED_CREDENTIALS_DIR", str(tmp_path))
    profile = {"secretId": "AKIDprofile", "secretKey": "k", "token": "t", "expiresAt": 1}
    (tmp_path / "default.credential").write_text(json.dumps(profile), encoding="utf-8")
    keys, role = credentials.found()
    assert (keys.secret_id, keys.token, role) == ("AKIDprofile", "t", None)
    (tmp_path / "default.credential").write_text("[", encoding="utf-8")
    with pytest.raises(Trouble, match="cannot be read"):
        credentials.found()
    monkeypatch.setenv("TENCENTCLOUD_MFA_CERTIFICATION_TOKEN_CODE", "123456")
    with pytest.raises(Trouble, match="alone"):
        credentials.found()


def test_a_role_is_taken_first(api: TencentApi, monkeypatch: pytest.MonkeyPatch) -> None:
    api.answers["AssumeRole"] = {"Credentials": {"TmpSecretId": "AKIDtest", "TmpSecretKey": SECRET_KEY, "Token": "t"}}
    monkeypatch.setenv("TENCENTCLOUD_ASSUME_ROLE_ARN", "qcs::cam::uin/1:roleName/gpu")
    monkeypatch.setenv("TENCENTCLOUD_ASSUME_ROLE_SESSION_NAME", "gpuprov")
    region = Region("ap-guangzhou")
    region.ask("cvm", "DescribeZones")
    assert [action for _, action, _ in api.calls] == ["AssumeRole", "DescribeZones"]
    assert region.keys().token == "t"


def test_accounts_of_the_international_site_have_their_own_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    provider, plan = made(tmp_path, account="international")
    assert provider.module is not None
    block = provider.module.blocks(plan)["tencentcloud"]
    assert block.configuration == {"region": "ap-guangzhou", "domain": "intl.tencentcloudapi.com"}
    text = (ROOT / "terraform" / "tencent" / "versions.tf").read_text(encoding="utf-8")
    assert block.version == VERSION and VERSION in text


def test_without_the_sdk_the_error_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "find_spec", lambda _: None)
    monkeypatch.setenv("TENCENTCLOUD_SECRET_ID", "x")
    monkeypatch.setenv("TENCENTCLOUD_SECRET_KEY", "y")
    with pytest.raises(GpuprovError) as error:
        Region("ap-guangzhou").ask("cvm", "DescribeZones")
    assert "pip install 'gpuprov[tencent]'" in str(error.value.hint)


def test_the_module_is_told_what_the_file_says(api: TencentApi, tmp_path: Path) -> None:
    site = {
        "vpc": {"id": "vpc-00000001", "subnets": {"ap-guangzhou-3": "subnet-00000003"}}, "zones": ["ap-guangzhou-3"],
        "spread": "rack", "spot_max_price": "25.5", "key_pair": "skey-00000001", "role": "gpu", "project": 7,
        "security_groups": ["sg-00000001"], "disk": {"type": "CLOUD_SSD", "kms_key": "kms-1"},
        "bandwidth": {"charge": "package", "package": "bwp-00000001"},
        "storage": {"cfs": {"path": "/home"}, "nfs": [{"source": "10.0.0.5:/", "path": "/data"}]},
    }  # fmt: skip
    provider, plan = made(tmp_path, group={"capacity": {"kind": "spot"}}, **site)
    assert provider.module is not None
    assert provider.module.inputs(plan) == {
        "site": "", "zones": ["ap-guangzhou-3"], "groups": {"train": {"image_id": "img-487zeit5"}}, "internet": "nat",
        "access": {"allow": []}, "bandwidth": {"charge": "package", "package": "bwp-00000001"},
        "cfs": {"path": "/home", "type": "SD"}, "key_pair": "skey-00000001",
        "nfs": [{"source": "10.0.0.5:/", "path": "/data", "write": False}], "project": 7, "role": "gpu",
        "root": {"type": "CLOUD_SSD", "kms_key": "kms-1"}, "security_groups": ["sg-00000001"],
        "spot_max_price": "25.5", "spread": "rack",
        "vpc": {"id": "vpc-00000001", "subnets": {"ap-guangzhou-3": "subnet-00000003"}},
    }  # fmt: skip
    assert re.match("#cloud-config", provider.module.user_data(plan, KEY))


# --- permissions


def test_the_policy_of_the_documentation_has_what_is_asked(api: TencentApi, tmp_path: Path) -> None:
    text = (ROOT / "docs" / "tencent.md").read_text(encoding="utf-8")
    (policy,) = re.findall(r"```json\n(.*?)```", text, re.S)
    allowed = {action for one in json.loads(policy)["statement"] for action in one["action"]}
    provider, plan = made(tmp_path, spread="host")
    provider.preflight(plan, ())
    provider.base_image("ubuntu-22.04")
    assert provider.module is not None
    provider.module.standing()
    account(api)
    there = orphans.InRegion(Region("ap-guangzhou"), pause_s=0.01)
    there.remove(there.find().things, lambda _: None)
    assert len(api.actions()) > 20
    assert api.actions() - allowed == set()
