"""JSON that came from a node: a document that is none is Unreadable, each value in it is what it is asked for, or None.

`read_*` take a number's text for the number; `strict_*`, for what gpuprov's own programs wrote, do not.
"""

from __future__ import annotations

import json
import re
from typing import Any

from provisioner.verify.parsers import Unreadable, first_line


def read_object(text: str, shown: str | None = None) -> dict[str, Any]:
    """A document that has to be an object. Raises Unreadable with the first line of `shown`, by default of the text."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"not JSON: {first_line(text if shown is None else shown)}") from error
    if not isinstance(found, dict):
        raise Unreadable(f"no object: {first_line(text if shown is None else shown)}")
    return found


def read_map(value: Any) -> dict[str, Any]:
    return {str(k): v for k, v in value.items()} if isinstance(value, dict) else {}


def read_strings(value: Any) -> tuple[str, ...] | None:
    return tuple(str(one) for one in value) if isinstance(value, list) else None


def read_text(value: Any) -> str | None:
    return value.strip()[:255] or None if isinstance(value, str) else None


GREATEST = 2**63
"""Above every counter and every size in bytes: greater numbers become infinite, or an error, where they are computed
with."""


def read_float(value: Any) -> float | None:
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return found if abs(found) < 1e15 else None


def read_whole(value: Any) -> int | None:
    return int(str(value)) if re.fullmatch(r"-?[0-9]{1,19}", str(value).strip(), re.ASCII) else None


def read_answer(value: Any) -> str | None:
    """What a program said, where it ended well."""
    said = read_map(value)
    return said["text"] if said.get("rc") == 0 and isinstance(said.get("text"), str) else None


def strict_text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def strict_float(value: Any) -> float | None:
    """A number that can be computed with; NaN and Infinity are valid for Python's JSON, and 10**400."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < GREATEST:
        return None
    return float(value)


def strict_whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= GREATEST * 2 else None


def holders(value: Any) -> tuple[str, ...]:
    """The processes that had the GPUs, for people."""
    rows = [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []
    return tuple(
        f"{strict_text(row.get('name'))[:80] or 'a process'} (pid {strict_whole(row.get('pid'))})" for row in rows
    )
