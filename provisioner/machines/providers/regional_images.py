"""Images of clouds that have one in each region, by its name, with snapshots of disks behind it.

The order in which they are made, copied, shared and removed is the same for all; a cloud says how each is asked for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from provisioner.machines.providers.base import Place
from provisioner.machines.providers.images import PAUSE_S, STOP_S, Image, Tell, awaited, builder_of, not_ours, until
from provisioner.plan.models import PlannedGroup
from provisioner.rundir.fleet import Node

SETTLED_S = 300.0
"""How long removing waits for an image that is being made; the next `prune` or build removes what it could not."""


@dataclass(frozen=True, slots=True)
class Described:
    """An image as a cloud has it. `pending`: it will be ready, or fail; `why`: it never will be ready."""

    id: str
    name: str
    pending: bool = False
    why: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    snapshots: tuple[str, ...] = ()


class RegionalImages(ABC):
    """See providers/images.py for the contract. What asks raises ProviderError. `pause_s`: between two looks."""

    provider: str

    def __init__(self, site_context: Place, home: str, *, pause_s: float = PAUSE_S) -> None:
        self._site_context, self._home, self._pause_s = site_context, home, pause_s

    @abstractmethod
    def stop(self, machine: str) -> None:
        """Stop a machine, or begin to; nothing happens where it stands still."""

    @abstractmethod
    def stopped(self, machine: str) -> bool:
        """Whether it stands still."""

    @abstractmethod
    def create(self, machine: str, name: str, tags: Mapping[str, str]) -> str:
        """Begin an image of a machine's disk; gives its id."""

    @abstractmethod
    def copy(self, image: str, name: str, region: str, tags: Mapping[str, str]) -> None:
        """Begin a copy in another region."""

    @abstractmethod
    def tag(self, region: str, image: str, tags: Mapping[str, str]) -> None:
        """Give a copy its tags, where it has not got them when it was begun."""

    @abstractmethod
    def share(self, region: str, image: str, accounts: Sequence[str]) -> None:
        """Let other accounts start machines of it."""

    @abstractmethod
    def find_by_name(self, region: str, name: str) -> Described | None:
        """This account's image of a name, whatever its state."""

    @abstractmethod
    def described(self, region: str, image: str) -> Described | None:
        """This account's image of an id, whatever its state."""

    @abstractmethod
    def remove(self, region: str, image: Described) -> None:
        """Remove an image; what it consisted of is still known afterwards."""

    @abstractmethod
    def sweep(self, region: str, image: str) -> None:
        """Remove what an image that is gone consisted of."""

    @abstractmethod
    def machines(self, region: str, image: str) -> list[str]:
        """The machines that were started from it and still exist."""

    def builder(self, group: PlannedGroup, requested_type: str | None) -> str:
        return builder_of(self.provider, group, requested_type)

    def find(self, name: str) -> Image | None:
        return self._find(self._home, name)

    def capture(self, node: Node, name: str, tags: Mapping[str, str], report: Tell) -> str:
        if self.find(name) is None:
            report(f"stopping {node.id}")
            self.stop(node.id)
            until(
                lambda: True if self.stopped(node.id) else None, f"{node.id} has not stopped", STOP_S,
                where=self._site_context.site, pause_s=self._pause_s,
            )  # fmt: skip
            report(f"{self.create(node.id, name, tags)} is being made of its disk")
        return self._ready(self._home, name)

    def publish(
        self, image: str, name: str, regions: Sequence[str], accounts: Sequence[str], tags: Mapping[str, str],
        report: Tell,
    ) -> dict[str, str]:  # fmt: skip
        ids = {self._home: image}
        for region in (candidate for candidate in regions if candidate != self._home):
            if self._find(region, name) is None:
                self.copy(image, name, region, tags)
            report(f"copying it to {region}")
            ids[region] = self._ready(region, name)
            self.tag(region, ids[region], tags)
        for region, number in ids.items():
            if accounts:
                self.share(region, number, accounts)
        return ids

    def copies(self, name: str, regions: Sequence[str]) -> dict[str, str]:
        images = {region: self._find(region, name) for region in dict.fromkeys([self._home, *regions])}
        return {region: image.id for region, image in images.items() if image is not None}

    def delete(self, ids: Mapping[str, str], tags: Mapping[str, str]) -> None:
        """That of the site's own region goes last: by its name a copy is known that was cut off before it got its
        tags."""
        first = self.described(self._home, ids[self._home]) if self._home in ids else None
        ours = first.name if first is not None and tags.items() <= first.tags.items() else None
        for region, number in sorted(ids.items(), key=lambda item: item[0] == self._home):
            image = self.described(region, number)
            if image is not None and image.pending:  # no cloud removes one that is being made
                image = self._settled(region, number)
            if image is not None:
                untagged = image.name == ours and not any(key in image.tags for key in tags)
                if not untagged and not tags.items() <= image.tags.items():
                    raise not_ours(number, region, self._site_context.site)
                self.remove(region, image)
            self.sweep(region, number)

    def used(self, ids: Mapping[str, str]) -> list[str]:
        return [machine for region, number in ids.items() for machine in self.machines(region, number)]

    def _settled(self, region: str, number: str) -> Described | None:
        """An image once it is ready or has failed; None where it is gone."""

        def look() -> tuple[Described | None] | None:
            image = self.described(region, number)
            return None if image is not None and image.pending else (image,)

        message = f"{number} in {region} cannot be removed while it is being made, and is not ready"
        (image,) = until(look, message, SETTLED_S, where=self._site_context.site, pause_s=self._pause_s)
        return image

    def _find(self, region: str, name: str) -> Image | None:
        image = self.find_by_name(region, name)
        return Image(image.id, ready=not (image.pending or image.why), why=image.why) if image else None

    def _ready(self, region: str, name: str) -> str:
        return awaited(lambda: self._find(region, name), name, where=region, pause_s=self._pause_s)
