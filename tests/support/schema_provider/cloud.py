"""The imitated cloud: what was made, what is refused, and the little that is known of each resource."""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.support.schema_provider.values import UNKNOWN, Unknown, default_value, mapped

HERE = Path(__file__).parent


def names() -> list[str]:
    """Every provider with a schema here."""
    return sorted(file.name.rpartition("-")[0] for file in HERE.glob("schemas/*.json"))


@cache
def schema(name: str) -> tuple[str, Mapping[str, Any]]:
    """Source (aliyun/alicloud) and schema of a provider, as `terraform providers schema -json` writes it."""
    (file,) = HERE.glob(f"schemas/{name}-*.json")
    ((source, document),) = json.loads(file.read_text(encoding="utf-8"))["provider_schemas"].items()
    return source, document


@cache
def known(name: str) -> Mapping[str, Any]:
    """Resource or data source → what its schema does not tell (`<name>.yaml`)."""
    file = HERE / f"{name}.yaml"
    rules: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8")) if file.exists() else {}
    return rules


@dataclass
class Refusal:
    """What a cloud says instead of doing something. `match`: attribute → pattern that the value has; `times`: how often
    (None: always); `half`: the thing is made, and the error comes all the same."""

    kind: str
    text: str
    action: str
    match: Mapping[str, str]
    times: int | None
    half: bool

    def fits(self, action: str, kind: str, attributes: Mapping[str, Any]) -> bool:
        if (self.action, self.kind) != (action, kind) or self.times == 0:
            return False
        return all(re.search(pattern, str(attributes.get(name))) for name, pattern in self.match.items())


@dataclass
class Cloud:
    """One account of a cloud. Safe to use from several threads.

    `objects`: (type, id) → attributes. `calls`: (action, type, id), the id empty where nothing was made. `on_created`
    and `on_deleted` are called with type and attributes when a resource was created or deleted; `on_created` may change
    them, as where a sandbox node stands behind a machine's address. `guard` is asked before each operation (create,
    read, update, delete) of a type with its attributes, and says what the cloud refuses. What is created and cannot be
    read exists."""

    name: str
    objects: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    calls: list[tuple[str, str, str]] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    on_created: Callable[[str, dict[str, Any]], None] | None = None
    on_deleted: Callable[[str, dict[str, Any]], None] | None = None
    guard: Callable[[str, str, Mapping[str, Any]], str] | None = None
    _created_counts: Counter[str] = field(default_factory=Counter)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def serving(self) -> AbstractContextManager[dict[str, str]]:
        """What Terraform's environment has while the cloud answers."""
        from tests.support.schema_provider.server import serving

        return serving(self)

    def fail(
        self, kind: str, text: str, *, action: str = "create", match: Mapping[str, str] | None = None,
        times: int | None = None, half: bool = False,
    ) -> None:  # fmt: skip
        """From now on say this text instead of creating, updating, reading or deleting a resource of a type."""
        self.refusals.append(Refusal(kind, text, action, match or {}, times, half))

    def of(self, kind: str) -> list[dict[str, Any]]:
        """The resources of a type that stand."""
        with self._lock:
            return [resource for (type_, _), resource in self.objects.items() if type_ == kind]

    def create(self, kind: str, planned: Mapping[str, Any]) -> tuple[dict[str, Any] | None, str]:
        """What was made of a plan, and what went wrong."""
        with self._lock:
            refused, denied = self._refused("create", kind, planned), self._denied("create", kind, planned)
            if denied or (refused and not refused.half):
                self.calls.append(("create", kind, ""))
                return None, denied or (refused.text if refused else "")
            self._created_counts[kind] += 1
            new = self._filled(kind, planned, self._created_counts[kind])
            self.objects[kind, new["id"]] = new
            self.calls.append(("create", kind, new["id"]))
        if self.on_created:
            self.on_created(kind, new)
        return new, refused.text if refused else self._denied("read", kind, new)

    def update(self, kind: str, planned: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
        with self._lock:
            previous = self.objects.get((kind, planned["id"]))
            if previous is None:
                return {}, f"{kind} {planned['id']} does not exist"
            refused = self._refused("update", kind, planned)
            self.calls.append(("update", kind, planned["id"]))
            if denied := self._denied("update", kind, previous):
                return previous, denied
            if refused:
                return previous, refused.text
            new = self._filled(kind, planned, self._created_counts[kind])
            self.objects[kind, new["id"]] = new
            return new, self._denied("read", kind, new)

    def delete(self, kind: str, id_: str) -> str:
        """What went wrong; nothing where it is gone."""
        with self._lock:
            self.calls.append(("delete", kind, id_))
            existing = self.objects.get((kind, id_), {})
            if denied := self._denied("delete", kind, existing):
                return denied
            if refused := self._refused("delete", kind, existing):
                return refused.text
            old = self.objects.pop((kind, id_), None)
        if self.on_deleted and old is not None:
            self.on_deleted(kind, old)
        return ""

    def read(self, kind: str, id_: str) -> tuple[dict[str, Any] | None, str]:
        """The resource as it stands, None where it is gone; and what went wrong."""
        with self._lock:
            resource = self.objects.get((kind, id_))
            refused = self._refused("read", kind, resource or {})
            return resource, refused.text if refused else self._denied("read", kind, resource or {})

    def data(self, kind: str, config: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
        """What a data source answers: what `<name>.yaml` says, empty lists where it says nothing."""
        with self._lock:
            refused = self._refused("read", kind, config)
            block = schema(self.name)[1]["data_source_schemas"][kind]["block"]
            query = mapped(
                block,
                config,
                lambda _, attribute, value: UNKNOWN if attribute.get("computed") and value is None else value,
            )
            return self._filled(kind, query, 0, data=True), refused.text if refused else ""

    def rules(self, kind: str) -> Mapping[str, Any]:
        table: Mapping[str, Any] = known(self.name).get(kind, {})
        return table

    def _denied(self, operation: str, kind: str, attributes: Mapping[str, Any]) -> str:
        return self.guard(operation, kind, attributes) if self.guard else ""

    def _refused(self, action: str, kind: str, attributes: Mapping[str, Any]) -> Refusal | None:
        refusal = next((candidate for candidate in self.refusals if candidate.fits(action, kind, attributes)), None)
        if refusal and refusal.times is not None:
            refusal.times -= 1
        return refusal

    def _filled(self, kind: str, planned: Mapping[str, Any], number: int, *, data: bool = False) -> dict[str, Any]:
        """The plan, and in place of what was not known: what `<name>.yaml` says of it, else a value of its type."""
        templates = self.rules(kind).get("values", {})
        schemas = schema(self.name)[1]["data_source_schemas" if data else "resource_schemas"]
        variables = {
            "n": number,
            "m": number % 250 + 1,
            **{k: v for k, v in planned.items() if isinstance(v, str | int)},
        }

        def leaf(path: str, attribute: Mapping[str, Any], value: Any) -> Any:
            if not isinstance(value, Unknown):
                return value
            if path in templates:
                return _formatted(templates[path], variables)
            return default_value(attribute["type"], f"{kind}-{number}" if path == "id" else "")

        filled: dict[str, Any] = mapped(schemas[kind]["block"], planned, leaf)
        return filled


def _formatted(value: Any, variables: Mapping[str, Any]) -> Any:
    if isinstance(value, str):
        return value.format_map(variables)
    if isinstance(value, list):
        return [_formatted(item, variables) for item in value]
    return {key: _formatted(item, variables) for key, item in value.items()} if isinstance(value, dict) else value
