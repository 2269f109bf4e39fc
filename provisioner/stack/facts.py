"""Facts as rows of data/*.yaml: components, their versions, and what these need of each other."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

import yaml

from provisioner.catalog import distributions

FILES = ("components", "nvidia", "frameworks", "systems", "packages")


@cache
def _documents() -> dict[str, Any]:
    merged: dict[str, Any] = {"os": distributions.rows()}
    for name in FILES:
        text = (resources.files("provisioner.stack") / "data" / f"{name}.yaml").read_text(encoding="utf-8")
        merged |= yaml.load(text, Loader=yaml.CSafeLoader)
    return merged


def rows(key: str) -> Any:
    """The list (or mapping) of that name. Keys are explained at the head of each file."""
    return _documents()[key]


def as_of() -> str:
    """The day (ISO) until which the rows are true: support that ended before it has ended."""
    day: str = _documents()["as_of"]
    return day
