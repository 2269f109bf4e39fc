"""The shape of `gpuprov cost --json`: an amount that is not known is null, with the reason beside it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, WithJsonSchema

from provisioner.output.base import Number, OpenOutput
from provisioner.output.site_choice import SiteChoiceOutput

Currency = Annotated[str, WithJsonSchema({"enum": ["USD", "CNY"], "type": "string"})]
"""As the provider names it."""


class CostWay(OpenOutput):
    """One way to buy the machines of a group."""

    kind: str = Field(description="on-demand, spot, reservation, block")
    price: Literal["list", "spot", "own", "nothing"] = Field(
        description="list: on demand; spot: what the zone costs now; own: agreed elsewhere; nothing: not bought"
    )
    each: Number | None = Field(description="One machine for an hour; null where it is not known")
    hour: Number | None = Field(description="All of them for an hour")
    month: Number | None
    currency: Currency | None
    date: str | None = Field(description="When a list price was read: 2026-07-20, or 2025-11..2026-08: between the two")
    source: str | None
    zone: str | None = Field(description="Given where the price is of one zone")
    note: str
    unknown: str = Field(description="Why it is not known, or empty")
    action: str


class SpotZone(OpenOutput):
    """One machine for an hour in one zone."""

    zone: str
    now: Number
    low: Number | None = Field(description="null where the provider tells no more than today's price")
    median: Number | None = Field(description="Weighed by the time that each price held")
    high: Number | None
    currency: Currency
    saving: Number | None = Field(description="Of the list price, now: 0.6 is sixty per cent less; null without one")


class SpotOutput(OpenOutput):
    """What spot costs and has cost."""

    days: int
    zones: list[SpotZone] | None = Field(description="null where it is not known; empty: none has had a price")
    unknown: str
    action: str


class CostGroup(OpenOutput):
    """One group of machines."""

    group: str | None
    site: str | None
    provider: str
    region: str | None
    machine: str
    count: int
    ways: list[CostWay] = Field(description="First choice first, then the fallbacks")
    spot: SpotOutput | None = Field(description="null where nobody wants spot")


class CostSum(OpenOutput):
    """What is known in one currency."""

    currency: Currency
    hour: Number
    month: Number
    dates: list[str] = Field(description="Of the list prices in it")
    groups: list[str]


class CostTotal(OpenOutput):
    """One sum for each currency. With a group in `unknown` the sums are without it."""

    sums: list[CostSum]
    unknown: list[str]


class CostTotals(OpenOutput):
    """Sums over all groups."""

    wanted: CostTotal = Field(description="Bought in the way that is the first choice")
    on_demand: CostTotal = Field(description="Bought on demand, at list price")


class PlannedCost(OpenOutput):
    """What everything that is wanted costs, by list prices: of `gpuprov plan`."""

    hours: int = Field(description="Of a month")
    groups: list[CostGroup]
    totals: CostTotals
    not_included: list[str]


class SpentSum(OpenOutput):
    """What is known in one currency."""

    currency: Currency
    amount: Number
    hour: Number = Field(description="What the machines that are there now cost for one")
    dates: list[str] = Field(description="Of the list prices")


class SpentOutput(OpenOutput):
    """What the machines have cost so far: list prices on demand x the time since each was first seen. An estimate."""

    since: str = Field(description="When the first one was seen: UTC, 2026-01-31T12:00:00Z")
    sums: list[SpentSum]
    unknown: list[str] = Field(description="Nodes whose price is not known")


class CostThere(OpenOutput):
    """What a region was asked of one machine."""

    machine: str
    zones: list[str] | None = Field(description="Zones that sell it; empty: none does; null: not known")
    unknown: str
    action: str
    spot: SpotOutput | None


class CostRegion(OpenOutput):
    """The same machines in one region, on demand."""

    provider: str
    region: str
    here: bool
    currency: Currency | None
    hour: Number | None
    month: Number | None
    dates: list[str]
    against: Number | None = Field(description="Share above the price where the fleet is: -0.1 is ten per cent less")
    unknown: str
    machines: list[CostThere]


class CostOutput(OpenOutput):
    """`gpuprov cost --json`"""

    cluster: str | None
    hours: int = Field(description="Of a month")
    asked: bool = Field(description="Whether providers were asked; false with --offline")
    groups: list[CostGroup]
    totals: CostTotals
    regions: list[CostRegion] = Field(description="Cheapest first in each currency")
    not_included: list[str]
    site_choices: list[SiteChoiceOutput] = Field(
        default=[], description="Of each group with a list of sites: which one was chosen, and why the others were not"
    )
