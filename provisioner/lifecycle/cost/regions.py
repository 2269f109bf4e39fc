"""The same machines in every region for which a price is known, cheapest first, and what is asked of each region."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from provisioner import catalog
from provisioner.lifecycle.cost import Total, Wanted, offer, parallel_queries, totals
from provisioner.machines.providers import base as providers
from provisioner.machines.providers.market import Market, SpotPrice, Unanswered


def market_of(provider: str) -> Market | None:
    """The market of a provider; None where gpuprov can't ask it."""
    implementation = providers.find(provider)
    return implementation.market() if implementation else None


DAYS = 7
"""Of spot's history."""


@dataclass(frozen=True, slots=True)
class Heard:
    """What providers answered, by (provider, region, machine); nothing of what was not asked."""

    zones: Mapping[tuple[str, str, str], list[str] | Unanswered] = field(default_factory=dict)
    spot: Mapping[tuple[str, str, str], list[SpotPrice] | Unanswered] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Place:
    """A fleet in one region, on demand at list price. `sums`: one, or none where a machine has no price there."""

    provider: str
    region: str
    sums: tuple[Total, ...]
    missing: tuple[str, ...]


def compare(fleet: Sequence[Wanted], only: Sequence[str] = ()) -> list[Place]:
    """Every region where all machines of a provider have a price, cheapest first in each currency; `only`: those of
    that name instead, whether they have one or not."""
    known, places = catalog.load(), []
    for provider in dict.fromkeys(group.provider for group in fleet):
        own_groups = [group for group in fleet if group.provider == provider]
        priced = [{price.region for price in known.prices(group.machine)} for group in own_groups]
        names = list(only) or sorted(set.intersection(*priced))
        for name in names:
            offers = [(group.machine.name, group.count, offer(group.machine, name)) for group in own_groups]
            missing = tuple(dict.fromkeys(machine for machine, _, priced in offers if priced.each is None))
            places.append(Place(provider, name, () if missing else tuple(totals(offers)), missing))
    return sorted(places, key=lambda p: (p.sums[0].currency, p.sums[0].hour) if p.sums else ("~", 0.0))


def listen(
    fleet: Sequence[Wanted], places: Sequence[Place], *, spot: bool, of: Callable[[str], Market | None] = market_of
) -> Heard:
    """Ask of every region which zones sell the machines, and what spot costs where somebody wants it (`spot`: in any
    case)."""
    asks: dict[tuple[str, str, str, str], Callable[[], list[str] | list[SpotPrice]]] = {}
    spots = {group.machine.name for group in fleet if spot or "spot" in group.kinds}
    for provider in dict.fromkeys(group.provider for group in fleet):
        seller = of(provider)
        if seller is None:
            continue
        # The regions that cluster.yaml names go first: whose credentials these are is asked there.
        regions = dict.fromkeys(group.region for group in fleet if group.provider == provider and group.region)
        regions |= dict.fromkeys(region_row.region for region_row in places if region_row.provider == provider)
        for region in regions:
            for name in dict.fromkeys(group.machine.name for group in fleet if group.provider == provider):
                asks["zones", provider, region, name] = partial(seller.zones, region, name)
                if name in spots:
                    asks["spot", provider, region, name] = partial(seller.spot, region, name, DAYS)
    heard = parallel_queries.answers(asks)
    zones = {key[1:]: answer for key, answer in heard.items() if key[0] == "zones"}
    prices = {key[1:]: answer for key, answer in heard.items() if key[0] == "spot"}
    return Heard(zones, prices)  # type: ignore[arg-type]
