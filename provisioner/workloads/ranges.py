"""A value that is known between two bounds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Range(NamedTuple):
    """From `low` to `high`, both included. The unit is that of the field that holds it."""

    low: float
    high: float

    def plus(self, other: Range) -> Range:
        """The sum: low with low, high with high."""
        return Range(self.low + other.low, self.high + other.high)

    def times(self, factor: float) -> Range:
        """Both bounds by the same factor, which is not negative."""
        return Range(self.low * factor, self.high * factor)

    def contains(self, value: float, tolerance: float = 0.0) -> bool:
        """Whether a value is inside, or outside by at most that share of the nearer bound.

        >>> Range(10, 20).contains(21), Range(10, 20).contains(21, 0.1)
        (False, True)
        """
        return self.low * (1 - tolerance) <= value <= self.high * (1 + tolerance)


def exact(value: float) -> Range:
    """A range of one value.

    >>> exact(3)
    Range(low=3, high=3)
    """
    return Range(value, value)


def spanning(values: Iterable[float]) -> Range:
    """The smallest range that contains all values. Raises ValueError for no value.

    >>> spanning([3, 1, 2])
    Range(low=1, high=3)
    """
    ordered = sorted(values)
    if not ordered:
        raise ValueError("a range needs a value")
    return Range(ordered[0], ordered[-1])


def total(ranges: Iterable[Range]) -> Range:
    """The sum of ranges; 0 to 0 for none."""
    result = Range(0, 0)
    for item in ranges:
        result = result.plus(item)
    return result
