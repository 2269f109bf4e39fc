"""What a crash left in an AWS region: found by tag, removed in the order that EC2 accepts."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from provisioner.machines.providers.aws import blockers, tagged_resources
from provisioner.machines.providers.aws.client import Region
from provisioner.machines.providers.aws.delete import close, delete
from provisioner.machines.providers.aws.findings import credentials
from provisioner.machines.providers.orphans import Found, Thing
from provisioner.machines.providers.removal import PAUSE_S, WAIT_S, Order, Removal, Tell, query
from provisioner.machines.providers.trouble import Trouble

BUSY = {
    "DependencyViolation", "InvalidPlacementGroup.InUse", "VolumeInUse", "InvalidNetworkInterface.InUse",
    "InvalidIPAddress.InUse", "IncorrectState", "DeleteConflict",
}  # fmt: skip
"""Something that is going still uses it (EC2 API and IAM error codes)."""
PROTECTED = "OperationNotPermitted"


class InRegion(Removal):
    """One region, asked with the AWS CLI's own credentials."""

    order = Order(
        first=("spot request",), machines=("instance",),
        linger=("instance connect endpoint", "VPC endpoint", "NAT gateway"),
        then=(
            "network interface", "elastic IP address", "volume", "instance profile", "role", "launch template",
            "placement group", "key pair",
        ),
        network=("security group", "subnet", "route table", "internet gateway", "VPC"),
    )  # fmt: skip

    def __init__(self, region: Region, *, wait_s: float = WAIT_S, pause_s: float = PAUSE_S) -> None:
        super().__init__(region.name, wait_s=wait_s, pause_s=pause_s)
        self._region = region

    def find(self) -> Found:
        return query(lambda: tagged_resources.find(self._region), self._region.name, credentials)

    def delete(self, resource: Thing) -> None:
        delete(self._region, resource.kind, resource.id)

    def existing_ids(self, kind: str) -> set[str]:
        return tagged_resources.existing_ids(self._region, kind)

    def busy(self, error: Trouble) -> bool:
        return error.code in BUSY

    def protected(self, error: Trouble) -> bool:
        return error.code == PROTECTED

    def network(self, resources: Sequence[Thing], report: Tell, remove: Callable[[], list[str]]) -> list[str]:
        """Security groups name each other: their rules go first. Who holds something of it is told before it is tried
        for minutes, and again where something is left."""
        for resource in resources:
            if resource.kind == "security group":
                with suppress(Trouble):  # deleting it says what is wrong
                    close(self._region, resource.id)
        began = time.monotonic()
        holders = blockers.holders(self._region, resources)
        self._end += time.monotonic() - began  # looking is no waiting
        for line in holders:
            report(f"{self.place}: {line}: what it holds is tried for {self._wait_s / 60:.0f} minutes")
        leftovers = remove()
        return leftovers + (blockers.holders(self._region, resources) if leftovers else [])


def orphans(region: str) -> InRegion:
    return InRegion(Region(region))
