"""The documented policies have what the commands call: each resource of a Terraform module, and gpuprov itself."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from provisioner.machines.providers import actions
from provisioner.machines.providers.actions import OPERATIONS, UNVERIFIED
from scripts import policy_docs
from tests.support.policies import Request, allowed_actions, allows, documented, requests, without
from tests.support.sandbox_cluster import ROOT

PROVIDERS = policy_docs.PROVIDERS
POLICIES = [(provider, name) for provider in PROVIDERS for name in actions.load(provider).policies]
SOURCE = re.compile(rf"[\w./-]+\.go:\d+|https://\S+|recorded|{UNVERIFIED}")
NAME = {"azure": re.compile(r"Microsoft\.\w+(/\w+)+"), "aws": re.compile(r"[a-z0-9-]+:[A-Z]\w+")}
LIMITS = {"aws": 6144, "alicloud": 6144, "tencent": 6144, "azure": 2000}
"""Characters of one policy, for Azure actions of one role. https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_iam-quotas.html,
https://www.alibabacloud.com/help/en/ram/product-overview/limits, https://www.tencentcloud.com/document/product/598/10593"""


ATTRIBUTES = {
    "tags": {"gpuprov-cluster": "test"}, "name": "gpuprov-test", "role_name": "gpuprov-test",
    "policy_name": "gpuprov-test",
}  # fmt: skip
"""What every resource of a site has, as far as policies decide by it. For a route the cloud takes its table's tags."""


def in_module(folder: Path) -> Iterator[str]:
    """The resources and data sources (`data.TYPE`) of a module, without Terraform's own."""
    for file in sorted(folder.glob("*.tf")):
        for kind, name in re.findall(r'^(resource|data) "(\w+)"', file.read_text(encoding="utf-8"), re.M):
            if not name.startswith("terraform_"):
                yield f"data.{name}" if kind == "data" else name


@pytest.mark.parametrize("provider", PROVIDERS)
def test_every_resource_of_the_module_has_its_actions_and_no_other(provider: str) -> None:
    assert actions.load(provider).types == set(in_module(ROOT / "terraform" / provider))


def test_a_resource_that_a_module_gains_is_seen(tmp_path: Path) -> None:
    (tmp_path / "main.tf").write_text('resource "alicloud_disk" "scratch" {\n}\ndata "alicloud_zones" "all" {\n}\n')
    assert set(in_module(tmp_path)) - actions.load("alicloud").types == {"alicloud_disk", "data.alicloud_zones"}


@pytest.mark.parametrize("provider", PROVIDERS)
def test_the_table_is_whole(provider: str) -> None:
    """Every resource can be created, read and deleted by something, and every action has a source."""
    table = actions.load(provider)
    for kind, operations in table.resources.items():
        assert set(operations) <= set(OPERATIONS), kind
        if kind in table.types and not kind.startswith("data."):
            assert set(operations) >= {"create", "read", "delete"}, kind
        for action in (action for rows in operations.values() for action in rows):
            assert NAME.get(provider, NAME["aws"]).fullmatch(action.name), (kind, action)
            assert SOURCE.fullmatch(action.source), (kind, action)
    every = table.of_resources(table.resources) | {name for names in table.calls.values() for name in names}
    assert {name for row in table.statements for name in row.actions} <= every
    assert {kind for kinds in table.features.values() for kind in kinds} <= set(table.resources)
    assert {part for parts in table.policies.values() for part in parts} <= {*OPERATIONS, *table.calls}


@pytest.mark.parametrize("provider", PROVIDERS)
def test_the_page_is_what_the_table_gives(provider: str) -> None:
    text = (ROOT / "docs/guides" / f"{provider}.md").read_text(encoding="utf-8")
    assert policy_docs.written(provider, text) == text, "run `python scripts/check_docs.py`"
    assert set(re.findall(r"<!-- policy: (\w+) -->", text)) == set(actions.load(provider).policies)
    assert f"release {actions.load(provider).terraform['version']}" in text
    for line in policy_docs.unverified(provider):
        assert f"- {line}\n" in text


@pytest.mark.parametrize(("provider", "name"), POLICIES)
def test_a_policy_has_every_action_of_its_commands_and_no_other(provider: str, name: str) -> None:
    policy = documented(provider, name)
    assert allowed_actions(policy) == actions.load(provider).policy(name)
    assert not any("*" in action for action in allowed_actions(policy))
    size = len(policy["Actions"]) if provider == "azure" else len(json.dumps(policy, separators=(",", ":")))
    assert size <= LIMITS[provider], "more than the cloud takes in one policy"


def life(provider: str) -> Iterator[tuple[str, Request]]:
    """Every call that Terraform's provider makes for a site that has everything, step by step."""
    table = actions.load(provider)
    node = {"alicloud": "alicloud_instance", "aws": "aws_instance", "azure": "azurerm_linux_virtual_machine",
            "tencent": "tencentcloud_instance"}[provider]  # fmt: skip
    steps = {
        "up": [(kind, operation) for operation in ("read", "create") for kind in table.resources],
        "a second up": [(kind, operation) for operation in ("read", "update") for kind in table.resources],
        "replace": [
            (kind, operation) for operation in ("read", "delete", "create") for kind in table.resources
            if kind.partition(".")[0] == node
        ],
        "down": [(kind, operation) for operation in ("read", "delete") for kind in table.resources],
    }  # fmt: skip
    for step, operations in steps.items():
        for kind, operation in operations:
            for request in requests(provider, operation, kind, ATTRIBUTES):
                yield step, request


@pytest.mark.parametrize("provider", PROVIDERS)
def test_up_a_second_up_replace_and_down_are_allowed(provider: str) -> None:
    policy = documented(provider, "up")
    denied = {(step, request.action) for step, request in life(provider) if not allows(policy, request)}
    assert denied == set()


@pytest.mark.parametrize("provider", PROVIDERS)
def test_plan_is_allowed_to_look_and_to_change_nothing(provider: str) -> None:
    policy, table = documented(provider, "plan"), actions.load(provider)
    for kind in table.resources:
        for operation in OPERATIONS:
            for request in requests(provider, operation, kind, ATTRIBUTES):
                assert allows(policy, request) == (request.action in table.policy("plan")), (kind, request)
    dry_runs = {"ec2:RunInstances", "ecs:RunInstances", "cvm:RunInstances"}
    changing = {
        name
        for name in allowed_actions(policy) - dry_runs
        if not re.search(r"[:/](Describe|Get|List|Simulate)|/read$", name)
    }
    assert changing == set()


@pytest.mark.parametrize("provider", PROVIDERS)
def test_each_action_that_up_lacks_is_denied(provider: str) -> None:
    policy = documented(provider, "up")
    for action in sorted({request.action for _, request in life(provider)}):
        lacking = without(policy, action)
        assert {request.action for _, request in life(provider) if not allows(lacking, request)} == {action}


def test_what_has_no_tag_and_what_has_another_name_is_not_touched() -> None:
    policy = documented("alicloud", "up")
    assert allows(policy, Request("ecs:DeleteInstance", tags={"gpuprov-cluster": "speech"}))
    assert not allows(policy, Request("ecs:DeleteInstance", tags={"owner": "me"}))
    assert allows(policy, Request("ram:DeleteRole", "acs:ram::100:role/gpuprov-speech-0"))
    assert not allows(policy, Request("ram:DeleteRole", "acs:ram::100:role/admin"))


def test_a_denial_counts_more_than_what_allows() -> None:
    row = {"Effect": "Allow", "Action": ["ecs:*"], "Resource": ["*"]}
    policy = {"Statement": [row, {**row, "Effect": "Deny", "Action": ["ecs:Delete*"]}]}
    assert allows(policy, Request("ecs:RunInstances")) and not allows(policy, Request("ecs:DeleteInstance"))
    assert not allows(policy, Request("vpc:CreateVpc"))
    role = {
        "Actions": ["*/read", "Microsoft.Compute/*"],
        "NotActions": ["Microsoft.Compute/disks/*"],
        "DataActions": ["a/b"],
    }
    assert allows(role, Request("Microsoft.Network/virtualNetworks/read")) and allows(role, Request("a/b"))
    assert not allows(role, Request("Microsoft.Compute/disks/read"))
