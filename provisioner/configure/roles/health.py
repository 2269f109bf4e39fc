"""gpuprov's checks on the node itself, on a timer. `up` starts the timer again where it was stopped; no check condemns
a node for it (drift.wanted adds it to the units)."""

from __future__ import annotations

from typing import Any

from provisioner.configure.roles import Role
from provisioner.plan import Plan, PlannedGroup
from provisioner.verify.expectations import HEALTH_TIMER


def variables(group: PlannedGroup, plan: Plan) -> dict[str, Any]:
    return {"gpuprov_health": health(group, plan)}


def health(group: PlannedGroup, plan: Plan) -> dict[str, Any] | None:
    """How often the node runs the checks, what is expected of it, and the sha256 of the checks, so that other checks
    are a reason to run the role. None where cluster.yaml has no monitoring.health_check."""
    asked = plan.spec.monitoring.health_check
    if asked is None:
        return None
    from provisioner import catalog
    from provisioner.verify import archive
    from provisioner.verify.expectations import expect

    expected = expect(
        group.machine, group.gpu, group.stack, group.spec, catalog.load(), level="quick", simulated=plan.simulated
    )
    return {
        "every": asked.every,
        "textfile": asked.textfile,
        "expected": expected.to_json(),
        "archive": archive.digest(),
    }


ROLE = Role(
    parts=("lustre", "mount_s3"),
    units={HEALTH_TIMER: lambda _: False},
    variables=variables,
)
