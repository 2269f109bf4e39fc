"""One build of a recipe in the making: what all of its steps use."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from provisioner.common.events import Kind
from provisioner.lifecycle.down import down
from provisioner.lifecycle.images.builder import Builder
from provisioner.lifecycle.images.journal import Journal
from provisioner.lifecycle.images.recipe import Recipe, opened, workplace, written
from provisioner.lifecycle.images.use import region_of
from provisioner.lifecycle.session import Cluster
from provisioner.machines.providers.images import Images
from provisioner.machines.terraform.binary import Binary
from provisioner.stack.models import Lock

ID = "%Y%m%d-%H%M%S"
"""The id of a build, by strftime(3)."""
BUILD, BOOT, DISK = "build", "boot", "disk"
"""The clusters of a target: the machine that it is built on, the one that proves it, the one that boots its disk."""


@dataclass(slots=True)
class Build:
    """One build of a recipe in the making. `id`: when it was begun, UTC."""

    recipe: Recipe
    binary: Binary
    id: str
    lock: Lock
    journal: Journal = field(init=False)

    def __post_init__(self) -> None:
        self.journal = Journal(self.folder)

    @property
    def folder(self) -> Path:
        """Where it is made; evidence of one that failed stays there."""
        return self.recipe.folder / self.id

    @property
    def targets(self) -> list[str]:
        """Those that it was begun with, whatever the recipe says by now."""
        return list(self.lock.groups)

    def name(self, target: str) -> str:
        """Of the image of a target, in its cloud: no other build's, whoever else builds in this second. At most 128
        characters (https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_CreateImage.html)."""
        token = self.journal.of("", "token") or self.journal.done("", "token", secrets.token_hex(4))
        return f"gpuprov-{self.recipe.name}-{target}-{self.id}-{token}"

    def report_event(self, text: str, kind: Kind = "progress", **data: Any) -> None:
        self.recipe.cluster.events("image", kind, text, data={"build": self.id, **data})


def new_id(recipe: Recipe) -> str:
    """When a build is begun, UTC, but later than every other build of the recipe: the greatest is the newest one, also
    after a clock that was ahead."""
    names = {*recipe.book.names(), *begun_ids(recipe)}
    moments = [moment for name in names if (moment := _moment(name)) is not None]
    begins = max(datetime.now(UTC), max(moments) + timedelta(seconds=1)) if moments else datetime.now(UTC)
    return begins.strftime(ID)


def _moment(name: str) -> datetime | None:
    """When a build was begun, by its id; None for what is none."""
    try:
        return datetime.strptime(name, ID).replace(tzinfo=UTC)
    except ValueError:
        return None


def begun_ids(recipe: Recipe) -> list[str]:
    """Builds that have a folder in which they are, or were, made."""
    return [file.parent.name for file in recipe.folder.glob("*/journal.json")]


def unfinished(recipe: Recipe) -> list[str]:
    """Builds that were begun and neither ended nor failed, oldest first."""
    return [journal.build for journal in journals(recipe) if journal.failed is None]


def unclean(recipe: Recipe) -> list[str]:
    """Builds that failed and of which something could not be removed then."""
    return [
        journal.build
        for journal in journals(recipe)
        if journal.failed is not None and journal.of("", "cleaned") is None
    ]


def journals(recipe: Recipe) -> list[Journal]:
    """Of all builds that have one, oldest first."""
    return [Journal(file.parent) for file in sorted(recipe.folder.glob("*/journal.json"))]


def builder_of(work: Build, name: str) -> Builder:
    file = written(work.recipe, work.id, name, BUILD)
    cluster = opened(work.recipe, file)
    return Builder(cluster, name, of_group(work.lock, cluster, name), work.recipe.target(name).builder)


def of_group(lock: Lock, cluster: Cluster, name: str) -> Lock:
    """The recipe's lock for one of its groups."""
    from provisioner.stack import request

    site = cluster.spec.site_of(name)
    bases = {site: lock.bases[site]} if site in lock.bases else {}
    return lock.model_copy(
        update={"request": request(cluster.spec), "groups": {name: lock.groups[name]}, "bases": bases}
    )


def removed(work: Build, name: str, purpose: str) -> None:
    """Remove a target's cluster, where one was begun."""
    file = workplace(work.recipe, work.id, name, purpose)
    if file.exists():
        remove_cluster(work.recipe, work.binary, file)


def remove_cluster(recipe: Recipe, binary: Binary, file: Path) -> None:
    """Remove the cluster of a builder or prover by its cluster.yaml."""
    cluster = opened(recipe, file)
    if cluster.paths.exists():
        down(cluster, binary)
    if recipe.sandbox:
        from provisioner.sandbox import site_faults

        for site in cluster.spec.sites:
            site_faults.clear(cluster.paths.site(site))


def delete_images(work: Build, name: str, images: Images, ids: Mapping[str, str]) -> None:
    """Remove images of a target (region → id), and those whose removal was cut off before: their ids are in the
    journal until nothing is left, because a snapshot is recognised by the id of an image that may be gone."""
    ids = {**(work.journal.of(name, "removing") or {}), **ids}
    if ids:
        work.journal.done(name, "removing", ids)
        images.delete(ids, tags_of(work, name))
        work.journal.done(name, "removing", {})


def tags_of(work: Build, name: str) -> dict[str, str]:
    return {
        "gpuprov-image": work.recipe.name, "gpuprov-build": work.id, "gpuprov-target": name,
        "gpuprov-driver": work.lock.groups[name].driver or "none",
    }  # fmt: skip


def teller(work: Build, name: str) -> Callable[[str], None]:
    return lambda text: work.report_event(f"{name}: {text}")


def region(work: Build, name: str) -> str:
    spec = work.recipe.cluster.spec
    return region_of(spec.sites[spec.site_of(name)])


def begun(work: Build, name: str) -> Builder:
    """The builder of a target as it was begun, whatever the recipe says by now."""
    cluster = opened(work.recipe, workplace(work.recipe, work.id, name, BUILD))
    return Builder(cluster, name, of_group(work.lock, cluster, name), None)
