"""NVIDIA driver with fabric manager and IMEX. It also removes packages that only an earlier lock had."""

from __future__ import annotations

from typing import Any

from provisioner import catalog
from provisioner.gpu_drivers import OTHER_DRIVERS
from provisioner.plan import Plan, PlannedGroup
from provisioner.roles import Role, Target


def variables(group: PlannedGroup, plan: Plan) -> dict[str, Any]:
    cloud = catalog.load().provider(group.machine.provider).virtual
    return {
        # at a machine of one's own somebody can enrol DKMS's key, once the role has had it made
        "gpuprov_secure_boot_refused": cloud and not plan.simulated,
        "gpuprov_fabric_manager": group.machine.fabric_manager_required,
        "gpuprov_subnet_manager": group.machine.subnet_manager_required,
        "gpuprov_imex": group.machine.imex_required,
        "gpuprov_persistence": group.spec.gpu.persistence,
        "gpuprov_other_drivers": list(OTHER_DRIVERS),
    }


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
