"""One alert for each check that the nodes run by themselves (monitoring.health_check), and alerts on their silence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from provisioner.monitoring.fleet import WatchedFleet, WatchedGroup
from provisioner.monitoring.models import NODE_JOB, AlertRule, RuleGroup, Series
from provisioner.monitoring.rules.series import VERIFY, constant, duration, on_node, rising, select, up
from provisioner.verify.check import Check
from provisioner.verify.check_runner import asks
from provisioner.verify.merged_checks import MERGED, reported
from provisioner.verify.registry import plain_checks

BY_CHECK = '{{ if eq $labels.severity "fatal" }}page{{ else }}ticket{{ end }}'
"""The severity of an alert on a check is that of the sample: a failure at an unverified limit warns on that node."""
LOOKED = "gpuprov_check_timestamp_seconds"
"""When the timer of the checks last wrote its metrics (verify/health.py)."""
READINGS_S = 300
"""Seconds between two evaluations of rules on what the timer reads beside its checks: it is new every 10 minutes, and
of a thousand nodes too much for every 30 s."""
MISSING = "GpuprovChecksMissing"
UNKNOWN = "GpuprovCheckUnknown"
MOMENTARY = ("cloud.interruption",)
"""Checks of what lasts shorter than two of their runs: GpuNodeTakenAway has it from another metric, at once."""


def rule_group(fleet: WatchedFleet) -> RuleGroup | None:
    """None where the nodes do not run the checks."""
    if fleet.health_minutes is None or not fleet.groups:
        return None
    group = fleet.groups[0]
    rules = (*_failures(fleet, group), *_silence(fleet, group, fleet.health_minutes * 60))
    return RuleGroup(f"gpuprov-checks-{fleet.cluster}", rules)


def watched_checks(fleet: WatchedFleet) -> dict[str, tuple[Check, ...]]:
    """Name in the metric `gpuprov_check` → the checks that have it. Checks that compare nodes, checks of a higher level
    and those of another GPU vendor never have a sample; checks of severity info make no alert."""
    vendors = {group.gpu.vendor for group in fleet.groups} - {"none"}
    checks: dict[str, tuple[Check, ...]] = {}
    for function, check in plain_checks():
        is_on_nodes = check.level == "quick" and "peers" not in asks(function)
        may_apply = check.vendor in (None, "any", *vendors) and (vendors or not check.is_about_gpus)
        if is_on_nodes and check.severity != "info" and check.id not in MOMENTARY and may_apply:
            name = reported(check.id)
            checks[name] = (*checks.get(name, ()), check)
    return dict(sorted(checks.items()))


def nodes_with_results(fleet: WatchedFleet, groups: Iterable[WatchedGroup]) -> str:
    """Nodes of the groups whose timer has given results: their readings, too, must be there. Of others
    GpuprovChecksDidNotRun and MISSING tell."""
    names = "|".join(group.name for group in groups)
    return f"({select(fleet, LOOKED, group='~' + names)} and on (cluster, node) {select(fleet, 'gpuprov_check')})"


def results(fleet: WatchedFleet, group: WatchedGroup) -> tuple[Series, ...]:
    """For tests: what the timer of a node has given."""
    check = on_node(fleet, group, "gpuprov_check", constant(1), check="gpu.count", severity="fatal")
    return on_node(fleet, group, LOOKED, constant(0)), check


def _failures(fleet: WatchedFleet, group: WatchedGroup) -> Iterator[AlertRule]:
    assert fleet.health_minutes is not None
    pending_s = 2 * fleet.health_minutes * 60
    merged = {row.id: row.says for row in MERGED}
    for name, checks in watched_checks(fleet).items():
        yield AlertRule(
            name=alert_name(name),
            expr=select(fleet, "gpuprov_check", check=name, severity="!info") + " == 0",
            pending=duration(pending_s),
            severity=BY_CHECK,
            summary=f"{{{{ $labels.node }}}}: {name} failed",
            description=merged.get(name, checks[0].says),
            doc=f'runbook "{name}"',
            command=VERIFY,
            basis=" and ".join(sorted({check.basis for check in checks})),
            firing=(on_node(fleet, group, "gpuprov_check", constant(0), check=name, severity=checks[0].severity),),
            silent=(on_node(fleet, group, "gpuprov_check", constant(1), check=name, severity=checks[0].severity),),
            fires_at_s=pending_s + 60,
            twin=MISSING,
        )


def alert_name(check: str) -> str:
    """
    >>> alert_name("gpu.xid_again")
    'CheckGpuXidAgain'
    """
    return "Check" + "".join(part.capitalize() for part in check.replace("_", ".").split("."))


def _silence(fleet: WatchedFleet, group: WatchedGroup, every_s: int) -> Iterator[AlertRule]:
    """No answer is never taken for a good one."""
    failed = select(fleet, "gpuprov_check", severity="fatal")
    node_up = up(fleet, group)
    yield AlertRule(
        name=UNKNOWN,
        expr=f"{failed} != {failed}",
        pending=duration(3 * every_s),
        severity="ticket",
        summary="{{ $labels.node }}: {{ $labels.check }} could not be answered",
        description="A fatal check has had no answer for three runs: the node is not known to be healthy.",
        doc='monitoring "A check has no answer"',
        command=VERIFY,
        firing=(on_node(fleet, group, "gpuprov_check", constant("NaN+0"), check="gpu.count", severity="fatal"),),
        silent=(on_node(fleet, group, "gpuprov_check", constant(1), check="gpu.count", severity="fatal"),),
        fires_at_s=3 * every_s + 60,
        twin=MISSING,
        counts_nan=True,
    )
    yield AlertRule(
        name="GpuprovChecksDidNotRun",
        expr=f"{select(fleet, 'gpuprov_node_ok')} == 0 unless on (cluster, node) {select(fleet, 'gpuprov_check')}",
        pending=duration(2 * every_s),
        severity="ticket",
        summary="{{ $labels.node }}: the checks of the node could not be run",
        description="The timer runs, and the checks end with an error, or are killed for their time or memory.",
        doc='quarantine "Looking again and again"',
        command="gpuprov exec FILE --node {{ $labels.node }} sudo journalctl -u gpuprov-health -n 50",
        firing=(on_node(fleet, group, "gpuprov_node_ok", constant(0)),),
        silent=(
            on_node(fleet, group, "gpuprov_node_ok", constant(0)),
            on_node(fleet, group, "gpuprov_check", constant(0), check="gpu.count", severity="fatal"),
        ),
        fires_at_s=2 * every_s + 60,
        twin=MISSING,
    )
    time_of_check = select(fleet, LOOKED)
    yield AlertRule(
        name="GpuprovChecksStale",
        expr=f"time() - {time_of_check} > {3 * every_s}",
        pending="5m",  # after a boot the timer waits a minute and a half
        severity="ticket",
        summary="{{ $labels.node }}: no check has run for {{ $value | humanizeDuration }}",
        description="The timer gpuprov-health.timer is stopped, or its service hangs. Old results are no proof.",
        doc='quarantine "Looking again and again"',
        command="gpuprov up FILE",
        firing=(on_node(fleet, group, LOOKED, constant(0)),),
        silent=(on_node(fleet, group, LOOKED, rising(30)),),
        fires_at_s=3 * every_s + 420,
        twin=MISSING,
    )
    yield AlertRule(
        name=MISSING,
        expr=f"{select(fleet, 'up', job=NODE_JOB)} == 1 unless on (cluster, node) {time_of_check}",
        pending=duration(2 * every_s),
        severity="ticket",
        summary="{{ $labels.node }}: node_exporter answers, and has no results of gpuprov's checks",
        description="node_exporter reads another directory than monitoring.health_check.textfile, or the timer has "
        "never run. No alert on a check can fire for this node.",
        doc='monitoring "Results of checks are missing"',
        command="gpuprov exec FILE --node {{ $labels.node }} systemctl list-timers gpuprov-health.timer",
        firing=(node_up,),
        silent=(node_up, on_node(fleet, group, LOOKED, constant(0))),
        fires_at_s=2 * every_s + 60,
    )
