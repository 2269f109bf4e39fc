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

from provisioner.common.errors import ProviderError
from provisioner.common.events import Events
from provisioner.common.preflight import Finding
from provisioner.common.text import counted, plural
from provisioner.machines.providers.base import Place
from provisioner.machines.providers.orphans import Found, Thing
from provisioner.machines.providers.trouble import Trouble

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

    def __init__(self, region: str, *, wait_s: float = WAIT_S, pause_s: float = PAUSE_S) -> None:
        self.place, self._wait_s, self._pause_s = region, wait_s, pause_s
        self._end = 0.0

    @abstractmethod
    def find(self) -> Found:
        """See providers/orphans.py for the contract."""

    @abstractmethod
    def delete(self, resource: Thing) -> None:
        """Delete one thing, or begin to; nothing happens where it is gone. Raises Trouble."""

    @abstractmethod
    def existing_ids(self, kind: str) -> set[str]:
        """The ids of a kind that are not gone yet. Raises Trouble."""

    @abstractmethod
    def busy(self, error: Trouble) -> bool:
        """Whether something that is going still uses it."""

    @abstractmethod
    def protected(self, error: Trouble) -> bool:
        """Whether it is protected against being deleted."""

    def network(self, resources: Sequence[Thing], report: Tell, remove: Callable[[], list[str]]) -> list[str]:  # noqa: ARG002
        """Remove what machines stood in, by `remove`; gives one sentence for each thing that is left. A cloud's own
        words and steps come before and after."""
        return remove()

    def remove(self, resources: Sequence[Thing], report: Tell) -> list[str]:
        """See providers/orphans.py for the contract."""
        self._end = time.monotonic() + self._wait_s
        by_kind: dict[str, list[Thing]] = {}
        for resource in resources:
            if not resource.kept:
                by_kind.setdefault(resource.kind, []).append(resource)
        machines = (*self.order.first, *self.order.machines)
        leftovers = [
            *self._delete(by_kind, self.order.first, report),
            *self._delete_all(by_kind, self.order.machines, report),
        ]
        if leftovers:
            untouched_count = sum(
                len(kind_resources) for kind, kind_resources in by_kind.items() if kind not in machines
            )
            return [
                *leftovers,
                f"{untouched_count} other things were not touched: the machines that are left may need them",
            ]
        leftovers += self._delete_all(by_kind, self.order.linger, report)
        leftovers += self._delete(by_kind, self.order.then, report)
        network = [resource for kind in self.order.network for resource in by_kind.get(kind, ())]
        if network and any(resource.kept == HOLDS_DATA for resource in resources):
            return [*leftovers, f"{len(network)} things of the network were not touched: the file system stands in it"]
        leftovers += self.network(network, report, lambda: list(self._delete(by_kind, self.order.network, report)))
        if leftovers:
            last_resources = [resource for kind in self.order.last for resource in by_kind.get(kind, ())]
            return [*leftovers, *(f"{resource}: something of it is left" for resource in last_resources)]
        return self._delete_all(by_kind, self.order.last, report)

    def _delete_all(self, by_kind: Mapping[str, Sequence[Thing]], kinds: Sequence[str], report: Tell) -> list[str]:
        """Delete what is of these kinds and wait until it is gone."""
        leftovers = list(self._delete(by_kind, kinds, report))
        refused = {line.partition(":")[0] for line in leftovers}
        for kind in kinds:
            leftovers += self.wait(
                kind, [resource for resource in by_kind.get(kind, ()) if str(resource) not in refused], report
            )
        return leftovers

    def _delete(self, by_kind: Mapping[str, Sequence[Thing]], kinds: Sequence[str], report: Tell) -> Iterator[str]:
        """One sentence for each thing that the cloud refuses to delete."""
        for kind in kinds:
            kind_resources = by_kind.get(kind, ())
            if kind_resources:
                report(f"{self.place}: removing {counted(len(kind_resources), kind)}")
            for resource in kind_resources:
                try:
                    self._delete_one(resource)
                except Trouble as error:
                    protected = "protected, and not forced: " if self.protected(error) else ""
                    yield f"{resource}: {protected}{error.message}"

    def _delete_one(self, resource: Thing) -> None:
        """Delete it; while something that is going uses it, again. Raises Trouble."""
        while True:
            try:
                return self.delete(resource)
            except Trouble as error:
                if self.protected(error) or not self.busy(error) or time.monotonic() > self._end:
                    raise
            time.sleep(self._pause_s)

    def wait(self, kind: str, resources: Sequence[Thing], report: Tell) -> Iterator[str]:
        """Wait until they are gone; one sentence for each that is there when time is up."""
        waiting, is_reported = {resource.id: resource for resource in resources}, False
        while waiting:
            try:
                existing_ids = self.existing_ids(kind)
            except Trouble as error:
                yield f"whether {len(waiting)} {plural(kind)} are gone is not known: {error.message}"
                return
            waiting = {number: resource for number, resource in waiting.items() if number in existing_ids}
            if not waiting or time.monotonic() > self._end:
                break
            if not is_reported:
                report(f"{self.place}: waiting until {len(waiting)} {plural(kind)} are gone")
                is_reported = True
            time.sleep(self._pause_s)
        yield from (f"{resource}: it was deleted, and is still there" for resource in waiting.values())


def query(find: Callable[[], Found], region: str, credentials: Callable[[Trouble], Finding]) -> Found:
    """What was found in a region. Raises ProviderError where nothing can be asked, with what to do about it."""
    try:
        return find()
    except Trouble as error:
        finding = credentials(error)
        raise ProviderError(finding.message, where=region, hint=finding.action) from None


def forgotten(site_context: Place, removal: Removal, events: Events, *, own_reason: str = "") -> list[str]:
    """Remove what has a cluster's own identity and Terraform's state has forgotten; one sentence for each thing that is
    left and each question without an answer. `own_reason`: a reason to keep a thing, but not for its own cluster."""
    region = removal.place
    if not site_context.identity or not (site_context.workspace / "main.tf").exists():
        return []
    try:
        orphans = removal.find()
    except ProviderError as error:
        return [f"whether anything is left in {region} could not be asked: {error.message}"]
    owner_tags = (site_context.cluster, site_context.site, site_context.identity)
    resources = [
        resource for resource in orphans.things if (resource.cluster, resource.site, resource.identity) == owner_tags
    ]
    resources = [
        replace(resource, kept="") if own_reason and resource.kept == own_reason else resource for resource in resources
    ]
    events("down", "log", f"{region}: {len(resources)} things that Terraform had forgotten")
    leftovers = removal.remove(resources, lambda line: events("down", "progress", line)) if resources else []
    return [*leftovers, *(f"{resource}: {resource.kept}" for resource in resources if resource.kept), *orphans.unknown]


def described_role(kind: str, location: str, name: str, description: str) -> Iterator[Thing]:
    """A role of a whole account, where its name and gpuprov's tags in its description say that a cluster made it."""
    tags = {key: value for key, _, value in (tag.partition("=") for tag in description.split())}
    if name.startswith("gpuprov-") and tags.get("gpuprov-cluster"):
        yield Thing(
            kind, name, tags["gpuprov-cluster"], tags.get("gpuprov-site", ""), location, kept=SOMEWHERE,
            identity=tags.get("gpuprov-id", ""),
        )  # fmt: skip
