"""AWS's own configuration of a machine, wrong in every way that people get it wrong: told, with its file."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import pytest

from provisioner.cli.main import run
from provisioner.machines.providers.aws.client import Region
from provisioner.machines.providers.aws.findings import credentials
from provisioner.machines.providers.trouble import Trouble

ROLE = "role_arn = arn:aws:iam::123456789012:role/x\nregion = us-east-1\n"
BASE = "[profile base]\naws_access_key_id = a\naws_secret_access_key = b\n"
SSO = "[sso-session s]\nsso_region = us east\nsso_start_url = https://example.awsapps.com/start\n"
WRONG = {
    "not ini": ("garbage\n[default\n", "settings", "Unable to parse config file: FILE"),
    "no such source": (f"[default]\n{ROLE}source_profile = nobody\n", "settings", '"nobody".* does not exist, in FILE'),
    "no region's name": (
        f"[default]\nsso_session = s\nsso_account_id = 123456789012\nsso_role_name = x\n{SSO}",
        "settings",
        "'us east' doesn't match a supported format, in FILE",
    ),
    "asks a person": (
        f"[default]\n{ROLE}source_profile = base\nmfa_serial = arn:aws:iam::123456789012:mfa/me\n{BASE}",
        "credentials",
        "asks for an MFA code",
    ),
    "no such endpoint": (
        "[default]\nregion = us-east-1\naws_access_key_id = a\naws_secret_access_key = b\nendpoint_url = notaurl\n",
        "settings",
        "Invalid endpoint: notaurl, in FILE",
    ),
}


@pytest.fixture(params=WRONG)
def wrong(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clean_aws: None
) -> tuple[str, str]:
    text, kind, message = WRONG[request.param]
    file = tmp_path / "config"
    file.write_text(text)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(file))
    return kind, message.replace("FILE", str(file))


@pytest.fixture
def clean_aws(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    monkeypatch.setattr("sys.stdin", io.StringIO())  # where a person would be asked


def test_what_is_wrong_is_told_with_its_file(wrong: tuple[str, str]) -> None:
    kind, message = wrong
    with pytest.raises(Trouble, match=message) as caught:
        Region("us-east-1").ask("sts", "get_caller_identity")
    assert caught.value.kind == kind
    finding = credentials(caught.value)
    assert finding.status == "blocks"
    assert "network" not in finding.action
    assert "AWS was not reached" not in finding.message


def test_gc_tells_it_in_its_document(wrong: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["gc", "--provider", "aws", "--region", "us-east-1", "--json"]) == 3
    out, err = capsys.readouterr()
    (unknown,) = json.loads(out)["unknown"]
    assert unknown in err
    assert "internal error" not in err


def test_an_endpoint_of_the_environment_is_named(clean_aws: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "notaurl")
    with pytest.raises(Trouble, match="AWS_ENDPOINT_URL=notaurl") as caught:
        Region("us-east-1").ask("sts", "get_caller_identity")
    assert caught.value.kind == "settings"
