"""JSON files of the run directory. Others may have written them: a bucket that several share, a run that was killed."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NoReturn

from provisioner.common import regular_file

LIMIT = 64 << 20
"""Bytes; nodes.json of 10 000 nodes has 4 MiB."""


def load(file: Path) -> Any:
    """What a file holds. Raises FileNotFoundError where there is none, and ValueError for everything that is no JSON or
    could not be written again: too long, nested too deeply, numbers that are none, halves of characters."""
    try:
        content = regular_file.read(file, LIMIT)
    except regular_file.UnfitFileError as error:
        raise ValueError(error.strerror) from None
    return loads(content)


def loads(content: bytes | str) -> Any:
    """As `load`, of what was read already."""
    if len(content) > LIMIT:
        raise ValueError(f"it is larger than {LIMIT >> 20} MiB")
    text = content if isinstance(content, str) else content.decode("utf-8")
    try:
        document = json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if "\\ud" in text.lower():
        json.dumps(document, ensure_ascii=False).encode()  # UnicodeEncodeError is a ValueError
    return document


def _finite(written: str) -> float:
    number = float(written)
    return number if math.isfinite(number) else _refuse(written)


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")
