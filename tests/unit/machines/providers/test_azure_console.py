"""A machine's console and its host key there, by boot diagnostics."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from provisioner.machines.providers import console
from provisioner.machines.providers.azure.access import AzureAccess
from tests.support.azure_api import Api, error, machine, serving

NUMBER = "aaaaaaaa-0000-4000-8000-000000000000"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJuoz4Y3nV3+3mY2YlqHOZzNmU8bUvMpWIOu0aYJvBqV"
LOG = f"boot\r\n-----BEGIN SSH HOST KEY KEYS-----\r\n{KEY} root@train-0\r\n-----END SSH HOST KEY KEYS-----\r\n"


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    with serving(monkeypatch) as served:
        monkeypatch.setattr(console, "WAIT_S", 0.0)
        monkeypatch.setattr(console, "PAUSE_S", 0.01)
        served.resources = [machine("gpuprov-test", "train-0", NUMBER, {})]
        yield served


def test_the_key_of_the_console_is_the_machines(api: Api) -> None:
    api.plain["/console/train-0"] = LOG
    access = AzureAccess(api.subscription())
    assert (access.host_key(NUMBER), access.proxy(NUMBER)) == (KEY, None)
    assert access.console(NUMBER) == LOG
    assert sum("locations" in path for _, path in api.calls) == 1, "machines are listed once"


def test_a_console_that_has_nothing_or_may_not_be_read_is_none(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    access = AzureAccess(api.subscription())
    assert access.console("bbbbbbbb-0000-4000-8000-000000000000") is None
    api.plain["/console/train-0"] = ""
    assert console.awaited(lambda: "", wait_s=0.0) is None
    assert access.console(NUMBER) is None
    del api.plain["/console/train-0"]
    assert access.console(NUMBER) is None, "no such log"
    api.rules = [("POST", "retrieveBoot", error("AuthorizationFailed", "no", 403))]
    assert access.host_key(NUMBER) is None
    assert "SECRET" not in "".join(capsys.readouterr())
