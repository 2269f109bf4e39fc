"""A page from the report.json of another operator. Only data is taken from a shared store: the page is made here, by
this gpuprov's own template."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from provisioner.common import stored
from provisioner.common.paths import write_whole
from provisioner.verify.check import Action, Severity
from provisioner.verify.merged_checks import MERGED
from provisioner.verify.registry import declared
from provisioner.verify.report.html import html
from provisioner.verify.results import CheckResult, NodeReport, Report, Status

PAGE, DOCUMENT = "report.html", "report.json"


class _Check(BaseModel):
    model_config = ConfigDict(strict=True)
    id: str
    severity: Severity
    status: Status
    action: Action
    expected: Any = None
    actual: Any = None
    message: str = ""
    parts: list[str] = []


class _Node(BaseModel):
    model_config = ConfigDict(strict=True)
    name: str
    group: str
    site: str
    machine: str
    checks: list[_Check]
    simulated: bool = False
    absent: bool = False
    error: str = ""


class _Document(BaseModel):
    model_config = ConfigDict(strict=True)
    nodes: list[_Node]
    level: str = ""


def write_page(folder: Path, title: str) -> bool:
    """Write report.html beside report.json in the folder of a run. Of what the page of that run had, the facts (tables
    of GPUs, versions) and the course of measurements are missing: report.json has none of them. Nothing is written
    (False) where the document is not a report."""
    try:
        document = _Document.model_validate(stored.load(folder / DOCUMENT))
    except (OSError, ValueError, ValidationError):
        return False
    summaries = {check.id: check.says for check in declared()} | {merged.id: merged.says for merged in MERGED}
    nodes = tuple(
        NodeReport(
            node.name, node.group, node.site, node.machine, node.simulated,
            tuple(
                CheckResult(check.id, check.severity, check.status, check.action, summaries.get(check.id, ""),
                            check.expected, check.actual, check.message, parts=tuple(check.parts))
                for check in node.checks
            ),
            error=node.error, absent=node.absent,
        )
        for node in document.nodes
    )  # fmt: skip
    write_whole(folder / PAGE, html(Report(nodes, {}, _started(folder.name), title, document.level)))
    return True


def _started(run: str) -> float:
    """Seconds since 1970 by the name of a run's folder, 20260101T000000 or 20260101T000000-2."""
    try:
        return datetime.strptime(run.partition("-")[0], "%Y%m%dT%H%M%S").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return 0.0
