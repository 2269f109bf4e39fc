"""Configuration of Prometheus and Alertmanager: scrape jobs, routes, and which alert hides which."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from provisioner.monitoring.alertmanager import WATCHDOG
from provisioner.monitoring.models import DCGM_JOB, NODE_JOB, SCRAPE_S
from provisioner.monitoring.rules.capacity import ENDING, ENDS
from provisioner.monitoring.rules.checks import UNKNOWN, alert_name
from provisioner.monitoring.rules.gpus import TEMPERATURE, absence_name
from provisioner.monitoring.rules.nodes import DOWN
from provisioner.spec import receivers

DROPPED_LABELS = "Hostname|hostname|err_code|err_msg"
"""Of dcgm-exporter. Its name of the host (`Hostname` up to 4.5.3, NVIDIA/dcgm-exporter#655) is replaced by the label
`node`. The code and text of an Xid make each Xid a series of its own, in which no change could be seen."""
ALERTMANAGER, OWN_ADDRESS = "localhost:9093", "localhost:9090"
"""Where the packages of Debian and Ubuntu listen."""


SAME_CAUSE = {
    "GpuMemoryError": ("gpu.ecc",),
    "GpuRowRemapFailure": ("gpu.remap",),
    "GpuRowsRemapped": ("gpu.remap",),
    "GpuNvlinkRecovery": ("nvlink.errors", "nvlink.recoveries"),
    "GpuNvlinkReplay": ("nvlink.errors", "nvlink.asymmetry"),
    "GpuSlowedByHeat": ("gpu.throttle",),
    "NodeDiskAlmostFull": ("storage.full",),
    "NodeDiskReadOnly": ("storage.readonly",),
    "NodeRaidDiskFailed": ("storage.raid",),
    "RdmaReceiveErrors": ("rdma.counters",),
    "EfaPacketsDropped": ("rdma.counters",),
    "GpuXid.*": ("gpu.xid", "gpu.xid_again", "dcgm.xid"),
}
"""Alert on a metric of dcgm-exporter or node_exporter → checks, as they are reported, that find the same later."""


def prometheus(alertmanagers: Sequence[str] = (ALERTMANAGER,)) -> dict[str, Any]:
    """prometheus.yml, the same for every cluster. Paths are relative to it. `alertmanagers`: HOST:PORT."""
    timing = {"scrape_interval": f"{SCRAPE_S}s", "scrape_timeout": "20s"}
    return {
        "global": {**timing, "evaluation_interval": f"{SCRAPE_S}s"},
        "rule_files": ["rules/gpuprov-*.yml"],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": list(alertmanagers)}]}]},
        "scrape_configs": [
            {"job_name": "prometheus", "static_configs": [{"targets": [OWN_ADDRESS]}]},
            *(_scrape_config(job, timing) for job in (NODE_JOB, DCGM_JOB)),
        ],
    }


def _scrape_config(job: str, timing: Mapping[str, str]) -> dict[str, Any]:
    # With its own interval: rules count samples, and another prometheus.yml may take over the job.
    config: dict[str, Any] = {"job_name": job, **timing, "file_sd_configs": [{"files": [f"targets/{job}-*.json"]}]}
    if job == DCGM_JOB:
        config["metric_relabel_configs"] = [{"action": "labeldrop", "regex": DROPPED_LABELS}]
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
        "receivers": [{"name": name} for name in receivers.NAMES],
        "inhibit_rules": [
            _hides(f"alertname={DOWN}", f"alertname!={DOWN}"),
            _hides("alertname=DcgmExporterDown", 'alertname=~"GpuMissing|GpuSamplesLost|CheckDcgmExporter"'),
            _hides(f"alertname={absence_name(TEMPERATURE)}", 'alertname=~"Dcgm.*Missing|GpuMissing|CheckDcgm.*"',
                   f"alertname!={absence_name(TEMPERATURE)}"),
            _hides("alertname=RdmaPortsMissing", 'alertname=~"RdmaPortDown|CheckIbPorts"'),
            _hides(f"alertname={ENDING}", f"alertname={ENDS}", equal=("cluster", "group")),
            _hides("alertname=GpuMissing", 'alertname=~"CheckGpuCount|CheckGpuXid|GpuXid.*"'),
            *(
                _hides((f'alertname=~"{alert}"', f"severity={severity}"), f'alertname=~"{_alerts_on(checks)}"',
                       f'severity=~"{hidden}"')
                for severity, hidden in (("page", "page|ticket"), ("ticket", "ticket"))
                for alert, checks in SAME_CAUSE.items()
            ),
            # what a broken node cannot answer any more needs no ticket of its own
            _hides("severity=page", f"alertname={UNKNOWN}"),
        ],
    }  # fmt: skip


def _alerts_on(checks: Sequence[str]) -> str:
    return "|".join(map(alert_name, checks))


def _hides(source: str | Sequence[str], *targets: str, equal: Sequence[str] = ("cluster", "node")) -> dict[str, Any]:
    """One cause of a node, one voice."""
    sources = [source] if isinstance(source, str) else list(source)
    return {"source_matchers": sources, "target_matchers": list(targets), "equal": list(equal)}
