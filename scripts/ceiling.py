"""Numbers that only go down: a count for each file, held below the one that is kept in scripts/data."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import yaml


def exceeded(counts: Mapping[str, int], ceiling: Mapping[str, int], noun: str, command: str) -> list[str]:
    """A sentence for each file that has more of `noun` than it may. `command`: lists those of a file behind it."""
    return [
        f"{file}: {number} {noun}, at most {ceiling.get(file, 0)} are allowed: `{command} {file}`"
        for file, number in counts.items()
        if number > ceiling.get(file, 0)
    ]


def hold(counts: Mapping[str, int], file: Path, noun: str, command: str, *, lower: bool) -> int:
    """Print what is above the ceiling of a file, and the totals; an exit status. `lower`: write the counts as the new
    ceiling where nothing is."""
    ceiling = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    messages = exceeded(counts, ceiling, noun, command)
    print("\n".join(messages), file=sys.stderr)
    if lower and not messages:
        file.write_text(yaml.safe_dump(dict(counts)), encoding="utf-8")
    print(f"{sum(counts.values())} {noun} in {len(counts)} files; the ceiling is {sum(ceiling.values())}")
    return 1 if messages else 0
