"""What all modules of ssh use: a host, and a path as ssh's configuration takes it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Protocol

from provisioner.common.errors import GpuprovError


class Host(Protocol):
    """What ssh has to know of a node."""

    @property
    def name(self) -> str: ...
    @property
    def address(self) -> str: ...
    @property
    def port(self) -> int: ...


def quoted(path: Path, last: str = "") -> str:
    """A path as ssh's configuration takes it, `last` added as it is. Raises GpuprovError for what it can't be told."""
    text = str(path)
    if "${" in text or not text.isprintable():  # ssh has no way to write a ${ that is not an environment variable
        raise GpuprovError(
            "ssh's configuration cannot contain this path",
            where=repr(text),
            hint="use a folder whose name has no ${ and no control characters",
        )
    return '"' + re.sub(r'(["\\])', r"\\\1", text).replace("%", "%%") + last + '"'
