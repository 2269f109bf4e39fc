"""What Terraform's actions mean for nodes: which are created, recreated, changed and removed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from provisioner.lifecycle.node_changes import NodeChanges, node_changes
from provisioner.machines.base import Action, Planned
from provisioner.rundir.fleet import Node
from tests.support import plans

PLAN = plans.plan(plans.cluster_spec("p4d.24xlarge", count=3))


def node(name: str, site: str = "here") -> Node:
    return Node(name, "train", site, "p4d.24xlarge", f"i-{name}", "", "203.0.113.7", "10.0.0.7")


ALL = [node(f"train-{n}") for n in range(3)]


def changes(nodes: list[Node], *actions: Action, total: int = 0) -> NodeChanges:
    return node_changes(nodes, PLAN, [Planned("here", add=total, actions=actions)])


def test_nodes_that_nothing_happens_to_are_in_no_list() -> None:
    assert changes(ALL) == NodeChanges()


def test_nodes_that_nobody_has_recorded_are_created() -> None:
    actions = [Action("create", "a", "train-1"), Action("create", "b", "train-2"), Action("create", "network")]
    assert changes(ALL[:1], *actions, total=3) == NodeChanges(create=("train-1", "train-2"), total=3)


def test_a_recorded_node_whose_machine_is_created_is_recreated() -> None:
    """Somebody terminated it."""
    actual = changes(ALL, Action("create", "a", "train-1"))
    assert actual == NodeChanges(recreate=("train-1",))
    assert actual.reasons == {"train-1": "its machine is gone"}


@pytest.mark.parametrize("nodes", [ALL, ALL[:1]])
def test_a_machine_that_is_replaced_is_recreated_recorded_or_not(nodes: list[Node]) -> None:
    actual = changes(nodes, Action("replace", "a", "train-2"))
    assert actual.recreate == ("train-2",)
    assert "train-2" not in (*actual.create, *actual.change)
    assert actual.reasons == {}


def test_a_replacement_has_its_reason() -> None:
    volume = Action("replace", "volume", "train-1", attached=True, reason="size changed")
    actual = changes(ALL, Action("replace", "a", "train-2", reason="image changed"), volume)
    assert actual.reasons == {"train-2": "image changed"}


@pytest.mark.parametrize("kind", ["create", "replace", "delete", "update"])
def test_what_belongs_to_a_machine_changes_its_node(kind: str) -> None:
    attached = Action(kind, "volume", "train-1", attached=True)
    assert changes(ALL, attached) == NodeChanges(change=("train-1",))


def test_a_machine_that_is_updated_changes_its_node_and_a_recreated_one_is_not_named_twice() -> None:
    volume = Action("update", "volume", "train-0", attached=True)
    actual = changes(ALL, Action("replace", "a", "train-0"), volume, Action("update", "b", "train-2"))
    assert actual == NodeChanges(recreate=("train-0",), change=("train-2",))
    assert actual.ends == ("train-0",)


def test_a_node_that_cluster_yaml_does_not_name_is_removed_once() -> None:
    extra = node("train-9")
    assert changes([*ALL, extra], Action("delete", "a", "train-9")) == NodeChanges(remove=("train-9",))
    assert changes([*ALL, extra]) == NodeChanges(remove=("train-9",))


def test_a_machine_that_nobody_has_recorded_is_removed_by_its_name() -> None:
    actual = changes(ALL, Action("delete", "a", "old-0"), Action("delete", "volume", "old-1", attached=True))
    assert (actual.remove, actual.ends) == (("old-0",), ("old-0",))


def test_a_machine_that_ends_at_one_site_and_is_made_at_another_is_recreated_recorded_or_not() -> None:
    actual = changes([], Action("delete", "a", "train-0"), Action("create", "b", "train-1"))
    assert (actual.recreate, actual.create) == ((), ("train-0", "train-1", "train-2"))
    actual = changes([], Action("delete", "a", "train-0"), Action("create", "b", "train-0"))
    assert (actual.recreate, actual.create) == (("train-0",), ("train-1", "train-2"))
    assert actual.reasons == {}


def test_nodes_of_sites_that_are_not_planned_are_left_alone() -> None:
    assert changes([*ALL, node("infer-0", "there")]) == NodeChanges()


def test_the_changes_of_all_sites_are_counted() -> None:
    both = [Planned("here", add=1, change=2), Planned("there", destroy=4)]
    assert node_changes([*ALL, node("infer-0", "there")], PLAN, both) == NodeChanges(remove=("infer-0",), total=7)


def test_the_document_has_names_alone() -> None:
    actual = replace(changes(ALL, Action("create", "a", "train-1")), total=5)
    assert actual.document().to_json() == {"create": [], "recreate": ["train-1"], "change": [], "remove": []}
