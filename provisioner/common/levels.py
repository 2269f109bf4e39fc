"""How deep a verification looks. Each level has the checks of those before it."""

from __future__ import annotations

from typing import Literal

Level = Literal["quick", "standard", "stress"]
LEVELS: tuple[Level, ...] = ("quick", "standard", "stress")


def deeper(level: Level | None, other: Level) -> Level:
    """The one of two levels that proves more."""
    return other if level is None else max(level, other, key=LEVELS.index)
