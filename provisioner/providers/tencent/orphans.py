"""What a crash left in a region of Tencent Cloud: found by tag, removed in the order that it accepts.

Machines go first and are waited for; one that is protected stays, and with it everything that it may need. What is
still used by something that is going is tried again until the deadline.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from provisioner.errors import ProviderError
from provisioner.providers.orphans import Found, Thing, many
from provisioner.providers.tencent import tagged_resources
from provisioner.providers.tencent.client import Region
from provisioner.providers.tencent.findings import credentials
from provisioner.providers.trouble import Trouble

WAIT_S = 900.0
"""For the whole removal: an instance takes minutes to go, and its address and network card after it."""
PAUSE_S = 5.0
BUSY = (
    "ResourceInUse", "MutexOperation", "DesOperation.MutexTaskRunning", "OperationDenied.InstanceOperationInProgress",
    "OperationDenied.MutexTaskRunning", "UnsupportedOperation.MutexOperationTaskRunning", "ResourceUnavailable",
    "FailedOperation.PlacementSetNotEmpty", "InvalidParameterValue.NotEmpty", "UnsupportedOperation.InstanceState",
    "InvalidAddressIdStatus", "InvalidAddressState", "InvalidInstanceState",
    "UnsupportedOperation.AttachmentAlreadyExists",
)  # fmt: skip
"""Beginnings of codes: something that is going still uses it (CVM's and VPC's error codes)."""
PROTECTED = (
    "UnsupportedOperation.InvalidInstanceNotSupportedProtectedInstance",
    "UnsupportedOperation.InstancesProtected",
)
MACHINES = ("instance",)
LINGER = ("NAT gateway",)
"""What holds addresses until it is gone, a while after it was deleted."""
THEN = ("elastic IP address", "placement group", "key pair")
NETWORK = ("security group", "subnet", "VPC")
"""What a file system stands in."""
HOW: Mapping[str, tuple[str, str, str, bool]] = {
    "instance": ("cvm", "TerminateInstances", "InstanceIds", True),
    "NAT gateway": ("vpc", "DeleteNatGateway", "NatGatewayId", False),
    "elastic IP address": ("vpc", "ReleaseAddresses", "AddressIds", True),
    "placement group": ("cvm", "DeleteDisasterRecoverGroups", "DisasterRecoverGroupIds", True),
    "key pair": ("cvm", "DeleteKeyPairs", "KeyIds", True),
    "security group": ("vpc", "DeleteSecurityGroup", "SecurityGroupId", False),
    "subnet": ("vpc", "DeleteSubnet", "SubnetId", False),
    "VPC": ("vpc", "DeleteVpc", "VpcId", False),
}
"""Kind → service, call, its argument, and whether that is a list."""
Tell = Callable[[str], None]


class InRegion:
    """One region."""

    def __init__(self, region: Region, *, wait_s: float = WAIT_S, pause_s: float | None = None) -> None:
        self._region, self._wait_s = region, wait_s
        self._pause_s = PAUSE_S if pause_s is None else pause_s
        self._end = 0.0

    def find(self) -> Found:
        try:
            return tagged_resources.find(self._region)
        except Trouble as trouble:
            said = credentials(trouble)
            raise ProviderError(said.message, where=self._region.name, hint=said.action) from None

    def remove(self, things: Sequence[Thing], tell: Tell) -> list[str]:
        self._end = time.monotonic() + self._wait_s
        by_kind: dict[str, list[Thing]] = {}
        for thing in things:
            if not thing.kept:
                by_kind.setdefault(thing.kind, []).append(thing)
        left = self._gone(by_kind, MACHINES, tell)
        if left:
            rest = sum(len(found) for kind, found in by_kind.items() if kind not in MACHINES)
            return [*left, f"{rest} other things were not touched: the machines that are left may need them"]
        left += self._gone(by_kind, LINGER, tell)
        left += self._delete(by_kind, THEN, tell)
        network = sum(len(by_kind.get(kind, ())) for kind in NETWORK)
        if network and any(thing.kept == tagged_resources.HOLDS_DATA for thing in things):
            return [*left, f"{network} things of the network were not touched: the file system stands in it"]
        return [*left, *self._delete(by_kind, NETWORK, tell)]

    def _gone(self, by_kind: Mapping[str, Sequence[Thing]], kinds: Sequence[str], tell: Tell) -> list[str]:
        """Delete what is of these kinds and wait until it is gone."""
        left = list(self._delete(by_kind, kinds, tell))
        refused = {line.partition(":")[0] for line in left}
        for kind in kinds:
            left += self._wait(kind, [one for one in by_kind.get(kind, ()) if str(one) not in refused], tell)
        return left

    def _delete(self, by_kind: Mapping[str, Sequence[Thing]], kinds: Sequence[str], tell: Tell) -> Iterator[str]:
        """One sentence for each thing that Tencent Cloud refuses to delete."""
        for kind in kinds:
            found = by_kind.get(kind, ())
            if found:
                tell(f"{self._region.name}: removing {len(found)} {kind if len(found) == 1 else many(kind)}")
            for thing in found:
                try:
                    self._one(thing)
                except Trouble as trouble:
                    protected = "protected, and not forced: " if trouble.code in PROTECTED else ""
                    yield f"{thing}: {protected}{trouble.message}"

    def _one(self, thing: Thing) -> None:
        """Delete it; while something that is going uses it, again. Raises Trouble."""
        service, call, argument, several = HOW[thing.kind]
        while True:
            try:
                self._region.ask(service, call, **{argument: [thing.id] if several else thing.id})
                return
            except Trouble as trouble:
                if trouble.kind == "absent":
                    return
                if not trouble.code.startswith(BUSY) or trouble.code in PROTECTED or time.monotonic() > self._end:
                    raise
            time.sleep(self._pause_s)

    def _wait(self, kind: str, things: Sequence[Thing], tell: Tell) -> Iterator[str]:
        """Wait until they are gone; one sentence for each that is there when time is up."""
        waiting, told = {thing.id: thing for thing in things}, False
        while waiting:
            try:
                there = tagged_resources.standing(self._region, kind)
            except Trouble as trouble:
                yield f"whether {len(waiting)} {many(kind)} are gone is not known: {trouble.message}"
                return
            waiting = {number: thing for number, thing in waiting.items() if number in there}
            if not waiting or time.monotonic() > self._end:
                break
            if not told:
                tell(f"{self._region.name}: waiting until {len(waiting)} {many(kind)} are gone")
                told = True
            time.sleep(self._pause_s)
        yield from (f"{thing}: it was deleted, and is still there" for thing in waiting.values())


def orphans(place: str) -> InRegion:
    return InRegion(Region(place))
