"""Removing what a crash left in a region, in the order that a cloud accepts: the same for every cloud.

Machines go first and are waited for; one that is protected stays, and with it everything that it may need. What is
still used by something that is going is tried again until the deadline. Of the network nothing is touched that a file
system stands in.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from provisioner.errors import ProviderError
from provisioner.events import Events
from provisioner.preflight import Finding
from provisioner.providers.base import Place
from provisioner.providers.orphans import Found, Thing
from provisioner.providers.trouble import Trouble
from provisioner.text import counted, plural

WAIT_S = 900.0
"""For the whole removal: machines with dozens of interfaces and bare metal take minutes to go."""
PAUSE_S = 5.0
HOLDS_DATA = "it holds data: delete it yourself if the data is no longer needed"
"""Why a file system is kept (Thing.kept)."""
SOMEWHERE = "it is the whole account's, and nothing here uses it: it may be of the same cluster in another region"
"""Why a role of nodes is kept by who looks at one region (Thing.kept)."""
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Order:
    """Kinds of things: `machines` and then `linger` are waited for until they are gone, minutes after they were
    deleted; `network`: what machines and file systems stand in. `first`: what asks for machines, and ends at once;
    `last`: what holds all the others, and goes only where none of them is left."""

    machines: tuple[str, ...]
    linger: tuple[str, ...]
    then: tuple[str, ...]
    network: tuple[str, ...]
    first: tuple[str, ...] = ()
    last: tuple[str, ...] = ()


class Removal(ABC):
    """One region of a cloud."""

    order: Order

    def __init__(self, place: str, *, wait_s: float = WAIT_S, pause_s: float = PAUSE_S) -> None:
        self.place, self._wait_s, self._pause_s = place, wait_s, pause_s
        self._end = 0.0

    @abstractmethod
    def find(self) -> Found:
        """See providers/orphans.py for the contract."""

    @abstractmethod
    def delete(self, thing: Thing) -> None:
        """Delete one thing, or begin to; nothing happens where it is gone. Raises Trouble."""

    @abstractmethod
    def standing(self, kind: str) -> set[str]:
        """The ids of a kind that are not gone yet. Raises Trouble."""

    @abstractmethod
    def busy(self, trouble: Trouble) -> bool:
        """Whether something that is going still uses it."""

    @abstractmethod
    def protected(self, trouble: Trouble) -> bool:
        """Whether it is protected against being deleted."""

    def network(self, things: Sequence[Thing], tell: Tell, remove: Callable[[], list[str]]) -> list[str]:  # noqa: ARG002
        """Remove what machines stood in, by `remove`; gives one sentence for each thing that is left. A cloud's own
        words and steps come before and after."""
        return remove()

    def remove(self, things: Sequence[Thing], tell: Tell) -> list[str]:
        """See providers/orphans.py for the contract."""
        self._end = time.monotonic() + self._wait_s
        by_kind: dict[str, list[Thing]] = {}
        for thing in things:
            if not thing.kept:
                by_kind.setdefault(thing.kind, []).append(thing)
        machines = (*self.order.first, *self.order.machines)
        left = [*self._delete(by_kind, self.order.first, tell), *self._gone(by_kind, self.order.machines, tell)]
        if left:
            rest = sum(len(found) for kind, found in by_kind.items() if kind not in machines)
            return [*left, f"{rest} other things were not touched: the machines that are left may need them"]
        left += self._gone(by_kind, self.order.linger, tell)
        left += self._delete(by_kind, self.order.then, tell)
        network = [thing for kind in self.order.network for thing in by_kind.get(kind, ())]
        if network and any(thing.kept == HOLDS_DATA for thing in things):
            return [*left, f"{len(network)} things of the network were not touched: the file system stands in it"]
        left += self.network(network, tell, lambda: list(self._delete(by_kind, self.order.network, tell)))
        if left:
            held = [thing for kind in self.order.last for thing in by_kind.get(kind, ())]
            return [*left, *(f"{thing}: something of it is left" for thing in held)]
        return self._gone(by_kind, self.order.last, tell)

    def _gone(self, by_kind: Mapping[str, Sequence[Thing]], kinds: Sequence[str], tell: Tell) -> list[str]:
        """Delete what is of these kinds and wait until it is gone."""
        left = list(self._delete(by_kind, kinds, tell))
        refused = {line.partition(":")[0] for line in left}
        for kind in kinds:
            left += self.wait(kind, [one for one in by_kind.get(kind, ()) if str(one) not in refused], tell)
        return left

    def _delete(self, by_kind: Mapping[str, Sequence[Thing]], kinds: Sequence[str], tell: Tell) -> Iterator[str]:
        """One sentence for each thing that the cloud refuses to delete."""
        for kind in kinds:
            found = by_kind.get(kind, ())
            if found:
                tell(f"{self.place}: removing {counted(len(found), kind)}")
            for thing in found:
                try:
                    self._one(thing)
                except Trouble as trouble:
                    protected = "protected, and not forced: " if self.protected(trouble) else ""
                    yield f"{thing}: {protected}{trouble.message}"

    def _one(self, thing: Thing) -> None:
        """Delete it; while something that is going uses it, again. Raises Trouble."""
        while True:
            try:
                return self.delete(thing)
            except Trouble as trouble:
                if self.protected(trouble) or not self.busy(trouble) or time.monotonic() > self._end:
                    raise
            time.sleep(self._pause_s)

    def wait(self, kind: str, things: Sequence[Thing], tell: Tell) -> Iterator[str]:
        """Wait until they are gone; one sentence for each that is there when time is up."""
        waiting, told = {thing.id: thing for thing in things}, False
        while waiting:
            try:
                there = self.standing(kind)
            except Trouble as trouble:
                yield f"whether {len(waiting)} {plural(kind)} are gone is not known: {trouble.message}"
                return
            waiting = {number: thing for number, thing in waiting.items() if number in there}
            if not waiting or time.monotonic() > self._end:
                break
            if not told:
                tell(f"{self.place}: waiting until {len(waiting)} {plural(kind)} are gone")
                told = True
            time.sleep(self._pause_s)
        yield from (f"{thing}: it was deleted, and is still there" for thing in waiting.values())


def asked(find: Callable[[], Found], place: str, credentials: Callable[[Trouble], Finding]) -> Found:
    """What was found in a region. Raises ProviderError where nothing can be asked, with what to do about it."""
    try:
        return find()
    except Trouble as trouble:
        said = credentials(trouble)
        raise ProviderError(said.message, where=place, hint=said.action) from None


def forgotten(place: Place, there: Removal, events: Events, *, mine: str = "") -> list[str]:
    """Remove what has a cluster's own identity and Terraform's state has forgotten; one sentence for each thing that is
    left and each question without an answer. `mine`: a reason to keep a thing that is none for its own cluster."""
    region = there.place
    if not place.identity or not (place.workspace / "main.tf").exists():
        return []
    try:
        found = there.find()
    except ProviderError as error:
        return [f"whether anything is left in {region} could not be asked: {error.message}"]
    wanted = (place.cluster, place.site, place.identity)
    things = [thing for thing in found.things if (thing.cluster, thing.site, thing.identity) == wanted]
    things = [replace(thing, kept="") if mine and thing.kept == mine else thing for thing in things]
    events("down", "log", f"{region}: {len(things)} things that Terraform had forgotten")
    left = there.remove(things, lambda line: events("down", "progress", line)) if things else []
    return [*left, *(f"{thing}: {thing.kept}" for thing in things if thing.kept), *found.unknown]


def described_role(kind: str, place: str, name: str, description: str) -> Iterator[Thing]:
    """A role of a whole account, where its name and gpuprov's tags in its description say that a cluster made it."""
    tags = {key: value for key, _, value in (word.partition("=") for word in description.split())}
    if name.startswith("gpuprov-") and tags.get("gpuprov-cluster"):
        yield Thing(
            kind, name, tags["gpuprov-cluster"], tags.get("gpuprov-site", ""), place, kept=SOMEWHERE,
            identity=tags.get("gpuprov-id", ""),
        )  # fmt: skip
