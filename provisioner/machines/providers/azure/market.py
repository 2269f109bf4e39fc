"""Azure's market: which zones of a region sell a machine to this subscription, and what spot costs there today.

Prices come from Azure's list for everybody, which wants no sign-in and has one price for a region; what spot has cost
before it does not tell.
https://learn.microsoft.com/rest/api/cost-management/retail-prices/azure-retail-prices
"""

from __future__ import annotations

import threading
import urllib.parse
from collections.abc import Callable
from typing import Any

from provisioner.common import stored
from provisioner.common.errors import GpuprovError
from provisioner.machines.providers.azure import sold
from provisioner.machines.providers.azure.client import READ_S, Subscription
from provisioner.machines.providers.azure.findings import credentials, unknown
from provisioner.machines.providers.azure.rules import environment_of
from provisioner.machines.providers.azure.site import AzureSite
from provisioner.machines.providers.market import SpotPrice, Unanswered
from provisioner.machines.providers.sizes import OfferedSize
from provisioner.machines.providers.trouble import Trouble
from provisioner.stack.fetch import ask

PRICES = {"public": "https://prices.azure.com", "china": "https://prices.azure.cn"}
"""Azure Government's prices are in the list of the public one, by their regions."""
PATH = "/api/retail/prices?api-version=2023-01-01-preview&$filter="
LIMIT = 4 << 20
"""Bytes of an answer that are read; one machine in one region has a few kilobytes."""


class AzureMarket:
    """The regions of the default subscription, and Azure's price list."""

    source = "Azure Retail Prices API"

    def __init__(self, subscription: Callable[[AzureSite], Subscription] = Subscription) -> None:
        self._new = subscription
        self._sizes: dict[str, dict[str, sold.Size]] = {}
        self._region_errors: dict[str, Trouble] = {}
        self._lock = threading.Lock()

    def zones(self, region: str, machine: str) -> list[str]:
        """One that is sold in no zone is sold in the region, which then stands for it."""
        size = self._listed(region).get(machine)
        if size is None or size.closed:
            return []
        return list(size.zones) or [region]

    def size(self, region: str, machine: str) -> OfferedSize | None:
        size = self._listed(region).get(machine)
        if size is None:
            return None
        capability = size.capabilities.get
        keys: dict[str, Any] = {}
        if size.vcpus is not None:
            keys["vcpus"] = size.vcpus
        if capability("MemoryGB"):
            keys["memory_gib"] = float(capability("MemoryGB", ""))
        if capability("CpuArchitectureType", "").lower() == "arm64":
            keys["cpu"] = "arm64"
        count = capability("GPUs", "")
        return OfferedSize(gpu="", gpus=int(count) if count.isdigit() else 0, keys=keys, source="Azure, Resource SKUs")

    def spot(self, region: str, machine: str, days: int) -> list[SpotPrice]:  # noqa: ARG002 (it has no past)
        rows = [row for row in _rows(region, machine) if _is_spot(row)]
        if not rows:
            return []
        newest = max(rows, key=lambda row: str(row.get("effectiveStartDate", "")))
        return [SpotPrice(region, float(newest["retailPrice"]), None, None, None, str(newest.get("currencyCode", "")))]

    def _listed(self, region: str) -> dict[str, sold.Size]:
        """Every size of a region, asked once. Raises Unanswered."""
        site = AzureSite(provider="azure", region=region, environment=environment_of(region))
        with self._lock:
            if region not in self._sizes and region not in self._region_errors:
                try:
                    self._sizes[region] = sold.listed(self._new(site))
                except Trouble as error:
                    self._region_errors[region] = error
            if region in self._region_errors:
                raise _unanswered(self._region_errors[region], site)
            return self._sizes[region]


def _unanswered(error: Trouble, site: AzureSite) -> Unanswered:
    if error.kind == "credentials":
        finding = credentials(error, Subscription(site).cloud)
        return Unanswered(f"not signed in: {finding.message}", finding.action)
    finding = unknown("", error, "Microsoft.Compute/skus/read")
    return Unanswered(finding.message, finding.action)


def _is_spot(row: dict[str, Any]) -> bool:
    """A Linux machine's hour as spot; the list has Windows' and low-priority ones too."""
    names = f"{row.get('skuName', '')} {row.get('meterName', '')}"
    hour = row.get("unitOfMeasure") == "1 Hour" and row.get("type", "Consumption") == "Consumption"
    return hour and "Spot" in names and "Windows" not in str(row.get("productName")) and float(row["retailPrice"]) > 0


def _rows(region: str, machine: str) -> list[dict[str, Any]]:
    """The list's rows of a machine in a region. Raises Unanswered."""
    price_filter = f"serviceName eq 'Virtual Machines' and armRegionName eq '{region}' and armSkuName eq '{machine}'"
    base_url = PRICES["china" if environment_of(region) == "china" else "public"]
    try:
        url = f"{base_url}{PATH}{urllib.parse.quote(price_filter)}"
        rows = stored.loads(ask(url, who="prices", limit=LIMIT, deadline_s=READ_S).body)["Items"]
        return [row for row in rows if isinstance(row, dict) and isinstance(row.get("retailPrice"), int | float)]
    except (GpuprovError, ValueError, KeyError, TypeError) as error:
        reason = error.message if isinstance(error, GpuprovError) else str(error)[:200]
        raise Unanswered(f"{base_url} did not answer: {reason}", "look at network and proxy, or run it again") from None


def market() -> AzureMarket:
    return AzureMarket()
