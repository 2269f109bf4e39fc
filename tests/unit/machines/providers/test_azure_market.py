"""What Azure sells where, and what spot costs: its API and its price list, on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from provisioner.machines.providers.azure import market
from provisioner.machines.providers.azure.client import Subscription
from provisioner.machines.providers.azure.market import AzureMarket
from provisioner.machines.providers.market import SpotPrice, Unanswered
from tests.support.azure_api import SUBSCRIPTION, Api, Token, error, serving, sku

NC = "Standard_NC24ads_A100_v4"


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    with serving(monkeypatch) as served:
        monkeypatch.setattr(market, "PRICES", {"public": served.url})
        served.skus = [
            sku(NC, "f", 24, ("2", "1")), sku("Standard_ND96asr_v4", "g", 96),
            sku("closed", "h", 1, restrictions=[{"type": "Location", "reasonCode": "NotAvailableForSubscription"}]),
        ]  # fmt: skip
        yield served


def market_of(api: Api) -> AzureMarket:
    return AzureMarket(
        lambda site: Subscription(site.model_copy(update={"subscription": SUBSCRIPTION}), test_credential=Token())
    )


def test_zones_that_sell_a_machine_are_asked_once_a_region(api: Api) -> None:
    azure_market = market_of(api)
    assert azure_market.zones("eastus", NC) == ["1", "2"]
    assert azure_market.zones("eastus", "Standard_ND96asr_v4") == ["eastus"], "in no zone, but in the region"
    assert azure_market.zones("eastus", "closed") == azure_market.zones("eastus", "none") == []
    assert len(api.calls) == 1
    api.rules = [("GET", "/skus$", error("AuthorizationFailed", "no", 403))]
    with pytest.raises(Unanswered, match="not allowed to look"):
        market_of(api).zones("eastus", NC)


def row(price: float, name: str = "NC24ads A100 v4 Spot", **more: Any) -> dict[str, Any]:
    """As the page of the Retail Prices API has it."""
    return {
        "currencyCode": "USD", "retailPrice": price, "unitPrice": price, "armRegionName": "eastus", "armSkuName": NC,
        "effectiveStartDate": "2026-11-01T00:00:00Z", "skuName": name, "meterName": name, "unitOfMeasure": "1 Hour",
        "productName": "Virtual Machines NCadsA100v4 Series", "type": "Consumption", **more,
    }  # fmt: skip


def test_a_spot_price_is_linuxs_newest_by_the_hour(api: Api) -> None:
    items = [
        row(3.673, "NC24ads A100 v4"), row(0.9, effectiveStartDate="2026-10-01T00:00:00Z"), row(1.05),
        row(2.2, productName="Virtual Machines NCadsA100v4 Series Windows"), row(0.7, "NC24ads A100 v4 Low Priority"),
    ]  # fmt: skip
    api.plain["/api/retail/prices"] = {"Items": items, "NextPageLink": None}
    assert market_of(api).spot("eastus", NC, 7) == [SpotPrice("eastus", 1.05, None, None, None, "USD")]
    api.plain["/api/retail/prices"] = {"Items": items[:1]}
    assert market_of(api).spot("eastus", NC, 7) == []


def test_a_list_that_does_not_answer_is_said(api: Api) -> None:
    for answer in ({"Message": "no"}, ["x"]):
        api.plain["/api/retail/prices"] = answer
        with pytest.raises(Unanswered, match="did not answer"):
            market_of(api).spot("eastus", NC, 7)
