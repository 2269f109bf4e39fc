"""Warnings that somebody has looked at: acknowledged.json in the run directory. They are shown with their owner, and
are no warnings until they end.

Only what warns can be acknowledged: what condemns a node is repaired, or the node is taken out of service. An
acknowledgement is of one machine; the machine that replaces it begins without. Of several checks that are reported
under one name (merged_checks.py) it is of those that failed when it was made: another one warns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, ClassVar

from pydantic import AfterValidator
from pydantic.dataclasses import dataclass

from provisioner.common.errors import GpuprovError
from provisioner.common.paths import ClusterPaths
from provisioner.common.suggest import did_you_mean
from provisioner.lifecycle.session import Cluster
from provisioner.rundir import node_state, records
from provisioner.rundir.fleet import Node
from provisioner.verify.merged_checks import by_id, reported
from provisioner.verify.registry import declared
from provisioner.verify.results import CheckResult, Report

LONGEST = timedelta(days=366)
DATE, TIME = "%Y-%m-%d", "%Y-%m-%dT%H:%M:%SZ"


def _moment(text: str) -> str:
    datetime.strptime(text, TIME).replace(tzinfo=UTC)
    return text


@dataclass(config=records.STRICT, frozen=True, slots=True)
class Acknowledgement:
    """`machine`: the id of the node's machine; `since` and `until`: UTC, 2026-01-31T12:00:00Z. `parts`: the checks that
    it is of, where `check` is a name for several."""

    node: str
    check: str
    parts: tuple[str, ...]
    machine: str
    owner: str
    reason: str
    since: str
    until: Annotated[str, AfterValidator(_moment)]

    def holds(self, moment: datetime) -> bool:
        return moment < datetime.strptime(self.until, TIME).replace(tzinfo=UTC)


@dataclass(config=records.STRICT, slots=True)
class Acknowledgements:
    """acknowledged.json: all that were made, those that have ended among them."""

    FILE: ClassVar[str] = "acknowledged.json"
    REPAIR: ClassVar[str] = "remove it: what was acknowledged warns again"

    acknowledged: list[Acknowledgement] = field(default_factory=list)


def load(paths: ClusterPaths) -> list[Acknowledgement]:
    """All that were made. Raises DamagedFileError."""
    return (records.load(paths, Acknowledgements) or Acknowledgements()).acknowledged


def until(text: str, moment: datetime) -> datetime:
    """When it ends: a number of days or hours (14d, 36h), or a date (2026-01-31, the end of that day, UTC). Raises
    GpuprovError for anything else, what is past, and more than a year."""
    try:
        if text[-1:] in ("d", "h") and text[:-1].isdecimal():
            end = moment + timedelta(**{"days" if text[-1] == "d" else "hours": int(text[:-1])})
        else:
            end = datetime.strptime(text, DATE).replace(tzinfo=UTC) + timedelta(days=1, seconds=-1)
    except (ValueError, OverflowError):
        raise GpuprovError(
            f"--until {text!r} is neither a date nor a time", hint="for example --until 14d, 36h or 2026-01-31"
        ) from None
    if not moment < end <= moment + LONGEST:
        raise GpuprovError(f"--until {text} is {'past' if end <= moment else 'more than a year from now'}")
    return end


def known(check: str) -> str:
    """The check, by its name or by that under which it is reported. Raises GpuprovError for one that does not warn, or
    is none."""
    name = reported(check)
    severities = {reported(check_row.id): check_row.severity for check_row in declared()}
    if name not in severities and name not in by_id():
        hint = did_you_mean(check, [*severities], limit=3) or "`gpuprov verify FILE` names what warns"
        raise GpuprovError(f"there is no check {check}", hint=hint)
    if severities.get(name) == "fatal":
        raise GpuprovError(
            f"{check} condemns a node, and cannot be acknowledged",
            hint="repair the node, or take it out of service: `gpuprov quarantine FILE NODE --reason TEXT`",
        )
    return check


def add(cluster: Cluster, node: str, check: str, reason: str, end: datetime, owner: str) -> Acknowledgement:
    """Acknowledge a check on a node's machine, in place of an earlier acknowledgement of the same parts. Raises
    GpuprovError for a name that no node has, and for what does not warn there by the newest report: nobody has looked
    at it."""
    machine, moment, name = cluster.node(node), datetime.now(UTC), reported(check)
    failing = _failing_parts(cluster, node, name)
    if failing is not None and (check not in failing if check != name else not failing):
        raise GpuprovError(
            f"{check} does not warn on {node} by the last report of the fleet", where=str(cluster.file),
            hint=f"`gpuprov verify {cluster.typed_file}` writes that report and shows what warns; "
            "with --node it does not",
        )  # fmt: skip
    merged = by_id().get(name)
    parts = (check,) if check != name else failing or (merged.parts if merged else (check,))
    added = Acknowledgement(node, name, parts, machine.id, owner, reason, moment.strftime(TIME), end.strftime(TIME))
    with cluster.exclusively("ack"):
        _save(
            cluster.paths,
            [*(row for row in load(cluster.paths) if row.holds(moment) and not _is_same(row, added)), added],
        )
    return added


def _failing_parts(cluster: Cluster, node: str, check: str) -> tuple[str, ...] | None:
    """The checks of which the newest report says that they fail under this name on a node; None where no report has the
    node."""
    from provisioner.verify.report.compare import earlier

    state = node_state.load(cluster.paths)
    partial = state.partial_report.report if state.partial_report else None
    for page in (partial, state.report):  # the newer one first, where there is one
        document = earlier(page) or {}
        checks = next((row["checks"] for row in document.get("nodes", ()) if row["name"] == node), None)
        if checks is not None:
            failing = (row for row in checks if row["id"] == check and row["status"] == "fail")
            return next((tuple(row.get("parts") or (check,)) for row in failing), ())
    return None


def remove(cluster: Cluster, node: str, check: str) -> tuple[bool, Acknowledgement | None]:
    """Have a check warn again, by its name or by that under which it is reported: then what is acknowledged of it as a
    whole and by part. Gives whether something was, and what still holds for it."""
    with cluster.exclusively("ack"):
        rows = load(cluster.paths)
        removed = [row for row in rows if row.node == node and (check == row.check or row.parts == (check,))]
        remaining = [row for row in rows if row not in removed and row.holds(datetime.now(UTC))]
        _save(cluster.paths, remaining)
    return bool(removed), next((row for row in remaining if row.node == node and check in row.parts), None)


def _is_same(first: Acknowledgement, other: Acknowledgement) -> bool:
    return (first.node, first.check, first.parts) == (other.node, other.check, other.parts)


def _save(paths: ClusterPaths, rows: Sequence[Acknowledgement]) -> None:
    records.save(paths, Acknowledgements(list(rows)))


def mark(cluster: Cluster, report: Report, nodes: Sequence[Node]) -> Report:
    """The report with the owner of each warning that is acknowledged. A damaged file acknowledges nothing."""
    try:
        rows = load(cluster.paths)
    except GpuprovError as error:
        cluster.events("verify", "warning", str(error))
        return report
    machines, moment = {node.name: node.id for node in nodes}, datetime.now(UTC)
    holding = [ack for ack in rows if ack.machine == machines.get(ack.node) and ack.holds(moment)]
    if not holding:
        return report

    def marked(node: str, check: CheckResult) -> CheckResult:
        failing = set(check.parts or (check.id,))
        matching = [
            ack for ack in holding if (ack.node, ack.check) == (node, check.id) and failing.intersection(ack.parts)
        ]
        if not check.warns or not failing.issubset(part for ack in matching for part in ack.parts):
            return check
        earliest = min(matching, key=lambda earliest: earliest.until)
        return replace(
            check, acknowledged={"owner": earliest.owner, "reason": earliest.reason, "until": earliest.until}
        )

    return replace(
        report,
        nodes=tuple(
            replace(row, checks=tuple(marked(row.name, check) for check in row.checks)) for row in report.nodes
        ),
    )
