"""Sizes and durations as people write them: 13B, 300B, 14d."""

from __future__ import annotations

import re

from provisioner.common.errors import GpuprovError

_UNITS = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
_DAYS = {"h": 1 / 24, "d": 1.0, "w": 7.0}
_NUMBER = re.compile(r"(\d+(?:\.\d+)?) ?([A-Za-z]*)", re.ASCII)


def count(text: str, option: str, example: str, low: float, high: float) -> float:
    """A number with K, M, B or T (thousand to 10¹²). Raises GpuprovError that names the option and a right value.

    >>> count("13B", "--params", "13B", 1e8, 1e13)
    13000000000.0
    """
    number, unit = _parts(text, option, example)
    if unit.upper() not in _UNITS:
        raise GpuprovError(
            f"{option} {text}: {unit} is not a unit", hint=f"units: K, M, B (10⁹), T (10¹²); such as {option} {example}"
        )
    value = number * _UNITS[unit.upper()]
    _check_bounds(value, text, option, example, low, high)
    return value


def days(text: str, option: str) -> float:
    """A duration in days: 36h, 14d, 6w. Raises GpuprovError that names the option and a right value.

    >>> days("36h", "--deadline"), days("2w", "--deadline")
    (1.5, 14.0)
    """
    number, unit = _parts(text, option, "14d")
    if unit not in _DAYS:
        problem = f"{unit} is not a unit of time" if unit else "the unit is missing"
        raise GpuprovError(f"{option} {text}: {problem}", hint=f"units: h, d, w; such as {option} 14d")
    value = number * _DAYS[unit]
    if not 1 / 24 <= value <= 3650:
        raise GpuprovError(f"{option} {text} is outside 1h to 3650d", hint=f"such as {option} 14d")
    return value


def short(value: float) -> str:
    """A count as people read it.

    >>> short(13e9), short(1.5e12), short(8030261248)
    ('13B', '1.5T', '8.03B')
    """
    for unit in ("T", "B", "M", "K"):
        if value >= _UNITS[unit]:
            return f"{value / _UNITS[unit]:.3g}{unit}"
    return f"{value:g}"


def _parts(text: str, option: str, example: str) -> tuple[float, str]:
    match = _NUMBER.fullmatch(text.strip()) if len(text) <= 40 else None
    if match is None:
        negative = text.strip().startswith("-")
        problem = "the number is negative" if negative else "this is not a number with a unit"
        raise GpuprovError(f"{option} {text[:40]}: {problem}", hint=f"such as {option} {example}")
    return float(match[1]), match[2]


def _check_bounds(value: float, text: str, option: str, example: str, low: float, high: float) -> None:
    if not low <= value <= high:
        raise GpuprovError(
            f"{option} {text} is outside {short(low)} to {short(high)}", hint=f"such as {option} {example}"
        )
