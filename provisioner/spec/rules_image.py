"""What the targets of a recipe ask for, and cannot have."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from provisioner.catalog import Catalog
from provisioner.catalog.models import Machine
from provisioner.catalog.providers import SMALL_GIB, Provider
from provisioner.common.suggest import did_you_mean
from provisioner.spec.image import ImageTarget, recipe_file
from provisioner.spec.site import CloudSite, Site
from provisioner.spec.source_map import Finding, Loc, shown


def image_target(
    name: str, target: ImageTarget, machine: Machine | None, site: Site | None, groups: tuple[str, ...],
    file: Path | None, catalog: Catalog,
) -> Iterator[Finding]:  # fmt: skip
    """`name`: of the group that it is of, `groups` those that there are, `machine`: of the group, `site` where it is;
    `file`: the recipe."""
    at: Loc = ("image", "targets", name)
    if name not in groups:
        yield Finding(at, f"the recipe has no group {name}", f"groups: {', '.join(groups)}", at_key=True)
    if site is None:
        return
    provider = catalog.provider(site.provider)
    yield from _builder(at, target, machine, provider)
    yield from _disk(at, target, provider, file)
    if not isinstance(site, CloudSite):
        return
    for index, region in enumerate(target.copy_to):
        if not re.fullmatch(provider.region, region):
            hint = did_you_mean(region, provider.regions) or f"one is called {provider.example_region}"
            yield Finding((*at, "copy_to", index), f"{shown(region)} is not a region of {provider.title}", hint)
        elif suggestion := provider.region_typo(region):
            message = f"{provider.title} has no region {region}"
            yield Finding((*at, "copy_to", index), message, f"did you mean {suggestion}?")
    # where a cloud has no such key, its own `Images.check` says before a build whether an image can be shared
    if target.share_with and "kms_key" in type(site).model_fields and not getattr(site, "kms_key", None):
        message = "disks are encrypted, and with the account's own key no other account can use them"
        yield Finding((*at, "share_with"), message, "give the site a kms_key that those accounts may use", at_key=True)


def disk_needed(
    name: str, machine: Machine | None, site: Site | None, target: ImageTarget, catalog: Catalog
) -> Iterator[Finding]:
    """What a group of a recipe needs at a provider that sells no machines: a disk image."""
    if site is None or catalog.provider(site.provider).sells:
        return
    at: Loc = ("groups", name)
    if target.disk is None:
        title = catalog.provider(site.provider).title
        hint = f"image.targets.{name}.disk: {{ path: disks }}"
        yield Finding(at, f"an image for {title} is a disk, and the recipe says nowhere to put it", hint, at_key=True)
    elif machine is not None and machine.cpu != "amd64":
        message = f"{machine.name} has processors of {machine.cpu}, and disk images are made for amd64"
        yield Finding((*at, "machine"), message, "leave the group out of the recipe")


def recipe_there(at: Loc, reference: str, folder: Path) -> Iterator[Finding]:
    """Whether the recipe that a group's image names is there."""
    name = reference.partition("@")[0]
    file = recipe_file(folder, name)
    if file.is_file():
        return
    shown_as = recipe_file(Path(), name)
    suggestion = did_you_mean(Path(name).name, sorted(recipe.stem for recipe in file.parent.glob("*.yaml")))
    hint = suggestion or "the name is that of a recipe, `gpuprov docs images` shows one"
    yield Finding(at, f"there is no recipe {name}: {shown_as} does not exist beside this file", hint)


def _builder(at: Loc, target: ImageTarget, machine: Machine | None, provider: Provider) -> Iterator[Finding]:
    if target.builder is None:
        return
    if not provider.sells:
        message = f"{provider.title} has no machine types to build on"
        yield Finding(
            (*at, "builder"), message, "leave builder out: disk images are built on this computer", at_key=True
        )
    elif not re.fullmatch(provider.machine_type, target.builder):
        message = f"{shown(target.builder)} is not a machine type of {provider.title}"
        yield Finding((*at, "builder"), message, f"one is called {provider.builder or provider.example_machine}")
    elif provider.is_small(target.builder):
        message = f"{target.builder} has less than {SMALL_GIB} GiB of memory, and a driver is compiled on it"
        yield Finding((*at, "builder"), message, f"one that has more: {provider.builder}")
    elif machine is not None and machine.cpu == "amd64" and provider.is_arm(target.builder):
        message = f"{target.builder} has processors of arm64, and {machine.name} those of {machine.cpu}"
        yield Finding((*at, "builder"), message, f"one of {machine.cpu}: {provider.builder}")


def _disk(at: Loc, target: ImageTarget, provider: Provider, file: Path | None) -> Iterator[Finding]:
    if provider.sells:
        if target.disk is not None:
            message = f"{provider.title} makes images of its own, and boots none from a file"
            yield Finding((*at, "disk"), message, "leave disk out", at_key=True)
        return
    for key in ("copy_to", "share_with"):
        if getattr(target, key):
            message = f"{provider.title} has no {'regions' if key == 'copy_to' else 'accounts'}"
            yield Finding((*at, key), message, "leave it out: disk.path is the folder of its images", at_key=True)
    if target.disk is not None and len(set(target.disk.formats)) != len(target.disk.formats):
        yield Finding((*at, "disk", "formats"), "a format is named twice", "name each once")
    folder = Path(target.disk.path).expanduser() if target.disk is not None else None
    if folder is not None and file is not None and (file.parent / folder).is_file():
        message = f"{shown(str(folder), 200)} is a file, and disk images are published in a folder"
        yield Finding((*at, "disk", "path"), message, "the path of a folder; gpuprov creates it")
