"""What may be momentary is looked at several times (tool.py: momentary, training), and judged over all looks."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

from provisioner.common.text import counted
from provisioner.verify.facts import Facts
from provisioner.verify.tool import TRAINING_S

K = TypeVar("K", bound=Hashable)

ONE_LOOK = "one look was made"
"""What a failure rests on, for `unverified`, where what may be momentary was seen once and not looked at again."""


class Looks(Generic[K]):
    """What each look at a node shows; `found` gives it of what one look has read."""

    def __init__(self, node: Facts, field: str, find: Callable[[Any], set[K]]) -> None:
        self.each = [find(look) for look in node.looks(field)]

    @property
    def lasting(self) -> set[K]:
        """What every look shows."""
        return set.intersection(*self.each) if self.each else set()

    @property
    def over(self) -> set[K]:
        """What one look shows and another one does not."""
        return set().union(*self.each) - self.lasting

    @property
    def unsure(self) -> tuple[str, ...]:
        """For `unverified`."""
        return () if len(self.each) > 1 else (ONE_LOOK,)

    @property
    def words(self) -> str:
        """How often it was seen, for a message; empty where one look was made."""
        return f", in each of {counted(len(self.each), 'look')}" if len(self.each) > 1 else ""


def may_train(node: Facts) -> bool:
    """Whether the node is so soon after its boot that a link may still train; False where nobody says how long it is
    up: then a link that is down is down."""
    uptime = node.host.uptime if node.host else None
    return uptime is not None and uptime < TRAINING_S
