"""What a region sells now: zones, stock and prices of a machine type, as DescribeZoneInstanceConfigInfos has them.

https://cloud.tencent.com/document/api/213/17378
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from provisioner.machines.providers.tencent.client import Region
from provisioner.machines.providers.tencent.site import TencentSite

CHARGE: Mapping[str, str] = {"on-demand": "POSTPAID_BY_HOUR", "spot": "SPOTPAID"}
"""Kind of capacity → instance-charge-type."""
ORDER = ("EnoughStock", "NormalStock", "UnderStock", "WithoutStock")
"""StatusCategory, the best first."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A machine type in one zone, bought in one way. `stock`: of ORDER, empty where it is not told; `price`: for an
    hour, None where it is not told; `vcpus`, `memory_gib`, `gpus`: of one machine, 0 where it is not told; `has_part`:
    of a GPU."""

    zone: str
    there: bool
    stock: str
    why: str
    price: float | None
    vcpus: int
    memory_gib: int
    gpus: int
    has_part: bool = False

    @property
    def rank(self) -> int:
        """How sure machines are to be had there, 0 the surest."""
        if not self.there:
            return len(ORDER)
        return ORDER.index(self.stock) if self.stock in ORDER else ORDER.index("NormalStock")


def region_of(site: TencentSite) -> Region:
    """The region of a site, asked as its account is."""
    return Region(site.region, international=site.account == "international")


def offers(region: Region, machine: str, kind: str) -> list[Offer]:
    """The zones of a region that know a machine type, by name; sold out there or not. Raises Trouble."""
    filters = [
        {"Name": "instance-type", "Values": [machine]}, {"Name": "instance-charge-type", "Values": [CHARGE[kind]]},
    ]  # fmt: skip
    rows = region.ask("cvm", "DescribeZoneInstanceConfigInfos", Filters=filters).get("InstanceTypeQuotaSet") or []
    matches = [_offer(row) for row in rows if row.get("InstanceType") == machine]
    return sorted(matches, key=lambda offer: offer.zone)


def _offer(row: Mapping[str, Any]) -> Offer:
    price = row.get("Price") or {}
    unit = price.get("UnitPriceDiscount") if price.get("UnitPriceDiscount") is not None else price.get("UnitPrice")
    return Offer(
        zone=str(row.get("Zone")), there=row.get("Status") == "SELL", stock=str(row.get("StatusCategory") or ""),
        why=str(row.get("SoldOutReason") or ""), price=float(unit) if unit is not None else None,
        vcpus=int(row.get("Cpu") or 0), memory_gib=int(row.get("Memory") or 0), gpus=int(row.get("Gpu") or 0),
        has_part=0 < float(row.get("GpuCount") or 0) < 1,
    )  # fmt: skip


def usable(region: Region) -> list[str]:
    """The zones of a region that may be used. Raises Trouble."""
    rows = region.ask("cvm", "DescribeZones").get("ZoneSet") or []
    return sorted(str(row["Zone"]) for row in rows if row.get("ZoneState") == "AVAILABLE")
