"""What a node answers against what the lock says: each difference is named, and nothing else."""

from __future__ import annotations

import pytest

from provisioner.configure.drift import differences
from provisioner.plan import PlannedGroup
from tests.support.plans import planned_group

STAMP = "0" * 32


@pytest.fixture
def group() -> PlannedGroup:
    return planned_group("p4d.24xlarge")


def answer(group: PlannedGroup, **changed: str) -> str:
    """The answer of a node that is what the lock says, with some sections replaced."""
    names = [p.name for p in group.stack.packages]
    units = ["docker", "nvidia-dcgm", "nvidia-persistenced", "nvidia-fabricmanager", "nvidia-dcgm-exporter"]
    sections = {
        "stamp": f'{{"fingerprint": "{STAMP}"}}',
        "packages": "\n".join(f"{p.name} {p.version} hi " for p in group.stack.packages),
        "holds": "\n".join(names),
        "services": "\n".join(f"{unit} active" for unit in units),
        "images": "\n".join(f"{i.reference} x@{i.digest}" for i in group.stack.images),
        "end": "",
    } | changed
    return "".join(f"== {name}\n{text}\n" for name, text in sections.items())


def found(group: PlannedGroup, text: str) -> list[str]:
    return differences(text, group, STAMP, exporter=True)


def test_a_node_as_locked_has_no_difference(group: PlannedGroup) -> None:
    assert found(group, answer(group)) == []


def test_never_configured(group: PlannedGroup) -> None:
    assert found(group, answer(group, stamp="")) == ["not configured yet"]


def test_configured_by_other_roles(group: PlannedGroup) -> None:
    assert found(group, answer(group, stamp='{"fingerprint": "f"}')) == ["configured for other roles or variables"]


def test_a_stamp_alone_proves_nothing(group: PlannedGroup) -> None:
    assert len(found(group, answer(group, packages=""))) == len(group.stack.packages)


def test_a_package_that_moved(group: PlannedGroup) -> None:
    first = group.stack.packages[0]
    moved = answer(group).replace(f"{first.name} {first.version} hi", f"{first.name} 1.0 hi")
    assert found(group, moved) == [f"{first.name} is 1.0, locked {first.version}"]


def test_a_package_half_installed(group: PlannedGroup) -> None:
    first = group.stack.packages[0]
    broken = answer(group).replace(f"{first.name} {first.version} hi", f"{first.name} {first.version} hF")
    assert found(group, broken) == [f"{first.name} is {first.version}, locked {first.version}"]


def test_a_hold_that_is_gone(group: PlannedGroup) -> None:
    names = [p.name for p in group.stack.packages]
    assert found(group, answer(group, holds="\n".join(names[1:]))) == [f"{names[0]} is not held"]


def test_a_service_that_is_off(group: PlannedGroup) -> None:
    off = answer(group).replace("nvidia-fabricmanager active", "nvidia-fabricmanager inactive")
    assert found(group, off) == ["nvidia-fabricmanager is inactive"]


def test_an_image_of_another_digest(group: PlannedGroup) -> None:
    image = group.stack.images[0]
    other = answer(group, images=f"{image.reference} x@sha256:{'f' * 64}")
    assert found(group, other) == [f"{image.reference} is not the locked image"]


def test_an_answer_that_broke_off(group: PlannedGroup) -> None:
    assert found(group, answer(group).partition("== end")[0]) == ["its answer broke off"]


@pytest.mark.parametrize("missing", ["packages", "holds", "services", "images"])
def test_an_empty_section_is_a_difference(group: PlannedGroup, missing: str) -> None:
    assert found(group, answer(group, **{missing: ""}))
