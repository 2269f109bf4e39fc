"""Scratch over the local NVMe disks."""

from __future__ import annotations

from typing import Any

from provisioner.plan.models import Plan, PlannedGroup
from provisioner.plan.roles import Role


def variables(group: PlannedGroup, _: Plan) -> dict[str, Any]:
    machine = group.machine
    return {
        "gpuprov_scratch": group.spec.storage.scratch,
        "gpuprov_local_nvme": machine.local_nvme.count,
        # Where no source says how many there are, the empty disks of one model are taken, however many.
        "gpuprov_local_nvme_counted": machine.basis.of("local_nvme.count") != "unverified",
    }


ROLE = Role(
    units={"gpuprov-scratch.service": lambda on: bool(on.group.storage.scratch and on.machine.local_disks)},
    variables=variables,
)
