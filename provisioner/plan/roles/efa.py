"""AWS's Elastic Fabric Adapter."""

from __future__ import annotations

from typing import Any

from provisioner.plan.models import Plan, PlannedGroup
from provisioner.plan.roles import Role


def variables(group: PlannedGroup, _: Plan) -> dict[str, Any]:
    return {"gpuprov_efa_devices": group.efa_devices}


ROLE = Role(parts=("efa",), variables=variables)
