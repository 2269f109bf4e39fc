"""Whose machines lie in a run directory: `down` goes by it, so nothing there may be passed over."""

from __future__ import annotations

from pathlib import Path

import pytest

from provisioner.common.errors import Exit, GpuprovError, ProviderError
from provisioner.common.paths import MADE_BY, STATE, private_dir
from provisioner.lifecycle import machines
from provisioner.lifecycle.session import Cluster, open_cluster
from provisioner.machines.base import PartlyMadeError, Planned
from provisioner.machines.providers.cluster import SETTINGS
from provisioner.rundir.fleet import Node
from tests.support import plans

FILE = """
name: told
sites: {here: {provider: aws, region: us-east-1}}
groups: {train: {machine: p4d.24xlarge, count: 3}}
"""


def cluster(folder: Path, *, sandbox: bool, sites: dict[str, str | None]) -> Cluster:
    """A cluster whose run directory has workspaces of these sites; None: nobody wrote down the provider."""
    (folder / "cluster.yaml").write_text(FILE)
    recorded_cluster = open_cluster(folder / "cluster.yaml", sandbox=sandbox)
    for site, provider in sites.items():
        private_dir(recorded_cluster.paths.site(site))
        if provider is not None:
            (recorded_cluster.paths.site(site) / MADE_BY).write_text(provider + "\n")
    return recorded_cluster


def test_every_workspace_of_a_sandbox_is_the_sandboxs(tmp_path: Path) -> None:
    recorded_cluster = cluster(
        tmp_path, sandbox=True, sites={"here": "sandbox", "gone": "sandbox", "old": None, "planned": None}
    )
    (recorded_cluster.paths.site("old") / STATE).write_text("{}")
    providers = recorded_cluster.providers.made()
    assert {site: provider.name for site, provider in providers.items()} == dict.fromkeys(
        ("gone", "here", "old"), "sandbox"
    )  # `plan` leaves a workspace, too, and no machine


def test_a_real_workspace_without_a_provider_is_not_passed_over(tmp_path: Path) -> None:
    """Passed over, its state would be removed with the run directory, and its machines would run on."""
    recorded_cluster = cluster(tmp_path, sandbox=False, sites={"gone": None})
    (recorded_cluster.paths.site("gone") / STATE).write_text("{}")
    with pytest.raises(GpuprovError, match="cannot determine the provider") as caught:
        recorded_cluster.providers.made()
    assert "put site gone back" in caught.value.hint


def test_what_is_no_workspace_is_left_alone(tmp_path: Path) -> None:
    recorded_cluster = cluster(tmp_path, sandbox=True, sites={"here": "sandbox"})
    (recorded_cluster.paths.root / "sites" / "note.txt").touch()
    assert list(recorded_cluster.providers.made()) == ["here"]


def test_nothing_was_made(tmp_path: Path) -> None:
    assert cluster(tmp_path, sandbox=True, sites={}).providers.made() == {}


def test_a_site_that_cluster_yaml_does_not_name_any_more_is_removed_where_it_was_made(tmp_path: Path) -> None:
    recorded_cluster = cluster(tmp_path, sandbox=False, sites={"gone": "aws"})
    (recorded_cluster.paths.site("gone") / SETTINGS).write_text('{"provider": "aws", "region": "eu-west-1"}')
    assert recorded_cluster.providers.made()["gone"].place.settings.region == "eu-west-1"  # type: ignore[attr-defined]


@pytest.mark.parametrize("text", ["", "{}", '{"provider": "gcp", "region": "x"}', '{"provider": "aws"}'])
def test_settings_that_are_damaged_are_no_settings(tmp_path: Path, text: str) -> None:
    recorded_cluster = cluster(tmp_path, sandbox=False, sites={"gone": "aws"})
    (recorded_cluster.paths.site("gone") / SETTINGS).write_text(text)
    with pytest.raises(GpuprovError, match=r"site\.json is missing or damaged"):
        recorded_cluster.providers.made()


def test_there_is_one_object_for_each_site(tmp_path: Path) -> None:
    recorded_cluster = cluster(tmp_path, sandbox=False, sites={"here": "aws"})
    assert (
        recorded_cluster.providers.at("here")
        is recorded_cluster.providers.at("here")
        is recorded_cluster.providers.made()["here"]
    )


OWN = """
name: told
sites: {rack: {provider: baremetal, hosts: {"d[0-2].lab": {}}}}
groups: {train: {machine: dgx-h100, count: 3}}
"""


class Partly:
    """Machines of one's own, the second of which did not come to be."""

    site = "rack"

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes

    def apply(self, *_: object, **__: object) -> list[Node]:
        known = [Node("train-1", "train", "rack", "dgx-h100", "d1.lab", "", "d1.lab", "")]
        raise PartlyMadeError(ProviderError("1 of 3: d1.lab: wrong password", where="site rack"), self.nodes, known)


def test_machines_of_ones_own_that_fail_do_not_hold_up_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that did not come to be, and one that does not let gpuprov in: the third is what the run goes on with."""
    (tmp_path / "cluster.yaml").write_text(OWN)
    own_cluster = open_cluster(tmp_path / "cluster.yaml", sandbox=False)
    private_dir(own_cluster.paths.root)
    nodes = [
        Node(f"train-{number}", "train", "rack", "dgx-h100", f"d{number}.lab", "", f"d{number}.lab", "")
        for number in (0, 2)
    ]
    refused = ProviderError("no way in", where="train-2", hint="look there")
    monkeypatch.setattr(machines, "contact", lambda *_, **__: {"train-2": refused})
    plan = plans.plan(plans.cluster_spec("dgx-h100", count=3))
    result = machines.make(own_cluster, plan, [(Partly(nodes), Planned("rack", add=3))], own_cluster.events)  # type: ignore[list-item]
    assert ([node.name for node in result.nodes], result.failed) == (["train-0"], {})
    assert "d1.lab: wrong password" in str(result.partly["rack"]) and "train-2: no way in" in str(result.partly["rack"])
    assert result.partly["rack"].exit_code == Exit.PROVIDER_FAILED
    assert {node.name for node in own_cluster.nodes()} == {"train-0", "train-1", "train-2"}, (
        "none that was there is forgotten"
    )
    monkeypatch.setattr(machines, "contact", lambda *_, **__: {"train-0": refused, "train-2": refused})
    none = machines.make(own_cluster, plan, [(Partly(nodes), Planned("rack", add=3))], own_cluster.events)  # type: ignore[list-item]
    assert (none.nodes, list(none.failed), none.partly) == ([], ["rack"], {})


def test_a_host_of_another_cluster_is_forgotten_and_no_other(tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text(FILE)
    opened = open_cluster(tmp_path / "cluster.yaml", sandbox=True)
    nodes = [
        Node(f"{site}-{n}", "train", site, "p4d.24xlarge", f"{site}{n}", "", "203.0.113.7", "10.0.0.7")
        for site in "ab"
        for n in (1, 2)
    ]
    private_dir(opened.paths.root)
    machines.record(opened, nodes)
    marks = {site: private_dir(opened.paths.site(site)) / machines.MARK for site in "ab"}
    for site, mark in marks.items():
        mark.write_text(f"{site}1\n{site}2\nb1\n")
    machines._forget(opened, [nodes[0], nodes[2]])
    assert [node.name for node in opened.nodes()] == ["a-2", "b-2"]
    assert [mark.read_text().split() for mark in marks.values()] == [["a2", "b1"], ["b2"]]
