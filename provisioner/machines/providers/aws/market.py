"""EC2's market: which zones of a region sell a machine, and what spot costs and has cost there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from provisioner.machines.providers.aws.client import Region
from provisioner.machines.providers.aws.findings import credentials, unknown
from provisioner.machines.providers.aws.preflight import zones_selling
from provisioner.machines.providers.market import SpotPrice, Unanswered, history
from provisioner.machines.providers.sizes import OfferedSize
from provisioner.machines.providers.trouble import Trouble

SYSTEM = "Linux/UNIX"
"""What the price includes, as EC2 calls it (ProductDescription)."""


class Ec2:
    """The regions that these credentials reach. Who they are is asked once, before anything else."""

    source = "EC2, DescribeSpotPriceHistory"

    def __init__(self, region: Callable[[str], Region] = Region) -> None:
        self._new = region
        self._regions: dict[str, Region] = {}
        self._partition = ""
        self._account_error: Trouble | None = None
        self._lock = threading.Lock()

    def zones(self, region: str, machine: str) -> list[str]:
        region_client = self._reached(region)
        try:
            return zones_selling(region_client, machine)
        except Trouble as error:
            raise unanswered(error, "ec2:DescribeInstanceTypeOfferings") from None

    def size(self, region: str, machine: str) -> OfferedSize | None:
        region_client = self._reached(region)
        try:
            rows = region_client.all("ec2", "describe_instance_types", "InstanceTypes", InstanceTypes=[machine])
        except Trouble as error:
            if error.code == "InvalidInstanceType":
                return None
            raise unanswered(error, "ec2:DescribeInstanceTypes") from None
        return size_of(rows[0]) if rows else None

    def spot(self, region: str, machine: str, days: int) -> list[SpotPrice]:
        region_client, current_time = self._reached(region), datetime.now(UTC)
        begin = current_time - timedelta(days=days)
        try:
            rows = region_client.all(
                "ec2", "describe_spot_price_history", "SpotPriceHistory", InstanceTypes=[machine],
                ProductDescriptions=[SYSTEM], StartTime=begin, EndTime=current_time,
            )  # fmt: skip
        except Trouble as error:
            raise unanswered(error, "ec2:DescribeSpotPriceHistory") from None
        currency = "CNY" if self._partition == "aws-cn" else "USD"
        changes = [(row["AvailabilityZone"], row["Timestamp"], float(row["SpotPrice"])) for row in rows]
        return history(changes, begin, current_time, currency)

    def _reached(self, name: str) -> Region:
        """The region, where these credentials are good for it. Raises Unanswered."""
        with self._lock:
            try:
                if self._account_error is not None:
                    raise self._account_error
                if not self._regions:
                    self._regions[name] = self._new(name)
                    caller = self._regions[name].ask("sts", "get_caller_identity")
                    self._partition = str(caller["Arn"]).split(":")[1]
                if name not in self._regions:
                    self._regions[name] = next(iter(self._regions.values())).in_region(name)
                partition = self._regions[name].partition()
            except Trouble as error:
                self._account_error = error
                raise unanswered(error, "sts:GetCallerIdentity") from None
        if partition != self._partition:
            message = f"not signed in there: {name} is in {partition}, these credentials are of {self._partition}"
            raise Unanswered(message, "sign in with an account of that partition")
        return self._regions[name]


def size_of(row: Mapping[str, Any]) -> OfferedSize:
    """A row of DescribeInstanceTypes.
    https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_InstanceTypeInfo.html"""
    gpus = row.get("GpuInfo", {}).get("Gpus", [])
    first = gpus[0] if gpus else {}
    network, disks = row.get("NetworkInfo", {}), row.get("InstanceStorageInfo", {}).get("Disks", [])
    has_efa = bool(network.get("EfaSupported"))
    ports = network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 1) if has_efa else 1
    rate = sum(card.get("BaselineBandwidthInGbps", 0.0) for card in network.get("NetworkCards", []))
    keys: dict[str, Any] = {
        "network": {"kind": "efa" if has_efa else "ethernet", "ports": ports, "rate_gbps": round(rate / ports, 2)},
        "vcpus": row["VCpuInfo"]["DefaultVCpus"],
        "memory_gib": round(row["MemoryInfo"]["SizeInMiB"] / 1024, 2),
        "local_nvme": {"count": 0},
    }
    if disks:
        keys["local_nvme"] = {"count": sum(disk["Count"] for disk in disks), "size_gb": disks[0]["SizeInGB"]}
    if "arm64" in row.get("ProcessorInfo", {}).get("SupportedArchitectures", []):
        keys["cpu"] = "arm64"
    return OfferedSize(
        gpu=str(first.get("Name", "")),
        gpus=sum(gpu.get("Count", 0) for gpu in gpus),
        gpu_mib=first.get("MemoryInfo", {}).get("SizeInMiB"),
        keys=keys,
        source="EC2, DescribeInstanceTypes",
    )


def unanswered(error: Trouble, permission: str) -> Unanswered:
    """Why AWS gave no answer, in the words of preflight."""
    if error.kind == "credentials":
        finding = credentials(error)
        return Unanswered(f"not signed in: {finding.message}", finding.action)
    finding = unknown("", error, permission)
    return Unanswered(finding.message, finding.action)


def market() -> Ec2:
    return Ec2()
