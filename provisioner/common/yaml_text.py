"""YAML as plain values: read and written by libyaml where PyYAML was built with it, in an eighth of the time."""

from __future__ import annotations

from typing import Any

import yaml

LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def load(text: str | bytes) -> Any:
    """The first document. Raises yaml.YAMLError; ValueError for a number or a date that is none."""
    return yaml.load(text, LOADER)  # noqa: S506 (both loaders are safe)


def dump(document: Any) -> str:
    """One document in block style, keys in their order, lines of at most 120 characters."""
    text: str = yaml.dump(document, Dumper=DUMPER, sort_keys=False, width=120, allow_unicode=True)
    return text
