"""The host key in a machine's console."""

from __future__ import annotations

import base64

import pytest

from provisioner.machines.providers.aws import console_host_key as console
from tests.support.aws_answers import SLOW, Answers, ec2_error
from tests.unit.machines.providers.test_aws_preflight import aws  # noqa: F401 (fixture)

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJuoz4Y3nV3+3mY2YlqHOZzNmU8bUvMpWIOu0aYJvBqV"
FIRST = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"


def block(key: str) -> str:
    return (
        "[   31.2] cloud-init[1201]: Cloud-init v. 24.4 running\r\n-----BEGIN SSH HOST KEY KEYS-----\r\n"
        "ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBO root@ip-10-77-0-4\r\n"
        f"{key} root@ip-10-77-0-4\r\n-----END SSH HOST KEY KEYS-----\r\n"
    )


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (block(KEY), KEY),
        (block(FIRST) + "reboot\n" + block(KEY), KEY),
        ("", None),
        ("-----BEGIN SSH HOST KEY KEYS-----\nssh-rsa AAAA x\n-----END SSH HOST KEY KEYS-----", None),
        (f"login: {KEY}", None),
        ("-----BEGIN SSH HOST KEY KEYS-----\n" + KEY, None),
    ],
)
def test_only_what_stands_in_cloud_inits_block_counts(text: str, key: str | None) -> None:
    assert console.read(text) == key


def output(text: str) -> tuple[int, bytes]:
    encoded_text = base64.b64encode(text.encode()).decode()
    return 200, (
        '<GetConsoleOutputResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"><requestId>x</requestId>'
        f"<instanceId>i-1</instanceId><output>{encoded_text}</output></GetConsoleOutputResponse>"
    ).encode()


def test_it_is_asked_for_until_it_is_there(aws: Answers, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    aws.rules["ec2.GetConsoleOutput"] = output("booting")
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        aws.rules["ec2.GetConsoleOutput"] = output(block(KEY))

    monkeypatch.setattr(console.time, "sleep", pause)
    assert console.host_key(aws.region(), "i-1") == KEY
    assert pauses == [console.PAUSE_S]


@pytest.mark.parametrize("rule", [(403, ec2_error("UnauthorizedOperation", "no")), SLOW, output("nothing")])
def test_a_console_that_says_nothing_vouches_for_nothing(aws: Answers, rule: object) -> None:  # noqa: F811
    aws.rules["ec2.GetConsoleOutput"] = rule  # type: ignore[assignment]
    assert console.host_key(aws.region(), "i-1", wait_s=0) is None


def test_an_older_machines_console_is_taken_as_it_is(aws: Answers) -> None:  # noqa: F811
    aws.rules["ec2.GetConsoleOutput"] = (400, ec2_error("UnsupportedOperation", "latest is for Nitro instances only"))
    assert console.host_key(aws.region(), "i-1", wait_s=0) is None
    assert [call for call in aws.asked if "Console" in call] == ["ec2.GetConsoleOutput"] * 2
