"""Images of machines: what a provider that can make them does. What is made, proven, promoted and removed is decided in
provisioner/images, the same for all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from provisioner.fleet import Node
from provisioner.plan import PlannedGroup

Tell = Callable[[str], None]
"""Says a line of what goes on."""


@dataclass(frozen=True, slots=True)
class Image:
    """An image of this account. `ready`: machines can start from it; `why` says of one that never will be why."""

    id: str
    ready: bool
    why: str = ""


class Images(Protocol):
    """The images of one site. All methods raise ProviderError; none is retried by its caller, and each may be called
    again after it was cut off."""

    def builder(self, group: PlannedGroup, wanted: str | None) -> str:
        """The machine type that an image for the group is built on: `wanted`, or the provider's own choice without a
        GPU, or the machine itself where it has none."""

    def find(self, name: str) -> Image | None:
        """The image of that name; None where there is none."""

    def capture(self, node: Node, name: str, tags: Mapping[str, str], tell: Tell) -> str:
        """Make an image of a machine's disk, wait until machines can start from it, and give its id. The machine is
        stopped."""

    def publish(
        self,
        image: str,
        name: str,
        regions: Sequence[str],
        accounts: Sequence[str],
        tags: Mapping[str, str],
        tell: Tell,
    ) -> dict[str, str]:
        """Have it in further regions and let further accounts use it; gives region → id, the site's own among them."""

    def copies(self, name: str, regions: Sequence[str]) -> dict[str, str]:
        """Region → id of the images of that name, in the site's own region and in these."""

    def delete(self, ids: Mapping[str, str], tags: Mapping[str, str]) -> None:
        """Remove an image from these regions (region → id), with what it consists of. One that is gone is fine. Raises
        for one without these tags: it is somebody else's, whoever wrote its id down here."""

    def used(self, ids: Mapping[str, str]) -> list[str]:
        """The machines of this account that were started from it and still exist; [] where none was. Raises where that
        can't be known."""
