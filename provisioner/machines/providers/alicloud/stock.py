"""Which zones sell a machine type, and what Alibaba Cloud says of their stock.

https://www.alibabacloud.com/help/en/ecs/developer-reference/api-ecs-2014-05-26-describeavailableresource
"""

from __future__ import annotations

from collections.abc import Mapping

from provisioner.machines.providers.alicloud.client import Region

IN_STOCK = {"WithStock", "ClosedWithStock"}
"""StatusCategory: WithStock, ClosedWithStock (few are left), ClosedWithoutStock (none now, more may come),
WithoutStock (none)."""


def stock(region: Region, machine: str, kind: str = "on-demand") -> Mapping[str, str]:
    """Zone → StatusCategory, of the zones that sell a machine type. Raises Trouble."""
    answer = region.ask(
        "ecs", "DescribeAvailableResource", DestinationResource="InstanceType", InstanceType=machine,
        IoOptimized="optimized", InstanceChargeType="PostPaid", NetworkCategory="vpc",
        SpotStrategy="SpotAsPriceGo" if kind == "spot" else "NoSpot",
    )  # fmt: skip
    levels = {}
    for zone in (answer.get("AvailableZones") or {}).get("AvailableZone") or ():
        for kinds in (zone.get("AvailableResources") or {}).get("AvailableResource") or ():
            for row in (kinds.get("SupportedResources") or {}).get("SupportedResource") or ():
                if row.get("Value") == machine:
                    levels[str(zone["ZoneId"])] = str(row.get("StatusCategory") or row.get("Status") or "")
    return levels


def zones_selling(region: Region, machine: str) -> list[str]:
    """The zones of a region that sell a machine type, those with stock first, then by name. Raises Trouble."""
    stock_by_zone = stock(region, machine)
    return sorted(stock_by_zone, key=lambda zone: (stock_by_zone[zone] not in IN_STOCK, zone))
