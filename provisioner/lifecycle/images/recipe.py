"""A recipe, and the clusters of one machine that an image is built and proven with."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from provisioner import spec
from provisioner.common import ownership
from provisioner.common.errors import GpuprovError
from provisioner.common.events import Events
from provisioner.common.paths import private_dir, write_whole
from provisioner.lifecycle.images.book import Book
from provisioner.lifecycle.images.use import book_of, paths_of
from provisioner.lifecycle.session import Cluster, open_cluster
from provisioner.spec.image import ImageRecipe, ImageTarget

SCRATCH = "/scratch"
"""Where the builder's role scratch would put local disks, if it were to configure them."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """A cluster.yaml with `image`: one image of each group."""

    cluster: Cluster
    settings: ImageRecipe

    @property
    def name(self) -> str:
        return self.cluster.spec.name

    @property
    def sandbox(self) -> bool:
        return self.cluster.sandbox

    @property
    def book(self) -> Book:
        return book_of(self.cluster.file, self.name, sandbox=self.sandbox)

    @property
    def targets(self) -> list[str]:
        """The groups, in the recipe's order."""
        return list(self.cluster.spec.groups)

    def target(self, group: str) -> ImageTarget:
        return self.settings.targets.get(group, ImageTarget())

    @property
    def folder(self) -> Path:
        """Where builds in the making have their clusters."""
        return self.cluster.paths.root / "builds"


def open_recipe(file: Path, *, sandbox: bool, events: Events | None = None) -> Recipe:
    """Raises InputError for a bad file, GpuprovError for a file that is no recipe."""
    loaded = spec.load(file)
    if loaded.image is None:
        hint = "add `image: {}` and name the machines as groups: `gpuprov docs images`"
        raise GpuprovError("is not an image recipe: the key `image` is missing", where=str(file), hint=hint)
    paths = paths_of(file, loaded.name, sandbox=sandbox)
    ownership.refuse_foreign(paths.root)
    ownership.watch(paths.root)
    return Recipe(Cluster(file, loaded, paths, events or Events()), loaded.image)


def workplace(recipe: Recipe, build: str, group: str, purpose: str) -> Path:
    """The cluster.yaml of the machine that builds (`purpose`: build) or proves (boot) the image of a group."""
    return recipe.folder / build / group / purpose / "cluster.yaml"


def written(recipe: Recipe, build: str, group: str, purpose: str, site: Mapping[str, Any] | None = None) -> Path:
    """Write that cluster.yaml: the recipe's, with this one group, and everything on that an image may carry. `site`:
    keys in place of those that its site has, where the machine is none of that site's."""
    file = workplace(recipe, build, group, purpose)
    private_dir(file.parent)
    text = yaml.safe_dump(_as_cluster(recipe, build, group, purpose, site), sort_keys=False, allow_unicode=True)
    write_whole(file, f"# Written by `gpuprov image build {recipe.cluster.file.name}`.\n{text}")
    return file


def _as_cluster(
    recipe: Recipe, build: str, group: str, purpose: str, site_keys: Mapping[str, Any] | None
) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(recipe.cluster.spec.model_dump_json(exclude_unset=True, by_alias=True))
    site = recipe.cluster.spec.site_of(group)
    site_document = document["sites"][site]
    if site_keys is not None:
        site_document = {key: site_document[key] for key in ("provider", "user") if key in site_document} | dict(
            site_keys
        )
    group_document = dict(document["groups"][group])
    machine = recipe.cluster.spec.machine(group)
    if machine.local_nvme.count:
        group_document["storage"] = {"scratch": SCRATCH, **group_document.get("storage", {})}
    monitoring = {"health_check": {}, **document.get("monitoring", {})}
    document |= {
        "name": cluster_name(recipe.name, build, group, purpose),
        "sites": {site: site_document},
        "groups": {group: group_document},
        "monitoring": monitoring,
        "quarantine": {**document.get("quarantine", {}), "automatic": False},
    }
    for key in ("image", "state"):
        document.pop(key, None)
    return document


def cluster_name(image: str, build: str, group: str, purpose: str) -> str:
    """At most 32 characters, and another one for each build: what one leaves is not held against the next."""
    tail = hashlib.sha256(f"{image} {build} {group}".encode()).hexdigest()[:8]
    return f"{image[:17].rstrip('-')}-{purpose}-{tail}"


def opened(recipe: Recipe, file: Path) -> Cluster:
    """That cluster; what happens on it is told as the recipe's."""
    return open_cluster(file, sandbox=recipe.sandbox, events=recipe.cluster.events)


def digest(value: Mapping[str, Any] | str) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
