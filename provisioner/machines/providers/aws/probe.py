"""Whether EC2 has a group's machines now: a reservation for all of them, released at once.

EC2 says it only when it is asked for machines; a dry run of RunInstances is about permissions. A reservation costs as
its machines do until it is released, and ends by itself within the hour where it could not be.
https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_CreateCapacityReservation.html
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from provisioner.common.errors import Diagnostic
from provisioner.common.preflight import Finding
from provisioner.machines.providers.aws import errors
from provisioner.machines.providers.aws.client import Region
from provisioner.machines.providers.aws.tagged_resources import CLUSTER, IDENTITY, SITE, rows_of
from provisioner.machines.providers.base import Place
from provisioner.machines.providers.capacity import LATER, Way
from provisioner.machines.providers.trouble import Trouble
from provisioner.plan.models import PlannedGroup

ENDS = timedelta(minutes=30)
"""After which EC2 ends one that could not be released."""
REQUEST = "gpuprov-probe"
"""Tag of a reservation: the token of the request that made it."""
UNCLEAR = {"InternalError", "InternalFailure", "ServiceUnavailable", "Unavailable"}
"""Error codes after which a reservation may exist all the same, as after no answer at all.
https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html"""


def ask(
    region: Region, group: PlannedGroup, machine_count: int, zones: Sequence[str], site_context: Place
) -> tuple[Way | None, list[Finding]]:
    """The zone that has that many machines on demand, None where none was found to; and what is to be said of it."""
    capacity, subject = group.spec.capacity, f"group {group.name}"
    machines = f"{machine_count} × {group.machine.name}"
    if capacity.kind != "on-demand":
        message = f"EC2 tells only at creation whether it has {machines} as {capacity.kind}"
        return None, [Finding("unknown", subject, message, "capacity.probe is for on-demand machines")]
    tags = {CLUSTER: site_context.cluster, SITE: site_context.site, IDENTITY: site_context.identity}
    findings: list[Finding] = []
    for zone in zones:
        token = secrets.token_hex(16)
        try:
            reservation_id = region.ask(
                "ec2", "create_capacity_reservation", InstanceType=group.machine.name, InstancePlatform="Linux/UNIX",
                AvailabilityZone=zone, InstanceCount=machine_count, InstanceMatchCriteria="targeted",
                EndDateType="limited", EndDate=datetime.now(UTC) + ENDS,
                ClientToken=token,  # botocore repeats a request whose answer is lost: it is the same reservation then
                TagSpecifications=[
                    {"ResourceType": "capacity-reservation", "Tags": rows_of(tags | {REQUEST: token})},
                ],
            )["CapacityReservation"]["CapacityReservationId"]  # fmt: skip
        except Trouble as api_error:
            text = f"api error {api_error.code}: {api_error.message}" if api_error.code else api_error.message
            error = errors.read(Diagnostic(text), region.name, group, Way("on-demand", zone))
            status = "warning" if error.then in ("zone", "kind") else "unknown"
            findings.append(Finding(status, subject, f"{machines} in {zone}: {error.summary}", error.hint))  # type: ignore[arg-type]
            if api_error.kind == "silent" or api_error.code in UNCLEAR:
                findings += _release_unanswered(region, subject, token)
            if error.then != "zone":
                return None, findings
            continue
        findings += _release(region, subject, str(reservation_id))
        message = f"EC2 has {machines} in {zone} at this moment (reserved and released)"
        return Way("on-demand", zone), [*findings, Finding("ok", subject, message)]
    blocks = "warning" if capacity.fallback else "blocks"
    message = f"EC2 has not {machines} on demand in {', '.join(zones)} now"
    return None, [*findings, Finding(blocks, subject, message, LATER, no_capacity=True)]  # type: ignore[arg-type]


def _release_unanswered(region: Region, subject: str, token: str) -> list[Finding]:
    """Release what a request without an answer has reserved. Gives what a person has to look at."""
    filters = [{"Name": f"tag:{REQUEST}", "Values": [token]}, {"Name": "state", "Values": ["active", "pending"]}]
    try:
        rows = region.all("ec2", "describe_capacity_reservations", "CapacityReservations", Filters=filters)
    except Trouble:
        rows = []
    if rows:
        return [finding for row in rows for finding in _release(region, subject, str(row["CapacityReservationId"]))]
    minutes = int(ENDS.total_seconds() / 60)
    message = (
        f"EC2 may have reserved them without answering; a reservation costs and ends by itself in {minutes} minutes"
    )
    command = (
        f"`aws ec2 describe-capacity-reservations --region {region.name} --filters Name=tag:{REQUEST},Values={token}`"
    )
    return [Finding("warning", subject, message, f"look with {command} and cancel what it lists")]


def _release(region: Region, subject: str, number: str) -> list[Finding]:
    try:
        region.ask("ec2", "cancel_capacity_reservation", CapacityReservationId=number)
    except Trouble as error:
        message = f"the reservation {number} could not be released and costs until it ends within the hour: {error}"
        return [
            Finding(
                "warning", subject, message, f"`aws ec2 cancel-capacity-reservation --capacity-reservation-id {number}`"
            )
        ]
    return []
