"""`gpuprov cost --json`: every group by the way that it is bought, the sums, spot, and the regions side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from provisioner import catalog
from provisioner.cost import HOURS, Offer, Total, Wanted, offer, totals
from provisioner.cost.regions import DAYS, Heard, Place, market_of
from provisioner.providers.market import SpotPrice, Unanswered
from provisioner.text import counted


def document(
    fleet: Sequence[Wanted], places: Sequence[Place], heard: Heard | None, *, cluster: str | None = None
) -> dict[str, Any]:
    """The document (documents/cost.py, CostOutput). `heard`: None where nobody was asked."""
    groups = [one for one in fleet if one.region or not catalog.load().provider(one.provider).sells]
    ways = {id(one): [_priced(one, kind, heard) for kind in one.kinds] for one in groups}
    first = [(one.group or one.machine.name, one.count, ways[id(one)][0]) for one in groups]
    listed = [(one.group or one.machine.name, one.count, offer(one.machine, one.region)) for one in groups]
    return {
        "cluster": cluster,
        "hours": HOURS,
        "asked": heard is not None,
        "groups": [
            {
                "group": one.group or None,
                "site": one.site or None,
                "provider": one.provider,
                "region": one.region or None,
                "machine": one.machine.name,
                "count": one.count,
                "ways": [_way(found, one.count) for found in ways[id(one)]],
                "spot": _spot(one, one.region, heard) if "spot" in one.kinds else None,
            }
            for one in groups
        ],
        "totals": {"wanted": _sums(first), "on_demand": _sums(listed)},
        "regions": [_region(place, fleet, places, heard) for place in places],
        "not_included": not_included(groups or fleet),
    }


def _priced(one: Wanted, kind: str, heard: Heard | None) -> Offer:
    """A way of buying with its price; spot's is what the zone costs now that would be tried first."""
    found = offer(one.machine, one.region, kind)
    if kind != "spot":
        return found
    answer = heard.spot.get((one.provider, one.region, one.machine.name)) if heard is not None else None
    if answer is None:
        if heard is None:
            return found
        return replace(found, unknown=f"gpuprov can't ask {one.provider} for spot prices", action="look at its console")
    if isinstance(answer, Unanswered):
        return replace(found, unknown=answer.message, action=answer.action)
    by_zone = {price.zone: price for price in answer}
    zone = next((zone for zone in one.zones or sorted(by_zone) if zone in by_zone), None)
    if zone is None:
        where = ", ".join(one.zones) or one.region
        return replace(
            found, unknown=f"{where} has had no spot price of it for {DAYS} days", action="take another zone"
        )
    price, market = by_zone[zone], market_of(one.provider)
    source = market.source if market else ""
    return Offer(
        kind,
        "spot",
        price.now,
        price.currency,
        zone=zone,
        source=source,
        note="now",
    )


def _way(found: Offer, count: int) -> dict[str, Any]:
    hour = None if found.each is None else round(found.each * count, 4)
    return {
        "kind": found.kind,
        "price": found.price,
        "each": found.each,
        "hour": hour,
        "month": None if hour is None else round(hour * HOURS, 2),
        "currency": found.currency or None,
        "date": found.date or None,
        "source": found.source or None,
        "zone": found.zone or None,
        "note": found.note,
        "unknown": found.unknown,
        "action": found.action,
    }


def _sums(offers: Sequence[tuple[str, int, Offer]]) -> dict[str, Any]:
    return {
        "sums": [_sum(total) for total in totals(offers)],
        "unknown": [group for group, _, found in offers if found.each is None and found.price != "nothing"],
    }


def _sum(total: Total) -> dict[str, Any]:
    return {
        "currency": total.currency,
        "hour": round(total.hour, 4),
        "month": round(total.month, 2),
        "dates": list(total.dates),
        "groups": list(total.groups),
    }


def _spot(one: Wanted, region: str, heard: Heard | None) -> dict[str, Any]:
    """A machine's spot prices in a region, zone by zone."""
    answer = heard.spot.get((one.provider, region, one.machine.name)) if heard is not None else None
    trouble = answer if isinstance(answer, Unanswered) else None
    listed = offer(one.machine, region)
    return {
        "days": DAYS,
        "zones": [_zone(price, listed) for price in answer] if isinstance(answer, list) else None,
        "unknown": trouble.message if trouble else "" if answer is not None else "not asked",
        "action": trouble.action if trouble else "",
    }


def _zone(price: SpotPrice, listed: Offer) -> dict[str, Any]:
    comparable = listed.each is not None and listed.currency == price.currency
    return {
        "zone": price.zone,
        "now": price.now,
        "low": price.low,
        "median": price.median,
        "high": price.high,
        "currency": price.currency,
        "saving": round(1 - price.now / listed.each, 4) if comparable and listed.each else None,
    }


def _region(place: Place, fleet: Sequence[Wanted], places: Sequence[Place], heard: Heard | None) -> dict[str, Any]:
    mine = [one for one in fleet if one.provider == place.provider]
    homes = {one.region for one in mine}
    here = place.region in homes
    home = next((p for p in places if p.provider == place.provider and len(homes) == 1 and p.region in homes), None)
    total = place.sums[0] if place.sums else None
    against = None
    if total and home and home.sums and home.sums[0].currency == total.currency:
        against = round(total.hour / home.sums[0].hour - 1, 4)
    machines = {one.machine.name: one for one in mine}
    return {
        "provider": place.provider,
        "region": place.region,
        "here": here,
        "currency": total.currency if total else None,
        "hour": round(total.hour, 4) if total else None,
        "month": round(total.month, 2) if total else None,
        "dates": list(total.dates) if total else [],
        "against": against,
        "unknown": f"no list price of {', '.join(place.missing)} is known there" if place.missing else "",
        "machines": [_there(one, place, heard) for one in machines.values()],
    }


def _there(one: Wanted, place: Place, heard: Heard | None) -> dict[str, Any]:
    """Whether a region sells a machine, as it was asked."""
    key = (place.provider, place.region, one.machine.name)
    answer = heard.zones.get(key) if heard is not None else None
    trouble = answer if isinstance(answer, Unanswered) else None
    spot = _spot(one, place.region, heard) if heard is not None and key in heard.spot else None
    return {
        "machine": one.machine.name,
        "zones": answer if isinstance(answer, list) else None,
        "unknown": trouble.message if trouble else "" if answer is not None else "not asked",
        "action": trouble.action if trouble else "",
        "spot": spot,
    }


def not_included(fleet: Sequence[Wanted]) -> list[str]:
    """What a bill has beside these prices."""
    known, said = catalog.load(), []
    bought = [one for one in fleet if known.provider(one.provider).sells]
    for one in bought:
        if one.root_gb:
            said.append(f"{counted(one.count, 'root volume')} of {one.root_gb} GB ({one.group})")
    for provider in dict.fromkeys(one.provider for one in bought):
        said += [what for what in known.seller(provider).beside if what not in said]
    return [*said, "taxes, support, discounts and commitments"] if bought else []
