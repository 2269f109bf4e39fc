"""Provisioning of a head node's Grafana: its only data source is the Prometheus beside it, and gpuprov's dashboards are
read-only.

The documents are JSON, which is YAML, too. Grafana ignores keys that it does not know: the names are those of its own
types (grafana/grafana pkg/services/provisioning/datasources/types.go and dashboards/types.go, apiVersion 1).
"""

from __future__ import annotations

from typing import Any

from provisioner.monitoring.dashboards.grafana import dashboards
from provisioner.monitoring.server_config import OWN_ADDRESS

FOLDER = "/etc/gpuprov/grafana"
"""On a head node (role prometheus)."""
HOME = "gpuprov-fleet.json"
"""The dashboard that opens first; grafana.ini of the role names it."""


def files() -> dict[str, Any]:
    """Path below FOLDER → document. `provisioning` has the folders that Grafana looks for; Grafana ends if one of the
    data sources is not as it reads them."""
    return {
        "provisioning/datasources/gpuprov.yaml": _data_sources(),
        "provisioning/dashboards/gpuprov.yaml": _providers(),
        **{f"dashboards/gpuprov-{name}.json": document for name, document in dashboards().items()},
    }


def _data_sources() -> dict[str, Any]:
    source = {
        "name": "Prometheus",
        "uid": "gpuprov",
        "type": "prometheus",
        "access": "proxy",  # Grafana asks it; no browser reaches the head node's loopback
        "url": f"http://{OWN_ADDRESS}",
        "isDefault": True,
        "editable": False,
    }
    return {"apiVersion": 1, "datasources": [source]}


def _providers() -> dict[str, Any]:
    provider = {
        "name": "gpuprov",
        "type": "file",
        "folder": "gpuprov",
        "disableDeletion": False,  # a dashboard without a file goes
        "allowUiUpdates": False,
        "options": {"path": f"{FOLDER}/dashboards"},
    }
    return {"apiVersion": 1, "providers": [provider]}
