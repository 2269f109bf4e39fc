"""YAML as plain values: read by libyaml where PyYAML was built with it, which takes an eighth of the time."""

from __future__ import annotations

from typing import Any

import yaml

LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load(text: str | bytes) -> Any:
    """The first document. Raises yaml.YAMLError; ValueError for a number or a date that is none."""
    return yaml.load(text, LOADER)  # noqa: S506 (both loaders are safe)
