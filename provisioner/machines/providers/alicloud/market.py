"""Alibaba Cloud's market: which zones of a region sell a machine, and what spot costs and has cost there."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from provisioner.machines.providers.alicloud.client import Region
from provisioner.machines.providers.alicloud.findings import credentials, unknown
from provisioner.machines.providers.alicloud.stock import zones_selling
from provisioner.machines.providers.market import SpotPrice, Unanswered, history
from provisioner.machines.providers.sizes import OfferedSize
from provisioner.machines.providers.trouble import Trouble

MOST_DAYS = 30
"""DescribeSpotPriceHistory looks back no further.
https://www.alibabacloud.com/help/en/ecs/developer-reference/api-ecs-2014-05-26-describespotpricehistory"""


class Ecs:
    """The regions that these credentials reach, whichever site the account is of: its prices are in that site's
    currency, CNY or USD. Who they are is asked once, before anything else."""

    source = "ECS, DescribeSpotPriceHistory"

    def __init__(self) -> None:
        self._regions: dict[str, Region] = {}
        self._account_error: Trouble | None = None
        self._lock = threading.Lock()

    def zones(self, region: str, machine: str) -> list[str]:
        region_client = self._reached(region)
        try:
            return sorted(zones_selling(region_client, machine))
        except Trouble as error:
            raise _unanswered(error, "ecs:DescribeAvailableResource") from None

    def size(self, region: str, machine: str) -> OfferedSize | None:
        region_client = self._reached(region)
        try:
            answer = region_client.ask("ecs", "DescribeInstanceTypes", InstanceTypes=[machine])
        except Trouble as error:
            raise _unanswered(error, "ecs:DescribeInstanceTypes") from None
        rows = (answer.get("InstanceTypes") or {}).get("InstanceType") or []
        return size_of(rows[0]) if rows else None

    def spot(self, region: str, machine: str, days: int) -> list[SpotPrice]:
        region_client, current_time = self._reached(region), datetime.now(UTC)
        begin = current_time - timedelta(days=min(days, MOST_DAYS))
        try:
            rows, currency = _changes(region_client, machine, begin, current_time)
        except Trouble as error:
            raise _unanswered(error, "ecs:DescribeSpotPriceHistory") from None
        changes = [(str(row["ZoneId"]), _when(row["Timestamp"]), float(row["SpotPrice"])) for row in rows]
        return history(changes, begin, current_time, currency)

    def _reached(self, name: str) -> Region:
        """The region, where these credentials are good for it. Raises Unanswered."""
        with self._lock:
            if self._account_error is not None:
                raise _unanswered(self._account_error, "sts:GetCallerIdentity")
            if not self._regions:
                self._regions[name] = Region(name)
                try:
                    self._regions[name].ask("sts", "GetCallerIdentity")
                except Trouble as error:
                    self._account_error = error
                    raise _unanswered(error, "sts:GetCallerIdentity") from None
            if name not in self._regions:
                self._regions[name] = next(iter(self._regions.values())).in_region(name)
        return self._regions[name]


def _changes(region: Region, machine: str, begin: datetime, current_time: datetime) -> tuple[list[dict[str, Any]], str]:
    """Every price change, and the currency. Raises Trouble."""
    rows: list[dict[str, Any]] = []
    currency, offset = "", 0
    while True:
        answer = region.ask(
            "ecs", "DescribeSpotPriceHistory", NetworkType="vpc", InstanceType=machine, OSType="linux",
            IoOptimized="optimized", SpotDuration=0, StartTime=f"{begin:%Y-%m-%dT%H:%M:%SZ}",
            EndTime=f"{current_time:%Y-%m-%dT%H:%M:%SZ}", Offset=offset,
        )  # fmt: skip
        page_rows = (answer.get("SpotPrices") or {}).get("SpotPriceType") or []
        rows, currency = rows + page_rows, str(answer.get("Currency") or currency)
        following = int(answer.get("NextOffset") or 0)
        if not page_rows or following <= offset:
            return rows, currency
        offset = following


def _when(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def size_of(row: Mapping[str, Any]) -> OfferedSize:
    """A row of DescribeInstanceTypes; local disks are in GiB, memory of a GPU too.
    https://www.alibabacloud.com/help/en/ecs/developer-reference/api-ecs-2014-05-26-describeinstancetypes"""
    keys: dict[str, Any] = {"vcpus": int(row["CpuCoreCount"]), "memory_gib": float(row["MemorySize"])}
    disks = int(row.get("LocalStorageAmount") or 0)
    if disks:
        size_gb = round(float(row.get("LocalStorageCapacity") or 0) * 1.073741824)
        keys["local_nvme"] = {"count": disks, "size_gb": size_gb}
    if str(row.get("CpuArchitecture", "")).upper() == "ARM":
        keys["cpu"] = "arm64"
    memory = float(row.get("GPUMemorySize") or 0)
    return OfferedSize(
        gpu=str(row.get("GPUSpec") or ""), gpus=int(row.get("GPUAmount") or 0),
        gpu_mib=round(memory * 1024) if memory else None, keys=keys, source="ECS, DescribeInstanceTypes",
    )  # fmt: skip


def _unanswered(error: Trouble, permission: str) -> Unanswered:
    """Why Alibaba Cloud gave no answer, in the words of preflight."""
    if error.kind == "credentials":
        finding = credentials(error)
        return Unanswered(f"not signed in: {finding.message}", finding.action)
    finding = unknown("", error, permission)
    return Unanswered(finding.message, finding.action)


def market() -> Ecs:
    return Ecs()
