"""data/components.yaml: the one list of what a stack consists of, and everything that follows from it."""

from __future__ import annotations

import pytest

from provisioner.plan import roles
from provisioner.spec.stack_request import StackRequest
from provisioner.stack import components
from provisioner.stack.components import COMPONENTS, PARTS
from provisioner.stack.facts import rows
from provisioner.stack.models import Package, Stack
from tests.support.plans import planned_group


def test_what_cluster_yaml_pins_is_a_component_and_the_other_way_round() -> None:
    pinned = {component.name for component in COMPONENTS.values() if component.pin}
    assert pinned == StackRequest.model_fields.keys() - {"containers", "repositories"}
    assert {c.name for c in COMPONENTS.values() if c.when in ("pinned", "rdma")} <= pinned


def test_every_part_is_a_component_and_has_a_role() -> None:
    assert COMPONENTS.keys() >= PARTS
    assert {part for part in PARTS if roles.of_part(part) is None} == set()


def test_every_component_has_versions_or_those_of_the_driver() -> None:
    for component in COMPONENTS.values():
        assert rows(component.name) if component.solved else component.version == "stack.driver"


def test_every_package_comes_from_a_repository_that_is_known() -> None:
    repository_by_part = {block["part"]: block["repository"] for block in rows("packages") if "repository" in block}
    wrong = {part: name for part, name in repository_by_part.items() if name not in rows("repositories")}
    assert not wrong, f"provisioner/stack/data/packages.yaml: {wrong}, known are {sorted(rows('repositories'))}"


def test_titles_are_told_apart() -> None:
    titles = [component.title for component in COMPONENTS.values()]
    assert all(titles)
    assert len(set(titles)) == len(titles)


@pytest.mark.parametrize("component", COMPONENTS.values(), ids=lambda c: c.name)
def test_a_field_of_the_lock_that_a_row_names_is_there(component: components.Component) -> None:
    assert not component.field or component.field in Stack.model_fields


def test_the_version_of_a_component_whether_the_lock_has_a_field_for_it_or_not() -> None:
    stack = planned_group("p4d.24xlarge").stack
    assert stack.version_of("cuda") == stack.cuda_toolkit
    assert stack.version_of("driver") == stack.driver
    assert stack.version_of("lustre") is None
    assert stack.version_of("imex") is None
    with_lustre = stack.model_copy(update={"components": {"lustre": stack.components["driver"]}})
    assert with_lustre.version_of("lustre") == stack.driver


def test_a_label_has_the_title_where_the_version_does_not_say_it() -> None:
    assert components.label("cuda", "13.0") == "CUDA 13.0"
    assert components.label("os", "ubuntu-24.04") == "ubuntu-24.04"
    assert components.label("gpu", "hopper") == "gpu hopper"


def test_a_part_that_no_component_has_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown part; known: container_toolkit"):
        Package(name="a", version="1", part="no-such")
