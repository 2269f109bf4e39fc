"""Reservations and capacity blocks that cluster.yaml names: whether they fit, when a block ends, and the placement
group that a reservation was made in.

https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-capacity-reservations.html
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-capacity-blocks.html
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from provisioner.common.preflight import Finding
from provisioner.common.text import counted
from provisioner.machines.providers.aws.client import Region
from provisioner.machines.providers.aws.findings import CONSOLE, unknown
from provisioner.machines.providers.trouble import Trouble
from provisioner.plan.models import PlannedGroup

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
    reservation: dict[str, Any] = rows[0] if rows else {}
    return reservation


def placement_group(region: Region, group: PlannedGroup) -> str | None:
    """The name of the placement group that a group's reservation was made in, which its machines have to name; None
    where it was made in none, or nobody may look."""
    try:
        reservation = row(region, group) or {}
    except Trouble:
        return None
    return str(reservation.get("PlacementGroupArn") or "").rpartition("/")[2] or None


def end(region: Region, group: PlannedGroup) -> datetime | None:
    """When a group's capacity block ends; None for all else. Raises Trouble."""
    reservation = (row(region, group) or {}) if group.spec.capacity.kind == "block" else {}
    ends = reservation.get("EndDate")
    return ends if isinstance(ends, datetime) else None


def findings(region: Region, group: PlannedGroup, zones: Sequence[str]) -> Iterator[Finding]:
    """A reservation or block is there, active, of this type, in these zones, with room, and for long enough."""
    capacity, subject = group.spec.capacity, f"group {group.name}"
    if capacity.kind not in ("reservation", "block") or capacity.id is None:
        return
    if not capacity.id.startswith("cr-"):
        message = f"{capacity.id} is a group of reservations: whether they have room was not looked at"
        yield Finding("unknown", subject, message, "look at them in EC2's console")
        return
    page = f"{CONSOLE.format(region=region.name)}/ec2/home?region={region.name}#CapacityReservations:"
    try:
        reservation = row(region, group) or {}
    except Trouble as error:
        if error.kind == "absent" or error.code.startswith("InvalidCapacityReservationId"):
            message = f"there is no {capacity.kind} {capacity.id} in {region.name}"
            yield Finding("blocks", subject, message, page)
        else:
            yield unknown(subject, error, "ec2:DescribeCapacityReservations")
        return
    free, total = reservation.get("AvailableInstanceCount"), reservation.get("TotalInstanceCount")
    if wrong := list(_wrong(reservation, group, zones)):
        yield Finding("blocks", subject, f"{capacity.id} {'; '.join(wrong)}", page)
        return
    yield Finding("ok", subject, f"{capacity.id} is active, {free} of {total} machines free")
    if group.spec.placement == "cluster" and not reservation.get("PlacementGroupArn"):
        message = f"{capacity.id} has no placement group: its machines may be far apart in spite of placement: cluster"
        yield Finding("warning", subject, message, "leave out placement, or reserve in a cluster placement group")
    ends = reservation.get("EndDate")
    if capacity.kind == "block" and isinstance(ends, datetime):
        yield _ending(subject, ends, datetime.now(UTC))


def _wrong(reservation: dict[str, Any], group: PlannedGroup, zones: Sequence[str]) -> Iterator[str]:
    block = reservation.get("ReservationType") == "capacity-block"
    if reservation.get("State") != "active":
        when = f", it begins {reservation['StartDate']:%Y-%m-%d %H:%M} UTC" if reservation.get("StartDate") else ""
        yield f"is {reservation.get('State', 'gone')}{when}"
    if reservation.get("InstanceType") not in (None, group.machine.name):
        yield f"is for {reservation['InstanceType']}, not {group.machine.name}"
    if zones and reservation.get("AvailabilityZone") not in (None, *zones):
        yield f"is in {reservation['AvailabilityZone']}, not in {', '.join(zones)}"
    if block != (group.spec.capacity.kind == "block") and reservation:
        yield f"is a capacity {'block' if block else 'reservation'}: capacity.kind has to say so"
    total = reservation.get("TotalInstanceCount")
    if total is not None and total < group.spec.count:
        yield f"is for {counted(total, 'machine')}, {group.spec.count} required"


def _ending(subject: str, ends: datetime, current_time: datetime) -> Finding:
    message = (
        f"its capacity block ends {ends:%Y-%m-%d %H:%M} UTC; EC2 ends the machines from {ends - ENDS_BEFORE:%H:%M} on"
    )
    if ends - current_time > SOON:
        return Finding("ok", subject, message)
    minutes_left = max(0, int((ends - ENDS_BEFORE - current_time).total_seconds() // 60))
    return Finding(
        "warning", subject, f"{message}, in {minutes_left} minutes", "buy a longer block, or save the work before"
    )
