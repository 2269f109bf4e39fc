"""Refusals of a site of a cloud: regions and zones that are none, accounts and prices that its cloud does not take."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping

from provisioner.catalog import Catalog
from provisioner.catalog.providers import Provider
from provisioner.spec.groups import Group
from provisioner.spec.models import Access
from provisioner.spec.site import CloudSite, Site
from provisioner.spec.source_map import Finding, Loc, shown


def places(loc: Loc, site: Site, catalog: Catalog) -> Iterator[Finding]:
    """Of its region, its tags and its zones."""
    if not isinstance(site, CloudSite):
        return
    provider = catalog.provider(site.provider)
    if not re.fullmatch(provider.region, site.region):
        hint = f"one is called {provider.example_region}"
        yield Finding((*loc, "region"), f"{shown(site.region)} is not a region of {provider.title}", hint)
        return
    if near := provider.region_typo(site.region):
        yield Finding((*loc, "region"), f"{provider.title} has no region {site.region}", f"did you mean {near}?")
        return  # its zones are as wrong as it is
    for key in site.tags:
        if not re.fullmatch(r"[A-Za-z0-9_ .:/=+@-]{1,128}", key):
            said = f"{shown(key)} is no key of a tag: at most 128 letters, digits, spaces and . : / = + @ _ -"
            yield Finding((*loc, "tags", key), said, at_key=True)
        elif key.lower().startswith("gpuprov-") or key == "Name":
            yield Finding((*loc, "tags", key), f"{key} is a tag that gpuprov writes itself", "another key", at_key=True)
    seen: set[str] = set()
    for index, zone in enumerate(site.zones):
        at = (*loc, "zones", index)
        if not provider.is_zone(zone, site.region):
            yield Finding(at, f"{shown(zone)} is not a zone of {site.region}", _zone_hint(zone, site.region, provider))
        elif zone in seen:
            yield Finding(at, f"{shown(zone)} is in the list already")
        seen.add(zone)


def account(loc: Loc, site: Site, access: Access | None) -> Iterator[Finding]:
    """An account that the site's cloud refuses to make."""
    at: Loc = (*loc, "user") if site.user is not None else ("access", "user")
    name = site.user or (access.user if access is not None else None)
    if name is not None and name in site.refused_users:
        usual = "leave it out: the account is then the provider's usual one"
        yield Finding(at, f"{site.provider} makes no account called {shown(name)}", usual)


def spot_price(loc: Loc, site: Site, here: Mapping[str, Group], dropped: Collection[Loc]) -> Iterator[Finding]:
    """A price for spot where nothing is bought so; nothing is said where a group's own words could not be read."""
    unread = any(at[:1] == ("groups",) and "capacity" in at for at in dropped)
    asked = any(group.capacity.interruptible for group in here.values())
    if getattr(site, "spot_max_price", None) is not None and not (asked or unread):
        said = "spot_max_price is set, and no group here asks for spot"
        yield Finding((*loc, "spot_max_price"), said, "leave it out, or take capacity.kind: spot", at_key=True)


def _zone_hint(zone: str, region: str, provider: Provider) -> str:
    if "{region}" not in provider.zone:
        return 'they are "1", "2" and "3"'
    own = provider.is_zone(zone, zone.rpartition("-")[0]) or provider.is_zone(zone, zone[:-1])
    other = next((one for one in provider.regions if one != region and provider.is_zone(zone, one)), None)
    if own and other:
        return f"it is one of {other}: write that region, or zones of {region}"
    tail = re.search(r"(-?[a-z]|-[0-9]+)$", zone.rpartition(region)[2] or zone)
    near = f"{region}{tail[1]}" if tail else ""
    return f"did you mean {near}?" if near and provider.is_zone(near, region) else "they start with the region"
