"""Facts as values of JSON, and documents that are parsed when somebody looks into them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

DETAILED = 64
"""Nodes up to which reports have all facts of each; of a larger fleet they have those of nodes with something wrong."""
_ATOMS = frozenset((str, int, float, bool, type(None)))
_NAMES: dict[type, tuple[str, ...] | None] = {}
"""Class → its fields' names; None of what is no dataclass."""


def asdict(value: Any) -> dict[str, Any]:
    """A dataclass as a mapping, as dataclasses.asdict gives it, in a fifth of the time."""
    mapping: dict[str, Any] = plain(value)
    return mapping


def plain(value: Any) -> Any:
    """A value of facts as JSON has it: dataclasses as mappings, tuples as lists."""
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind not in _NAMES:
        _NAMES[kind] = tuple(f.name for f in fields(kind)) if is_dataclass(kind) else None
    if names := _NAMES[kind]:
        mapping = {}
        for name in names:
            inner = getattr(value, name)
            mapping[name] = inner if type(inner) in _ATOMS else plain(inner)
        return mapping
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return list(map(plain, value))
    return value


class Document(Mapping[str, Any]):
    """A JSON object. Of a thousand nodes' facts a report shows a few, and a text weighs a fifth of what is in it.
    `read`: values of keys that are asked of every node, so that the rest need not be parsed for them."""

    def __init__(self, text: str, read: Mapping[str, Any] | None = None) -> None:
        self._text, self._read = text, read or {}
        self._parsed: Mapping[str, Any] | None = None

    def _object(self) -> Mapping[str, Any]:
        if self._parsed is None:
            self._parsed = json.loads(self._text)
        return self._parsed

    def __getitem__(self, key: str) -> Any:
        return self._read[key] if key in self._read else self._object()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._object())

    def __len__(self) -> int:
        return len(self._object())
