"""What only a provider itself knows of its prices and offers: asked online, never guessed where it does not answer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from provisioner.machines.providers.sizes import OfferedSize


class Unanswered(Exception):
    """A question without an answer: why, and what to do about it."""

    def __init__(self, message: str, action: str = "") -> None:
        super().__init__(message)
        self.message, self.action = message, action


@dataclass(frozen=True, slots=True)
class SpotPrice:
    """What one machine cost for an hour in one zone. `low`, `median` and `high` are of the days that were asked for,
    each price weighed by the time that it held; None where the provider tells no more than today's price."""

    zone: str
    now: float
    low: float | None
    median: float | None
    high: float | None
    currency: str


class Market(Protocol):
    """Asked from several threads at once. Every question has a deadline of its own."""

    source: str
    """Where its spot prices come from."""

    def zones(self, region: str, machine: str) -> list[str]:
        """The zones of a region that sell a machine; empty: none does. Raises Unanswered."""

    def size(self, region: str, machine: str) -> OfferedSize | None:
        """What the cloud's API says of a machine type; None where the region does not know it. Raises Unanswered."""

    def spot(self, region: str, machine: str, days: int) -> list[SpotPrice]:
        """The zones of a region that have had a spot price of it, by name. Raises Unanswered."""


def history(
    changes: Iterable[tuple[str, datetime, float]], begin: datetime, current_time: datetime, currency: str
) -> list[SpotPrice]:
    """Price changes (zone, when, price) as a price of each zone. A price holds until the next one; the last one before
    `begin` held when it began."""
    by_zone: dict[str, list[tuple[datetime, float]]] = defaultdict(list)
    for zone, when, price in changes:
        if price > 0:  # never a price, whatever it is
            by_zone[zone].append((when, price))
    prices = []
    for zone, price_changes in sorted(by_zone.items()):
        price_changes.sort()
        ends = [when for when, _ in price_changes[1:]] + [current_time]
        price_durations = [
            (price, (end - max(when, begin)).total_seconds())
            for (when, price), end in zip(price_changes, ends, strict=True)
        ]
        within = sorted((price, seconds) for price, seconds in price_durations if seconds > 0) or [
            (price_changes[-1][1], 1.0)
        ]
        prices.append(SpotPrice(zone, price_changes[-1][1], within[0][0], _median(within), within[-1][0], currency))
    return prices


def _median(price_durations: Sequence[tuple[float, float]]) -> float:
    """The price that was not exceeded for half of the time. `price_durations`: price and seconds, cheapest first."""
    half, passed = sum(seconds for _, seconds in price_durations) / 2, 0.0
    for price, seconds in price_durations:
        passed += seconds
        if passed >= half:
            return price
    return price_durations[-1][0]
