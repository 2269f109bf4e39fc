"""Alerts on EFA's counters, which the timer of the checks exports (verify/readings.py): node_exporter reads none.

Their state says nothing: the driver shows every port as active.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from provisioner import catalog
from provisioner.monitoring.fleet import WatchedFleet, WatchedGroup
from provisioner.monitoring.models import AlertRule, RuleGroup, Series
from provisioner.monitoring.rules import checks
from provisioner.monitoring.rules.series import (
    LONG_S,
    ON_NODE,
    VERIFY,
    constant,
    duration,
    on_node,
    samples,
    select,
)

DROPS = "gpuprov_efa_rx_drops_total"
TIMEOUTS = "gpuprov_efa_retrans_timeout_events_total"
IMPAIRED = "gpuprov_efa_impaired_remote_conn_events_total"
UNRESPONSIVE = "gpuprov_efa_unresponsive_remote_events_total"
MISSING = "EfaCountersMissing"
HOUR_S = 3600
EVENTS = 1000
"""Of all devices of a node in an hour. AWS publishes no limit; a job whose process dies leaves some hundred."""
DOC = 'monitoring "EFA"'


def rule_group(fleet: WatchedFleet) -> RuleGroup | None:
    """None where no node has EFA, or the nodes do not run the checks."""
    groups = [group for group in fleet.groups if group.efa]
    if not groups or fleet.health_minutes is None:
        return None
    return RuleGroup(
        f"gpuprov-efa-{fleet.cluster}", tuple(_rules(fleet, groups, fleet.health_minutes * 60)), checks.READINGS_S
    )


def _rules(fleet: WatchedFleet, groups: Sequence[WatchedGroup], every_s: int) -> Iterator[AlertRule]:
    """`every_s`: seconds between two values of a counter."""
    group, window_s = groups[0], max(HOUR_S, 2 * every_s)
    hours = window_s / HOUR_S

    def on_device(metric: str, values: str) -> Series:
        return on_node(fleet, group, metric, values, device="rdmap16s27")

    def rises(to: float) -> str:
        return f"0x{samples(300)} {to:g}x{samples(LONG_S)}"

    drops = hours * catalog.load().ceilings["efa.rx_drops"]
    yield AlertRule(
        name="EfaPacketsDropped",
        expr=f"increase({select(fleet, DROPS)}[{duration(window_s)}]) > {drops:g}",
        pending="0s",
        severity="ticket",
        summary="{{ $labels.node }}: EFA device {{ $labels.device }} dropped {{ $value }} packets within "
        f"{duration(window_s)}",
        description="Some are lost whenever a job is killed. A device that drops packets under a job slows it down.",
        doc=DOC,
        command=VERIFY,
        basis="catalogue, efa.rx_drops (unverified)",
        firing=(on_device(DROPS, rises(2 * drops)),),
        silent=(on_device(DROPS, constant(5000)),),
        fires_at_s=660,
        twin=MISSING,
    )
    for name, metric, events, advice in (
        ("EfaTimeouts", TIMEOUTS, "timeouts of packets", "Packets took another path. The network drops them, or a "
         "device fails."),
        ("EfaConnectionsImpaired", IMPAIRED, "connections slowed down", "The devices send more slowly because of the "
         "other ends: look at the nodes of the same job."),
        ("EfaPeersUnresponsive", UNRESPONSIVE, "connections without an answer", "Other ends are dead or cut off: look "
         "at the nodes of the same job."),
    ):  # fmt: skip
        yield AlertRule(
            name=name,
            expr=f"sum by ({ON_NODE}) (increase({select(fleet, metric)}[{duration(window_s)}])) > {hours * EVENTS:g}",
            pending="0s",
            severity="ticket",
            summary=f"{{{{ $labels.node }}}}: EFA counts {{{{ $value }}}} {events} within {duration(window_s)}",
            description=advice,
            doc=DOC,
            command=VERIFY,
            basis="judgement: AWS publishes no limit",
            firing=(on_device(metric, rises(2 * hours * EVENTS)),),
            silent=(on_device(metric, constant(5000)),),
            fires_at_s=660,
            twin=MISSING,
        )
    # A driver that does not know the last of them knows none of the three on connections.
    both = f"({select(fleet, DROPS)} and on (cluster, node) {select(fleet, UNRESPONSIVE)})"
    results, dropped = checks.results(fleet, group), on_device(DROPS, constant(0))
    yield AlertRule(
        name=MISSING,
        expr=f"{checks.nodes_with_results(fleet, groups)} unless on (cluster, node) {both}",
        pending="10m",
        severity="ticket",
        summary="{{ $labels.node }}: EFA gives no counters, or not all of them",
        description="The driver is not loaded, does not answer, or is older than these counters. No alert on EFA can "
        "fire for this node.",
        doc=DOC,
        command=VERIFY,
        firing=(*results, dropped),
        silent=(*results, dropped, on_device(UNRESPONSIVE, constant(0))),
        fires_at_s=720,
        twin=checks.MISSING,
        counts_nan=True,
    )
