"""Images of machines: what a provider that can make them does. What is made, proven, promoted and removed is decided in
provisioner/lifecycle/images, the same for all."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Protocol, TypeVar

from provisioner import catalog
from provisioner.common.errors import ProviderError
from provisioner.plan.models import PlannedGroup
from provisioner.rundir.fleet import Node

T = TypeVar("T")
Tell = Callable[[str], None]
"""Says a line of what goes on."""
STOP_S, IMAGE_S = 900.0, 7200.0
"""How long a machine may take to stop, and a disk of 200 GB to be an image in a region."""
PAUSE_S = 10.0
DEPRECATED = timedelta(days=180)
"""After which an image is said to be old, where a cloud has words for that; machines can still start from it."""


@dataclass(frozen=True, slots=True)
class Image:
    """An image of this account. `ready`: machines can start from it; `why` says of one that never will be why."""

    id: str
    ready: bool
    why: str = ""


class Images(Protocol):
    """The images of one site. All methods raise ProviderError; none is retried by its caller, and each may be called
    again after it was cut off."""

    def builder(self, group: PlannedGroup, requested_type: str | None) -> str:
        """The machine type that an image for the group is built on: `requested_type`, or the provider's own choice
        without a GPU, or the machine itself where it has none."""

    def check(self, regions: Sequence[str], accounts: Sequence[str]) -> None:
        """Raise for what `publish` could not do, before anything is made."""

    def find(self, name: str) -> Image | None:
        """The image of that name; None where there is none."""

    def capture(self, node: Node, name: str, tags: Mapping[str, str], report: Tell) -> str:
        """Make an image of a machine's disk, wait until machines can start from it, and give its id. The machine is
        stopped."""

    def publish(
        self,
        image: str,
        name: str,
        regions: Sequence[str],
        accounts: Sequence[str],
        tags: Mapping[str, str],
        report: Tell,
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


class Disks(Protocol):
    """Images of one site as root file systems on this computer, of which disks are made. All methods raise
    ProviderError."""

    def root(self, image: str, esp: Path, environment: Mapping[str, str], script: str) -> AbstractContextManager[Path]:
        """The files of an image that `capture` gave, as a tree, once the script has run in it as root with the folder
        `esp` at /boot/efi. The tree is a copy, and gone afterwards."""


class DisksAlone:
    """See Images, where nobody keeps images: what comes of a build is its disk, in a folder of this computer."""

    def builder(self, group: PlannedGroup, requested_type: str | None) -> str:
        return requested_type or group.machine.name

    def check(self, regions: Sequence[str], accounts: Sequence[str]) -> None:
        """cluster.yaml can name neither."""

    def find(self, name: str) -> Image | None:  # noqa: ARG002
        return None

    def capture(self, node: Node, name: str, tags: Mapping[str, str], report: Tell) -> str:  # noqa: ARG002
        raise ProviderError("this provider makes no image of a running machine", where=node.name)

    def publish(
        self, image: str, name: str, regions: Sequence[str], accounts: Sequence[str], tags: Mapping[str, str],  # noqa: ARG002
        report: Tell,  # noqa: ARG002
    ) -> dict[str, str]:  # fmt: skip
        return {"": name}

    def copies(self, name: str, regions: Sequence[str]) -> dict[str, str]:  # noqa: ARG002
        return {}

    def delete(self, ids: Mapping[str, str], tags: Mapping[str, str]) -> None:
        """The disk is removed by who has published it."""

    def used(self, ids: Mapping[str, str]) -> list[str]:  # noqa: ARG002
        return []


def builder_of(provider: str, group: PlannedGroup, requested_type: str | None) -> str:
    """See Images.builder, for a cloud whose machine type without a GPU is in the catalogue."""
    default_type = catalog.load().provider(provider).builder if group.machine.cpu == "amd64" else None
    return requested_type or default_type or group.machine.name


def until(look: Callable[[], T | None], late: str, seconds: float, *, where: str, pause_s: float) -> T:
    """What `look` gives, once it gives something. Raises ProviderError after so many seconds."""
    end = time.monotonic() + seconds
    while (result := look()) is None:
        if time.monotonic() > end:
            raise ProviderError(f"{late} after {seconds:.0f} s", where=where, hint="run it again")
        time.sleep(pause_s)
    return result


def awaited(find: Callable[[], Image | None], name: str, *, where: str, pause_s: float) -> str:
    """The id of an image, once machines can start from it. Raises ProviderError where none ever will."""

    def look() -> str | None:
        image = find()
        if image is None:
            raise ProviderError(f"image {name} is gone", where=where, hint="build it again")
        if image.why:
            raise ProviderError(f"image {image.id} was not made: {image.why}", where=where)
        return image.id if image.ready else None

    return until(look, f"image {name} is not ready", IMAGE_S, where=where, pause_s=pause_s)


def not_ours(number: str, region: str, site: str) -> ProviderError:
    """Of an image without the tags of the build that is removed."""
    message = f"{number} in {region} has not the tags of this build: it stays"
    return ProviderError(message, where=f"site {site}", hint="look at whose it is")
