"""Reservations and capacity blocks that cluster.yaml names: whether they fit, when a block ends, and the placement
group that a reservation was made in.

https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-capacity-reservations.html
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-capacity-blocks.html
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from provisioner.plan import PlannedGroup
from provisioner.preflight import Finding
from provisioner.providers.aws.client import Region
from provisioner.providers.aws.findings import CONSOLE, unknown
from provisioner.providers.trouble import Trouble
from provisioner.text import counted

SOON = timedelta(hours=2)
"""A block that ends sooner is warned of: a fleet takes a good part of it to be made and proven."""
ENDS_BEFORE = timedelta(minutes=30)
"""EC2 begins to terminate a block's instances so long before it ends (60 minutes for UltraServers).
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/capacity-blocks-how.html"""


def row(region: Region, group: PlannedGroup) -> dict[str, Any] | None:
    """What EC2 says of a group's reservation or block; None where it names none by its id. Raises Trouble."""
    capacity = group.spec.capacity
    if capacity.kind not in ("reservation", "block") or capacity.id is None or not capacity.id.startswith("cr-"):
        return None
    rows = region.all(
        "ec2", "describe_capacity_reservations", "CapacityReservations", CapacityReservationIds=[capacity.id]
    )
    found: dict[str, Any] = rows[0] if rows else {}
    return found


def placement_group(region: Region, group: PlannedGroup) -> str | None:
    """The name of the placement group that a group's reservation was made in, which its machines have to name; None
    where it was made in none, or nobody may look."""
    try:
        found = row(region, group) or {}
    except Trouble:
        return None
    return str(found.get("PlacementGroupArn") or "").rpartition("/")[2] or None


def end(region: Region, group: PlannedGroup) -> datetime | None:
    """When a group's capacity block ends; None for all else. Raises Trouble."""
    found = (row(region, group) or {}) if group.spec.capacity.kind == "block" else {}
    ends = found.get("EndDate")
    return ends if isinstance(ends, datetime) else None


def findings(region: Region, group: PlannedGroup, zones: Sequence[str]) -> Iterator[Finding]:
    """A reservation or block is there, active, of this type, in these zones, with room, and for long enough."""
    capacity, subject = group.spec.capacity, f"group {group.name}"
    if capacity.kind not in ("reservation", "block") or capacity.id is None:
        return
    if not capacity.id.startswith("cr-"):
        said = f"{capacity.id} is a group of reservations: whether they have room was not looked at"
        yield Finding("unknown", subject, said, "look at them in EC2's console")
        return
    page = f"{CONSOLE.format(region=region.name)}/ec2/home?region={region.name}#CapacityReservations:"
    try:
        found = row(region, group) or {}
    except Trouble as trouble:
        if trouble.kind == "absent" or trouble.code.startswith("InvalidCapacityReservationId"):
            said = f"there is no {capacity.kind} {capacity.id} in {region.name}"
            yield Finding("blocks", subject, said, page)
        else:
            yield unknown(subject, trouble, "ec2:DescribeCapacityReservations")
        return
    free, total = found.get("AvailableInstanceCount"), found.get("TotalInstanceCount")
    if wrong := list(_wrong(found, group, zones)):
        yield Finding("blocks", subject, f"{capacity.id} {'; '.join(wrong)}", page)
        return
    yield Finding("ok", subject, f"{capacity.id} is active, {free} of {total} machines free")
    if group.spec.placement == "cluster" and not found.get("PlacementGroupArn"):
        said = f"{capacity.id} was made in no placement group: its machines may stand apart, whatever placement says"
        yield Finding("warning", subject, said, "leave out placement, or reserve in a cluster placement group")
    ends = found.get("EndDate")
    if capacity.kind == "block" and isinstance(ends, datetime):
        yield _ending(subject, ends, datetime.now(UTC))


def _wrong(found: dict[str, Any], group: PlannedGroup, zones: Sequence[str]) -> Iterator[str]:
    block = found.get("ReservationType") == "capacity-block"
    if found.get("State") != "active":
        when = f", it begins {found['StartDate']:%Y-%m-%d %H:%M} UTC" if found.get("StartDate") else ""
        yield f"is {found.get('State', 'gone')}{when}"
    if found.get("InstanceType") not in (None, group.machine.name):
        yield f"is for {found['InstanceType']}, not {group.machine.name}"
    if zones and found.get("AvailabilityZone") not in (None, *zones):
        yield f"is in {found['AvailabilityZone']}, not in {', '.join(zones)}"
    if block != (group.spec.capacity.kind == "block") and found:
        yield f"is a capacity {'block' if block else 'reservation'}: capacity.kind has to say so"
    total = found.get("TotalInstanceCount")
    if total is not None and total < group.spec.count:
        yield f"is for {counted(total, 'machine')}, {group.spec.count} are wanted"


def _ending(subject: str, ends: datetime, now: datetime) -> Finding:
    said = (
        f"its capacity block ends {ends:%Y-%m-%d %H:%M} UTC; EC2 ends the machines from {ends - ENDS_BEFORE:%H:%M} on"
    )
    if ends - now > SOON:
        return Finding("ok", subject, said)
    left = max(0, int((ends - ENDS_BEFORE - now).total_seconds() // 60))
    return Finding("warning", subject, f"{said}, in {left} minutes", "buy a longer block, or save the work before")
