"""The question before machines are made, changed or removed, asked the same way by every command."""

from __future__ import annotations

import contextlib
import sys
import termios
from typing import TYPE_CHECKING

from provisioner.common.errors import GpuprovError, Interrupted

if TYPE_CHECKING:
    from provisioner.cli.display import Bars, Lines

YES, NO = ("y", "yes"), ("", "n", "no")


def confirmed(
    question: str, *, yes: bool, where: str, declined: str, screen: Bars | Lines | None = None, details: str = ""
) -> bool:
    """Whether a person at the terminal says yes; `yes` (--yes) asks nobody. An empty answer and the end of input
    (Ctrl-D) are a no. `screen` makes room for the question; `details` are lines above it.

    Raises GpuprovError where there is no terminal to ask at, and Interrupted, saying `declined`, at Ctrl-C.
    """
    if yes:
        return True
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        stream = "stderr" if sys.stdin.isatty() else "stdin"
        raise GpuprovError(
            f"confirmation required, but {stream} is not a terminal: {question}",
            where=where,
            hint="pass --yes to confirm",
        )
    with screen.paused() if screen is not None else contextlib.nullcontext():
        try:
            if details:
                print(details, file=sys.stderr)
            return _ask(question)
        except KeyboardInterrupt:
            print(file=sys.stderr)
            raise Interrupted(f"interrupted: {declined}") from None


def _ask(question: str) -> bool:
    termios.tcflush(sys.stdin, termios.TCIFLUSH)  # what was typed before the question is no answer to it
    while True:
        # Not input(): it would write to stdout, which holds the command's answer alone.
        print(f"{question} [y/N]: ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.buffer.readline().decode("utf-8", "replace")
        answer = line.strip().lower()
        if not line.endswith("\n"):
            print(file=sys.stderr)  # Ctrl-D leaves the cursor behind the question
            return False
        if answer in (*YES, *NO):
            return answer in YES
        print(f"{answer!r}: answer y or n", file=sys.stderr)
