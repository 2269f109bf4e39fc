"""gpuprov's checks on the node itself, on a timer. `up` starts the timer again where it was stopped; no check condemns
a node for it (drift.desired_state adds it to the units)."""

from __future__ import annotations

from typing import Any

from provisioner.plan.models import Plan, PlannedGroup
from provisioner.plan.roles import Role

TIMER = "gpuprov-health.timer"


def variables(_: PlannedGroup, plan: Plan) -> dict[str, Any]:
    """How often the node runs the checks, and where the metrics go; None where cluster.yaml has no
    monitoring.health_check. The inventory adds what is expected of the node, and which checks they are."""
    asked = plan.spec.health_timer
    return {"gpuprov_health": None if asked is None else {"every": asked.every, "textfile": asked.textfile}}


ROLE = Role(parts=("lustre", "mount_s3"), units={TIMER: lambda _: False}, variables=variables)
