"""Alerts on capacity blocks that end, and their machines with them. Nodes export when that is (role interruption)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from provisioner.monitoring.fleet import WatchedFleet, WatchedGroup
from provisioner.monitoring.models import NODE_JOB, AlertRule, RuleGroup
from provisioner.monitoring.rules.series import ON_GROUP, constant, on_node, select, up

BLOCK_END = "gpuprov_interruption_block_end_timestamp_seconds"
"""When the provider begins to take the machines, which is before the end of the block."""
ENDS, ENDING, MISSING = "CapacityBlockEnds", "CapacityBlockEnding", "CapacityBlockEndMissing"
TICKET_S, PAGE_S = 24 * 3600, 3600
"""Warning before the end: a day to buy another block or to plan the stop, an hour to save a checkpoint. Judgement."""


def rule_group(fleet: WatchedFleet) -> RuleGroup | None:
    """None where no group is bought by a capacity block, or no node says when that ends: a sandbox has no end of it."""
    is_told = fleet.health_minutes is not None and not fleet.simulated
    groups = [group for group in fleet.groups if group.block and is_told]
    return RuleGroup(f"gpuprov-capacity-{fleet.cluster}", tuple(_rules(fleet, groups))) if groups else None


def _rules(fleet: WatchedFleet, groups: Sequence[WatchedGroup]) -> Iterator[AlertRule]:
    """One alert for a group: its machines end together."""
    group = groups[0]
    end = select(fleet, BLOCK_END)
    for name, before_s, severity, advice in (
        (ENDS, TICKET_S, "ticket", "Plan the end of the jobs, or buy a block that follows."),
        (ENDING, PAGE_S, "page", "Save checkpoints now."),
    ):
        yield AlertRule(
            name=name,
            expr=f"min by ({ON_GROUP}) ({end}) - time() < {before_s}",
            pending="1m",
            severity=severity,
            summary="group {{ $labels.group }}: its capacity block ends, and the machines go in "
            "{{ $value | humanizeDuration }}",
            description=f"{advice} If the block was extended, `gpuprov up` asks for its new end.",
            doc='monitoring "Capacity blocks that end"',
            command="gpuprov status FILE",
            basis="the end that the provider told `gpuprov up`; the warning is judgement",
            firing=(on_node(fleet, group, BLOCK_END, constant(before_s)),),
            silent=(on_node(fleet, group, BLOCK_END, constant(before_s + 600)),),
            fires_at_s=180,
            twin=MISSING,
        )
    names = "|".join(row.name for row in groups)
    yield AlertRule(
        name=MISSING,
        expr=f"{select(fleet, 'up', job=NODE_JOB, group='~' + names)} == 1 unless on (cluster, node) {end}",
        pending="10m",
        severity="ticket",
        summary="{{ $labels.node }}: nobody knows when its capacity block ends",
        description="The provider did not tell `gpuprov up`, or gpuprov-interruption.service does not run. No alert "
        "warns of the end.",
        doc='monitoring "Capacity blocks that end"',
        command="gpuprov up FILE",
        firing=(up(fleet, group),),
        silent=(up(fleet, group), on_node(fleet, group, BLOCK_END, constant(1e9))),
        fires_at_s=720,
    )
