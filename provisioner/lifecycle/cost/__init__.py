"""What machines cost: list prices of the catalogue, which need no account and no network.

A price that is not known is None with the reason, never 0 and never a guess; currencies are never added up.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from provisioner import catalog
from provisioner.catalog.models import Machine, ProviderName
from provisioner.spec.models import ClusterSpec

HOURS = 730
"""Of a month: 365 days of 24 hours, divided by 12, as AWS's own calculator counts."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Machines of one type in one region. `kinds`: how they are bought, first choice first; `group` and `site` are
    empty where no file names them."""

    machine: Machine
    region: str = ""
    count: int = 1
    kinds: tuple[str, ...] = ("on-demand",)
    group: str = ""
    site: str = ""
    zones: tuple[str, ...] = ()
    root_gb: int = 0

    @property
    def provider(self) -> ProviderName:
        return self.machine.provider


@dataclass(frozen=True, slots=True)
class Offer:
    """What one machine costs for an hour when it is bought in that way. `price`: as `Bought.price`; `each` is None
    where it is not known, with the reason and what to do. `zone` where the price is of one."""

    kind: str
    price: Literal["list", "spot", "own", "nothing"]
    each: float | None = None
    currency: str = ""
    date: str = ""
    source: str = ""
    zone: str = ""
    note: str = ""
    unknown: str = ""
    action: str = ""


@dataclass(frozen=True, slots=True)
class Total:
    """The sum for an hour of what is known in one currency. `groups`: whose; `dates`: when their prices were read."""

    currency: str
    hour: float
    groups: tuple[str, ...]
    dates: tuple[str, ...]

    @property
    def month(self) -> float:
        return self.hour * HOURS


def wanted(spec: ClusterSpec) -> list[Wanted]:
    """What a cluster.yaml asks for, group by group."""
    rows = []
    for name, group in spec.groups.items():
        site = spec.sites[spec.site_of(name)]
        rows.append(
            Wanted(
                machine=spec.machine(name),
                region=getattr(site, "region", ""),
                count=group.count,
                kinds=(group.capacity.kind, *group.capacity.fallback),
                group=name,
                site=spec.site_of(name),
                zones=getattr(site, "zones", ()),
                root_gb=group.storage.root_gb,
            )
        )
    return rows


def offer(machine: Machine, region: str, kind: str = "on-demand") -> Offer:
    """What the catalogue knows of a machine that is bought in that way. A price that moves is unknown here."""
    known = catalog.load()
    bought = known.bought(machine.provider, kind)
    if bought.price == "spot":
        return Offer(
            kind,
            bought.price,
            unknown=f"{bought.why}, and was not asked for",
            action="`gpuprov cost` asks, without --offline",
        )
    if bought.price in ("own", "nothing"):
        action = "look at what was agreed when it was bought" if bought.price == "own" else ""
        return Offer(kind, bought.price, unknown=bought.why, action=action)
    price = known.price(machine, region)
    if price is None:
        reason = known.without_price(machine) or f"no list price of {machine.name} in {region} is known"
        return Offer(kind, bought.price, unknown=reason, action=f"look at {known.seller(machine.provider).page}")
    source = known.price_sources[price.source]
    return Offer(kind, bought.price, price.price, price.currency, price.date, source, note=bought.why)


def totals(offers: Iterable[tuple[str, int, Offer]]) -> list[Total]:
    """One sum for each currency, of (group, machines, offer); what is not known is in none of them."""
    sums: dict[str, list[tuple[str, int, Offer]]] = {}
    for row in offers:
        if row[2].each is not None:
            sums.setdefault(row[2].currency, []).append(row)
    return [
        Total(
            currency,
            sum(count * (priced.each or 0.0) for _, count, priced in rows),
            tuple(dict.fromkeys(group for group, _, _ in rows)),
            tuple(sorted({priced.date for _, _, priced in rows if priced.date})),
        )
        for currency, rows in sums.items()
    ]


def as_of(dates: Iterable[str]) -> str:
    """When prices were read: the source's own dates, a span as words.

    >>> as_of(["2026-07-20"]), as_of(["2025-11..2026-08"])
    ('2026-07-20', '2025-11 to 2026-08')
    """
    return ", ".join(date.replace("..", " to ") for date in sorted(set(dates)))
