"""The nodes of one group, looked at in the same run: what most of them have, and who is far from the rest.

Nodes of a group are bought and installed to be alike. That most of them agree proves nothing about what is right (the
catalogue and the lock say that); that one of them differs says which one to look at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

from provisioner.verify.facts import Facts

T = TypeVar("T")
FEWEST = 3
"""Nodes that have to say something before one of them can be called different."""
SCALE = 1.4826
"""Median absolute deviation to standard deviation of a normal distribution: 1 / Φ⁻¹(3/4)."""
FAR = 5.0
"""Deviations from the median, in robust standard deviations, from which on a value is an outlier. Of normal values one
in 1.7 million is (2 * (1 - Φ(5)))."""


@dataclass(frozen=True, slots=True)
class Common:
    """What nodes said of one thing: value → how many said so. `value` is that of more than half of them, or None."""

    counts: Mapping[Hashable, int]

    @property
    def said(self) -> int:
        return sum(self.counts.values())

    @property
    def value(self) -> Hashable | None:
        for value, count in self.counts.items():
            if count * 2 > self.said:
                return value
        return None


@dataclass(frozen=True, slots=True)
class Spread:
    """Numbers of things that should be alike: how many, their median, and their median absolute deviation."""

    said: int
    median: float
    mad: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of one value at least."""
        middle = median(values)
        return cls(len(values), middle, median(abs(v - middle) for v in values))

    @property
    def deviation(self) -> float:
        """A robust standard deviation."""
        return SCALE * self.mad

    def below(self, value: float, share: float) -> bool:
        """Whether a value is an outlier downwards that matters: far from the median for this group's own spread, and
        below it by more than `share` (0.1 is ten per cent)."""
        return value < self.median * (1 - share) and self.median - value > FAR * self.deviation

    def above(self, value: float, share: float) -> bool:
        """The same upwards."""
        return value > self.median * (1 + share) and value - self.median > FAR * self.deviation


class Peers:
    """The facts of all nodes of a group, the judged one among them. What is asked twice is computed once: a group of a
    thousand nodes is asked a thousand times."""

    def __init__(self, nodes: Mapping[str, Facts]) -> None:
        self.nodes = nodes
        self._common: dict[Callable[[Facts], Hashable | None], Common] = {}
        self._holders: dict[Callable[[Facts], Hashable | None], Mapping[Hashable, list[str]]] = {}
        self._spread: dict[Callable[[Facts], float | None], Spread | None] = {}

    def __len__(self) -> int:
        return len(self.nodes)

    def __iter__(self) -> Iterator[str]:
        return iter(self.nodes)

    def common(self, of: Callable[[Facts], Hashable | None]) -> Common:
        """What the nodes say of something; None is nothing said. `of` has to be a function that stays."""
        if of not in self._common:
            self._common[of] = Common(
                Counter(v for f in self.nodes.values() if (v := _value_or_none(of, f)) is not None)
            )
        return self._common[of]

    def holders(self, of: Callable[[Facts], Hashable | None]) -> Mapping[Hashable, list[str]]:
        """What nodes have → the names of those that have it. Of several things in a tuple each counts for itself."""
        if of not in self._holders:
            names_by_value: dict[Hashable, list[str]] = {}
            for name, facts in self.nodes.items():
                value = _value_or_none(of, facts)
                for item in dict.fromkeys(value) if isinstance(value, tuple) else (value,):
                    names_by_value.setdefault(item, []).append(name)
            self._holders[of] = names_by_value
        return self._holders[of]

    def spread(self, of: Callable[[Facts], float | None]) -> Spread | None:
        """Median and spread of a number; None where fewer than FEWEST nodes give it."""
        if of not in self._spread:
            values = [v for f in self.nodes.values() if (v := _value_or_none(of, f)) is not None]
            self._spread[of] = Spread.of(values) if len(values) >= FEWEST else None
        return self._spread[of]


def _value_or_none(of: Callable[[Facts], T], facts: Facts) -> T | None:
    """What a node says; None where its facts make the question fail, which must not fail it for the others."""
    try:
        return of(facts)
    except Exception:
        return None
