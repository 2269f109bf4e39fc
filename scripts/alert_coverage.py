"""docs/design/alert-coverage.md from the document of `gpuprov monitoring test --json`.

python -m scripts.alert_coverage RESULT.json
"""

from __future__ import annotations

import sys
from pathlib import Path

from provisioner.output.monitoring import FaultAlerts, MonitoringTestOutput
from provisioner.sandbox import faults

PAGE = Path(__file__).parent.parent / "docs/design/alert-coverage.md"
HEAD = """\
# Alert coverage

Which alert fires for which fault of the sandbox, measured by `gpuprov monitoring test`
([monitoring.md](../guides/monitoring.md#which-alert-fires-for-which-fault)). Prometheus, Alertmanager and node_exporter
are real, GPUs and dcgm-exporter are simulated.

{summary}

- **seconds**: from the fault to the alert, with the intervals of the exported rules. The nodes ran their checks
  every 10 minutes, and an alert on a check waits for two runs.
- **hidden**: Alertmanager holds the alert back, because another one names the same cause.

"""


def page(result: MonitoringTestOutput) -> str:
    """The page, as Markdown."""
    fired = [row for row in result.faults if row.alerts]
    first = sorted(min(alert.seconds for alert in row.alerts) for row in fired)
    median = first[len(first) // 2] if first else 0
    summary = (
        f"{len(result.faults)} of the {len(faults.FAULTS)} faults were tried; {len(fired)} fired an alert, half "
        f"of them within {median} seconds. "
        f"{result.nodes} nodes, all times divided by {result.speed}. "
        f"Alerts for healthy nodes: {', '.join(alert.alert for alert in result.healthy) or 'none'}."
    )
    sentences = {fault.name: fault.sentence for fault in faults.FAULTS}
    rows = [
        f"| {row.fault} | {sentences[row.fault]} | {row.check} | {_alerts(row)} |"
        for row in sorted(result.faults, key=lambda row: (not row.alerts, row.fault))
    ]
    table = ["| fault | what it is | check | alerts, with seconds |", "| --- | --- | --- | --- |", *rows, ""]
    return HEAD.format(summary=summary) + "\n".join(table)


def _alerts(row: FaultAlerts) -> str:
    alerts = [f"{alert.alert} {alert.seconds}{' hidden' if alert.hidden else ''}" for alert in row.alerts]
    return "; ".join([*([", ".join(alerts)] if alerts else ["none"]), *([row.reason] if row.reason else [])])


if __name__ == "__main__":
    PAGE.write_text(page(MonitoringTestOutput.model_validate_json(Path(sys.argv[1]).read_text())), encoding="utf-8")
