"""A cloud that keeps images: by region, with a snapshot behind each, and machines that build, prove or use them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from provisioner.common.errors import ProviderError
from provisioner.machines.providers.base import Place
from provisioner.machines.providers.regional_images import Described, RegionalImages
from tests.simulation.image_recipe import REGIONS

if TYPE_CHECKING:
    from tests.simulation.image_world import ImageWorld

T = TypeVar("T")


@dataclass
class StoredImage:
    """An image. `ready_at`: the time at which machines can start from it; `defect`: why none ever will."""

    id: str
    name: str
    region: str
    tags: dict[str, str]
    driver: str
    ready_at: float
    defect: str = ""
    proven: bool = False

    @property
    def build(self) -> str:
        """The build that made it, by its name."""
        return "-".join(self.name.split("-")[-3:-1])


@dataclass
class BuildMachine:
    """The machine of a builder's or prover's cluster. `generalised`: nobody can log in any more."""

    id: str
    cluster: str
    build: str
    driver: str = ""
    generalised: bool = False


@dataclass
class ImageCloud:
    """`snapshots`: id → the image that it belongs to; `fleet`: id of a fleet's machine → the image that it was made
    of. `seconds`: how long an image is in the making; `defect`: what the next image has."""

    images: dict[str, StoredImage] = field(default_factory=dict)
    snapshots: dict[str, StoredImage] = field(default_factory=dict)
    machines: dict[str, BuildMachine] = field(default_factory=dict)
    fleet: dict[str, str] = field(default_factory=dict)
    seconds: float = 20.0
    defect: str = ""
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    def number(self, kind: str) -> str:
        return f"{kind}-{next(self._numbers)}"

    def store(self, name: str, region: str, tags: Mapping[str, str], driver: str, timestamp: float) -> StoredImage:
        image = StoredImage(
            self.number("ami"), name, region, dict(tags), driver, timestamp + self.seconds, self.defect
        )  # fmt: skip
        self.defect = ""
        self.images[image.id] = image
        self.snapshots[self.number("snap")] = image
        return image

    def find_by_name(self, region: str, name: str) -> StoredImage | None:
        return next((image for image in self.images.values() if (image.region, image.name) == (region, name)), None)


class SimulatedImages(RegionalImages):
    """The capability `images` of a provider: the order of calls is real, the answers are the cloud's."""

    provider = "aws"

    def __init__(self, world: ImageWorld, site_context: Place) -> None:
        super().__init__(site_context, str(site_context.settings.region))  # type: ignore[attr-defined]
        self.world, self.cloud = world, world.cloud
        self.provider = site_context.settings.provider

    def _refuse_foreign(self, region: str) -> None:
        if region not in REGIONS[self.provider]:
            raise ProviderError(f"{self.provider} has no region {region}", where=f"site {self._site_context.site}")

    def _call(self, name: str, action: Callable[[], T], *, changes: bool = True) -> T:
        def failure() -> ProviderError:
            return ProviderError(
                f"{name}: RequestTimeout", where=f"site {self._site_context.site}", hint="run it again"
            )

        def change() -> T:
            self.world.process.changes += changes
            return action()

        return self.world.processes.effect(
            "cloud", name, change, refusal=failure, lost=failure if changes else None
        )  # fmt: skip

    def check(self, regions: Sequence[str], accounts: Sequence[str]) -> None:
        del regions, accounts
        self._call("check", lambda: None, changes=False)

    def stop(self, machine: str) -> None:
        del machine

    def stopped(self, machine: str) -> bool:
        return bool(machine)

    def create(self, machine: str, name: str, tags: Mapping[str, str]) -> str:
        builder = self.cloud.machines[machine]
        if not builder.generalised:
            self.world.broken(f"{name} is made of {machine}, which was not generalised")
        return self._call("create image", lambda: self._stored(name, self._home, tags, builder.driver).id)

    def copy(self, image: str, name: str, region: str, tags: Mapping[str, str]) -> None:
        del tags  # a copy gets them later
        source = self.cloud.images.get(image)
        if source is None:
            raise ProviderError(f"copy image: {image} does not exist", where=self._home)
        self._call("copy image", lambda: self._stored(name, region, {}, source.driver))

    def _stored(self, name: str, region: str, tags: Mapping[str, str], driver: str) -> StoredImage:
        return self.cloud.store(name, region, tags, driver, self.world.clock)

    def tag(self, region: str, image: str, tags: Mapping[str, str]) -> None:
        del region
        self._call("tag image", lambda: self.cloud.images[image].tags.update(tags))

    def share(self, region: str, image: str, accounts: Sequence[str]) -> None:
        del region, image, accounts

    def find_by_name(self, region: str, name: str) -> Described | None:
        return self._call("find image", lambda: self._described(self.cloud.find_by_name(region, name)), changes=False)

    def described(self, region: str, image: str) -> Described | None:
        self._refuse_foreign(region)
        present = self.cloud.images.get(image)
        return self._described(present if present and present.region == region else None)

    def _described(self, image: StoredImage | None) -> Described | None:
        if image is None:
            return None
        pending = self.world.clock < image.ready_at
        return Described(image.id, image.name, pending, "" if pending else image.defect, dict(image.tags))

    def remove(self, region: str, image: Described) -> None:
        del region

        def action() -> None:
            self.world.removing(self.cloud.images[image.id])
            del self.cloud.images[image.id]

        self._call("remove image", action)

    def sweep(self, region: str, image: str) -> None:
        for number, owner in list(self.cloud.snapshots.items()):
            if (owner.region, owner.id) == (region, image):
                self._call("remove snapshot", lambda number=number: self.cloud.snapshots.pop(number))  # type: ignore[misc]

    def machines(self, region: str, image: str) -> list[str]:
        self._refuse_foreign(region)
        return self._call(
            "list machines",
            lambda: [machine for machine, source in self.cloud.fleet.items() if source == image],
            changes=False,
        )
