"""Distributions that nodes may have: the rows of data/distributions.yaml."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

from provisioner.common import yaml_text


@cache
def rows() -> tuple[dict[str, Any], ...]:
    """Every distribution, the preferred one first; the head of the file explains the keys."""
    text = (resources.files("provisioner.catalog") / "data" / "distributions.yaml").read_text(encoding="utf-8")
    return tuple(yaml_text.load(text)["distributions"])


def names() -> tuple[str, ...]:
    """As cluster.yaml writes them (stack.os): ubuntu-24.04."""
    return tuple(row["version"] for row in rows())


def row(name: str) -> dict[str, Any]:
    """One distribution. Raises KeyError for an unknown one."""
    distribution = next((row for row in rows() if row["version"] == name), None)
    if distribution is None:
        raise KeyError(name)
    return distribution
