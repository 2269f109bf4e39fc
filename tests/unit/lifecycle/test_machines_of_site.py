"""Which kind of machines a site has, what they know of the last run, and what is refused before."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from provisioner.common.errors import ProviderError
from provisioner.common.paths import MADE_BY, STATE, private_dir
from provisioner.lifecycle import machines
from provisioner.lifecycle.session import Cluster
from provisioner.machines.hosts import HostMachines
from provisioner.machines.providers.cluster import MARK
from provisioner.rundir import fleet, node_state
from tests.unit.lifecycle.test_machines_rules import INFER, TRAIN, cluster, node, real

__all__ = ["cluster"]


class Recorder:
    """Stands in for a class of machines, and keeps what it was made with."""

    def __init__(self, *arguments: Any, **how: Any) -> None:
        self.arguments, self.how = arguments, how


@pytest.fixture
def by_terraform(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machines, "TerraformMachines", Recorder)


def of_site(cluster: Cluster, site: str = "virginia", **how: Any) -> Any:
    return machines.of_site(cluster, site, None, **how)  # type: ignore[arg-type]


def test_terraforms_machines_know_which_nodes_of_the_site_are_whole(cluster: Cluster, by_terraform: None) -> None:
    fleet.save(cluster.paths, [*TRAIN, INFER])
    node_state.note_stage(cluster.paths, machines.INCOMPLETE, ["train-1"], ok=False)
    recorder = of_site(cluster, run_dir=Path("/runs/1"))
    assert recorder.arguments[0] is cluster.providers.at("virginia")
    assert (recorder.how["known"], recorder.how["incomplete"]) == ({"train-0"}, {"train-1"})
    assert recorder.how["log"] == Path("/runs/1/terraform-virginia.log")
    assert of_site(cluster).how["log"] is None


def test_what_records_nothing_reads_the_identity_and_makes_none(cluster: Cluster, by_terraform: None) -> None:
    root = of_site(cluster, record=False).arguments[1]
    assert root.identity() == machines.NO_IDENTITY and cluster.recorded_identity() == ""
    assert root.identity() != cluster.identity == root.identity()


def test_the_root_module_has_the_key_and_identity_of_the_cluster(
    cluster: Cluster, by_terraform: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = of_site(cluster).arguments[1]
    assert root.key().startswith("ssh-ed25519 ") and root.identity() == cluster.identity
    assert root.backend is None
    monkeypatch.setattr(Cluster, "remote", SimpleNamespace(terraform=lambda site: ("s3", {"key": site})))
    assert of_site(cluster).arguments[1].backend() == ("s3", {"key": "virginia"})


def test_a_fleet_that_is_no_sandbox_takes_the_key_of_cluster_yaml(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    keys: list[object] = []
    monkeypatch.setattr(machines.ssh_keys, "ensure_key", lambda _, key: keys.append(key) or "ssh-ed25519 AAAA")
    machines._key(cluster)
    real_cluster = real(tmp_path, recorded="us-east-1")
    access = real_cluster.spec.access.model_copy(update={"ssh_key": Path("/key")})
    real_cluster.spec = real_cluster.spec.model_copy(update={"access": access})
    machines._key(real_cluster)
    assert keys == [None, Path("/key")]


@pytest.mark.parametrize("record", [True, False])
def test_who_makes_machines_is_written_down_before_any_is_made(
    cluster: Cluster, by_terraform: None, record: bool
) -> None:
    of_site(cluster, record=record)
    folder = cluster.paths.site("virginia")
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / MADE_BY).exists() == record


def test_what_is_removed_is_not_written_down(cluster: Cluster, by_terraform: None) -> None:
    provider = cluster.providers.at("virginia")
    assert of_site(cluster, made_by=provider).arguments[0] is provider
    assert not cluster.paths.site("virginia").exists()


def test_a_site_that_moved_is_refused_but_for_its_removal(tmp_path: Path, by_terraform: None) -> None:
    moved = real(tmp_path, recorded="us-west-2")
    fleet.save(moved.paths, TRAIN)
    with pytest.raises(ProviderError, match="its machines are in region us-west-2"):
        of_site(moved)
    assert of_site(moved, made_by=moved.providers.at("virginia"))
    away = real(tmp_path, recorded="us-west-2", answers="222")
    away.providers.moved = lambda _: {"account": ("111", "222")}  # type: ignore[method-assign]
    with pytest.raises(ProviderError, match="account 111"):
        of_site(away, made_by=away.providers.at("virginia"))


@pytest.mark.parametrize(("hosts", "file"), [(False, MARK), (True, STATE)])
def test_machines_that_were_created_another_way_are_refused(cluster: Cluster, hosts: bool, file: str) -> None:
    provider = SimpleNamespace(hosts=object() if hosts else None, management=None)
    cluster.providers.at = lambda _: provider  # type: ignore[method-assign,assignment,return-value]
    cluster.providers.record = lambda _: None  # type: ignore[method-assign]
    (private_dir(cluster.paths.site("virginia")) / file).touch()
    with pytest.raises(ProviderError, match="created with another `method`"):
        of_site(cluster)


@pytest.mark.parametrize("managed", [None, SimpleNamespace(installation=None), SimpleNamespace(installation=object())])
def test_machines_that_exist_are_installed_only_where_an_installation_is_asked_for(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, managed: Any
) -> None:
    from provisioner.machines import bmc as redfish

    monkeypatch.setattr(redfish, "RedfishMachines", Recorder)
    monkeypatch.setattr(machines, "HostMachines", Recorder)
    hosts = SimpleNamespace(listed=lambda _: [])
    provider = SimpleNamespace(hosts=hosts, management=managed, access=None, name="baremetal")
    cluster.providers.at = lambda _: provider  # type: ignore[method-assign,assignment,return-value]
    cluster.providers.record = lambda _: None  # type: ignore[method-assign]
    fleet.save(cluster.paths, [*TRAIN, INFER])
    recorder = of_site(cluster)
    assert recorder.arguments[:2] == ("virginia", hosts)
    installs = managed is not None and managed.installation is not None
    assert (recorder.arguments[4] if installs else recorder.arguments[2]) == TRAIN
    if installs:
        assert recorder.arguments[3] is managed.installation
        assert recorder.arguments[7] == float(cluster.spec.timeouts.machine_s)
        assert recorder.arguments[10]("train-0") is None
        provider.access = SimpleNamespace(proxy=lambda machine: f"proxy {machine}")
        assert of_site(cluster).arguments[10]("train-0") == "proxy train-0"
    assert HostMachines is not Recorder


def test_nodes_are_entered_as_the_user_that_they_have_or_their_site(cluster: Cluster) -> None:
    from dataclasses import replace

    node_with_user = replace(node("train-0"), user="admin")
    assert machines._users(cluster, [node_with_user, TRAIN[1]]) == {
        "train-0": "admin", "train-1": cluster.spec.user("virginia")
    }  # fmt: skip
