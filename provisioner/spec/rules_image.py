"""What the targets of a recipe ask for, and cannot have."""

from __future__ import annotations

import re
from collections.abc import Iterator

from provisioner.catalog import Catalog
from provisioner.spec.image import ImageTarget
from provisioner.spec.site import CloudSite, Site
from provisioner.spec.source_map import Finding, Loc, shown


def image_target(
    name: str, target: ImageTarget, site: Site | None, groups: tuple[str, ...], catalog: Catalog
) -> Iterator[Finding]:
    """`name`: of the group that it is of, `groups` those that there are, `site` where the group is."""
    at: Loc = ("image", "targets", name)
    if name not in groups:
        yield Finding(at, f"the recipe has no group {name}", f"groups: {', '.join(groups)}", at_key=True)
    if not isinstance(site, CloudSite):
        return
    provider = catalog.provider(site.provider)
    for index, region in enumerate(target.copy_to):
        if not re.fullmatch(provider.region, region):
            hint = f"one is called {provider.example_region}"
            yield Finding((*at, "copy_to", index), f"{shown(region)} is not a region of {provider.title}", hint)
        elif near := provider.region_typo(region):
            said = f"{provider.title} has no region {region}"
            yield Finding((*at, "copy_to", index), said, f"did you mean {near}?")
    # where a cloud has no such key, its own `Images.check` says before a build whether an image can be shared
    if target.share_with and "kms_key" in type(site).model_fields and not getattr(site, "kms_key", None):
        said = "disks are encrypted, and with the account's own key no other account can use them"
        yield Finding((*at, "share_with"), said, "give the site a kms_key that those accounts may use", at_key=True)
