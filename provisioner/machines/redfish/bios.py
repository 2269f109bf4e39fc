"""BIOS settings that GPU work needs, as rows of data/bios.yaml: names differ between vendors, and so do values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from provisioner.common import yaml_text
from provisioner.machines.redfish.tree import Resource, Tree

_FILE = Path(__file__).parent / "data" / "bios.yaml"


@dataclass(frozen=True, slots=True)
class Setting:
    """`good` is None for a value that nobody has judged; `why`: what a wrong one costs."""

    setting: str
    attribute: str
    value: str
    good: bool | None
    why: str


@cache
def _rows() -> tuple[Mapping[str, object], ...]:
    return tuple(yaml_text.load(_FILE.read_text(encoding="utf-8"))["settings"])


def settings(tree: Tree, system: Resource) -> tuple[Setting, ...] | None:
    """Those that are known of the host's BIOS; None where the BMC shows no attributes."""
    attributes = tree.get(system.get("Bios")).get("Attributes")
    if not isinstance(attributes, Mapping) or not attributes:
        return None
    known_settings = []
    for row in _rows():
        for name, value in sorted(attributes.items()):
            if re.fullmatch(str(row["attribute"]), name) and isinstance(value, str) and value.strip():
                good_values, bad_values = row["good"], row["bad"]
                assert isinstance(good_values, list) and isinstance(bad_values, list)
                verdict = True if value in good_values else False if value in bad_values else None
                known_settings.append(Setting(str(row["setting"]), name, value, verdict, str(row["why"])))
    return tuple(known_settings)
