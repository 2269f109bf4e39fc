"""Questions to Alibaba Cloud: signed, with deadlines, and what an answer that did not come is told as."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from alibabacloud_credentials.exceptions import CredentialException
from alibabacloud_credentials.provider.ecs_ram_role import EcsRamRoleCredentialsProvider
from alibabacloud_credentials.utils import auth_util

from provisioner.cli.main import run
from provisioner.common.errors import GpuprovError
from provisioner.machines.providers.alicloud import client
from provisioner.machines.providers.alicloud.client import Region
from provisioner.machines.providers.trouble import Trouble
from tests.support.alicloud_api import Account, Refusal, serving


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> Iterator[Account]:
    served_account = Account()
    with serving(served_account) as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(client, "PAUSE_S", 0.01)
        yield served_account
    assert served_account.wrong == []


def caller_identity_error(answer: Refusal | dict[str, object], account: Account) -> Trouble:
    account.answers["GetCallerIdentity"] = answer
    with pytest.raises(Trouble) as caught:
        Region("cn-shanghai").ask("sts", "GetCallerIdentity")
    return caught.value


@pytest.mark.parametrize(
    ("code", "status", "kind", "tries"),
    [
        ("InvalidAccessKeyId.NotFound", 404, "credentials", 1), ("InvalidSecurityToken.Expired", 400, "credentials", 1),
        ("Forbidden.RAM", 403, "denied", 1), ("NoPermission", 403, "denied", 1),
        ("Throttling.User", 400, "throttled", 4),
        ("ServiceUnavailable", 503, "silent", 4), ("InvalidVpcId.NotFound", 404, "absent", 1),
        ("InvalidInstanceId.NotFound", 404, "absent", 1), ("NoSuchBucket", 404, "absent", 1),
        ("InvalidParameter", 400, "refused", 1), ("RealNameAuthenticationError", 403, "denied", 1),
    ],
)  # fmt: skip
def test_an_error_has_a_kind(account: Account, code: str, status: int, kind: str, tries: int) -> None:
    error = caller_identity_error(Refusal(code, "Told so.", status), account)
    assert (error.kind, error.code, error.message) == (kind, code, "Told so.")
    assert account.counted()["GetCallerIdentity"] == tries


def test_a_call_that_was_throttled_is_made_again(account: Account) -> None:
    account.once["GetCallerIdentity"] = [Refusal("Throttling", "Slow down.", 400)]
    assert Region("cn-shanghai").ask("sts", "GetCallerIdentity")["AccountId"] == "1234567890123456"


def test_all_pages_are_read(account: Account) -> None:
    account.rows["DescribeVpcs"] = [{"VpcId": f"vpc-{number}"} for number in range(120)]
    vpcs = Region("cn-shanghai").all("vpc", "DescribeVpcs", "Vpcs", "Vpc", Tag=None)
    assert len({row["VpcId"] for row in vpcs}) == len(vpcs) == 120
    assert account.counted()["DescribeVpcs"] == 3


def test_an_endpoint_that_does_not_answer_is_silent(monkeypatch: pytest.MonkeyPatch, account: Account) -> None:
    monkeypatch.setenv(client.ENDPOINT, "http://127.0.0.1:9")
    monkeypatch.setattr(client, "ATTEMPTS", 2)
    began = time.monotonic()
    with pytest.raises(Trouble) as caught:
        Region("cn-shanghai").ask("sts", "GetCallerIdentity")
    assert caught.value.kind == "silent" and time.monotonic() - began < 5


def test_an_answer_that_never_comes_has_a_deadline(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    account.answers["GetCallerIdentity"] = lambda _: time.sleep(1) or {}
    monkeypatch.setattr(client, "READ_MS", 100)
    monkeypatch.setattr(client, "ATTEMPTS", 1)
    with pytest.raises(Trouble) as caught:
        Region("cn-shanghai").ask("sts", "GetCallerIdentity")
    assert caught.value.kind == "silent"


def test_the_stand_in_is_on_this_machine_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(client.ENDPOINT, "http://example.com:80")
    with pytest.raises(Trouble, match="is for tests"):
        Region("cn-shanghai").ask("sts", "GetCallerIdentity")


@pytest.mark.parametrize(
    ("region", "service", "host"),
    [
        ("cn-hangzhou", "ecs", "ecs-cn-hangzhou.aliyuncs.com"), ("cn-shanghai", "ecs", "ecs.cn-shanghai.aliyuncs.com"),
        ("us-east-1", "vpc", "vpc.us-east-1.aliyuncs.com"), ("eu-central-1", "nas", "nas.eu-central-1.aliyuncs.com"),
        ("cn-beijing", "quotas", "quotas.aliyuncs.com"),
    ],
)  # fmt: skip
def test_every_service_of_a_region_has_its_endpoint(region: str, service: str, host: str) -> None:
    assert Region(region)._client(service)._endpoint == host


def sources(monkeypatch: pytest.MonkeyPatch, home: Path, key: str = "") -> None:
    """The SDK's sources of credentials, which it reads when it is imported: a key, or nothing at all."""
    for name in (*client.TERRAFORM, "ALIBABA_CLOUD_ACCESS_KEY_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("alibabacloud_credentials.utils.auth_constant.HOME", str(home))
    monkeypatch.setattr(auth_util, "environment_access_key_id", key or None)
    monkeypatch.setattr(auth_util, "environment_access_key_secret", "secret" if key else None)
    monkeypatch.setattr(auth_util, "environment_ecs_metadata_disabled", "true")
    monkeypatch.setattr(auth_util, "environment_cli_profile_disabled", "true")


def test_terraform_gets_what_the_chain_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sources(monkeypatch, tmp_path, key="LTAI")
    assert client.environment() == {"ALICLOUD_ACCESS_KEY": "LTAI", "ALICLOUD_SECRET_KEY": "secret"}


def test_a_session_as_terraform_names_it_serves_the_sdk_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sources(monkeypatch, tmp_path)
    variables = dict(zip(client.TERRAFORM, ("STS.1", "secret", "token"), strict=True))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert client.environment() == variables


def test_without_credentials_it_says_how_to_sign_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sources(monkeypatch, tmp_path)
    with pytest.raises(GpuprovError, match="no credentials") as caught:
        client.environment()
    assert "aliyun configure" in str(caught.value.hint)


@pytest.mark.parametrize("query", ["a question", "gc"])
def test_who_is_not_signed_in_gets_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], query: str
) -> None:
    """Also on a machine of Alibaba Cloud's without a RAM role: its metadata service says 404 then."""
    sources(monkeypatch, tmp_path)
    monkeypatch.delenv(client.ENDPOINT, raising=False)
    monkeypatch.setattr(auth_util, "environment_ecs_metadata_disabled", "false")

    def without_a_role(*_: object) -> str:
        raise CredentialException("Failed to get RAM session credentials from ECS metadata service. HttpCode=404")

    monkeypatch.setattr(EcsRamRoleCredentialsProvider, "_get_role_name", without_a_role)
    if query == "gc":
        assert run(["gc", "--region", "cn-shanghai", "--provider", "alicloud"]) == 3
        error_text = capsys.readouterr().err
        assert "Traceback" not in error_text and "Refresh" not in error_text and "aliyun configure" in error_text
    else:
        with pytest.raises(Trouble) as caught:
            Region("cn-shanghai").ask("sts", "GetCallerIdentity")
        assert caught.value.kind == "credentials"
        error_text = str(caught.value)
    assert "no credentials: not in the environment" in error_text and "Exception" not in error_text


def test_without_the_sdk_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "alibabacloud_tea_openapi.client", None)
    with pytest.raises(GpuprovError) as caught:
        Region("cn-shanghai").ask("sts", "GetCallerIdentity")
    assert caught.value.hint == "in gpuprov's checkout: pip install '.[alicloud]'"
