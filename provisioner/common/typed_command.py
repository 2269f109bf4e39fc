"""Commands in hints, complete for the cluster at hand: with its file, and with --sandbox where it is one."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from provisioner.common import ownership

_FILE = re.compile(r"\b(gpuprov [a-z-]+) FILE\b")
_BARE = re.compile(r"`(gpuprov (?:up|down|status|verify|upgrade|lock|plan))(?= --|`)")
"""Commands that need nothing but FILE, named without it."""


def typed_file(file: Path | str, *, sandbox: bool | None, arguments: Sequence[str] = ()) -> str:
    """What stands for FILE in a command, with what follows it.

    >>> typed_file("my fleet.yaml", sandbox=True)
    "'my fleet.yaml' --sandbox"
    """
    return " ".join([shlex.quote(str(file)), *arguments, *(["--sandbox"] if sandbox else [])])


def typed(
    command: str, file: Path, *, sandbox: bool | None, sites: Sequence[str] = (), names: Sequence[str] = ()
) -> str:  # fmt: skip
    """A command on a file and nodes of it, to be typed as it is: with sudo for a person who came with it."""
    program = f"sudo {ownership.program()}" if ownership.person() else "gpuprov"
    options = [f"--site {site}" for site in sites]
    return f"{program} {command} {typed_file(file, sandbox=sandbox, arguments=[*names, *options])}"


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
