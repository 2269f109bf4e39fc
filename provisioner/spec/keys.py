"""What cluster.yaml may have at a place, by the JSON schema of its models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from provisioner.spec.models import ClusterSpec
from provisioner.spec.source_map import Loc

UNIONS: Mapping[Loc, str] = {("sites", "*"): "provider", ("state",): "backend"}
"""Blocks that have other keys for each value of one of them (`*`: any name): where they stand, and that key."""


def union_key(loc: Loc) -> str | None:
    """The key that decides about a block's other keys; None for a block that is no union."""
    return UNIONS.get(("sites", "*") if len(loc) == 2 and loc[0] == "sites" else loc)


@cache
def _json_schema() -> dict[str, Any]:
    return ClusterSpec.model_json_schema()


def resolved(node: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in node:
        target: dict[str, Any] = _json_schema()["$defs"][node["$ref"].rsplit("/", 1)[-1]]
        return {
            **target,
            **{k: v for k, v in node.items() if k not in ("$ref", "default")},
            "_title": node.get("title"),
        }
    return node


def branches_of(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield resolved(node)
    for branch in [*node.get("anyOf", ()), *node.get("oneOf", ())]:
        yield from branches_of(branch)


def _step(node: dict[str, Any], part: str | int, member: tuple[str, str] | None = None) -> dict[str, Any] | None:
    """The schema of a part of a block; `member`: of a union, the key that decides and its value."""
    for child in branches_of(node):
        if member and child.get("properties", {}).get(member[0], {}).get("const", member[1]) != member[1]:
            continue
        if isinstance(part, int) and isinstance(child.get("items"), dict):
            return dict(child["items"])
        if part in child.get("properties", {}):
            return dict(child["properties"][part])
        if isinstance(part, str) and "patternProperties" in child:
            return dict(next(iter(child["patternProperties"].values())))
    return None


def schema_of(loc: Loc, *more: str, value: Any = None) -> dict[str, Any]:
    """The schema of a place. Blocks of a union may have the same key: of which one it is, the file's own `value`
    decides."""
    node: dict[str, Any] | None = _json_schema()
    for depth, part in enumerate((*loc, *more)):
        decides = union_key(loc[:depth]) if depth <= len(loc) else None
        tag = value.get(decides) if decides and isinstance(value, dict) else None
        node = (
            _step(resolved(node), part, (decides, tag) if decides and isinstance(tag, str) else None) if node else None
        )
        value = value.get(part) if isinstance(value, dict) else value[part] if _within(value, part) else None
    return node or {}


def _within(value: Any, part: str | int) -> bool:
    return isinstance(value, list) and isinstance(part, int) and part < len(value)


@cache
def all_keys() -> Mapping[str, tuple[str, ...]]:
    """Every block of the file with its keys, nearest to the top first."""
    homes: dict[str, tuple[str, ...]] = {}
    todo: list[tuple[str, dict[str, Any]]] = [("", _json_schema())]
    while todo:
        block, node = todo.pop(0)
        for child in branches_of(node):
            if properties := child.get("properties"):
                homes[block] = (*homes.get(block, ()), *properties)
                todo += [(f"{block}.{key}".strip("."), value) for key, value in properties.items()]
            for value in child.get("patternProperties", {}).values():
                todo.append((f"{block}.<name>", value))
    return homes
