"""Values of a JSON document that came from a node: each is what it is asked for, or None; nothing raises."""

from __future__ import annotations

import re
from typing import Any


def read_map(value: Any) -> dict[str, Any]:
    return {str(k): v for k, v in value.items()} if isinstance(value, dict) else {}


def read_strings(value: Any) -> tuple[str, ...] | None:
    return tuple(str(one) for one in value) if isinstance(value, list) else None


def read_text(value: Any) -> str | None:
    return value.strip()[:255] or None if isinstance(value, str) else None


def read_float(value: Any) -> float | None:
    try:
        found = float(value)
    except (TypeError, ValueError):
        return None
    return found if abs(found) < 1e15 else None


def read_whole(value: Any) -> int | None:
    return int(str(value)) if re.fullmatch(r"-?[0-9]{1,19}", str(value).strip(), re.ASCII) else None


def read_answer(value: Any) -> str | None:
    """What a program said, where it ended well."""
    said = read_map(value)
    return said["text"] if said.get("rc") == 0 and isinstance(said.get("text"), str) else None
