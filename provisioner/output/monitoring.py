"""The shapes of `gpuprov monitoring export --json` and `gpuprov monitoring test --json`."""

from __future__ import annotations

from pydantic import Field

from provisioner.output.base import OpenOutput


class ExportOutput(OpenOutput):
    """`gpuprov monitoring export --json`"""

    folder: str
    cluster: str
    sandbox: bool = Field(description="Whether the nodes have simulated hardware")
    nodes: int = Field(ge=0, description="Nodes that are scrape targets")
    alerts: int = Field(ge=0, description="Alerting rules")
    files: list[str] = Field(description="What was written, by its path below the folder")
    edited: list[str] = Field(description="Files that a person has edited, and that were left as they are")
    removed: list[str] = Field(description="Files of an earlier export of this cluster that nothing needs any more")
    missing: list[str] = Field(description="What is not watched, and why")


class FiringAlert(OpenOutput):
    """An alert that fired."""

    alert: str
    seconds: int = Field(ge=0, description="From the fault to the alert, with the times of the exported rules")
    hidden: bool = Field(description="Whether Alertmanager hides it behind another alert of the same cause")


class FaultAlerts(OpenOutput):
    """What fired for one fault."""

    fault: str
    node: str
    check: str = Field(description="The check by which `gpuprov verify` finds the fault")
    expected: str = Field(
        description="The alert on that check; empty where nodes do not run it by themselves, or have no such fault"
    )
    alerts: list[FiringAlert]
    reason: str = Field(description="Why no alert on that check fired; empty where it did")
    lasting: list[str] = Field(description="Alerts that still fired when the node was well again for a while")


class MonitoringTestOutput(OpenOutput):
    """`gpuprov monitoring test --json`"""

    cluster: str
    speed: int = Field(ge=1, description="By how much all times of the rules were divided")
    nodes: int = Field(ge=0, description="Nodes that had faults")
    healthy: list[FiringAlert] = Field(description="Alerts that fired before any fault: there should be none")
    faults: list[FaultAlerts]

    @property
    def failed(self) -> list[str]:
        """Faults whose check has an alert that did not fire."""
        return [row.fault for row in self.faults if row.expected and row.reason]

    @property
    def dark(self) -> list[str]:
        """Faults for which nothing fired."""
        return [row.fault for row in self.faults if not row.alerts]
