"""`gpuprov cost --json`: every group by the way that it is bought, the sums, spot, and the regions side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from provisioner import catalog
from provisioner.common.text import counted
from provisioner.lifecycle.cost import HOURS, Offer, Total, Wanted, offer, totals
from provisioner.lifecycle.cost.regions import DAYS, Heard, Place, market_of
from provisioner.machines.providers.market import SpotPrice, Unanswered
from provisioner.output.cost import (
    CostGroup,
    CostOutput,
    CostRegion,
    CostSum,
    CostThere,
    CostTotal,
    CostTotals,
    CostWay,
    SpotOutput,
    SpotZone,
)


def document(
    fleet: Sequence[Wanted],
    regions: Sequence[Place],
    heard: Heard | None,
    *,
    cluster: str | None = None,
) -> CostOutput:
    """The document (output/cost.py, CostOutput). `heard`: None where nobody was asked."""
    groups = [group for group in fleet if group.region or not catalog.load().provider(group.provider).sells]
    options = {id(group): [_priced(group, kind, heard) for kind in group.kinds] for group in groups}
    first = [(group.group or group.machine.name, group.count, options[id(group)][0]) for group in groups]
    listed = [(group.group or group.machine.name, group.count, offer(group.machine, group.region)) for group in groups]
    return CostOutput(
        cluster=cluster,
        hours=HOURS,
        asked=heard is not None,
        groups=[
            CostGroup(
                group=group.group or None,
                site=group.site or None,
                provider=group.provider,
                region=group.region or None,
                machine=group.machine.name,
                count=group.count,
                ways=[_option_row(option, group.count) for option in options[id(group)]],
                spot=_spot(group, group.region, heard) if "spot" in group.kinds else None,
            )
            for group in groups
        ],
        totals=CostTotals(wanted=_sums(first), on_demand=_sums(listed)),
        regions=[_region(region, fleet, regions, heard) for region in regions],
        not_included=not_included(groups or fleet),
    )


def _priced(group: Wanted, kind: str, heard: Heard | None) -> Offer:
    """A way of buying with its price; spot's is what the zone costs now that would be tried first."""
    priced = offer(group.machine, group.region, kind)
    if kind != "spot":
        return priced
    answer = heard.spot.get((group.provider, group.region, group.machine.name)) if heard is not None else None
    if answer is None:
        if heard is None:
            return priced
        return replace(
            priced, unknown=f"gpuprov can't ask {group.provider} for spot prices", action="look at its console"
        )
    if isinstance(answer, Unanswered):
        return replace(priced, unknown=answer.message, action=answer.action)
    by_zone = {price.zone: price for price in answer}
    zone = next((zone for zone in group.zones or sorted(by_zone) if zone in by_zone), None)
    if zone is None:
        zones = ", ".join(group.zones) or group.region
        return replace(
            priced, unknown=f"{zones} has had no spot price of it for {DAYS} days", action="take another zone"
        )
    price, market = by_zone[zone], market_of(group.provider)
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


def _option_row(option: Offer, count: int) -> CostWay:
    hour = None if option.each is None else round(option.each * count, 4)
    return CostWay(
        kind=option.kind,
        price=option.price,
        each=option.each,
        hour=hour,
        month=None if hour is None else round(hour * HOURS, 2),
        currency=option.currency or None,
        date=option.date or None,
        source=option.source or None,
        zone=option.zone or None,
        note=option.note,
        unknown=option.unknown,
        action=option.action,
    )


def _sums(offers: Sequence[tuple[str, int, Offer]]) -> CostTotal:
    return CostTotal(
        sums=[_sum(total) for total in totals(offers)],
        unknown=[group for group, _, option in offers if option.each is None and option.price != "nothing"],
    )


def _sum(total: Total) -> CostSum:
    return CostSum(
        currency=total.currency,
        hour=round(total.hour, 4),
        month=round(total.month, 2),
        dates=list(total.dates),
        groups=list(total.groups),
    )


def _spot(group: Wanted, region: str, heard: Heard | None) -> SpotOutput:
    """A machine's spot prices in a region, zone by zone."""
    answer = heard.spot.get((group.provider, region, group.machine.name)) if heard is not None else None
    unanswered = answer if isinstance(answer, Unanswered) else None
    listed = offer(group.machine, region)
    return SpotOutput(
        days=DAYS,
        zones=[_zone(price, listed) for price in answer] if isinstance(answer, list) else None,
        unknown=unanswered.message if unanswered else "" if answer is not None else "not asked",
        action=unanswered.action if unanswered else "",
    )


def _zone(price: SpotPrice, listed: Offer) -> SpotZone:
    comparable = listed.each is not None and listed.currency == price.currency
    return SpotZone(
        zone=price.zone,
        now=price.now,
        low=price.low,
        median=price.median,
        high=price.high,
        currency=price.currency,
        saving=round(1 - price.now / listed.each, 4) if comparable and listed.each else None,
    )


def _region(region: Place, fleet: Sequence[Wanted], regions: Sequence[Place], heard: Heard | None) -> CostRegion:
    own_groups = [group for group in fleet if group.provider == region.provider]
    homes = {group.region for group in own_groups}
    is_home = region.region in homes
    home = next((p for p in regions if p.provider == region.provider and len(homes) == 1 and p.region in homes), None)
    total = region.sums[0] if region.sums else None
    against = None
    if total and home and home.sums and home.sums[0].currency == total.currency:
        against = round(total.hour / home.sums[0].hour - 1, 4)
    machines = {group.machine.name: group for group in own_groups}
    return CostRegion(
        provider=region.provider,
        region=region.region,
        here=is_home,
        currency=total.currency if total else None,
        hour=round(total.hour, 4) if total else None,
        month=round(total.month, 2) if total else None,
        dates=list(total.dates) if total else [],
        against=against,
        unknown=f"no list price of {', '.join(region.missing)} is known there" if region.missing else "",
        machines=[_machine_row(group, region, heard) for group in machines.values()],
    )


def _machine_row(group: Wanted, region: Place, heard: Heard | None) -> CostThere:
    """Whether a region sells a machine, as it was asked."""
    key = (region.provider, region.region, group.machine.name)
    answer = heard.zones.get(key) if heard is not None else None
    unanswered = answer if isinstance(answer, Unanswered) else None
    spot = _spot(group, region.region, heard) if heard is not None and key in heard.spot else None
    return CostThere(
        machine=group.machine.name,
        zones=answer if isinstance(answer, list) else None,
        unknown=unanswered.message if unanswered else "" if answer is not None else "not asked",
        action=unanswered.action if unanswered else "",
        spot=spot,
    )


def not_included(fleet: Sequence[Wanted]) -> list[str]:
    """What a bill has beside these prices."""
    known, items = catalog.load(), []
    bought = [group for group in fleet if known.provider(group.provider).sells]
    for group in bought:
        if group.root_gb:
            items.append(f"{counted(group.count, 'root volume')} of {group.root_gb} GB ({group.group})")
    for provider in dict.fromkeys(group.provider for group in bought):
        items += [item for item in known.seller(provider).beside if item not in items]
    return [*items, "taxes, support, discounts and commitments"] if bought else []
