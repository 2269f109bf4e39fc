"""What a provider finds by tag of clusters that nobody may remember any more, and how it removes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Thing:
    """One thing with the tags of a cluster. `kept`: why it is not to be removed; empty where it may be. `workspace`:
    the directory that made it, where the provider knows that. `identity`: that of the cluster (Cluster.identity)."""

    kind: str
    id: str
    cluster: str
    site: str
    place: str
    name: str = ""
    state: str = ""
    since: datetime | None = None
    kept: str = ""
    workspace: str = ""
    identity: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.id}" + (f" ({self.state})" if self.state else "")


@dataclass(frozen=True, slots=True)
class Found:
    """What was found, and one sentence for every question that has no answer: it may hide more."""

    things: tuple[Thing, ...]
    unknown: tuple[str, ...] = ()


class Orphans(Protocol):
    """One region, or this machine."""

    def find(self) -> Found:
        """Everything with gpuprov's tags, of every cluster. Raises ProviderError where nothing can be asked."""

    def remove(self, resources: Sequence[Thing], report: Callable[[str], None]) -> list[str]:
        """Remove these things but those that are to be kept, and what they need, in the order that the provider
        accepts. One sentence for each that it refused, or that has to stay for another."""
