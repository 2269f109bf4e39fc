"""Readings of a transceiver beside the limits that it has stored itself, as mlxlink and ethtool print them."""

from __future__ import annotations

import re
from dataclasses import dataclass

DARK_DBM = -40.0
"""What both tools print of a lane that gets no light: 0.1 µW, or less than can be said."""
LANES = 16


@dataclass(frozen=True, slots=True)
class Reading:
    """One quantity of a transceiver, of each lane where it has several; `low` and `high` are its own alarm limits."""

    quantity: str
    unit: str
    values: tuple[float, ...]
    low: float
    high: float

    @property
    def outside(self) -> tuple[float, ...]:
        """Values beyond the limits. A dark lane beside lanes with light is one that the port does not use."""
        if self.low >= self.high:
            return ()
        bright = [value for value in self.values if value > DARK_DBM]
        lanes = bright if self.unit == "dBm" and bright else self.values
        return tuple(value for value in lanes if not self.low <= value <= self.high)

    def __str__(self) -> str:
        worst = min(self.outside, key=lambda value: abs(value - (self.low + self.high) / 2), default=0.0)
        limit = f"{self.low:g} at least" if worst < self.low else f"{self.high:g} at most"
        return f"{self.quantity} {worst:g} {self.unit}, {limit}"


def decibels(text: str) -> float | None:
    """The dBm of "0.4678 mW / -3.30 dBm"; without light it is DARK_DBM.

    >>> decibels("0.4678 mW / -3.30 dBm"), decibels("0.0000 mW / -inf dBm"), decibels("N/A")
    (-3.3, -40.0, None)
    """
    match = re.search(r"(-?(?:[0-9]{1,4}(?:\.[0-9]{1,6})?|inf)) dBm", text)
    if match is None:
        return None
    return max(DARK_DBM, float(match[1]))


def number(text: str) -> float | None:
    """The number that a text begins with."""
    match = re.match(r"-?[0-9]{1,6}(?:\.[0-9]{1,6})?", text.strip(), re.ASCII)
    return float(match[0]) if match else None
