"""Capacity that is not there: what AWS's words are read as, and which way a group is asked for next."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from provisioner.plan import PlannedGroup
from provisioner.providers.aws.capacity import shortages
from provisioner.providers.capacity import FILE, Choices, Shortage, Way, ways_of
from provisioner.spec.groups import Group
from tests.support.plans import planned_group

ZONES = ("us-east-1a", "us-east-1b", "us-east-1c")
ICE = (
    "operation error EC2: RunInstances, https response error StatusCode: 500, RequestID: 1, api error "
    "InsufficientInstanceCapacity: We currently do not have sufficient p4d.24xlarge capacity in the Availability Zone "
    "you requested ({}). Our system will be working on provisioning additional capacity. You can currently get "
    "p4d.24xlarge capacity by not specifying an Availability Zone in your request or choosing {}."
)
"""EC2's message as Terraform prints it."""
SPOT = (
    "operation error EC2: RunInstances, api error SpotMaxPriceTooLow: Your Spot request price of 10 is lower than 21.4."
)
QUOTA = "operation error EC2: RunInstances, api error VcpuLimitExceeded: You have requested more vCPU capacity than 96."


def failed(node: str, message: str) -> str:
    return f'  module.site.aws_instance.node["{node}"]: creating EC2 Instance: {message}'


def group(kind: str = "on-demand", *fallback: str) -> PlannedGroup:
    spec = Group.model_validate({"machine": "p4d.24xlarge", "capacity": {"kind": kind, "fallback": fallback}})
    return replace(planned_group("p4d.24xlarge"), spec=spec)


def test_a_shortage_is_read_with_the_zones_that_it_names() -> None:
    text = "terraform apply failed: " + failed("train-1", ICE.format("us-east-1a", "us-east-1c, us-east-1b"))
    assert shortages(text) == {"train": Shortage("train", "InsufficientInstanceCapacity", ("us-east-1c", "us-east-1b"))}


def test_a_group_with_a_hyphen_and_two_groups() -> None:
    text = "\n".join([failed("big-a100-12", ICE.format("us-east-1a", "us-east-1b")), failed("small-0", SPOT)])
    assert {name: found.code for name, found in shortages(text).items()} == {
        "big-a100": "InsufficientInstanceCapacity", "small": "SpotMaxPriceTooLow",
    }  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        failed("train-0", QUOTA),
        "\n".join([failed("train-0", ICE.format("us-east-1a", "us-east-1b")), failed("train-1", QUOTA)]),
        "terraform apply failed: error acquiring the state lock",
        "",
    ],
)
def test_what_another_zone_would_not_help_is_no_shortage(text: str) -> None:
    assert shortages(text) == {}


def test_the_zones_that_aws_names_come_first_then_the_others_then_the_next_kind() -> None:
    choices, wanted = Choices(), group("spot", "on-demand")
    seen = []
    for named in (("us-east-1c",), (), (), ("us-east-1b", "us-east-1a"), (), ()):
        seen.append(choices.after(Shortage("train", "InsufficientInstanceCapacity", named), wanted, ZONES))
    assert seen == [
        Way("spot", "us-east-1c"), Way("spot", "us-east-1b"),
        Way("on-demand", "us-east-1a"), Way("on-demand", "us-east-1b"), Way("on-demand", "us-east-1c"), None,
    ]  # fmt: skip


def test_a_price_is_no_matter_of_zones() -> None:
    choices = Choices()
    found = choices.after(
        Shortage("train", "SpotMaxPriceTooLow", (), whole_kind=True), group("spot", "on-demand"), ZONES
    )
    assert found == Way("on-demand", "us-east-1a")


def test_without_a_fallback_every_zone_is_asked_once() -> None:
    choices, wanted, seen = Choices(), group(), []
    while way := choices.after(Shortage("train", "Unsupported", ("eu-west-1a",)), wanted, ZONES):
        seen.append(way)
    assert [Way("on-demand", ZONES[0]), *seen] == ways_of(wanted, ZONES)


def test_a_zone_that_cluster_yaml_does_not_name_is_never_taken() -> None:
    found = Choices().after(Shortage("train", "InsufficientInstanceCapacity", ("us-east-1f",)), group(), ZONES)
    assert found == Way("on-demand", "us-east-1b")


def test_the_choice_is_kept_and_what_was_in_vain_is_tried_again_next_time(tmp_path: Path) -> None:
    choices = Choices(zones=ZONES)
    choices.after(Shortage("train", "InsufficientInstanceCapacity", ()), group(), ZONES)
    choices.write(tmp_path)
    kept = Choices.read(tmp_path)
    assert kept == choices
    settled = kept.settled()
    assert (settled.taken, settled.tried, settled.zones) == ({"train": Way("on-demand", "us-east-1b")}, {}, ZONES)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"taken": {"a": 1}}', '{"taken": {}, "tried": {"a": [{}]}, "zones": []}']
)
def test_a_damaged_file_is_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    assert Choices.read(tmp_path) == Choices()
