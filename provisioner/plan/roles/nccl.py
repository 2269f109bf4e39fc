"""NCCL and its configuration: variables, and the topology file of a machine whose guest sees no PCI switches."""

from __future__ import annotations

from typing import Any

from provisioner.plan.models import Plan, PlannedGroup
from provisioner.plan.roles import Role


def variables(group: PlannedGroup, _: Plan) -> dict[str, Any]:
    return {"gpuprov_nccl_topology": group.machine.nccl_topology or ""}


ROLE = Role(
    parts=("nccl",),
    units={"gpuprov-nccl.service": lambda on: on.gpu.vendor == "nvidia" and on.stack.vendor is not None},
    variables=variables,
)
