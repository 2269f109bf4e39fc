"""`down`: what it removes, what it looks for, and that nothing is forgotten while something is left."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from provisioner import fleet
from provisioner.errors import Diagnostic, ProviderError
from provisioner.fleet import Node
from provisioner.lifecycle import down
from provisioner.machines import terraform
from provisioner.paths import private_dir
from provisioner.providers.cluster import MADE_BY
from provisioner.providers.sandbox.provider import Sandbox
from provisioner.session import Cluster, open_cluster

FILE = """
name: vision
sites: {here: {provider: aws, region: us-east-1}}
groups: {train: {machine: p4d.24xlarge, count: 2}}
"""
NODE = Node("train-0", "train", "here", "p4d.24xlarge", "i-0", "", "203.0.113.7", "10.0.0.7")


class World:
    """Terraform's workspace and what the provider finds by tag. `calls`: in which order they were asked."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.damaged = ""
        self.left: list[str] = []
        self.refused: list[str] = []
        """What Terraform says of what it may not remove, one text for each `destroy`."""

    def workspace(self, *_: Any, **__: Any) -> World:
        return self

    def damage(self, **_: Any) -> str:
        return self.damaged

    def init(self) -> None:
        self.calls.append("init")

    def destroy(self) -> Any:
        self.calls.append("destroy")
        if self.refused:
            said = self.refused.pop(0)
            raise ProviderError(f"terraform destroy failed: {said}", diagnostics=[Diagnostic(said)])
        return SimpleNamespace(destroy=5)

    def save_errored(self, *, repair: bool) -> None:
        assert repair

    def clean(self, *_: Any) -> list[str]:
        self.calls.append("clean")
        return self.left


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    monkeypatch.setattr(terraform, "Workspace", made.workspace)
    monkeypatch.setattr(Sandbox, "clean", lambda _, *arguments: made.clean(*arguments))
    return made


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    """What an `up` has left."""
    (tmp_path / "cluster.yaml").write_text(FILE)
    made = open_cluster(tmp_path / "cluster.yaml", sandbox=True)
    site = private_dir(made.paths.site("here"))
    (site / MADE_BY).write_text("sandbox\n")
    for name in ("main.tf", "terraform.tfstate"):
        (site / name).write_text("{}")
    fleet.save(made.paths, [NODE])
    return made


def take_down(cluster: Cluster) -> down.Removal:
    return down.down(cluster, None)  # type: ignore[arg-type]


def test_machines_are_destroyed_looked_for_again_and_forgotten(cluster: Cluster, world: World) -> None:
    assert take_down(cluster) == down.Removal(removed=5)
    assert world.calls == ["init", "destroy", "clean"]
    assert not cluster.paths.root.exists()


def test_a_site_that_fails_does_not_keep_the_others(
    cluster: Cluster, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their machines would go on costing."""
    other = private_dir(cluster.paths.site("there"))
    (other / MADE_BY).write_text("sandbox\n")
    real, asked = down.machines.of_site, []

    def of_site(cluster: Cluster, site: str, *words: Any, **how: Any) -> Any:
        asked.append(site)
        if site == "here":
            raise ProviderError("the credentials have expired", hint="sign in")
        return real(cluster, site, *words, **how)

    monkeypatch.setattr(down.machines, "of_site", of_site)
    with pytest.raises(ProviderError, match="the credentials have expired"):
        take_down(cluster)
    assert asked == ["here", "there"] and "clean" in world.calls
    assert cluster.nodes() == [NODE], "nothing is forgotten"


def test_while_something_is_left_nothing_is_forgotten(cluster: Cluster, world: World) -> None:
    world.left = ["instance i-7 is still there"]
    with pytest.raises(ProviderError, match="instance i-7 is still there"):
        take_down(cluster)
    assert cluster.nodes() == [NODE]
    assert (cluster.paths.site("here") / MADE_BY).exists()
    world.left = []
    take_down(cluster)
    assert not cluster.paths.root.exists()


def test_a_refused_destroy_sweeps_on_and_names_what_is_left(cluster: Cluster, world: World) -> None:
    world.refused = ["VPC vpc-1: DependencyViolation"]
    world.left = ["VPC vpc-1: has dependencies", "network interface eni-1 of team-b is in subnet-1"]
    with pytest.raises(ProviderError, match="network interface eni-1 of team-b") as caught:
        take_down(cluster)
    assert "VPC vpc-1: has dependencies" in caught.value.message
    assert world.calls == ["init", "destroy", "clean"]
    assert cluster.nodes() == [NODE]


def test_what_the_sweep_removed_is_gone_for_terraform_too(cluster: Cluster, world: World) -> None:
    world.refused = ["VPC vpc-1: DependencyViolation"]
    assert take_down(cluster) == down.Removal(removed=5)
    assert world.calls == ["init", "destroy", "clean", "init", "destroy"]
    assert not cluster.paths.root.exists()


def test_what_no_tag_finds_and_terraform_refuses_is_left(cluster: Cluster, world: World) -> None:
    world.refused = ["role: DeleteConflict"] * 2
    with pytest.raises(ProviderError, match="role: DeleteConflict"):
        take_down(cluster)
    assert cluster.nodes() == [NODE]


def test_a_run_that_died_before_terraform_is_looked_for_by_tag_alone(cluster: Cluster, world: World) -> None:
    (cluster.paths.site("here") / "terraform.tfstate").unlink()
    assert take_down(cluster) == down.Removal()
    assert world.calls == ["clean"]


def test_a_damaged_state_of_a_rehearsal_is_passed_over(cluster: Cluster, world: World) -> None:
    world.damaged = "terraform.tfstate is damaged"
    take_down(cluster)
    assert world.calls == ["clean"]


def test_a_damaged_state_of_a_real_fleet_is_refused(
    cluster: Cluster, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it names would be forgotten."""
    world.damaged = "terraform.tfstate is damaged"
    monkeypatch.setattr(Sandbox, "simulated", False)
    with pytest.raises(ProviderError, match=r"terraform\.tfstate is damaged"):
        take_down(cluster)
    assert (world.calls, cluster.nodes()) == ([], [NODE])


def test_a_site_that_cluster_yaml_names_no_more_is_removed_too(cluster: Cluster, world: World) -> None:
    private_dir(cluster.paths.site("there"))
    (cluster.paths.site("there") / MADE_BY).write_text("sandbox\n")
    take_down(cluster)
    assert world.calls == ["init", "destroy", "clean", "clean"]
