"""Facts between the processes of one run, as pickle has them.

A frozen dataclass with slots is pickled by a function of dataclasses that looks its fields up each time, and there are
hundreds of such objects in a node's facts: here they are looked up once for each class.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from operator import attrgetter
from typing import Any


def dumps(value: Any) -> bytes:
    stream = io.BytesIO()
    _Pickler(stream, pickle.HIGHEST_PROTOCOL).dump(value)
    return stream.getvalue()


def loads(data: bytes) -> Any:
    """What `dumps` gave, in a process of the same run: nothing else may be read by it."""
    return pickle.loads(data)  # noqa: S301


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        kind: Any = type(value)
        read = _reader(kind)
        return NotImplemented if read is None else (_rebuild, (kind, read(value)))


@cache
def _reader(kind: type) -> Callable[[Any], Sequence[Any]] | None:
    """Gives the values of a dataclass's slots; None of what has none, or one alone."""
    names = [field.name for field in fields(kind)] if is_dataclass(kind) else []
    return attrgetter(*names) if len(names) > 1 and all(name in _slots(kind) for name in names) else None


@cache
def _writers(kind: type) -> tuple[Callable[[Any, Any], None], ...]:
    return tuple(getattr(kind, field.name).__set__ for field in fields(kind))


def _slots(kind: type) -> set[str]:
    return {name for base in kind.__mro__ for name in base.__dict__.get("__slots__", ())}


def _rebuild(kind: type, values: Sequence[Any]) -> Any:
    """An object as it was: without its __init__, which has run already."""
    instance: Any = object.__new__(kind)
    for write, value in zip(_writers(kind), values, strict=True):
        write(instance, value)
    return instance
