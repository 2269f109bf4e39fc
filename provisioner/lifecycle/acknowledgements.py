"""Warnings that somebody has looked at: acknowledged.json in the run directory. They are shown with their owner, and
are no warnings until they end.

Only what warns can be acknowledged: what condemns a node is repaired, or the node is taken out of service. An
acknowledgement is of one machine; the machine that replaces it begins without.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta

from provisioner import stored
from provisioner.errors import GpuprovError
from provisioner.fleet import Node
from provisioner.paths import ClusterPaths, write_whole
from provisioner.session import Cluster
from provisioner.suggest import did_you_mean
from provisioner.verify.merged_checks import by_id, reported
from provisioner.verify.registry import declared
from provisioner.verify.results import CheckResult, Report

FILE = "acknowledged.json"
LONGEST = timedelta(days=366)
DATE, TIME = "%Y-%m-%d", "%Y-%m-%dT%H:%M:%SZ"


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """`machine`: the id of the node's machine; `since` and `until`: UTC, 2026-01-31T12:00:00Z."""

    node: str
    check: str
    machine: str
    owner: str
    reason: str
    since: str
    until: str

    def holds(self, now: datetime) -> bool:
        return now < datetime.strptime(self.until, TIME).replace(tzinfo=UTC)


def load(paths: ClusterPaths) -> list[Acknowledgement]:
    """All that were made, those that have ended among them. Raises GpuprovError for a damaged file."""
    file = paths.root / FILE
    try:
        rows = [Acknowledgement(**row) for row in stored.load(file)["acknowledged"]]
        for row in rows:
            if not all(isinstance(value, str) for value in asdict(row).values()):
                raise TypeError("a value is no text")
            datetime.strptime(row.until, TIME).replace(tzinfo=UTC)
        return rows
    except FileNotFoundError:
        return []
    except (ValueError, TypeError, LookupError) as error:
        hint = "remove it: what was acknowledged warns again"
        raise GpuprovError(f"is damaged: {error}", where=str(file), hint=hint) from error


def until(text: str, now: datetime) -> datetime:
    """When it ends: a number of days or hours (14d, 36h), or a date (2026-01-31, the end of that day, UTC). Raises
    GpuprovError for anything else, what is past, and more than a year."""
    try:
        if text[-1:] in ("d", "h") and text[:-1].isdecimal():
            end = now + timedelta(**{"days" if text[-1] == "d" else "hours": int(text[:-1])})
        else:
            end = datetime.strptime(text, DATE).replace(tzinfo=UTC) + timedelta(days=1)
    except (ValueError, OverflowError):
        raise GpuprovError(
            f"--until {text!r} is neither a date nor a time", hint="for example --until 14d, 36h or 2026-01-31"
        ) from None
    if not now < end <= now + LONGEST:
        raise GpuprovError(f"--until {text} is {'past' if end <= now else 'more than a year from now'}")
    return end


def known(check: str) -> str:
    """The name under which a check is reported. Raises GpuprovError for one that does not warn, or is none."""
    name = reported(check)
    severities = {reported(one.id): one.severity for one in declared()}
    if name not in severities and name not in by_id():
        hint = did_you_mean(check, [*severities], limit=3) or "`gpuprov verify FILE` names what warns"
        raise GpuprovError(f"there is no check {check}", hint=hint)
    if severities.get(name) == "fatal":
        raise GpuprovError(
            f"{check} condemns a node, and cannot be acknowledged",
            hint="repair the node, or take it out of service: `gpuprov quarantine FILE NODE --reason TEXT`",
        )
    return name


def add(cluster: Cluster, node: str, check: str, reason: str, end: datetime, owner: str) -> Acknowledgement:
    """Acknowledge a check on a node's machine, in place of an earlier acknowledgement of the same. Raises GpuprovError
    for a name that no node has."""
    machine, now = cluster.node(node), datetime.now(UTC)
    made = Acknowledgement(node, check, machine.id, owner, reason, now.strftime(TIME), end.strftime(TIME))
    with cluster.exclusively("ack"):
        _save(cluster.paths, [*_without(load(cluster.paths), node, check, now), made])
    return made


def remove(cluster: Cluster, node: str, check: str) -> bool:
    """Have a check warn again; whether it was acknowledged."""
    with cluster.exclusively("ack"):
        before = load(cluster.paths)
        kept = _without(before, node, check, datetime.now(UTC))
        _save(cluster.paths, kept)
    return any((one.node, one.check) == (node, check) for one in before)


def _without(rows: Sequence[Acknowledgement], node: str, check: str, now: datetime) -> list[Acknowledgement]:
    return [one for one in rows if (one.node, one.check) != (node, check) and one.holds(now)]


def _save(paths: ClusterPaths, rows: Sequence[Acknowledgement]) -> None:
    write_whole(paths.root / FILE, json.dumps({"acknowledged": [asdict(one) for one in rows]}, indent=1) + "\n")


def mark(cluster: Cluster, report: Report, nodes: Sequence[Node]) -> Report:
    """The report with the owner of each warning that is acknowledged. A damaged file acknowledges nothing."""
    try:
        rows = load(cluster.paths)
    except GpuprovError as error:
        cluster.events("verify", "warning", str(error))
        return report
    machines, now = {node.name: node.id for node in nodes}, datetime.now(UTC)
    holding = {(one.node, one.check): one for one in rows if one.machine == machines.get(one.node) and one.holds(now)}
    if not holding:
        return report

    def marked(node: str, check: CheckResult) -> CheckResult:
        one = holding.get((node, check.id))
        if one is None or not check.warns:
            return check
        return replace(check, acknowledged={"owner": one.owner, "reason": one.reason, "until": one.until})

    return replace(
        report,
        nodes=tuple(replace(row, checks=tuple(marked(row.name, one) for one in row.checks)) for row in report.nodes),
    )
