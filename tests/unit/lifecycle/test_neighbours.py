"""Which nodes of a group may be borrowed: proven ones in service that are not part of the run, in the file's order."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from provisioner.common.events import Events
from provisioner.common.paths import private_dir
from provisioner.lifecycle import neighbours, verifying
from provisioner.lifecycle.quarantine import book as quarantine_book
from provisioner.lifecycle.replace.journal import Journal as Replacement
from provisioner.lifecycle.rollout import Place
from provisioner.lifecycle.session import Cluster, open_cluster
from provisioner.lifecycle.subjects import subjects_of
from provisioner.lifecycle.upgrade.journal import Journal
from provisioner.rundir import fleet, node_state
from provisioner.rundir.fleet import Node
from provisioner.rundir.release import Ledger
from provisioner.stack import lockfile
from provisioner.stack.models import Lock
from provisioner.verify import run as verify_run
from provisioner.verify.fabric_run import FindNeighbours, Neighbours
from provisioner.verify.results import Report
from provisioner.verify.subject import Subject
from tests.support.plans import planned_group

FILE = """
name: grown
sites:
  here: {provider: aws, region: us-east-1}
  there: {provider: aws, region: us-east-2}
groups:
  train: {machine: p4d.24xlarge, count: 12, site: here}
  lone: {machine: p4d.24xlarge, count: 1, site: there}
"""
STACK = planned_group("p4d.24xlarge").stack
LOCK = Lock(request={}, simulated=True, groups={"train": STACK, "lone": STACK})


def node(name: str, id: str = "") -> Node:
    group = name.partition("-")[0]
    site = "here" if group == "train" else "there"
    return Node(name, group, site, "p4d.24xlarge", id or f"i-{name}", "", "203.0.113.7", "10.0.0.7")


TRAIN = [node(f"train-{i}") for i in (0, 1, 10, 11, 2, 3, 4, 5, 6, 7, 8, 9)]


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    """Twelve nodes that are proven, and one of another group."""
    (tmp_path / "cluster.yaml").write_text(FILE)
    opened = open_cluster(tmp_path / "cluster.yaml", sandbox=True)
    private_dir(opened.paths.root)
    fleet.save(opened.paths, [*TRAIN, node("lone-0")])
    lockfile.write(opened.paths.lock_file, LOCK)
    Ledger(opened.paths).record([*TRAIN, node("lone-0")], LOCK)
    node_state.note_stage(opened.paths, "verified", [*(n.name for n in TRAIN), "lone-0"], ok=True)
    return opened


def subject(cluster: Cluster, name: str, level: Any = "standard") -> Subject:
    (match,) = (candidate for candidate in subjects_of(cluster) if candidate.name == name)
    return replace(match, expected=replace(match.expected, level=level))


def find(cluster: Cluster, *run: Subject) -> Neighbours:
    """For the first of the run."""
    return neighbours.finder(cluster, run)(run[0])


def test_all_proven_nodes_of_the_group_are_candidates_in_the_order_of_their_numbers(cluster: Cluster) -> None:
    search = find(cluster, subject(cluster, "train-3"))
    assert [candidate.name for candidate in search.candidates] == [f"train-{i}" for i in range(12) if i != 3]
    assert (search.refused, search.proven) == ({}, True)
    assert search.command == f"gpuprov verify {cluster.typed_file} --node train-3"
    assert all(
        candidate.transport and candidate.address and candidate.expected.images for candidate in search.candidates
    )


def test_nodes_that_are_not_proven_in_service_and_outside_the_run_are_refused(cluster: Cluster) -> None:
    paths = cluster.paths
    fleet.save(paths, [node("train-0", "i-new") if n.name == "train-0" else n for n in TRAIN])
    node_state.note_stage(paths, "unhealthy", ["train-1"], ok=False)
    node_state.note_stage(paths, "configured", ["train-2"])
    store = quarantine_book.load(paths)
    store.nodes["train-4"] = quarantine_book.Entry("i-train-4", "ann", "noise", "2026-01-31T12:00:00Z")
    store.save(paths)
    Journal(nodes={"train-5": Place("abc", "waiting"), "train-6": Place("abc", "drained")}).save(paths)
    replacement = Replacement()
    replacement.set(paths, [node("train-7")], "making")
    run = [subject(cluster, "train-3"), subject(cluster, "train-8"), subject(cluster, "train-9", "quick")]
    search = find(cluster, *run)
    assert search.refused == {
        "train-0": "not proven itself",
        "train-1": "not proven itself",
        "train-2": "not proven itself",
        "train-4": "in quarantine",
        "train-6": "an upgrade has it out of service",
        "train-7": "it is being replaced",
        "train-8": "verified in this run, and could take no part",
    }
    assert [candidate.name for candidate in search.candidates] == ["train-5", "train-9", "train-10", "train-11"]


def test_a_new_machine_of_the_name_is_not_proven_and_a_deeper_level_is_in_its_command(cluster: Cluster) -> None:
    fleet.save(cluster.paths, [node("train-0", "i-new") if n.name == "train-0" else n for n in TRAIN])
    search = find(cluster, subject(cluster, "train-0", "stress"))
    assert (search.proven, search.command) == (
        False,
        f"gpuprov verify {cluster.typed_file} --node train-0 --level stress",
    )


def test_the_only_node_of_a_group_has_no_neighbour(cluster: Cluster) -> None:
    assert find(cluster, subject(cluster, "lone-0")) == Neighbours()


def test_a_damaged_record_lends_nobody_and_costs_no_verdict(cluster: Cluster) -> None:
    (cluster.paths.root / "applied.json").write_text("{")
    search = find(cluster, replace(subject_without_ledger(), group="train", site="here"))
    assert search.candidates == () and len(search.refused) == 12
    assert all("applied.json: is damaged: " in reason for reason in search.refused.values())


def subject_without_ledger() -> Subject:
    from tests.support.healthy_bundle import expected

    return Subject("train-99", "train", "here", "p4d.24xlarge", ("ssh",), expected("p4d.24xlarge", "standard"))


@pytest.mark.parametrize("borrowing", [True, False])
def test_prove_lets_a_node_borrow_but_after_a_second_boot(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, borrowing: bool
) -> None:
    arguments: list[FindNeighbours | None] = []

    def verify(subjects: Any, *, neighbours: FindNeighbours | None, **_: Any) -> Report:
        arguments.append(neighbours)
        return Report((), {}, 0.0)

    monkeypatch.setattr(verify_run, "verify", verify)
    cluster.events = Events()
    verifying.prove(cluster, [subject(cluster, "train-3")], TRAIN[:1], borrowing=borrowing)
    assert [argument is not None for argument in arguments] == [borrowing]
