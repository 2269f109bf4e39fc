"""A site whose place is edited in cluster.yaml, or whose account is another one, while its machines run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from provisioner.common.errors import GpuprovError, ProviderError
from provisioner.common.paths import MADE_BY, STATE, private_dir
from provisioner.common.preflight import Finding
from provisioner.lifecycle import machines
from provisioner.lifecycle.session import Cluster, open_cluster
from provisioner.machines.providers.base import Provider
from provisioner.machines.providers.cluster import ACCOUNT, MARK, SETTINGS
from provisioner.machines.terraform.binary import Binary
from provisioner.rundir.fleet import Node, save

GROUPS = "groups: {train: {machine: p4d.24xlarge, count: 1}}\n"
AWS = "name: moved\nsites: {here: {provider: aws, region: us-east-2}}\n" + GROUPS
OTHER_REGION = AWS.replace("us-east-2", "eu-west-1")
AZURE = """
name: moved
sites: {here: {provider: azure, region: eastus, subscription: 00000000-0000-0000-0000-000000000001}}
groups: {train: {machine: Standard_ND96asr_v4, count: 1}}
"""
OTHER_SUBSCRIPTION = AZURE.replace("0001}", "0002}")
OWN = """
name: moved
sites: {here: {provider: baremetal, hosts: {d0.lab: {}}}}
groups: {train: {machine: dgx-h100, count: 1}}
"""
MAAS = OWN.replace("hosts: {d0.lab: {}}", "method: maas, maas: {url: 'https://maas.lab:5443/MAAS'}")
BINARY = Binary(("false",), "")
INSTANCE = {"version": 4, "resources": [{"mode": "managed", "type": "aws_instance"}]}


def opened(folder: Path, text: str) -> Cluster:
    (folder / "cluster.yaml").write_text(text)
    return open_cluster(folder / "cluster.yaml", sandbox=False)


def recorded(folder: Path, text: str) -> Cluster:
    """A cluster of which Terraform has made a machine."""
    cluster = opened(folder, text)
    machines.of_site(cluster, "here", BINARY)
    (cluster.paths.site("here") / STATE).write_text(json.dumps(INSTANCE))
    return cluster


@pytest.fixture(autouse=True)
def account(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The account whose credentials there are."""
    signed_in = {"number": "111122223333"}
    finding = lambda _: Finding("ok", "credentials", "signed in", account=signed_in["number"])  # noqa: E731
    monkeypatch.setattr(Provider, "account", finding)
    return signed_in


@pytest.mark.parametrize(
    ("previous", "after", "key"),
    [
        (AWS, OTHER_REGION, "region: us-east-2"),
        (AWS, AZURE, "provider: aws"),
        (AWS, OWN, "provider: aws"),
        (AZURE, OTHER_SUBSCRIPTION, "subscription: 00000000-0000-0000-0000-000000000001"),
    ],
)
def test_a_site_with_machines_is_not_moved(tmp_path: Path, previous: str, after: str, key: str) -> None:
    """The machines would run on, and `down` would look for them where they never were."""
    cluster = recorded(tmp_path, previous)
    recorded_texts = {name: (cluster.paths.site("here") / name).read_text() for name in (MADE_BY, SETTINGS)}
    edited = opened(tmp_path, after)
    with pytest.raises(ProviderError, match="its machines are in") as caught:
        machines.of_site(edited, "here", BINARY)
    assert f"put `{key}` back" in caught.value.hint
    assert {name: (edited.paths.site("here") / name).read_text() for name in recorded_texts} == recorded_texts
    restored = opened(tmp_path, previous)
    (provider,) = restored.providers.made().values()
    assert machines.of_site(restored, "here", BINARY, made_by=provider).site == "here", "as the hint says"


def test_down_looks_where_the_machines_were_created_whatever_the_file_says_now(tmp_path: Path) -> None:
    recorded(tmp_path, AWS)
    edited = opened(tmp_path, OTHER_REGION)
    (provider,) = edited.providers.made().values()
    assert provider.place.settings.region == "us-east-2"  # type: ignore[attr-defined]
    machines.of_site(edited, "here", BINARY, made_by=provider)


def test_a_site_of_which_nothing_was_created_may_move(tmp_path: Path) -> None:
    machines.of_site(opened(tmp_path, AWS), "here", BINARY)
    moved = opened(tmp_path, OTHER_REGION)
    machines.of_site(moved, "here", BINARY)
    assert "eu-west-1" in (moved.paths.site("here") / SETTINGS).read_text()


@pytest.mark.parametrize("text", ['{"version": 4, "ser', "[]"])
def test_a_state_that_cannot_be_read_may_have_machines(tmp_path: Path, text: str) -> None:
    (recorded(tmp_path, AWS).paths.site("here") / STATE).write_text(text)
    with pytest.raises(ProviderError, match="its machines are in"):
        machines.of_site(opened(tmp_path, OTHER_REGION), "here", BINARY)


def test_nodes_that_are_recorded_are_machines_without_any_state(tmp_path: Path) -> None:
    cluster = recorded(tmp_path, AWS)
    (cluster.paths.site("here") / STATE).unlink()
    save(cluster.paths, [Node("train-0", "train", "here", "p4d.24xlarge", "i-1", "", "203.0.113.7", "10.0.0.7")])
    with pytest.raises(ProviderError, match="its machines are in"):
        machines.of_site(opened(tmp_path, OTHER_REGION), "here", BINARY)


@pytest.mark.parametrize("removing", [False, True])
def test_another_account_is_refused_and_the_way_back_is_named(
    tmp_path: Path, account: dict[str, str], *, removing: bool
) -> None:
    """Also by `down`: in the other account nothing is there, and the machines would be forgotten."""
    recorded(tmp_path, AWS)
    account["number"] = "444455556666"
    cluster = opened(tmp_path, AWS)
    made_by = cluster.providers.made()["here"] if removing else None
    with pytest.raises(ProviderError, match="account 111122223333; the credentials are of account 4444") as caught:
        machines.of_site(cluster, "here", BINARY, made_by=made_by)
    assert "sign in to account 111122223333" in caught.value.hint
    assert (cluster.paths.site("here") / ACCOUNT).read_text() == "111122223333\n"


@pytest.mark.parametrize("content", [None, "1111"])
def test_an_account_that_is_not_known_any_more_is_asked_for(tmp_path: Path, content: str | None) -> None:
    """Without it machines would be made in whatever account is signed in."""
    file = recorded(tmp_path, AWS).paths.site("here") / ACCOUNT
    file.unlink() if content is None else file.write_text(content)
    with pytest.raises(GpuprovError, match=r"is missing|is damaged: '1111'") as caught:
        machines.of_site(opened(tmp_path, AWS), "here", BINARY)
    assert f"write the number of the account with the machines of site here into {file}" in caught.value.hint
    file.write_text("111122223333\n")
    machines.of_site(opened(tmp_path, AWS), "here", BINARY)


def test_an_account_that_nobody_could_tell_is_not_compared(tmp_path: Path, account: dict[str, str]) -> None:
    account["number"] = ""
    cluster = recorded(tmp_path, AWS)
    assert (cluster.paths.site("here") / ACCOUNT).read_text() == "unknown\n"
    account["number"] = "111122223333"
    machines.of_site(opened(tmp_path, AWS), "here", BINARY)
    assert (cluster.paths.site("here") / ACCOUNT).read_text() == "111122223333\n"


def test_an_edited_method_is_named_as_cluster_yaml_has_it(tmp_path: Path) -> None:
    own_machines = opened(tmp_path, OWN)
    (private_dir(own_machines.paths.site("here")) / MARK).touch()
    own_machines.providers.record("here")
    edited = opened(tmp_path, MAAS)
    assert edited.providers.moved("here")["method"] == ("ssh", "maas")


def test_a_plan_records_no_place(tmp_path: Path) -> None:
    cluster = opened(tmp_path, AWS)
    machines.of_site(cluster, "here", BINARY, record=False)
    assert not any((cluster.paths.site("here") / name).exists() for name in (MADE_BY, SETTINGS, ACCOUNT))


def test_machines_that_were_created_are_not_taken_for_machines_that_exist(tmp_path: Path) -> None:
    cluster = opened(tmp_path, OWN)
    (private_dir(cluster.paths.site("here")) / STATE).write_text(json.dumps(INSTANCE))
    with pytest.raises(ProviderError, match="created with another `method`"):
        machines.of_site(cluster, "here", BINARY)
    assert not (cluster.paths.site("here") / MADE_BY).exists()
    (cluster.paths.site("here") / STATE).unlink()
    (cluster.paths.site("here") / MARK).touch()
    machines.of_site(cluster, "here", BINARY)
