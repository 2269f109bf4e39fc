"""Who is signed in at a file's clouds is asked first: before images are resolved, and by `doctor FILE`."""

from __future__ import annotations

from pathlib import Path

import pytest

from provisioner.cli.main import run
from provisioner.common import extras
from provisioner.common.events import Events
from provisioner.lifecycle.session import open_cluster
from provisioner.machines.providers.azure import provider as azure
from provisioner.stack import pinning

FILE = """\
name: t
sites: { e: { provider: azure, region: eastus } }
groups: { g: { machine: Standard_NC24ads_A100_v4 } }
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine at Azure, with nobody signed in."""
    for name in ("AZURE_CONFIG_DIR", "HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    for name in ("ARM_SUBSCRIPTION_ID", "ARM_CLIENT_ID", "AZURE_CLIENT_ID", "AZURE_SUBSCRIPTION_ID"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "cluster.yaml"
    path.write_text(FILE)
    return path


def no_images(*_: object) -> dict[str, object]:
    raise AssertionError("images were asked for")


@pytest.mark.parametrize("command", ["plan", "up"])
def test_nothing_is_resolved_for_somebody_who_is_not_signed_in(
    command: str, file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pinning, "read_images", no_images)
    assert run([command, str(file), *(["--yes"] if command == "up" else [])]) == 3
    error_text = capsys.readouterr().err
    assert "site e: no subscription is known: not signed in" in error_text and "az login" in error_text


def test_a_lock_says_first_that_it_gets_no_image(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from provisioner.lifecycle import locking

    messages: list[str] = []
    monkeypatch.setattr(pinning, "read_images", lambda *_: messages.append("images") or {})
    events = Events()
    events.subscribe(lambda event: messages.append(event.message))
    monkeypatch.setattr(pinning, "pin", no_images)
    with pytest.raises(AssertionError, match="images were asked for"):
        locking.renew(open_cluster(file, sandbox=False, events=events), events)
    first = next(n for n, line in enumerate(messages) if "the lock gets no image of its machines" in line)
    assert first < messages.index("images")


def test_doctor_names_the_sites_account_and_a_missing_sdk(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["doctor", str(file)]) == 2
    output = capsys.readouterr().out
    assert "MISSING  site e" in output and "needed for machines of azure: `az login`" in output

    def missing(*_: object) -> None:
        from provisioner.common.errors import GpuprovError

        raise GpuprovError("provider azure needs Azure's SDK, which is not installed", hint=extras.install("azure"))

    monkeypatch.setattr(azure, "caller_identity", missing)
    run(["doctor", str(file)])
    assert "in gpuprov's checkout: pip install '.[azure]'" in capsys.readouterr().out
