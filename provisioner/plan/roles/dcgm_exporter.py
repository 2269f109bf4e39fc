"""DCGM and its exporter."""

from __future__ import annotations

from typing import Any

from provisioner.plan.models import Plan, PlannedGroup
from provisioner.plan.roles import Role


def variables(_: PlannedGroup, plan: Plan) -> dict[str, Any]:
    return {"gpuprov_dcgm_exporter": plan.spec.monitoring.dcgm_exporter}


ROLE = Role(
    parts=("dcgm", "dcgm_exporter"),
    units={
        "nvidia-dcgm.service": lambda on: on.gpu.vendor == "nvidia" and on.has("dcgm"),
        "nvidia-dcgm-exporter.service": lambda on: on.gpu.vendor == "nvidia" and on.has("dcgm_exporter"),
    },
    variables=variables,
)
