"""How Tencent Cloud is asked, and what the module is told."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from provisioner.common.errors import GpuprovError
from provisioner.machines.providers.tencent import client, credentials
from provisioner.machines.providers.tencent.client import Region
from provisioner.machines.providers.tencent.module import VERSION
from provisioner.machines.providers.trouble import Trouble
from tests.support.sandbox_cluster import ROOT
from tests.support.tencent_api import SECRET_KEY, Refused, TencentApi
from tests.support.tencent_site import KEY, api, provider_and_plan

__all__ = ["api"]


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
    assert credentials.load_keys()[0].secret_id == "AKIDtest"
    assert "secret-of-the-tests" not in repr(credentials.load_keys()[0])
    monkeypatch.delenv("TENCENTCLOUD_SECRET_KEY")
    with pytest.raises(Trouble, match="TENCENTCLOUD_SECRET_KEY is not set"):
        credentials.load_keys()
    monkeypatch.delenv("TENCENTCLOUD_SECRET_ID")
    with pytest.raises(Trouble, match="no credentials"):
        credentials.load_keys()
    monkeypatch.setenv("TENCENTCLOUD_SHARED_CREDENTIALS_DIR", str(tmp_path))
    profile = {"secretId": "AKIDprofile", "secretKey": "k", "token": "t", "expiresAt": 1}
    (tmp_path / "default.credential").write_text(json.dumps(profile), encoding="utf-8")
    keys, role = credentials.load_keys()
    assert (keys.secret_id, keys.token, role) == ("AKIDprofile", "t", None)
    (tmp_path / "default.credential").write_text("[", encoding="utf-8")
    with pytest.raises(Trouble, match="cannot be read"):
        credentials.load_keys()
    monkeypatch.setenv("TENCENTCLOUD_MFA_CERTIFICATION_TOKEN_CODE", "123456")
    with pytest.raises(Trouble, match="alone"):
        credentials.load_keys()


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
    provider, plan = provider_and_plan(tmp_path, account="international")
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
    assert "in gpuprov's checkout: pip install '.[tencent]'" in str(error.value.hint)


def test_the_module_is_told_what_the_file_says(api: TencentApi, tmp_path: Path) -> None:
    site = {
        "vpc": {"id": "vpc-00000001", "subnets": {"ap-guangzhou-3": "subnet-00000003"}}, "zones": ["ap-guangzhou-3"],
        "spread": "rack", "spot_max_price": "25.5", "key_pair": "skey-00000001", "role": "gpu", "project": 7,
        "security_groups": ["sg-00000001"], "disk": {"type": "CLOUD_SSD", "kms_key": "kms-1"},
        "bandwidth": {"charge": "package", "package": "bwp-00000001"},
        "storage": {"cfs": {"path": "/home"}, "nfs": [{"source": "10.0.0.5:/", "path": "/data"}]},
    }  # fmt: skip
    provider, plan = provider_and_plan(tmp_path, group={"capacity": {"kind": "spot"}}, **site)
    assert provider.module is not None
    assert provider.module.inputs(plan) == {
        "site": "here", "zones": ["ap-guangzhou-3"], "groups": {"train": {"image_id": "img-487zeit5"}},
        "internet": "nat",
        "access": {"allow": []}, "bandwidth": {"charge": "package", "package": "bwp-00000001"},
        "cfs": {"path": "/home", "type": "SD"}, "key_pair": "skey-00000001",
        "nfs": [{"source": "10.0.0.5:/", "path": "/data", "write": False}], "project": 7, "role": "gpu",
        "root": {"type": "CLOUD_SSD", "kms_key": "kms-1"}, "security_groups": ["sg-00000001"],
        "spot_max_price": "25.5", "spread": "rack",
        "vpc": {"id": "vpc-00000001", "subnets": {"ap-guangzhou-3": "subnet-00000003"}},
    }  # fmt: skip
    provider, plan = provider_and_plan(tmp_path / "other", buckets=[{"bucket": "data-1250000000", "prefix": "a/"}])
    assert provider.module is not None
    buckets = provider.module.inputs(plan)["buckets"]
    assert buckets == [{"bucket": "data-1250000000", "prefix": "a/", "write": False}]
    assert re.match("#cloud-config", provider.module.user_data(plan, KEY))
