"""Capacity that is not there: which way a group is asked for next. What AWS's words mean is test_aws_errors.py's."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from provisioner.machines.providers.capacity import FILE, Attempt, Choices, Way, ways_of
from provisioner.machines.providers.cloud_errors import CloudError
from provisioner.plan.models import PlannedGroup
from provisioner.spec.groups import Group
from tests.support.plans import planned_group

ZONES = ("us-east-1a", "us-east-1b", "us-east-1c")


def short(*zones: str) -> list[CloudError]:
    return [CloudError("shortage", "InsufficientInstanceCapacity", "none", zones=zones, then="zone")]


QUOTA = [CloudError("quota", "MaxSpotInstanceCountExceeded", "no more", then="kind")]


def group(kind: str = "on-demand", *fallback: str) -> PlannedGroup:
    spec = Group.model_validate({"machine": "p4d.24xlarge", "capacity": {"kind": kind, "fallback": fallback}})
    return replace(planned_group("p4d.24xlarge"), spec=spec)


def test_the_zones_that_aws_names_come_first_then_the_others_then_the_next_kind() -> None:
    choices, train = Choices(), group("spot", "on-demand")
    options = []
    for zones in (("us-east-1c",), (), (), ("us-east-1b", "us-east-1a"), (), ()):
        options.append(choices.after(short(*zones), train, ZONES))
    assert options == [
        Way("spot", "us-east-1c"), Way("spot", "us-east-1b"),
        Way("on-demand", "us-east-1a"), Way("on-demand", "us-east-1b"), Way("on-demand", "us-east-1c"), None,
    ]  # fmt: skip


def test_a_quota_is_no_matter_of_zones() -> None:
    choices = Choices()
    option = choices.after(QUOTA, group("spot", "on-demand"), ZONES)
    assert option == Way("on-demand", "us-east-1a")


def test_without_a_fallback_every_zone_is_asked_once() -> None:
    choices, train, options = Choices(), group(), []
    while option := choices.after(short("eu-west-1a"), train, ZONES):
        options.append(option)
    assert [Way("on-demand", ZONES[0]), *options] == ways_of(train, ZONES)


def test_a_zone_that_cluster_yaml_does_not_name_is_never_taken() -> None:
    option = Choices().after(short("us-east-1f"), group(), ZONES)
    assert option == Way("on-demand", "us-east-1b")


def test_the_choice_is_kept_and_what_was_in_vain_is_tried_again_next_time(tmp_path: Path) -> None:
    choices = Choices(zones=ZONES, attempts={"train": [Attempt(Way("on-demand", ZONES[0]), ("none",), again=True)]})
    choices.after(short(), group(), ZONES)
    choices.write(tmp_path)
    saved_choices = Choices.read(tmp_path)
    assert saved_choices == choices
    settled = saved_choices.settled()
    assert (settled.taken, settled.tried, settled.zones) == ({"train": Way("on-demand", "us-east-1b")}, {}, ZONES)


def test_what_an_older_gpuprov_kept_is_read(tmp_path: Path) -> None:
    purchase_option = {"kind": "spot", "zone": "us-east-1b"}
    (tmp_path / FILE).write_text(
        json.dumps({"taken": {"train": purchase_option}, "tried": {"train": [purchase_option]}, "zones": []})
    )
    assert Choices.read(tmp_path) == Choices({"train": Way(**purchase_option)}, {"train": [Way(**purchase_option)]})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"taken": {"a": 1}}',
        '{"taken": {}, "tried": {"a": [{}]}, "zones": []}',
        '{"taken": {}, "tried": {}, "zones": [], "again": 1e999}',
    ],
)
def test_a_damaged_file_is_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    assert Choices.read(tmp_path) == Choices()
