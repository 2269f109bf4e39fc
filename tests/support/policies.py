"""How clouds decide by a policy, as far as the policies of docs/ go, and a cloud that denies what one does not allow.

AWS, Alibaba Cloud and Tencent Cloud: what a statement denies is denied, what none allows is denied too
(https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_evaluation-logic.html,
https://www.alibabacloud.com/help/en/ram/user-guide/policy-evaluation-process,
https://www.tencentcloud.com/document/product/598/10605). Azure: a role has its actions without its notActions
(https://learn.microsoft.com/azure/role-based-access-control/role-definitions).
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from provisioner.machines.providers import actions
from tests.support.sandbox_cluster import ROOT
from tests.support.schema_provider import Cloud

Policy = Mapping[str, Any]
OPERATORS = {
    "StringEquals": lambda value, expected: value in expected,
    "StringLike": lambda value, expected: (
        value is not None and any(fnmatchcase(value, pattern) for pattern in expected)
    ),
    "Null": lambda value, expected: (value is None) == (expected == ["true"]),
}
"""Condition operator → whether a key's value (None: the request has none) meets it."""


@dataclass(frozen=True)
class Request:
    """One call. `tags`: of the resource that it is about. `context`: further condition keys."""

    action: str
    resource: str = "*"
    tags: Mapping[str, str] = field(default_factory=dict)
    context: Mapping[str, str] = field(default_factory=dict)


def documented(provider: str, name: str) -> Policy:
    """A policy as it stands in the provider's page."""
    text = (ROOT / "docs/guides" / f"{provider}.md").read_text(encoding="utf-8")
    part = text.partition(f"<!-- policy: {name} -->")[2].partition("<!-- end of policy -->")[0]
    (block,) = re.findall(r"```json\n(.*?)```", part, re.S)
    policy: Policy = json.loads(block)
    return policy


def allowed_actions(policy: Policy) -> set[str]:
    """Every action that a policy names."""
    if "NotActions" in policy:
        return {*policy["Actions"], *policy.get("DataActions", ())}
    return {name for row in _statements(policy) for name in row["action"]}


def allows(policy: Policy, request: Request) -> bool:
    """Whether the cloud would let the request through. Raises KeyError for a condition operator that is not known."""
    if "NotActions" in policy:
        return any(
            _among(policy.get(has, ()), request.action) and not _among(policy.get(without, ()), request.action)
            for has, without in (("Actions", "NotActions"), ("DataActions", "NotDataActions"))
        )
    effects = {row["effect"].lower() for row in _statements(policy) if _matches(row, request)}
    return effects == {"allow"}


def without(policy: Policy, name: str) -> Policy:
    """A policy that lacks an action."""
    copy: dict[str, Any] = json.loads(json.dumps(policy))
    for row in copy.get("Statement", copy.get("statement", [copy])):
        for key in ("Action", "action", "Actions", "DataActions"):
            if name in row.get(key, ()):
                row[key].remove(name)
    return copy


def _statements(policy: Policy) -> Iterator[dict[str, Any]]:
    for row in policy.get("Statement", policy.get("statement", ())):
        yield {key.lower(): value for key, value in row.items()}


def _among(patterns: Sequence[str], value: str) -> bool:
    return any(fnmatchcase(value.lower(), pattern.lower()) for pattern in patterns)


def _matches(row: Mapping[str, Any], request: Request) -> bool:
    if not _among(row["action"], request.action) or not any(
        fnmatchcase(request.resource, pattern) for pattern in row["resource"]
    ):
        return False
    values = {**request.context, **{f"ResourceTag/{key}": value for key, value in request.tags.items()}}
    for operator, keys in row.get("condition", {}).items():
        for key, expected in keys.items():
            value = values.get(key, values.get(key.partition(":")[2]))
            if not OPERATORS[operator](value, [expected] if isinstance(expected, str) else expected):
                return False
    return True


@dataclass
class Guard:
    """Denies the calls of Terraform's provider that a policy does not allow. `denied`: the actions that it denied."""

    provider: str
    policy: Policy
    denied: set[str] = field(default_factory=set)

    @classmethod
    def over(cls, cloud: Cloud, provider: str, name: str = "up") -> Guard:
        """A cloud that from now on does what the documented policy allows alone."""
        guard = cls(provider, documented(provider, name))
        cloud.guard = guard
        return guard

    def has_denied(self, own_calls: Collection[str] = ()) -> set[str]:
        """What was denied, and what of these calls of gpuprov's own would be."""
        return self.denied | {name for name in own_calls if not allows(self.policy, Request(name))}

    def __call__(self, operation: str, kind: str, attributes: Mapping[str, Any]) -> str:
        """What the cloud says to an operation of a resource; nothing where it does it."""
        for request in requests(self.provider, operation, kind, attributes):
            if not allows(self.policy, request):
                self.denied.add(request.action)
                return f"denied: {request.action} on {request.resource}"
        return ""


def requests(provider: str, operation: str, kind: str, attributes: Mapping[str, Any]) -> Iterator[Request]:
    """The calls of one operation of a resource, those of its arguments among them."""
    table = actions.load(provider)
    tags = {key: value for key, value in (attributes.get("tags") or {}).items() if isinstance(value, str)}
    for name in (
        kind,
        *(
            resource_kind
            for resource_kind in table.resources
            if resource_kind.startswith(f"{kind}.") and _has(attributes, resource_kind)
        ),
    ):
        for action in table.resources[name].get(operation, ()):
            context = {"iam:PassedToService": "ec2.amazonaws.com"} if action.name == "iam:PassRole" else {}
            if action.name == "iam:CreateServiceLinkedRole":
                context = {"iam:AWSServiceName": SERVICES[kind]}
            for resource in _resources(action.name, attributes):
                yield Request(action.name, resource, tags if operation != "create" else {}, context)


SERVICES = {
    "aws_instance": "spot.amazonaws.com", "aws_efs_file_system": "elasticfilesystem.amazonaws.com",
    "aws_ec2_instance_connect_endpoint": "ec2-instance-connect.amazonaws.com",
    "aws_fsx_lustre_file_system": "fsx.amazonaws.com",
}  # fmt: skip
"""Resource → the service whose linked role its creation makes."""


def _has(attributes: Mapping[str, Any], kind: str) -> bool:
    """Whether an argument (TYPE.PATH) of a resource is given."""
    values: list[Any] = [attributes]
    for name in kind.split(".")[1:]:
        values = [value[name] for value in values if isinstance(value, Mapping) and value.get(name)]
        values = [inner for value in values for inner in (value if isinstance(value, list) else [value])]
    return bool(values)


def _resources(action: str, attributes: Mapping[str, Any]) -> list[str]:
    """What an action is about, where policies narrow it: roles and their policies, by the names that they have."""
    role, policy = (attributes.get(key) for key in ("role_name", "policy_name"))
    if action.startswith("ram:") and action not in ("ram:ListTagResources", "ram:ListRoles"):
        names = {"role": role or attributes.get("ram_role_name"), "policy": policy}
        kinds = [kind for kind in names if kind in action.lower()] or list(names)
        return [f"acs:ram::100:{kind}/{names[kind]}" for kind in kinds if names[kind]]
    if action == "iam:CreateServiceLinkedRole":
        return ["arn:aws:iam::100:role/aws-service-role/AWSServiceRole"]
    if action.startswith("iam:"):
        profile = "InstanceProfile" in action and action != "iam:ListInstanceProfilesForRole"
        return [f"arn:aws:iam::100:{'instance-profile' if profile else 'role'}/{attributes.get('name', role)}"]
    return ["*"]
