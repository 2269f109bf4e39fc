"""Ranges of hosts: dgx[01-16].lab, node[1-3,7], 10.0.0.[11-14]."""

from __future__ import annotations

import re
from itertools import product

MOST = 10_000
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_PART = re.compile(r"([0-9]{1,9})(?:[-:]([0-9]{1,9}))?")


def expand(pattern: str) -> list[str]:
    """The names that a pattern stands for, in order; a name without brackets is itself. Numbers are as wide as the
    first of their range. Raises ValueError, saying why.

    >>> expand("dgx[08-10].lab")
    ['dgx08.lab', 'dgx09.lab', 'dgx10.lab']
    >>> expand("r[1-2]n[1,4]")
    ['r1n1', 'r1n4', 'r2n1', 'r2n4']
    """
    pieces = _BRACKETS.split(pattern)  # text, inside of brackets, text, …
    if any("[" in text or "]" in text for text in pieces[::2]):
        raise ValueError("a bracket is not closed")
    parts = [[text] if index % 2 == 0 else _numbers(text) for index, text in enumerate(pieces)]
    count = 1
    for part in parts:
        count *= len(part)
    if count > MOST:
        raise ValueError(f"it stands for {count} hosts, more than {MOST}")
    return ["".join(chosen) for chosen in product(*parts)]


def _numbers(text: str) -> list[str]:
    numbers: list[str] = []
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None:
            raise ValueError(f"[{text}] is not a range such as [01-16] or [1-3,7]")
        first, last = match[1], match[2] or match[1]
        if int(last) < int(first):
            raise ValueError(f"[{text}] ends before it begins")
        if int(last) - int(first) >= MOST:
            raise ValueError(f"[{text}] has more than {MOST} numbers")
        numbers += [f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]
    return numbers
