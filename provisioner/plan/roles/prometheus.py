"""Prometheus and Alertmanager on a head node. Its rules and targets follow from the nodes that exist:
provisioner/monitoring/head.py has its variable `gpuprov_prometheus`."""

from __future__ import annotations

from typing import Any

from provisioner.plan.models import Plan, PlannedGroup
from provisioner.plan.roles import Role

PROMETHEUS_PORT, ALERTMANAGER_PORT = 9090, 9093
"""On the head node's loopback."""
UNITS = ("gpuprov-prometheus.service", "gpuprov-alertmanager.service")


def variables(group: PlannedGroup, plan: Plan) -> dict[str, Any]:
    """Whether machines of the group are head nodes."""
    return {"gpuprov_runs_prometheus": group.name in plan.spec.monitoring.heads}


def _without_paths(value: Any) -> Any:
    """Where files lie on this computer is no reason to run the role again."""
    return {group: {key: of for key, of in files.items() if key not in PATHS} for group, files in value.items()}


PATHS = ("archive", "receivers")
ROLE = Role(
    units=dict.fromkeys(UNITS, lambda _: False), variables=variables, depends_on={"gpuprov_prometheus": _without_paths}
)
