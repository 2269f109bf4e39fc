"""`replace` in detail: how many may be out of service at once, whose verdict counts, and what of a run that was killed
is still under way."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from provisioner.common.errors import GpuprovError, ProviderError
from provisioner.common.paths import private_dir
from provisioner.lifecycle.quarantine.book import OURS, Book, Entry
from provisioner.lifecycle.replace import command
from provisioner.lifecycle.replace import journal as replace_journal
from provisioner.lifecycle.replace.command import Options, refuse
from provisioner.lifecycle.replace.journal import Journal, Place, Step
from provisioner.lifecycle.session import Cluster, open_cluster
from provisioner.rundir import fleet, node_state
from provisioner.rundir.release import Ledger
from tests.unit.lifecycle.test_quarantine import machines, node
from tests.unit.lifecycle.test_release import lock

FILE = """
name: vision
sites: {here: {provider: aws, region: us-east-1}}
groups: {train: {machine: p4d.24xlarge, count: 10}}
quarantine: {most: 3, share: 20%}
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    (tmp_path / "cluster.yaml").write_text(FILE)
    opened = open_cluster(tmp_path / "cluster.yaml", sandbox=True)
    private_dir(opened.paths.root)
    fleet.save(opened.paths, machines(10))
    return opened


def begun(*names: str, step: Step = "making") -> Journal:
    return Journal({name: Place(f"i-{name}", step) for name in names})


def hold(cluster: Cluster, *names: str) -> None:
    Book({name: Entry(f"i-{name}", OURS, "x", "now") for name in names}).save(cluster.paths)


# how many at once


@pytest.mark.parametrize(
    ("names", "quarantined", "under_way", "force", "limit"),
    [
        (["train-0"], [], [], False, None),
        (["train-0", "train-1"], [], [], False, None),
        (["train-0", "train-1", "train-2"], [], [], False, 2),
        (["train-0", "train-1", "train-2"], [], [], True, None),
        (["train-0", "train-1", "train-2", "train-3"], [], [], True, 3),
        (["train-0"], ["train-8"], [], False, None),
        (["train-0"], ["train-8", "train-9"], [], False, 2),
        (["train-0"], ["train-8", "train-9"], [], True, None),
        (["train-0"], ["train-7", "train-8", "train-9"], [], True, 3),
        (["train-0"], [], ["train-8", "train-9"], False, 2),
        (["train-9"], ["train-8", "train-9"], [], False, None),
        (["train-7", "train-8", "train-9"], ["train-7", "train-8", "train-9"], [], False, 2),
        (["train-7", "train-8", "train-9"], [], ["train-7", "train-8", "train-9"], False, None),
        (["train-6", "train-7", "train-8", "train-9"], [], ["train-6", "train-7", "train-8", "train-9"], False, 3),
        (["train-6", "train-8", "train-9"], [], ["train-8", "train-9"], False, 2),
    ],
)
def test_no_more_are_out_of_service_at_once_than_quarantine_allows(
    cluster: Cluster,
    names: Sequence[str],
    quarantined: Sequence[str],
    under_way: Sequence[str],
    force: bool,
    limit: int | None,
) -> None:
    hold(cluster, *quarantined)
    options = Options(force_budget=force)
    if limit is None:
        refuse(cluster, [node(name) for name in names], begun(*under_way), options)
        return
    with pytest.raises(GpuprovError, match=f"out of service at once.*; the limit is {limit}") as caught:
        refuse(cluster, [node(name) for name in names], begun(*under_way), options)
    assert ("--force-budget" in caught.value.hint) == (limit == 2)


def test_nodes_that_are_out_of_service_already_are_counted_and_named(cluster: Cluster) -> None:
    hold(cluster, "train-8", "train-9")
    with pytest.raises(GpuprovError, match=r"take 3 nodes out of service at once \(with 2 out of service already\)"):
        refuse(cluster, [node("train-0")], Journal(), Options())
    hold(cluster)
    with pytest.raises(GpuprovError, match="take 3 nodes out of service at once; the limit"):
        refuse(cluster, machines(3), Journal(), Options())


# whose verdict


@pytest.mark.parametrize(
    ("ok", "quarantined", "under_way", "insist", "refused"),
    [
        (True, False, False, False, True),
        (True, False, False, True, False),
        (True, True, False, False, False),
        (True, False, True, False, False),
        (False, False, False, False, False),
        (None, False, False, False, False),
    ],
)
def test_a_healthy_node_is_replaced_only_on_request(
    cluster: Cluster, ok: bool | None, quarantined: bool, under_way: bool, insist: bool, refused: bool
) -> None:
    node_state.note_stage(cluster.paths, "verified", ["train-0"], ok=ok)
    if quarantined:
        hold(cluster, "train-0")
    journal, options = begun(*["train-0"] * under_way), Options(even_if_healthy=insist)
    if not refused:
        refuse(cluster, [node("train-0"), node("train-1")], journal, options)
        return
    with pytest.raises(GpuprovError, match="was healthy in the last verdict") as caught:
        refuse(cluster, [node("train-1"), node("train-0")], journal, options)
    assert caught.value.where == "train-0"


# the journal


def saved(cluster: Cluster, **places: Place) -> list[str]:
    """What is still under way of these."""
    Journal({name.replace("_", "-"): entry for name, entry in places.items()}).save(cluster.paths)
    return list(replace_journal.load(cluster).nodes)


@pytest.mark.parametrize(("step", "quarantined", "under_way"), [
    ("making", False, True), ("making", True, True), ("draining", True, True), ("draining", False, False),
    ("proving", True, True), ("proving", False, False),
])  # fmt: skip
def test_the_old_machine_is_under_way_while_terraform_is_at_work_or_it_is_out_of_service(
    cluster: Cluster, step: Step, quarantined: bool, under_way: bool
) -> None:
    if quarantined:
        hold(cluster, "train-0")
    assert bool(saved(cluster, train_0=Place("i-train-0", step))) == under_way


@pytest.mark.parametrize(("proven", "quarantined", "under_way"), [
    (False, False, True), (True, False, False), (False, True, False), (True, True, False),
])  # fmt: skip
def test_a_new_machine_is_under_way_until_it_had_its_verdict(
    cluster: Cluster, proven: bool, quarantined: bool, under_way: bool
) -> None:
    if proven:
        Ledger(cluster.paths).record([node("train-0")], lock())
    if quarantined:
        hold(cluster, "train-0")
    assert bool(saved(cluster, train_0=Place("i-former", "proving"))) == under_way


def test_a_node_without_a_machine_is_not_under_way(cluster: Cluster) -> None:
    assert saved(cluster, old_0=Place("i-old-0", "making"), train_0=Place("i-train-0", "making")) == ["train-0"]


@pytest.mark.parametrize(
    "text",
    [
        '{"nodes": {"train-0": {"id": "i", "step": "gone"}}}', '{"nodes": {"train-0": {"id": 7, "step": "making"}}}',
        '{"nodes": {"train-0": {"id": "i"}}}', '{"nodes": {"train-0": 7}}', '{"nodes": 7}', "{}", "[]", "{",
    ],
)  # fmt: skip
def test_a_damaged_journal_is_refused(cluster: Cluster, text: str) -> None:
    (cluster.paths.root / "replace.json").write_text(text)
    with pytest.raises(GpuprovError, match="is damaged"):
        replace_journal.load(cluster)


def test_a_step_is_written_and_the_machine_that_goes_stays_the_first(cluster: Cluster) -> None:
    journal = Journal()
    journal.set(cluster.paths, [node("train-0")], "draining")
    journal.set(cluster.paths, [node("train-0", "i-new")], "proving")
    text = (cluster.paths.root / "replace.json").read_text()
    assert json.loads(text) == {"nodes": {"train-0": {"id": "i-train-0", "step": "proving"}}}


# new machines


def test_a_node_whose_old_machine_is_gone_and_that_has_no_new_one_is_named(cluster: Cluster) -> None:
    with pytest.raises(ProviderError, match="there was no capacity for a new one") as caught:
        command._new_machines(cluster, ["train-1", "train-98", "train-97"], begun("train-1"))
    assert caught.value.where == "train-97, train-98"


def test_a_machine_that_is_the_old_one_is_no_new_one(cluster: Cluster) -> None:
    with pytest.raises(ProviderError, match="created no new machine") as caught:
        command._new_machines(cluster, ["train-1"], begun("train-1"))
    assert caught.value.where == "train-1"
    former = Journal({"train-1": Place("i-former", "making")})
    assert command._new_machines(cluster, ["train-1"], former) == [node("train-1")]


def test_a_new_machine_that_never_answers_is_named_with_the_way_to_another(cluster: Cluster) -> None:
    error = command._unreachable(cluster, {"train-1": ProviderError("no ssh", where="train-1", hint="look")})
    assert (error.message, error.where) == ("no ssh", "train-1")
    assert error.hint.startswith("look; for yet another machine `gpuprov quarantine ")


def test_where_a_node_cannot_be_drained_none_is_replaced(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[list[str]] = []

    def refused(_: object, nodes: Sequence[object], *__: object) -> dict[str, str]:
        requests.append([str(getattr(item, "name", "")) for item in nodes])
        return {"train-1": "jobs run"}

    monkeypatch.setattr(command.quarantine, "hold", refused)
    command._drain(cluster, Journal(), [])
    assert requests == []
    journal = Journal()
    with pytest.raises(GpuprovError, match="train-1: jobs run"):
        command._drain(cluster, journal, machines(2))
    assert {name: entry.step for name, entry in journal.nodes.items()} == dict.fromkeys(
        ("train-0", "train-1"), "draining"
    )  # fmt: skip
