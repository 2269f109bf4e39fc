"""Prometheus, Alertmanager and Grafana on a head node. Their files follow from the nodes that exist:
provisioner/monitoring/head.py has its variable `gpuprov_prometheus`."""

from __future__ import annotations

from typing import Any

from provisioner.plan.models import Plan, PlannedGroup
from provisioner.plan.roles import Role

PROMETHEUS_PORT, ALERTMANAGER_PORT, GRAFANA_PORT = 9090, 9093, 3000
"""On the head node's loopback."""
UNITS = ("gpuprov-prometheus.service", "gpuprov-alertmanager.service")
GRAFANA_UNIT = "gpuprov-grafana.service"


def variables(group: PlannedGroup, plan: Plan) -> dict[str, Any]:
    """Whether machines of the group are head nodes, and whether they run Grafana."""
    return {
        "gpuprov_runs_prometheus": group.name in plan.spec.monitoring.heads,
        "gpuprov_runs_grafana": _runs_grafana(group, plan),
    }


def head_units(group: PlannedGroup, plan: Plan) -> tuple[str, ...]:
    """The units that run on machines of the group; none where they are no head nodes."""
    if group.name not in plan.spec.monitoring.heads:
        return ()
    return (*UNITS, GRAFANA_UNIT) if _runs_grafana(group, plan) else UNITS


def _runs_grafana(group: PlannedGroup, plan: Plan) -> bool:
    """Not before an upgrade to a lock that has it: a machine may be held to an older one."""
    return plan.spec.monitoring.has_grafana(group.name) and group.stack.has("grafana")


def _without_paths(value: Any) -> Any:
    """Where files lie on this computer is no reason to run the role again."""
    return {group: {key: of for key, of in files.items() if key not in PATHS} for group, files in value.items()}


PATHS = ("archive", "receivers")
ROLE = Role(
    parts=("grafana",),
    units=dict.fromkeys((*UNITS, GRAFANA_UNIT), lambda _: False),
    variables=variables,
    depends_on={"gpuprov_prometheus": _without_paths},
)
