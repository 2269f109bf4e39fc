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
    if suggestion := provider.region_typo(site.region):
        yield Finding((*loc, "region"), f"{provider.title} has no region {site.region}", f"did you mean {suggestion}?")
        return  # its zones are as wrong as it is
    for key in site.tags:
        if not re.fullmatch(r"[A-Za-z0-9_ .:/=+@-]{1,128}", key):
            message = f"{shown(key)} is not a valid tag key: at most 128 letters, digits, spaces and . : / = + @ _ -"
            yield Finding((*loc, "tags", key), message, at_key=True)
        elif key.lower().startswith("gpuprov-") or key == "Name":
            yield Finding((*loc, "tags", key), f"{key} is a tag that gpuprov writes itself", "another key", at_key=True)
    earlier: set[str] = set()
    for index, zone in enumerate(site.zones):
        at = (*loc, "zones", index)
        if not provider.is_zone(zone, site.region):
            yield Finding(at, f"{shown(zone)} is not a zone of {site.region}", _zone_hint(zone, site.region, provider))
        elif zone in earlier:
            yield Finding(at, f"{shown(zone)} is in the list already")
        earlier.add(zone)


def account(loc: Loc, site: Site, access: Access | None) -> Iterator[Finding]:
    """An account that the site's cloud refuses to make."""
    at: Loc = (*loc, "user") if site.user is not None else ("access", "user")
    name = site.user or (access.user if access is not None else None)
    if name is not None and name in site.refused_users:
        hint = "leave it out: the account is then the provider's usual one"
        yield Finding(at, f"{site.provider} makes no account called {shown(name)}", hint)


def spot_price(loc: Loc, site: Site, groups: Mapping[str, Group], dropped: Collection[Loc]) -> Iterator[Finding]:
    """A price for spot where nothing is bought so; nothing is said where a group's own words could not be read."""
    unread = any(at[:1] == ("groups",) and "capacity" in at for at in dropped)
    asks_spot = any(group.capacity.interruptible for group in groups.values())
    if getattr(site, "spot_max_price", None) is not None and not (asks_spot or unread):
        message = "spot_max_price is set, and no group here asks for spot"
        yield Finding((*loc, "spot_max_price"), message, "leave it out, or take capacity.kind: spot", at_key=True)


def _zone_hint(zone: str, region: str, provider: Provider) -> str:
    if "{region}" not in provider.zone:
        return 'they are "1", "2" and "3"'
    is_zone_format = provider.is_zone(zone, zone.rpartition("-")[0]) or provider.is_zone(zone, zone[:-1])
    other = next((name for name in provider.regions if name != region and provider.is_zone(zone, name)), None)
    if is_zone_format and other:
        return f"it is one of {other}: write that region, or zones of {region}"
    tail = re.search(r"(-?[a-z]|-[0-9]+)$", zone.rpartition(region)[2] or zone)
    suggestion = f"{region}{tail[1]}" if tail else ""
    return (
        f"did you mean {suggestion}?"
        if suggestion and provider.is_zone(suggestion, region)
        else "they start with the region"
    )
