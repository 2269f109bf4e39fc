"""The document of a report: report.json, and what `up`, `verify` and `replace` print with --json.

Modules that nodes run too (verify/archive.py) know nothing of it: there is no pydantic on a node.
"""

from __future__ import annotations

from provisioner.output.report import (
    AcknowledgedOutput,
    BreakerOutput,
    CheckOutput,
    LimitsOutput,
    MeasureOutput,
    NodeOutput,
    ReportOutput,
)
from provisioner.verify.baseline import Reached
from provisioner.verify.results import Breaker, CheckResult, NodeReport, Report


def report_document(report: Report) -> ReportOutput:
    """The fleet's."""
    document = ReportOutput(
        ok=report.ok,
        nodes=[node_document(node) for node in report.nodes],
        seconds={step: round(seconds, 3) for step, seconds in report.seconds.items()},
    )
    if report.level:
        document.level = report.level  # type: ignore[assignment]
    if report.breaker is not None:
        document.breaker = breaker_document(report.breaker)
    if report.limits:
        document.limits = LimitsOutput(total=report.limits, unverified=report.unverified)
    if report.site_choices:
        document.site_choices = [*report.site_choices]
    if report.simulated:
        document.simulated = True
    return document


def node_document(node: NodeReport) -> NodeOutput:
    """A node's."""
    document = NodeOutput(
        name=node.name, group=node.group, site=node.site, machine=node.machine, ok=node.ok,
        checks=[check_document(check) for check in node.checks],
    )  # fmt: skip
    if node.simulated:
        document.simulated = True
    if node.absent:
        document.absent = True
    if node.quarantine is not None:
        document.quarantine = node.quarantine
    if node.borrowed:
        document.borrowed = [*node.borrowed]
    if node.measures:
        document.measures = {measure.name: measure_output(measure) for measure in node.measures}
    if node.error:
        document.error = node.error
    return document


def check_document(check: CheckResult) -> CheckOutput:
    """A check's on one node."""
    document = CheckOutput(
        id=check.id, severity=check.severity, status=check.status, expected=check.expected, actual=check.actual,
        message=check.message, action=check.action if check.status in ("fail", "unknown") else "none",
    )  # fmt: skip
    if check.parts:
        document.parts = [*check.parts]
    if check.acknowledged is not None:
        document.acknowledged = AcknowledgedOutput(**check.acknowledged)
    return document


def breaker_document(breaker: Breaker) -> BreakerOutput:
    """The breaker's, which an event has too."""
    return BreakerOutput(
        message=breaker.message, bad=[*breaker.bad], quarantined=breaker.quarantined, bound=breaker.bound,
        check=breaker.check, shared=breaker.shared,
    )  # fmt: skip


def measure_output(measure: Reached) -> MeasureOutput:
    share = measure.share
    return MeasureOutput(
        value=round(measure.value, 3),
        unit=measure.unit,
        record=measure.record,
        of=None if measure.own is None else "node" if measure.own else "group",
        change=None if share is None else round(share, 4),
        published=measure.published,
        slower=measure.slower,
    )
