"""What only a provider itself knows of its prices and offers: asked online, never guessed where it does not answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


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

    def spot(self, region: str, machine: str, days: int) -> list[SpotPrice]:
        """The zones of a region that have had a spot price of it, by name. Raises Unanswered."""
