"""NVIDIA driver with fabric manager and IMEX. It also removes packages that only an earlier lock had."""

from __future__ import annotations

from typing import Any

from provisioner import catalog
from provisioner.catalog.models import Machine
from provisioner.common.gpu_drivers import OTHER_DRIVERS
from provisioner.plan.models import Plan, PlannedGroup
from provisioner.plan.roles import Role, Target


def variables(group: PlannedGroup, plan: Plan) -> dict[str, Any]:
    cloud = catalog.load().provider(group.machine.provider).virtual
    return {
        # at a machine of one's own somebody can enrol DKMS's key, once the role has had it made
        "gpuprov_secure_boot_refused": cloud and not plan.simulated,
        "gpuprov_fabric_manager": group.machine.fabric_manager_required,
        "gpuprov_fabric_manager_by_switch": by_switch(group.machine),
        "gpuprov_subnet_manager": group.machine.subnet_manager_required,
        "gpuprov_imex": group.machine.imex_required,
        "gpuprov_persistence": group.spec.gpu.persistence,
        "gpuprov_other_drivers": list(OTHER_DRIVERS),
    }


def by_switch(machine: Machine) -> bool:
    """Whether fabric manager runs only on nodes that show an NVSwitch: no source says that the machine needs it. A
    virtual machine with some of a board's GPUs has no switch (NVIDIA, Fabric Manager user guide: shared NVSwitch)."""
    return (
        machine.fabric_manager_required
        and machine.nvlink.generation in (3, 4)  # those of generation 5 are no NVIDIA devices on the bus
        and machine.basis.of("fabric_manager_required") == "unverified"
    )


def _nvidia(target: Target) -> bool:
    return target.gpu.vendor == "nvidia"


ROLE = Role(
    parts=("driver", "fabric_manager", "imex"),
    units={
        "nvidia-persistenced.service": lambda on: _nvidia(on) and on.group.gpu.persistence,
        "nvidia-fabricmanager.service": lambda on: _nvidia(on) and on.machine.fabric_manager_required,
        "nvidia-imex.service": lambda on: _nvidia(on) and on.machine.imex_required,
    },
    variables=variables,
    all_package_names=True,  # gpuprov_obsolete is what is missing among them
    others_follow=True,
)
