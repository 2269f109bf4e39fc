"""Terraform's values as its plugin protocol writes them: MessagePack, where an extension stands for "not known yet"."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgpack


class Unknown:
    """A value that only apply will tell."""

    def __repr__(self) -> str:
        return "(known after apply)"


UNKNOWN = Unknown()
Type = Any
"""A type as cty writes it in JSON: "string", ["list", "string"], ["object", {"name": "string"}]."""


def decode(packed: bytes) -> Any:
    """The value; UNKNOWN where it is not known. Numbers that MessagePack can't hold are text there."""
    return msgpack.unpackb(packed, raw=False, strict_map_key=False, ext_hook=lambda code, data: UNKNOWN)


def encode(value: Any) -> bytes:
    packed: bytes = msgpack.packb(value, default=_unknown, use_bin_type=True)
    return packed


def _unknown(value: Any) -> msgpack.ExtType:
    if isinstance(value, Unknown):
        return msgpack.ExtType(0, b"\x00")
    raise TypeError(type(value))


def default_value(kind: Type, text: str) -> Any:
    """A value of a type, where nothing tells another: `text` for a string, nothing in a list."""
    if isinstance(kind, str):
        return {"string": text, "number": 0, "bool": False}.get(kind)
    outer, inner = kind
    if outer == "object":
        return {name: default_value(inner_type, text) for name, inner_type in inner.items()}
    return (
        [default_value(inner_type, text) for inner_type in inner] if outer == "tuple" else {} if outer == "map" else []
    )


def mapped(block: Mapping[str, Any], value: Any, leaf: Callable[[str, Mapping[str, Any], Any], Any]) -> Any:
    """A block's value with each attribute's replaced by `leaf(path, attribute's schema, value)`. A block that is not
    there stays so."""
    return _block(block, value, leaf, "")


def _block(block: Mapping[str, Any], value: Any, leaf: Callable[[str, Mapping[str, Any], Any], Any], at: str) -> Any:
    if value is None or isinstance(value, Unknown):
        return value
    filled = {
        name: leaf(f"{at}{name}", schema, value.get(name)) for name, schema in block.get("attributes", {}).items()
    }
    for name, nested in block.get("block_types", {}).items():
        inner, nested_value = nested["block"], value.get(name)
        if isinstance(nested_value, list):
            filled[name] = [_block(inner, item, leaf, f"{at}{name}.") for item in nested_value]
        elif isinstance(nested_value, dict) and nested["nesting_mode"] == "map":
            filled[name] = {key: _block(inner, item, leaf, f"{at}{name}.") for key, item in nested_value.items()}
        else:
            filled[name] = _block(inner, nested_value, leaf, f"{at}{name}.")
    return filled
