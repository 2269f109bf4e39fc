"""What machines cost by list, and how they are bought: frozen models over catalog/data."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from provisioner.catalog.models import ProviderName, Row

Currency = Literal["USD", "CNY"]


class Bought(Row):
    """What a way of buying machines costs. `price`: list: the on-demand list price; spot: one of its own that moves;
    own: agreed elsewhere; nothing: not bought. `why` is for people."""

    provider: ProviderName
    kind: str
    price: Literal["list", "spot", "own", "nothing"]
    why: str
    source: str


class Seller(Row):
    """`page`: where a provider says itself what machines cost; `beside`: what a bill has beside machines and disks."""

    provider: ProviderName
    page: str
    beside: tuple[str, ...]


class Price(Row):
    """The on-demand list price of a machine for one hour. `date`: the source's own, or two with .. between where it
    says no more than that; `source`: an id of the file's `sources`."""

    region: str
    price: float = Field(gt=0)
    currency: Currency
    date: str = Field(pattern=r"^\d{4}-\d\d(-\d\d)?(\.\.\d{4}-\d\d(-\d\d)?)?$")
    source: str


class ListPrices(Row):
    """Where a machine's list price was read, and what it was."""

    machine: str
    prices: tuple[Price, ...]


class Without(Row):
    """A machine whose price was looked for and not found."""

    machine: str
    why: str
    source: str
