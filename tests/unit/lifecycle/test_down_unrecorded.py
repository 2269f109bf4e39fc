"""`down` after an older backup: machines at sites of which the run directory has neither a root module nor a state."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from provisioner.common.errors import Interrupted, ProviderError
from provisioner.common.paths import private_dir
from provisioner.lifecycle import down
from provisioner.lifecycle.session import Cluster, open_cluster
from provisioner.machines.providers.aws.provider import Aws
from provisioner.machines.providers.orphans import Found, Thing

FILE = """
name: vision
sites: {here: {provider: aws, region: us-east-1}, there: {provider: aws, region: us-west-2}}
groups: {train: {machine: p4d.24xlarge, count: 2, site: here}, eval: {machine: p4d.24xlarge, count: 1, site: there}}
"""
IDENTITY = "3f9c1a7be204"


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    (tmp_path / "cluster.yaml").write_text(FILE)
    opened = open_cluster(tmp_path / "cluster.yaml", sandbox=False)
    private_dir(opened.paths.root)
    (opened.paths.root / "id").write_text(IDENTITY + "\n")
    private_dir(opened.paths.site("here"))
    (opened.paths.site("here") / "main.tf").write_text("")
    return opened


def finding(monkeypatch: pytest.MonkeyPatch, *resources: Thing, error: Exception | None = None) -> list[str]:
    """Every region has these resources; gives the regions that are asked."""
    regions: list[str] = []

    def find(region: str) -> Found:
        regions.append(region)
        if error is not None:
            raise error
        return Found(resources)

    orphans = classmethod(lambda _, region: SimpleNamespace(find=lambda: find(region)))
    monkeypatch.setattr(Aws, "orphans", orphans)
    return regions


def machine(site: str, identity: str = IDENTITY) -> Thing:
    return Thing("instance", "i-1", "vision", site, "us-west-2", identity=identity)


def test_machines_of_the_cluster_at_a_site_without_a_record_refuse_it(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    regions = finding(monkeypatch, machine("there"))
    with pytest.raises(ProviderError, match="machines of this cluster exist in us-west-2") as caught:
        down.refuse_unrecorded(cluster, {"here"})
    assert (caught.value.where, regions) == ("site there", ["us-west-2"])
    assert "gpuprov up" in caught.value.hint


def test_a_record_without_root_module_and_state_counts_as_none(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    finding(monkeypatch, machine("there"))
    private_dir(cluster.paths.site("there"))
    with pytest.raises(ProviderError, match="exist in us-west-2"):
        down.refuse_unrecorded(cluster, {"here", "there"})
    (cluster.paths.site("there") / "terraform.tfstate").write_text("{}")
    down.refuse_unrecorded(cluster, {"here", "there"})


@pytest.mark.parametrize("other", [machine("here"), machine("there", "0" * 12)])
def test_machines_of_other_sites_and_clusters_do_not(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, other: Thing
) -> None:
    finding(monkeypatch, other)
    down.refuse_unrecorded(cluster, {"here"})


def test_a_cluster_without_identity_is_not_looked_for(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    (cluster.paths.root / "id").unlink()
    assert finding(monkeypatch, machine("there", "")) == []
    down.refuse_unrecorded(cluster, {"here"})


def test_a_region_that_does_not_answer_is_a_warning(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    messages: list[str] = []
    cluster.events.subscribe(lambda event: messages.append(event.message))
    finding(monkeypatch, error=ProviderError("no credentials"))
    down.refuse_unrecorded(cluster, {"here"})
    assert messages == ["site there: whether machines exist in us-west-2 could not be asked: no credentials"]
    finding(monkeypatch, error=Interrupted("stop"))
    with pytest.raises(Interrupted):
        down.refuse_unrecorded(cluster, {"here"})
