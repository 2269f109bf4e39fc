"""The site of a group with several: nodes decide, then the record, then the order of cluster.yaml."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from provisioner import spec, stack
from provisioner.common.errors import GpuprovError, InputError
from provisioner.common.paths import private_dir
from provisioner.lifecycle.node_changes import NodeChanges
from provisioner.lifecycle.session import Cluster, open_cluster
from provisioner.lifecycle.sites import candidates, chosen
from provisioner.output.site_choice import SiteChoiceOutput
from provisioner.rundir import fleet, intent, placement
from provisioner.rundir.fleet import Node
from provisioner.rundir.intent import Choice

FILE = """
name: vision
sites:
  ohio: {provider: aws, region: us-east-2}
  oregon: {provider: aws, region: us-west-2, storage: {fsx: {capacity_gib: 1200}}}
  ireland: {provider: aws, region: eu-west-1}
groups:
  train: {machine: p4d.24xlarge, count: 2, site: [ohio, oregon]}
  infer: {machine: p4d.24xlarge, site: ireland}
stack: {kernel: 6.8.0-1021-aws}
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    (tmp_path / "cluster.yaml").write_text(FILE)
    return open_cluster(tmp_path / "cluster.yaml", sandbox=True)


def site(cluster: Cluster) -> str:
    cluster.place_groups()
    return cluster.spec.site_of("train")


def node(at: str) -> Node:
    return Node("train-0", "train", at, "p4d.24xlarge", "i-1", "", "203.0.113.7", "10.0.0.7")


def test_without_a_record_it_is_the_first_of_the_list(cluster: Cluster) -> None:
    assert site(cluster) == "ohio"
    assert cluster.spec.sites_of("train") == ("ohio", "oregon")
    assert (cluster.spec.site_of("infer"), cluster.spec.sites_of("infer")) == ("ireland", ("ireland",))


def test_the_record_decides_and_nodes_before_it(cluster: Cluster) -> None:
    private_dir(cluster.paths.root)
    intent.save_choices(cluster.paths, {"train": Choice("oregon", {"ohio": "shortage"})})
    assert site(cluster) == "oregon"
    fleet.save(cluster.paths, [node("ohio")])
    assert site(cluster) == "ohio"


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ({"train-0": {"site": "oregon"}, "infer-0": {"site": "ireland"}}, "oregon"),
        ({"train-0": {"site": "ireland"}}, "ohio"),
        ({"infer-0": {"site": "oregon"}}, "ohio"),
        ({"train-0": "oregon"}, "ohio"),
    ],
)
def test_without_a_choice_it_stays_where_the_intent_has_nodes_of_it(
    cluster: Cluster, nodes: dict[str, Any], expected: str
) -> None:
    """From when it had one site: a run that was killed may have created machines there."""
    private_dir(cluster.paths.root)
    cluster.paths.intent.write_text(json.dumps({"nodes": nodes}))
    assert site(cluster) == expected


def test_nodes_at_a_site_that_the_list_no_longer_has_decide_nothing(cluster: Cluster) -> None:
    private_dir(cluster.paths.root)
    fleet.save(cluster.paths, [node("ireland")])
    intent.save_choices(cluster.paths, {"train": Choice("ireland")})
    assert site(cluster) == "ohio"


@pytest.mark.parametrize("damage", ["", "{", '{"choices": {"train": 1}}', '{"choices": []}', "[]"])
def test_with_a_damaged_record_it_is_where_a_workspace_is(cluster: Cluster, damage: str) -> None:
    private_dir(cluster.paths.site("oregon"))
    (cluster.paths.site("oregon") / "provider").write_text("aws\n")
    cluster.paths.intent.write_text(damage)
    assert site(cluster) == "oregon"


def test_a_choice_is_recorded_beside_what_the_intent_has(cluster: Cluster) -> None:
    private_dir(cluster.paths.root)
    cluster.paths.intent.write_text('{"cluster": "vision", "choices": {"other": {"site": "x", "refused": {}}}}')
    intent.save_choices(cluster.paths, {"train": Choice("oregon", {"ohio": "shortage"})})
    assert json.loads(cluster.paths.intent.read_text()) == {
        "cluster": "vision",
        "choices": {
            "other": {"site": "x", "refused": {}},
            "train": {"site": "oregon", "refused": {"ohio": "shortage"}},
        },
    }


def test_refusals_of_sites_behind_the_chosen_one_are_forgotten(cluster: Cluster) -> None:
    private_dir(cluster.paths.root)
    intent.save_choices(cluster.paths, {"train": Choice("ohio", {"ohio": "quota", "oregon": "shortage"})})
    cluster.place_groups()
    assert placement.current(cluster.spec, cluster.paths) == {"train": Choice("ohio", {})}


def lines(at: str, refused: dict[str, str]) -> list[str]:
    row = SiteChoiceOutput(group="train", site=at, sites=["a", "b", "c"], refused=refused)
    return placement.lines([row])


def test_a_line_says_which_site_was_chosen_and_why_the_others_were_not() -> None:
    assert lines("a", {}) == ["train: site a, the first of its list; without capacity there: b, then c"]
    assert lines("c", {"a": "X", "b": "Y"}) == ["train: site c; a had no capacity (X); b had no capacity (Y)"]
    assert lines("b", {"a": "X"}) == ["train: site b; a had no capacity (X); without capacity there: c"]
    assert lines("c", {"b": "Y"}) == [
        "train: site c; b had no capacity (Y); its machines were created there, and a was not tried"
    ]
    assert lines("a", {"a": "X", "b": "Y", "c": "Z"}) == [
        "train: no site of its list had capacity, the next `gpuprov up` begins with a: a had no capacity (X); "
        "b had no capacity (Y); c had no capacity (Z)"
    ]


def test_the_lock_is_for_all_sites_of_the_list(cluster: Cluster) -> None:
    """The client of a file system that only the second site has is locked before the group goes there."""
    assert "sites.oregon.storage.fsx" in stack.request(cluster.spec)
    moved = cluster.spec.with_sites({"train": "oregon"})
    assert stack.request(moved) == stack.request(cluster.spec)


def test_a_command_for_some_sites(cluster: Cluster) -> None:
    assert chosen(cluster, ()) == ["ohio", "ireland"]
    assert candidates(cluster, ()) == ["ohio", "oregon", "ireland"]
    assert (chosen(cluster, ["ohio"]), candidates(cluster, ["ohio"])) == (["ohio"], ["ohio"])
    assert candidates(cluster, ["ohio", "oregon"]) == ["ohio", "oregon"]
    with pytest.raises(GpuprovError, match="no group is at site oregon") as caught:
        chosen(cluster, ["oregon"])
    assert "group train is at site ohio: name it, too" in caught.value.hint


def test_a_question_that_was_answered_holds_for_the_same_nodes_alone() -> None:
    answered = NodeChanges(create=("a-0", "a-1"), recreate=("b-0",), change=("c-0",), remove=("d-0",), total=5)
    assert NodeChanges(create=("a-0", "b-0"), total=3).is_within(answered)
    assert not NodeChanges(create=("c-0",)).is_within(answered)
    assert not NodeChanges(recreate=("a-0",)).is_within(answered)
    assert not NodeChanges(remove=("a-0",)).is_within(answered)
    assert not NodeChanges(change=("a-0",)).is_within(answered)


def test_the_file_keeps_its_order(tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text(FILE)
    loaded = spec.load(tmp_path / "cluster.yaml")
    moved = loaded.with_sites({"train": "oregon"})
    assert (loaded.site_of("train"), moved.site_of("train")) == ("ohio", "oregon")
    assert moved.sites_of("train") == loaded.sites_of("train") == ("ohio", "oregon")
    assert moved.model_dump() == loaded.model_dump()


BY_PRICE = """
name: vision
sites:
  london: {provider: aws, region: eu-west-2}
  unpriced: {provider: aws, region: sa-east-1}
  ohio: {provider: aws, region: us-east-2}
groups:
  train: {machine: p4d.24xlarge, site: [london, unpriced, ohio], site_order: price}
"""


def test_sites_in_the_order_of_their_list_prices(tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text(BY_PRICE)
    cluster = open_cluster(tmp_path / "cluster.yaml", sandbox=True)
    assert cluster.spec.sites_of("train") == ("ohio", "london", "unpriced")
    assert site(cluster) == "ohio"
    (row,) = placement.rows(cluster.spec, cluster.paths)
    assert (row.order, row.sites) == ("price", ["ohio", "london", "unpriced"])
    assert row.prices == {"ohio": "21.96 USD", "london": "28.54 USD", "unpriced": None}
    assert placement.lines([row]) == [
        "train: site ohio, the cheapest of its list (list prices an hour: ohio 21.96 USD, london 28.54 USD; no "
        "comparable list price, so last: unpriced); without capacity there: london, then unpriced"
    ]
    private_dir(cluster.paths.root)
    intent.save_choices(cluster.paths, {"train": Choice("london", {"ohio": "shortage"})})
    assert site(cluster) == "london", "machines that were created there stay, whatever they cost"


BY_SITE = """
name: vision
sites:
  ohio: {provider: aws, region: us-east-2}
  west: {provider: azure, region: eastus, subscription: 00000000-0000-0000-0000-000000000000}
groups:
  train: {machine: {ohio: p4d.24xlarge, west: Standard_ND96asr_v4}, site: [ohio, west], site_order: ORDER}
"""


def test_the_machine_type_and_the_price_of_each_site(tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text(BY_SITE.replace("ORDER", "file"))
    cluster = open_cluster(tmp_path / "cluster.yaml", sandbox=True)
    (row,) = placement.rows(cluster.spec, cluster.paths)
    assert row.machines == {"ohio": "p4d.24xlarge", "west": "Standard_ND96asr_v4"}
    prices = "list prices an hour: ohio 21.96 USD, west 27.20 USD"
    assert placement.lines([row]) == [
        f"train: site ohio with p4d.24xlarge, the first of its list ({prices}); without capacity there: west "
        "with Standard_ND96asr_v4"
    ]
    private_dir(cluster.paths.root)
    intent.save_choices(cluster.paths, {"train": Choice("west", {"ohio": "shortage"})})
    cluster.place_groups()
    assert placement.lines(placement.rows(cluster.spec, cluster.paths)) == [
        f"train: site west with Standard_ND96asr_v4 ({prices}); ohio had no capacity (shortage)"
    ]


def test_each_site_has_the_price_of_its_machine_type(tmp_path: Path) -> None:
    text = BY_SITE.replace("p4d.24xlarge", "p5.48xlarge").replace("ORDER", "price")
    (tmp_path / "cluster.yaml").write_text(text)
    loaded = spec.load(tmp_path / "cluster.yaml")
    assert loaded.sites_of("train") == ("west", "ohio")
    assert (loaded.site_of("train"), loaded.machine("train").name) == ("west", "Standard_ND96asr_v4")


def test_prices_of_two_currencies_are_not_compared(tmp_path: Path) -> None:
    text = BY_PRICE.replace("p4d.24xlarge", "g5.12xlarge").replace("eu-west-2", "cn-north-1")
    (tmp_path / "cluster.yaml").write_text(text.replace("us-east-2", "us-east-1"))
    loaded = spec.load(tmp_path / "cluster.yaml")
    assert {name: price and price.currency for name, price in loaded.site_prices("train").items()} == {
        "london": "CNY", "unpriced": None, "ohio": None
    }  # fmt: skip
    assert loaded.sites_of("train") == ("london", "unpriced", "ohio")
    (tmp_path / "cluster.yaml").write_text(BY_PRICE.replace("site: [london, unpriced, ohio]", "site: ohio"))
    with pytest.raises(InputError, match=r"site_order: |train has one site, and site_order is about several"):
        spec.load(tmp_path / "cluster.yaml")
