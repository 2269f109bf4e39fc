"""BIOS settings that GPU work needs, as rows of data/bios.yaml: names differ between vendors, and so do values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from provisioner import yaml_text
from provisioner.redfish.tree import Resource, Tree

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
    found = tree.get(system.get("Bios")).get("Attributes")
    if not isinstance(found, Mapping) or not found:
        return None
    made = []
    for row in _rows():
        for name, value in sorted(found.items()):
            if re.fullmatch(str(row["attribute"]), name) and isinstance(value, str) and value.strip():
                good, bad = row["good"], row["bad"]
                assert isinstance(good, list) and isinstance(bad, list)
                verdict = True if value in good else False if value in bad else None
                made.append(Setting(str(row["setting"]), name, value, verdict, str(row["why"])))
    return tuple(made)
