"""slurmctld and slurmdbd on the head node. Its files follow from the nodes that exist:
provisioner/scheduler/slurm_files.py has its variable `gpuprov_slurm`."""

from __future__ import annotations

from typing import Any

from provisioner.plan.models import Plan, PlannedGroup
from provisioner.plan.roles import Role

CONTROLLER_PORT, NODE_PORT, ACCOUNTING_PORT = 6817, 6818, 6819
"""slurmctld, slurmd and slurmdbd: the ports that Slurm's documentation has for them."""
UNITS = ("munge.service", "slurmctld.service")
ACCOUNTING_UNITS = ("mariadb.service", "slurmdbd.service")


def part_of(group: str, plan: Plan) -> str | None:
    """What machines of the group are in a Slurm cluster: controller, node, or None where there is no such cluster."""
    head = plan.spec.scheduler.head
    if head is None:
        return None
    return "controller" if group == head else "node"


def units_of(group: str, plan: Plan) -> tuple[str, ...]:
    """The units that role slurm_controller leaves running on machines of the group."""
    slurm = plan.spec.scheduler.slurm
    if slurm is None or group != slurm.head:
        return ()
    return (*UNITS, *(ACCOUNTING_UNITS if slurm.accounting else ()))


def variables(group: PlannedGroup, plan: Plan) -> dict[str, Any]:
    """What machines of the group are in a Slurm cluster."""
    return {"gpuprov_slurm_part": part_of(group.name, plan)}


ROLE = Role(units=dict.fromkeys((*UNITS, *ACCOUNTING_UNITS), lambda _: False), variables=variables)
