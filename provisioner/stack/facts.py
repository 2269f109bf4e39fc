"""Facts as rows of data/*.yaml: components, their versions, and what these need of each other."""

from __future__ import annotations

from datetime import UTC, date, datetime
from functools import cache
from importlib import resources
from typing import Any

from provisioner.catalog import distributions
from provisioner.common import yaml_text

FILES = ("components", "nvidia", "frameworks", "systems", "packages", "vendor_images")


@cache
def _file(name: str) -> dict[str, Any]:
    text = (resources.files("provisioner.stack") / "data" / f"{name}.yaml").read_text(encoding="utf-8")
    document: dict[str, Any] = yaml_text.load(text)
    return document


@cache
def _documents() -> dict[str, Any]:
    merged: dict[str, Any] = {"os": distributions.rows()}
    for name in FILES:
        merged |= _file(name)
    return merged


def rows(key: str) -> Any:
    """The list (or mapping) of that name. Keys are explained at the head of each file."""
    return _documents()[key]


OLD_DAYS = 180
"""Days after which facts are old: NVIDIA has two branches of drivers a year, PyTorch five releases."""


def today() -> date:
    """The day on which facts are used."""
    return datetime.now(UTC).date()


def old() -> list[str]:
    """Files of facts that are too old to be taken without a word: "frameworks (2026-11-21)"."""
    stale_files = []
    for name in FILES:
        day = _file(name).get("as_of")
        if day is not None and (today() - date.fromisoformat(day)).days > OLD_DAYS:
            stale_files.append(f"{name} ({day})")
    return stale_files


def as_of() -> str:
    """The day (ISO) until which the rows are true: support that ended before it has ended."""
    day: str = _documents()["as_of"]
    return day
