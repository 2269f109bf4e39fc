"""Alerts on nodes as a whole: gone, not scraped, about to be taken away by the cloud."""

from __future__ import annotations

from collections.abc import Iterator

from provisioner.monitoring.fleet import WatchedFleet, WatchedGroup
from provisioner.monitoring.models import DCGM_JOB, NODE_JOB, AlertRule, RuleGroup
from provisioner.monitoring.rules.series import VERIFY, constant, on_node, select, up

DOWN = "GpuNodeDown"
"""Inhibits every other alert of the node (server_config.py)."""
MISSING = "GpuNodeTargetsMissing"
REBOOT = "5m"
"""What is down for shorter may be a reboot."""
MOST_TESTED = 100
"""Nodes of a group whose silence is tested: the tests of a larger one would have megabytes of equal series."""


def rule_group(fleet: WatchedFleet) -> RuleGroup | None:
    """None where cluster.yaml has no group."""
    if not fleet.groups:
        return None
    group = fleet.groups[0]
    rules = (
        *_scraped(fleet, group),
        *(_targets(fleet, group) for group in fleet.groups),
        *_exporter(fleet),
        *_interruption(fleet, group),
    )
    return RuleGroup(f"gpuprov-nodes-{fleet.cluster}", rules)


def _scraped(fleet: WatchedFleet, group: WatchedGroup) -> Iterator[AlertRule]:
    node_up = select(fleet, "up", job=NODE_JOB)
    yield AlertRule(
        name=DOWN,
        # A machine that the cloud takes away has its own alert.
        expr=f"{node_up} == 0 unless on (cluster, node) "
        f"max_over_time({select(fleet, 'gpuprov_interruption_pending')}[15m]) == 1",
        pending=REBOOT,
        severity="page",
        summary="{{ $labels.node }}: node_exporter does not answer",
        description="The node is down, or the network or firewall between Prometheus and it. Nothing else is known of "
        "it while this alert fires.",
        doc='monitoring "A node that is down"',
        command="gpuprov status FILE; gpuprov ssh FILE {{ $labels.node }}",
        firing=(up(fleet, group, value=0),),
        silent=(up(fleet, group),),
        fires_at_s=360,
        twin=MISSING,
    )


def _targets(fleet: WatchedFleet, group: WatchedGroup) -> AlertRule:
    """A target that no file names any more has no `up`, and no other rule fires for it."""
    nodes_up = select(fleet, "up", job=NODE_JOB, group=group.name)
    every_node = tuple(up(fleet, group, node=node) for node in range(min(group.count, MOST_TESTED)))
    labels = {"cluster": fleet.cluster, "site": group.site, "group": group.name, "machine": group.machine.name}
    return AlertRule(
        name=MISSING,
        expr=f"(count({nodes_up}) or vector(0)) < {group.count}",
        pending="5m",
        severity="page",
        summary=f"group {group.name}: {{{{ $value }}}} of {group.count} nodes are scraped",
        description="Prometheus has fewer targets than the cluster has nodes. The rest is not watched. Export again "
        "after each change of the fleet.",
        doc='monitoring "Targets are missing"',
        command="gpuprov monitoring export FILE DIR",
        basis="nodes of the cluster at the last export",
        firing=every_node[: min(group.count, 2) - 1],
        silent=every_node if group.count <= MOST_TESTED else None,
        fires_at_s=360,
        counts_nan=True,
        labels={**labels, "gpu_model": group.gpu.model, "simulated": str(fleet.simulated).lower()},
    )


def _exporter(fleet: WatchedFleet) -> Iterator[AlertRule]:
    """Only where the node itself answers: a node that is down has one alert."""
    group = next(iter(fleet.dcgm_groups), None)
    if group is None:
        return
    dcgm_up, node_up = select(fleet, "up", job=DCGM_JOB), select(fleet, "up", job=NODE_JOB)
    yield AlertRule(
        name="DcgmExporterDown",
        expr=f"{dcgm_up} == 0 and on (cluster, node) {node_up} == 1",
        pending=REBOOT,
        severity="page",
        summary="{{ $labels.node }}: dcgm-exporter does not answer",
        description="Nobody watches the GPUs of this node. DCGM or a GPU may hang.",
        doc='runbook "dcgm.exporter"',
        command=VERIFY,
        firing=(up(fleet, group, DCGM_JOB, 0), up(fleet, group)),
        silent=(up(fleet, group, DCGM_JOB, 0), up(fleet, group, NODE_JOB, 0)),
        fires_at_s=360,
        twin="DcgmTargetMissing",
    )
    names = "|".join(group.name for group in fleet.dcgm_groups)
    yield AlertRule(
        name="DcgmTargetMissing",
        expr=f"{select(fleet, 'up', job=NODE_JOB, group='~' + names)} unless on (cluster, node) {dcgm_up}",
        pending="5m",
        severity="ticket",
        summary="{{ $labels.node }}: Prometheus has no target for its dcgm-exporter",
        description="The node is scraped, and its GPUs are not.",
        doc='monitoring "Targets are missing"',
        command="gpuprov monitoring export FILE DIR",
        firing=(up(fleet, group),),
        silent=(up(fleet, group), up(fleet, group, DCGM_JOB)),
        fires_at_s=360,
        counts_nan=True,
    )


def _interruption(fleet: WatchedFleet, group: WatchedGroup) -> Iterator[AlertRule]:
    """Of role interruption, which only spot machines and those of a capacity block have: silent elsewhere."""
    pending = select(fleet, "gpuprov_interruption_pending")
    yield AlertRule(
        name="GpuNodeTakenAway",
        expr=f"{pending} == 1",
        pending="0s",
        severity="ticket",
        summary="{{ $labels.node }}: the cloud has announced that it takes the machine",
        description="A spot machine, or the end of a capacity block. Save checkpoints; `gpuprov up` asks for another.",
        doc='aws "Spot machines that go"',
        command="gpuprov status FILE",
        firing=(on_node(fleet, group, "gpuprov_interruption_pending", constant(1)),),
        silent=(on_node(fleet, group, "gpuprov_interruption_pending", constant(0)),),
        fires_at_s=60,
        twin=MISSING,
        keep_firing_for="10m",
    )
