"""Configuration of Prometheus and Alertmanager: scrape jobs, routes, and which alert hides which."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from provisioner.monitoring.models import DCGM_JOB, NODE_JOB, SCRAPE_S
from provisioner.monitoring.rules.gpus import TEMPERATURE, absence_name
from provisioner.monitoring.rules.nodes import DOWN
from provisioner.monitoring.rules.own import WATCHDOG

HOST_LABELS = "Hostname|hostname"
"""dcgm-exporter's name of the host; `Hostname` up to 4.5.3 (NVIDIA/dcgm-exporter#655). The label `node` replaces it."""


def prometheus(alertmanagers: Iterable[str] = ()) -> dict[str, Any]:
    """prometheus.yml, the same for every cluster. Paths are relative to it. `alertmanagers`: HOST:PORT; none leaves the
    section to the user."""
    managers = list(alertmanagers)
    return {
        "global": {"scrape_interval": f"{SCRAPE_S}s", "scrape_timeout": "20s", "evaluation_interval": f"{SCRAPE_S}s"},
        "rule_files": ["rules/gpuprov-*.yml"],
        "scrape_configs": [_scrape_config(job) for job in (NODE_JOB, DCGM_JOB)],
        **({"alerting": {"alertmanagers": [{"static_configs": [{"targets": managers}]}]}} if managers else {}),
    }


def _scrape_config(job: str) -> dict[str, Any]:
    config: dict[str, Any] = {"job_name": job, "file_sd_configs": [{"files": [f"targets/{job}-*.json"]}]}
    if job == DCGM_JOB:
        config["metric_relabel_configs"] = [{"action": "labeldrop", "regex": HOST_LABELS}]
    return config


def alertmanager() -> dict[str, Any]:
    """alertmanager.yml: the routes. Its receivers are empty: the user's have addresses and secrets."""
    return {
        "route": {
            "receiver": "ticket",
            "group_by": ["cluster", "node"],
            "group_wait": "1m",
            "group_interval": "5m",
            "repeat_interval": "12h",
            "routes": [
                {"matchers": [f"alertname={WATCHDOG}"], "receiver": "watchdog", "group_wait": "0s",
                 "group_interval": "1m", "repeat_interval": "5m"},
                {"matchers": ["severity=page"], "receiver": "page", "group_wait": "30s", "repeat_interval": "4h"},
                {"matchers": ["severity=none"], "receiver": "nobody"},
            ],
        },
        "receivers": [{"name": name} for name in ("page", "ticket", "watchdog", "nobody")],
        "inhibit_rules": [
            _hides(f"alertname={DOWN}", f"alertname!={DOWN}"),
            _hides("alertname=DcgmExporterDown", "alertname=~GpuMissing|GpuSamplesLost|CheckDcgmExporter"),
            _hides(f"alertname={absence_name(TEMPERATURE)}", 'alertname=~"Dcgm.*Missing|GpuMissing|CheckDcgm.*"',
                   f"alertname!={absence_name(TEMPERATURE)}"),
            _hides("alertname=RdmaPortsMissing", "alertname=RdmaPortDown"),
        ],
    }  # fmt: skip


def _hides(source: str, *targets: str) -> dict[str, Any]:
    """One cause of a node, one voice."""
    return {"source_matchers": [source], "target_matchers": list(targets), "equal": ["cluster", "node"]}
