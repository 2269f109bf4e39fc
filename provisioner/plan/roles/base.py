"""Operating system: repositories, kernel settings, unattended upgrades. It stops the units of roles that are not wanted
any more, so it depends on whether there is a health check, a node_exporter, a scheduler or an interruption service, and
on nothing else of them."""

from __future__ import annotations

from typing import Any

from provisioner.plan.roles import Role, always


def _wanted(value: Any) -> bool:
    return value is not None


ROLE = Role(
    units={"gpuprov-tuning.service": always, "apt-daily.timer": always, "apt-daily-upgrade.timer": always},
    depends_on=dict.fromkeys(
        ("gpuprov_health", "gpuprov_node_exporter", "gpuprov_interruption", "gpuprov_slurm_part"), _wanted
    ),
    all_package_names=True,  # those that unattended-upgrades must not move
)
