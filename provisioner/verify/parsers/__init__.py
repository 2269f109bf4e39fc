"""One parser per tool: pure functions from captured text to frozen facts.

A parser raises `Unreadable` for text that it does not understand, and nothing else for any text at all; a value
that the tool did not give is None. It never guesses.
"""

from __future__ import annotations

import re
from functools import lru_cache

_NUMBER = re.compile(r"\s*(-?[0-9]{1,18}(?:\.[0-9]{1,9})?)(?![0-9])", re.ASCII)
ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
ELIDED = re.compile(r"\s*(?:\[?\.\.\.+\]?|<snip>|…)\s*")
"""A line where somebody has left lines out."""
WIDTH = 4096
"""Characters of a line that are searched: four times what printk writes of one (kernel/printk/printk.c, 1 KiB)."""
LONGEST = 65_536
"""Characters from which on a line is no line: journald keeps 48 KiB of one (LineMax=, journald.conf(5)), and no tool
here prints a tenth of it. Patterns that look for something anywhere in a line take its length squared."""


class Unreadable(ValueError):
    """The text is not what this tool prints. The message says what was seen instead."""


def lines(text: str) -> list[str]:
    """Lines without terminal escapes, whatever the line ends are, each up to WIDTH. Raises Unreadable where one is
    longer than LONGEST."""
    rows = _lines(text)
    if len(text) > LONGEST and (longest := max(map(len, rows))) > LONGEST:
        raise Unreadable(f"a line of {longest} characters, and no tool prints one of more than {LONGEST}")
    return [row[:WIDTH].rstrip() for row in rows]


def _lines(text: str) -> list[str]:
    plain = ANSI.sub("", text.removeprefix("\ufeff"))
    return plain.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def first_line(text: str, width: int = 120) -> str:
    """The first line that says something, for an error message."""
    for line in _lines(text[:LONGEST]):
        if line.strip():
            return "".join(c if c.isprintable() else "?" for c in line.strip()[:width])
    return "nothing"


@lru_cache(4096)
def number(text: str | None) -> float | None:
    """The number at the start of a value such as "40960 MiB" or "16x"; None for N/A, [N/A], GPU is lost, …"""
    match = _NUMBER.match(text or "")
    return float(match[1]) if match else None


def whole_number(text: str | None) -> int | None:
    """As `number`, for counters."""
    value = number(text)
    return None if value is None else int(value)


def pci(address: str) -> str:
    """One spelling for a PCI address: 00000000:10:1C.0, 0000:10:1c.0 and 10:1c are all "0000:10:1c"."""
    parts = address.strip().lower().split(".")[0].split(":")
    domain = parts[-3] if len(parts) >= 3 else "0"
    return ":".join([domain.lstrip("0").rjust(4, "0"), *parts[-2:]])
