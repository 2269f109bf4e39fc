"""Scratch over the local NVMe disks."""

from __future__ import annotations

from typing import Any

from provisioner.plan import Plan, PlannedGroup
from provisioner.roles import Role


def variables(group: PlannedGroup, _: Plan) -> dict[str, Any]:
    return {"gpuprov_scratch": group.spec.storage.scratch, "gpuprov_local_nvme": group.machine.local_nvme.count}


ROLE = Role(
    units={"gpuprov-scratch.service": lambda on: bool(on.group.storage.scratch and on.machine.local_nvme.count)},
    variables=variables,
)
