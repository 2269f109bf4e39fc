"""MIG layout of the GPUs."""

from __future__ import annotations

from typing import Any

from provisioner.catalog import mig
from provisioner.plan.models import Plan, PlannedGroup
from provisioner.plan.roles import Role


def variables(group: PlannedGroup, _: Plan) -> dict[str, Any]:
    return {
        "gpuprov_mig": group.spec.gpu.mig,
        "gpuprov_mig_instances": mig.instances(group.gpu, group.spec.gpu.mig),
        "gpuprov_mig_capable": group.gpu.mig,
    }


ROLE = Role(
    units={"gpuprov-mig.service": lambda on: on.gpu.vendor == "nvidia" and on.group.gpu.mig is not None},
    variables=variables,
)
