"""List prices as data: each of a machine that is known, in one currency, with its date and its source."""

from __future__ import annotations

import re
from datetime import date

import pytest

from provisioner import catalog
from provisioner.catalog.prices import ListPrices, Without
from provisioner.catalog.providers import Provider

CATALOG = catalog.load()
ROWS = catalog._rows("prices", "on_demand", ListPrices)
WITHOUT = catalog._rows("prices", "without", Without)


def test_every_price_is_of_a_machine_and_a_region_that_are_known() -> None:
    assert len({row.machine for row in ROWS}) == len(ROWS)
    for row in ROWS:
        machine = CATALOG.machine(row.machine)
        pattern = CATALOG.provider(machine.provider).region
        assert row.prices
        assert len({price.region for price in row.prices}) == len(row.prices), row.machine
        for price in row.prices:
            assert re.fullmatch(pattern, price.region), (row.machine, price.region)


def test_every_price_says_where_it_was_read_and_when() -> None:
    as_of = date.fromisoformat(catalog._document("prices")["as_of"])
    used = set()
    for row in ROWS:
        for price in row.prices:
            used.add(price.source)
            assert "unverified" not in CATALOG.price_sources[price.source]
            assert price.date[:10] <= as_of.isoformat()
    assert used == set(CATALOG.price_sources)


def test_chinas_regions_are_priced_in_yuan_and_no_others() -> None:
    for row in ROWS:
        for price in row.prices:
            assert (price.currency == "CNY") == price.region.startswith("cn-"), (row.machine, price.region)


def test_more_of_the_same_gpu_in_one_region_is_never_cheaper() -> None:
    """A price that slipped into the next row would be."""
    for row in ROWS:
        machine = CATALOG.machine(row.machine)
        for other in CATALOG.machines(machine.provider):
            if (
                other.gpu_model != machine.gpu_model
                or other.gpu_count <= machine.gpu_count
                or machine.retired
                or other.retired
            ):
                continue
            for price in row.prices:
                bigger = CATALOG.price(other, price.region)
                assert bigger is None or bigger.price > price.price, (machine.name, other.name, price.region)


def test_what_machines_cost_today_in_the_first_region() -> None:
    """AWS cut these in 2025; older articles still have 32.77 and 98.32."""
    for name, dollars in (("p4d.24xlarge", 21.9576), ("p5.48xlarge", 55.04)):
        price = CATALOG.price(CATALOG.machine(name), "us-east-1")
        assert price is not None
        assert (price.price, price.currency) == (dollars, "USD")


def test_a_price_that_nobody_wrote_down_is_none() -> None:
    assert CATALOG.price(CATALOG.machine("p4d.24xlarge"), "sa-east-1") is None
    assert CATALOG.prices(CATALOG.machine("dgx-h100")) == ()
    assert CATALOG.without_price(CATALOG.machine("dgx-h100")) == ""


def test_a_machine_without_a_price_has_none_and_says_why() -> None:
    for row in WITHOUT:
        machine = CATALOG.machine(row.machine)
        assert CATALOG.prices(machine) == ()
        assert CATALOG.without_price(machine) == row.why


@pytest.mark.parametrize("provider", CATALOG.providers(), ids=lambda p: p.name)
def test_every_way_of_buying_is_known(provider: Provider) -> None:
    for kind in provider.capacity:
        assert CATALOG.bought(provider.name, kind).source
    assert CATALOG.bought(provider.name, "on-demand").price == ("nothing" if provider.name == "baremetal" else "list")
