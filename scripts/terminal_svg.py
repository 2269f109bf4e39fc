"""The picture of a command at a terminal, as docs/images/up.svg: what a person types and then has on the screen.

python -m scripts.terminal_svg docs/images/up.svg --answer y -- gpuprov up cluster.yaml --sandbox
"""

from __future__ import annotations

import argparse
import io
import re
import shlex
from pathlib import Path

import pyte
from rich.console import Console
from rich.text import Text

from tests.support.terminal import Terminal

COLUMNS, LINES = 104, 40
DEADLINE_S = 1800


def coloured(screen: pyte.Screen) -> list[Text]:
    """The lines of a screen in its colours, without the empty ones at its end."""
    lines = []
    for y in range(screen.lines):
        line = Text()
        for x in range(screen.columns):
            cell = screen.buffer[y][x]
            colour = {"default": "", "brown": "yellow"}.get(cell.fg, cell.fg)
            plain = not colour or len(colour) == 6
            line.append(cell.data, style=f"{'bold ' if cell.bold else ''}{'' if plain else colour}".strip())
        line.rstrip()
        lines.append(line)
    while lines and not lines[-1].plain:
        lines.pop()
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--cwd", type=Path, default=Path.cwd())
    parser.add_argument("--answer", default="")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    with Terminal(options.command, cwd=options.cwd, columns=COLUMNS, lines=LINES, env={"TERM": "xterm"}) as terminal:
        if options.answer:
            terminal.wait_for("[y/N]:", seconds=DEADLINE_S)
            terminal.type(f"{options.answer}\r")
        terminal.end(DEADLINE_S)
        lines = coloured(terminal.pyte_screen)
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text(f"$ {shlex.join(options.command)}"))
    for line in lines:
        console.print(line, no_wrap=True)
    picture = re.sub(r"\s*@font-face \{.*?\}", "", console.export_svg(title="gpuprov"), flags=re.S)  # of a font server
    options.picture.write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
