"""CVM's market: which zones of a region sell a machine, and what spot costs there now.

Tencent Cloud tells no history of prices, and the price of an account has its discounts.
"""

from __future__ import annotations

import threading

from provisioner.machines.providers.market import SpotPrice, Unanswered
from provisioner.machines.providers.sizes import OfferedSize
from provisioner.machines.providers.tencent import stock
from provisioner.machines.providers.tencent.client import Region
from provisioner.machines.providers.tencent.findings import credentials, unknown
from provisioner.machines.providers.trouble import Trouble


class Cvm:
    """The regions that these credentials reach. Who they are is asked once, before anything else."""

    source = "CVM, DescribeZoneInstanceConfigInfos"

    def __init__(self) -> None:
        self._regions: dict[str, Region] = {}
        self._account_error: Trouble | None = None
        self._lock = threading.Lock()

    def zones(self, region: str, machine: str) -> list[str]:
        region_client = self._reached(region)
        try:
            return [offer.zone for offer in stock.offers(region_client, machine, "on-demand")]
        except Trouble as error:
            raise unanswered(error, "cvm:DescribeZoneInstanceConfigInfos") from None

    def size(self, region: str, machine: str) -> OfferedSize | None:
        region_client = self._reached(region)
        try:
            offers = stock.offers(region_client, machine, "on-demand")
        except Trouble as error:
            raise unanswered(error, "cvm:DescribeZoneInstanceConfigInfos") from None
        if not offers:
            return None
        keys = {"vcpus": offers[0].vcpus, "memory_gib": offers[0].memory_gib}
        return OfferedSize(
            gpu="",
            gpus=offers[0].gpus,
            has_part=offers[0].has_part,
            keys={key: value for key, value in keys.items() if value},
            source=self.source,
        )

    def spot(self, region: str, machine: str, days: int) -> list[SpotPrice]:  # noqa: ARG002 (there is no history)
        region_client = self._reached(region)
        currency = "USD" if region_client.international else "CNY"
        try:
            offers = stock.offers(region_client, machine, "spot")
        except Trouble as error:
            raise unanswered(error, "cvm:DescribeZoneInstanceConfigInfos") from None
        return [
            SpotPrice(offer.zone, offer.price, None, None, None, currency)
            for offer in offers
            if offer.there and offer.price
        ]

    def _reached(self, name: str) -> Region:
        """The region, where anybody is signed in. Raises Unanswered."""
        with self._lock:
            try:
                if self._account_error is not None:
                    raise self._account_error
                if not self._regions:
                    first = Region(name)
                    first.ask("sts", "GetCallerIdentity")
                    self._regions[name] = first
            except Trouble as error:
                self._account_error = error
                raise unanswered(error, "sts:GetCallerIdentity") from None
            if name not in self._regions:
                self._regions[name] = next(iter(self._regions.values())).in_region(name)
            return self._regions[name]


def unanswered(error: Trouble, permission: str) -> Unanswered:
    """Why Tencent Cloud gave no answer, in the words of preflight."""
    if error.kind in ("credentials", "settings"):
        finding = credentials(error)
        return Unanswered(f"not signed in: {finding.message}", finding.action)
    finding = unknown("", error, permission)
    return Unanswered(finding.message, finding.action)
