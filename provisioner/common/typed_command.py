"""Commands in hints, complete for the cluster at hand: with its file, and with --sandbox where it is one."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

_FILE = re.compile(r"\b(gpuprov [a-z-]+) FILE\b")
_BARE = re.compile(r"`(gpuprov (?:up|down|status|verify|upgrade|lock|plan))(?= --|`)")
"""Commands that need nothing but FILE, named without it."""


def typed_file(file: Path | str, *, sandbox: bool) -> str:
    """What stands for FILE in a command.

    >>> typed_file("my fleet.yaml", sandbox=True)
    "'my fleet.yaml' --sandbox"
    """
    return shlex.quote(str(file)) + (" --sandbox" if sandbox else "")


def completed(text: str, file_words: str) -> str:
    """A text in which each command on FILE is one on that file. `file_words`: as typed_file gives them; "" leaves the
    text as it is.

    >>> completed("`gpuprov verify FILE --save-baseline` writes one", "c.yaml --sandbox")
    '`gpuprov verify c.yaml --sandbox --save-baseline` writes one'
    """
    if not file_words:
        return text
    text = _FILE.sub(lambda match: f"{match[1]} {file_words}", text)
    return _BARE.sub(lambda match: f"`{match[1]} {file_words}", text)
