"""Versions of drivers, NCCL, toolkits and kernels as numbers, and ranges of them (catalog/known_bad.py).

>>> contains(">=570.133.20,<=580.105.08", "570.195.03"), contains("==580.142", "580.142.01")
(True, False)
"""

from __future__ import annotations

import operator
import re

OPERATORS = {">=": operator.ge, "<=": operator.le, "==": operator.eq, ">": operator.gt, "<": operator.lt}
PARTS = 8
"""Numbers of a version that are compared."""


def numbers(version: str) -> tuple[int, ...] | None:
    """The numbers that a version begins with, without zeros at the end; None where it begins with none.

    >>> numbers("580.105.08"), numbers("1.17.8-1"), numbers("6.8.0-1024-aws"), numbers("2.27.0"), numbers("unknown")
    ((580, 105, 8), (1, 17, 8), (6, 8), (2, 27), None)
    """
    match = re.match(r"[0-9]{1,9}(?:\.[0-9]{1,9})*", version, re.ASCII)
    if match is None:
        return None
    parts = [int(part) for part in match[0].split(".")[:PARTS]]
    while len(parts) > 1 and not parts[-1]:
        parts.pop()
    return tuple(parts)


def contains(bounds: str, version: str) -> bool | None:
    """Whether a version is within all bounds; None for a version that is none."""
    value = numbers(version)
    if value is None:
        return None
    pairs = [(match[1], numbers(match[2])) for match in re.finditer(r"(>=|<=|==|<|>)([0-9.]+)", bounds)]
    return all(OPERATORS[sign](value, bound) for sign, bound in pairs if bound is not None)


def first_fixed(version: str, fixed: tuple[str, ...], *, by_branch: bool) -> str | None:
    """The first of the fixed versions that a version lacks; None where it has what they fix, or is no version. With
    `by_branch` the first number is a branch that gets fixes of its own (535, 550).

    >>> first_fixed("550.90.07", ("535.230.02", "550.144.03"), by_branch=True)
    '550.144.03'
    >>> first_fixed("545.23.08", ("535.230.02", "550.144.03"), by_branch=True)
    '550.144.03'
    >>> first_fixed("570.86.15", ("535.230.02", "550.144.03"), by_branch=True)
    """
    value = numbers(version)
    known = sorted(pair for name in fixed if (pair := numbers(name)) is not None)
    if value is None or not known:
        return None
    names = {numbers(name): name for name in fixed}
    same = [bound for bound in known if bound[0] == value[0]] if by_branch else known
    above = [bound for bound in same or known if value < bound]
    return names[above[0]] if above else None
