"""State in Azure: conditional writes, who lost, Terraform's leases, and a container that is open or gone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from azure.core.credentials import AzureNamedKeyCredential
from pydantic import ValidationError

from provisioner.common.errors import ProviderError
from provisioner.common.events import Events
from provisioner.lifecycle.sharing import lease
from provisioner.machines.providers.azure.client import CLOUDS
from provisioner.machines.providers.azure.container import LIMIT, Container
from provisioner.machines.providers.azure.remote_state import remote
from provisioner.machines.providers.azure.state import AzurermState
from provisioner.machines.providers.state import Conflict
from provisioner.spec.models import ClusterSpec
from tests.support.azure_blob import Account, serving


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> Iterator[Account]:
    with serving(monkeypatch) as served:
        served.containers["gpuprov"] = ""
        yield served


def container(*, create: bool = False) -> Any:
    """With an account key, which needs no TLS."""
    state = AzurermState(backend="azurerm", account="acmegpuprov", create=create)
    return Container(CLOUDS["public"], state, "vision", test_credential=AzureNamedKeyCredential("acmegpuprov", "a2V5"))


def test_of_two_writers_one_is_told_that_it_lost(account: Account) -> None:
    state_container = container()
    assert state_container.read("fleet.json.gz") is None
    tag = state_container.write("fleet.json.gz", b"one", None)
    with pytest.raises(Conflict):
        state_container.write("fleet.json.gz", b"two", None)
    newer = state_container.write("fleet.json.gz", b"two", tag)
    with pytest.raises(Conflict):
        state_container.write("fleet.json.gz", b"three", tag)
    blob = state_container.read("fleet.json.gz")
    assert blob is not None and (blob.content, blob.tag) == (b"two", newer) and blob.age_s < 60
    same = state_container.read("fleet.json.gz", newer)
    assert same is not None and (same.content, same.tag) == (b"", newer)
    newer_blob = state_container.read("fleet.json.gz", tag)
    assert newer_blob is not None and newer_blob.content == b"two"
    assert list(account.blobs) == ["gpuprov/gpuprov/vision/fleet.json.gz"]
    state_container.remove("fleet.json.gz")
    state_container.remove("fleet.json.gz")
    assert state_container.names() == []


def test_an_emptied_blob_is_written_over_and_grows_old(account: Account) -> None:
    state_container = container()
    account.dates["gpuprov/gpuprov/vision/holder.json"] = formatdate(time.time() - 3600, usegmt=True)
    written = state_container.write("holder.json", b"", None)
    blob = state_container.read("holder.json")
    assert blob is not None and (blob.content, blob.tag) == (b"", written)
    assert 3500 < blob.age_s < 3700
    assert state_container.write("holder.json", b"new", blob.tag)
    emptied = state_container.write("holder.json", b"", state_container.read("holder.json").tag)
    emptied_blob = state_container.read("holder.json", written)
    assert emptied_blob is not None and emptied_blob.tag == emptied


def test_a_lease_that_a_dead_terraform_left_is_broken(account: Account, tmp_path: Path) -> None:
    state_container, state = container(), "gpuprov/gpuprov/vision/sites/here/terraform.tfstate"
    state_container.write("sites/here/terraform.tfstate", b"{}", None)
    account.leased.add(state)
    assert state_container.names() == ["sites/here/terraform.tfstate", "sites/here/terraform.tfstate.tflock"]
    assert lease.clear(state_container, tmp_path) == ["sites/here/terraform.tfstate.tflock"]
    assert account.leased == set() and state in account.blobs
    state_container.remove("sites/here/terraform.tfstate.tflock")


def test_one_at_a_time_is_at_work(account: Account, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with lease.Lease(container(), tmp_path / "a", "up", Events()):
        current = lease.current(container())
        assert (
            current is not None and current.holder is not None and current.holder.command == "up" and not current.dead
        )
    assert lease.current(container()) is None


def test_a_lease_that_another_run_took_meanwhile_stays(account: Account, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    state_container = container()
    with lease.Lease(state_container, tmp_path / "a", "up", Events()):
        holder_blob = state_container.read(lease.HOLDER)
        assert holder_blob is not None
        state_container.write(lease.HOLDER, holder_blob.content.replace(b'"up"', b'"down"'), holder_blob.tag)
    current = lease.current(state_container)
    assert current is not None and current.holder is not None and current.holder.command == "down"
    with pytest.raises(Conflict):
        state_container.remove(lease.HOLDER, holder_blob.tag)
    state_container.remove(lease.HOLDER, current.tag)
    assert lease.current(state_container) is None


def test_more_blobs_than_a_cluster_has_are_refused(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("provisioner.machines.providers.azure.container.MOST_BLOBS", 2)
    state_container = container()
    for name in ("a", "b", "c"):
        state_container.write(name, b"x", None)
    with pytest.raises(ProviderError, match="more than 2 blobs"):
        state_container.names()


def test_terraform_is_told_without_a_secret(account: Account) -> None:
    assert container().terraform("here") == (
        "azurerm",
        {
            "storage_account_name": "acmegpuprov", "container_name": "gpuprov", "use_azuread_auth": True,
            "key": "gpuprov/vision/sites/here/terraform.tfstate", "environment": "public",
        },
    )  # fmt: skip


def test_what_is_wrong_with_a_container_is_said(account: Account) -> None:
    assert [finding.status for finding in container().prepare()] == ["ok"]
    account.containers["gpuprov"] = "blob"
    account.retention = False
    assert [finding.message for finding in container().prepare()] == [
        "acmegpuprov keeps deleted blobs for no day: a lost state cannot be restored",
        "everybody may read gpuprov: a state has secrets",
    ]
    assert [finding.status for finding in container().prepare()] == ["warning", "blocks"]
    account.refuse["GET $"] = (403, "AuthorizationPermissionMismatch")
    account.containers["gpuprov"] = ""
    assert [finding.status for finding in container().prepare()] == ["unknown"]


def test_a_container_that_is_not_there(account: Account) -> None:
    account.containers.clear()
    with pytest.raises(ProviderError, match="there is no container gpuprov in acmegpuprov"):
        container().prepare()
    state_container = container(create=True)
    assert state_container.read("holder.json") is None and state_container.names() == []
    assert "will make" in state_container.prepare(make=False)[0].message and not state_container.there
    assert "made the container" in container(create=True).prepare()[0].message
    assert account.containers == {"gpuprov": ""}


def test_who_may_not_is_told_the_role(account: Account) -> None:
    account.refuse["gpuprov"] = (403, "AuthorizationPermissionMismatch")
    for call in (container().prepare, container().names, lambda: container().read("x")):
        with pytest.raises(ProviderError) as caught:
            call()
        assert "Storage Blob Data Contributor" in (caught.value.hint or "")


def test_an_endless_blob_is_not_read(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("provisioner.machines.providers.state_folder.LIMIT", 3)
    monkeypatch.setattr("provisioner.machines.providers.azure.container.LIMIT", 3)
    assert LIMIT == 64 << 20
    container().write("x", b"12345", None)
    with pytest.raises(ProviderError, match="longer than"):
        container().read("x")


def test_the_account_is_of_the_sites_azure() -> None:
    def spec(*environments: str) -> ClusterSpec:
        sites = {
            f"s{n}": {"provider": "azure", "region": "x", "environment": environment}
            for n, environment in enumerate(environments)
        }
        groups = {f"g{n}": {"machine": "Standard_NC24ads_A100_v4", "site": f"s{n}"} for n in range(len(environments))}
        state = {"backend": "azurerm", "account": "acmegpuprov"}
        return ClusterSpec.model_validate({"name": "vision", "sites": sites, "groups": groups, "state": state})

    assert remote(spec("china")).where == "https://acmegpuprov.blob.core.chinacloudapi.cn/gpuprov/gpuprov/vision"
    both = spec("china", "public")
    assert [finding.message for finding in both.state.findings(both.sites)] == [
        "the sites are in several Azures (china, public): which one the account is of is not known"
    ]


@pytest.mark.parametrize("prefix", ["..", "a/../b", "../a", ".", "a/./b"])
def test_a_folder_that_leads_elsewhere_is_refused(prefix: str) -> None:
    with pytest.raises(ValidationError, match="prefix"):
        AzurermState.model_validate({"backend": "azurerm", "account": "acme", "prefix": prefix})
