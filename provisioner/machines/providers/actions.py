"""What gpuprov and Terraform's providers call, as a cloud's permissions name it: `actions.yaml` of a provider's folder.

`resources` has the actions of each resource and data source (`data.TYPE`) of the Terraform module by operation, as the
provider's source has them: `ACTION: SOURCE[, CONDITION]`. SOURCE is FILE:LINE below `terraform.source`, an address,
`recorded` (tests see the real provider make the call) or `unverified`. CONDITION says when the call happens; without
one it always does. What only an argument of a resource takes stands under TYPE.ARGUMENT. `calls` has gpuprov's own
calls, by their purpose. `policies` says which operations and calls a policy has to allow, `statements` what it narrows
by resource or tag, and `features` which resources only some sites have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from provisioner.common import yaml_text

OPERATIONS = ("create", "read", "update", "delete")
UNVERIFIED = "unverified"


@dataclass(frozen=True, slots=True)
class Action:
    """One action of an operation. `condition`: when it is called; empty: always."""

    name: str
    source: str
    condition: str


@dataclass(frozen=True, slots=True)
class Statement:
    """How policies allow some actions. `resource`: the cloud's own patterns. `policies`: the only ones that it is in;
    empty: all that have one of its actions."""

    name: str
    actions: tuple[str, ...]
    resource: tuple[str, ...] = ("*",)
    condition: Mapping[str, Any] | None = None
    policies: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ActionTable:
    """One provider's actions.yaml."""

    terraform: Mapping[str, str]
    resources: Mapping[str, Mapping[str, tuple[Action, ...]]]
    calls: Mapping[str, tuple[str, ...]]
    policies: Mapping[str, tuple[str, ...]]
    statements: tuple[Statement, ...]
    features: Mapping[str, tuple[str, ...]]
    unverified: tuple[str, ...]

    def of_resource(self, kind: str, operation: str) -> frozenset[str]:
        """The actions that one operation takes. Terraform reads a resource after its creation and its change, and
        before its removal. Raises KeyError for a resource that is not listed."""
        operations = self.resources[kind]
        listed = (*operations.get(operation, ()), *operations.get("read", ()))
        return frozenset(action.name for action in listed)

    @property
    def types(self) -> frozenset[str]:
        """The resources and data sources (`data.TYPE`) of the module."""
        return frozenset(kind for kind in self.resources if "." not in kind.removeprefix("data."))

    def of_resources(self, kinds: Iterable[str], *operations: str) -> frozenset[str]:
        """The actions of these operations (all operations where none is named) of several resources."""
        return frozenset().union(
            *(self.of_resource(kind, operation) for kind in kinds for operation in operations or OPERATIONS)
        )

    def with_features(self, enabled: Iterable[str]) -> tuple[str, ...]:
        """The resources of a site: those of its features, and those that every site has."""
        optional = {kind for kinds in self.features.values() for kind in kinds}
        present = {kind for feature in enabled for kind in self.features[feature]}
        return tuple(kind for kind in self.resources if kind in present or kind not in optional)

    def policy(self, name: str) -> frozenset[str]:
        """Every action that the commands of a policy take."""
        parts = self.policies[name]
        operations = [part for part in parts if part in OPERATIONS]
        own_calls = {action for part in parts if part not in OPERATIONS for action in self.calls[part]}
        return (self.of_resources(self.resources, *operations) if operations else frozenset()) | own_calls


@cache
def load(provider: str) -> ActionTable:
    """The table of a provider's folder. Raises FileNotFoundError where it has none."""
    text = files(f"provisioner.machines.providers.{provider}").joinpath("actions.yaml").read_text(encoding="utf-8")
    document: dict[str, Any] = yaml_text.load(text)
    return ActionTable(
        terraform=document["terraform"],
        resources={
            kind: {operation: tuple(_action(*row) for row in rows.items()) for operation, rows in operations.items()}
            for kind, operations in document["resources"].items()
        },
        calls={key: tuple(names) for key, names in document["calls"].items()},
        policies={key: tuple(parts) for key, parts in document["policies"].items()},
        statements=tuple(_statement(row) for row in document["statements"]),
        features={key: tuple(kinds) for key, kinds in document.get("features", {}).items()},
        unverified=tuple(document.get("unverified", ())),
    )


def _action(name: str, text: str) -> Action:
    source, _, condition = text.partition(", ")
    return Action(name, source, condition)


def _statement(row: Mapping[str, Any]) -> Statement:
    lists = {key: tuple(row[key]) for key in ("resource", "policies") if key in row}
    return Statement(row["name"], tuple(row["actions"]), condition=row.get("condition"), **lists)
