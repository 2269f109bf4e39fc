"""What a crash left in an AWS region: found by tag, removed in the order that EC2 accepts.

Machines go first and are waited for; one that is protected stays, and with it everything that it may need. What is
still used by something that is going is tried again until the deadline.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from provisioner.errors import ProviderError
from provisioner.providers.aws import blockers, tagged_resources
from provisioner.providers.aws.client import Region
from provisioner.providers.aws.delete import close, delete
from provisioner.providers.aws.findings import credentials
from provisioner.providers.orphans import Found, Thing, many
from provisioner.providers.trouble import Trouble

WAIT_S = 900.0
"""For the whole removal: machines with dozens of interfaces and bare metal take minutes to go."""
PAUSE_S = 5.0
BUSY = {
    "DependencyViolation", "InvalidPlacementGroup.InUse", "VolumeInUse", "InvalidNetworkInterface.InUse",
    "InvalidIPAddress.InUse", "IncorrectState", "DeleteConflict",
}  # fmt: skip
"""Something that is going still uses it (EC2 API and IAM error codes)."""
PROTECTED = "OperationNotPermitted"
MACHINES = ("spot request", "instance")
LINGER = ("instance connect endpoint", "VPC endpoint", "NAT gateway")
"""What holds interfaces and addresses until it is gone, minutes after it was deleted."""
THEN = (
    "network interface", "elastic IP address", "volume", "instance profile", "role", "launch template",
    "placement group", "key pair",
)  # fmt: skip
NETWORK = ("security group", "subnet", "route table", "internet gateway", "VPC")
"""What a file system's own interfaces stand in."""
Tell = Callable[[str], None]


class InRegion:
    """One region, asked with the AWS CLI's own credentials."""

    def __init__(self, region: Region, *, wait_s: float = WAIT_S, pause_s: float = PAUSE_S) -> None:
        self._region, self._wait_s, self._pause_s = region, wait_s, pause_s
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
        left = list(self._delete(by_kind, MACHINES, tell))
        refused = {line.partition(":")[0] for line in left}
        going = [thing for thing in by_kind.get("instance", []) if str(thing) not in refused]
        left += self._wait("instance", going, tell)
        if left:
            rest = sum(len(found) for kind, found in by_kind.items() if kind not in MACHINES)
            return [*left, f"{rest} other things were not touched: the machines that are left may need them"]
        left += self._delete(by_kind, LINGER, tell)
        for kind in LINGER:
            left += self._wait(kind, by_kind.get(kind, []), tell)
        left += self._delete(by_kind, THEN, tell)
        network = sum(len(by_kind.get(kind, ())) for kind in NETWORK)
        if network and any(thing.kept == tagged_resources.HOLDS_DATA for thing in things):
            return [*left, f"{network} things of the network were not touched: the file system stands in it"]
        for group in by_kind.get("security group", []):
            with suppress(Trouble):  # deleting it says what is wrong
                close(self._region, group.id)
        theirs = [thing for kind in NETWORK for thing in by_kind.get(kind, ())]
        began = time.monotonic()
        held = blockers.holders(self._region, theirs)
        self._end += time.monotonic() - began  # looking is no waiting
        for line in held:
            tell(f"{self._region.name}: {line}: what it holds is tried for {self._wait_s / 60:.0f} minutes")
        stay = list(self._delete(by_kind, NETWORK, tell))
        return left + stay + (blockers.holders(self._region, theirs) if stay else [])

    def _delete(self, by_kind: dict[str, list[Thing]], kinds: Sequence[str], tell: Tell) -> Iterator[str]:
        """One sentence for each thing that AWS refuses to delete."""
        for kind in kinds:
            found = by_kind.get(kind, [])
            if found:
                tell(f"{self._region.name}: removing {len(found)} {kind}{'s' if len(found) > 1 else ''}")
            for thing in found:
                try:
                    self._one(thing)
                except Trouble as trouble:
                    protected = "protected, and not forced: " if trouble.code == PROTECTED else ""
                    yield f"{thing}: {protected}{trouble.message}"

    def _one(self, thing: Thing) -> None:
        """Delete it; while something that is going uses it, again. Raises Trouble."""
        while True:
            try:
                return delete(self._region, thing.kind, thing.id)
            except Trouble as trouble:
                if trouble.code not in BUSY or time.monotonic() > self._end:
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
                tell(f"{self._region.name}: waiting until {len(waiting)} {kind}s are gone")
                told = True
            time.sleep(self._pause_s)
        yield from (f"{thing}: it was deleted, and is still there" for thing in waiting.values())


def orphans(place: str) -> InRegion:
    return InRegion(Region(place))
