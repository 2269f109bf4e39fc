"""Tables on standard output, never cut. In a pipe or a file each row is one line, whatever its length, and ends where
its text ends: no blanks fill it up to the longest row.

An address, a name or a number that is cut is another one; a line that the terminal wraps can be read.
"""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

UNBOUNDED = 10_000
"""Columns, of a pipe or a file."""


def console(minimum_width: int = 0) -> Console:
    """A console of the terminal's width, at least `minimum_width`."""
    from rich.console import Console

    rich_console = Console(highlight=False)
    rich_console.width = max(_width(), minimum_width)
    return rich_console


def show(table: RenderableType) -> None:
    """Print it; where the terminal is narrower than what may not be folded, the terminal wraps its lines."""
    rich_console = console(console(UNBOUNDED).measure(table).minimum)
    if sys.stdout.isatty():
        rich_console.print(table)
        return
    with rich_console.capture() as capture:
        rich_console.print(table)
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in capture.get().splitlines()))


def _width() -> int:
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else UNBOUNDED
