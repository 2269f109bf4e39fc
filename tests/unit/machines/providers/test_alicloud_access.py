"""The host key of a machine as its console shows it."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import pytest

from provisioner.machines.providers.alicloud import access, client
from provisioner.machines.providers.alicloud.access import EcsAccess
from tests.support.alicloud_api import Account, Refusal, serving

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJuoz4Y3nV3+3mY2YlqHOZzNmU8bUvMpWIOu0aYJvBqV"
CONSOLE = f"booting\r\n-----BEGIN SSH HOST KEY KEYS-----\r\n{KEY} root@i-1\r\n-----END SSH HOST KEY KEYS-----\r\n"


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> Iterator[Account]:
    served_account = Account()
    with serving(served_account) as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(client, "PAUSE_S", 0.01)
        monkeypatch.setattr(access, "WAIT_S", 0.1)
        monkeypatch.setattr(access, "PAUSE_S", 0.01)
        yield served_account
    assert served_account.wrong == []


def shows(text: str) -> dict[str, str]:
    return {"InstanceId": "i-1", "ConsoleOutput": base64.b64encode(text.encode()).decode()}


def test_the_key_is_what_cloud_init_wrote(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "WAIT_S", 10)
    account.once["GetInstanceConsoleOutput"] = [shows("booting"), shows(CONSOLE)]
    assert EcsAccess("cn-shanghai").host_key("i-1") == KEY
    account.answers["GetInstanceConsoleOutput"] = shows(CONSOLE)
    assert EcsAccess("cn-shanghai").console("i-1") == CONSOLE


@pytest.mark.parametrize(
    "answer", [shows(""), {"ConsoleOutput": "no base64!"}, Refusal("Forbidden.RAM", "User not authorized.")]
)
def test_a_console_that_shows_none_or_may_not_be_read_has_no_key(account: Account, answer: object) -> None:
    account.answers["GetInstanceConsoleOutput"] = answer
    assert EcsAccess("cn-shanghai").host_key("i-1") is None
    assert EcsAccess("cn-shanghai").console("i-1") is None
