"""node_exporter. `up` starts it again where it was stopped; no check condemns a node for it (drift.desired_state adds
it to the units)."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

from provisioner.plan.models import Plan, PlannedGroup
from provisioner.plan.roles import Role
from provisioner.spec.models import HealthCheck

UNIT = "gpuprov-node-exporter.service"


def variables(_: PlannedGroup, plan: Plan) -> dict[str, Any]:
    """The directory of metrics that it reads; None where gpuprov installs none."""
    monitoring = plan.spec.monitoring
    if not monitoring.installs_node_exporter:
        return {"gpuprov_node_exporter": None}
    textfile = (plan.spec.health_timer or HealthCheck()).textfile
    return {"gpuprov_node_exporter": {"textfiles": str(PurePosixPath(textfile).parent)}}


ROLE = Role(units={UNIT: lambda _: False}, variables=variables)
