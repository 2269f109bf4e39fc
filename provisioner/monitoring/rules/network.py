"""Alerts on InfiniBand and RoCE ports, from node_exporter's collector `infiniband` (on by default)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from provisioner import catalog
from provisioner.monitoring.fleet import WatchedFleet, WatchedGroup
from provisioner.monitoring.models import NODE_JOB, AlertRule, RuleGroup, Series
from provisioner.monitoring.rules.series import LONG_S, ON_NODE, VERIFY, constant, on_node, samples, select, up

STATE = "node_infiniband_state_id"
DOWNED = "node_infiniband_link_downed_total"
RECEIVE_ERRORS = "node_infiniband_port_errors_received_total"
"""Names of node_exporter's collector/infiniband_linux.go. EFA's counters are not there (efa.py)."""
MISSING = "RdmaPortsMissing"
ACTIVE = 4
"""Of STATE (1 down, 2 init, 3 armed, 4 active), as /sys/class/infiniband/*/ports/*/state has it."""


def rule_group(fleet: WatchedFleet) -> RuleGroup | None:
    """None where no machine has InfiniBand or RoCE."""
    groups = [group for group in fleet.groups if group.rdma and group.machine.network.ports]
    if not groups:
        return None
    return RuleGroup(f"gpuprov-network-{fleet.cluster}", tuple(_rules(fleet, groups)))


def has_known_ports(group: WatchedGroup) -> bool:
    """Whether the catalogue names the ports for training, and there is more than one: that none is active has another
    rule."""
    return len(group.machine.rdma_devices) > 1


def _rules(fleet: WatchedFleet, groups: Sequence[WatchedGroup]) -> Iterator[AlertRule]:
    group = groups[0]
    flaps = catalog.load().ceilings["rdma.link_downed"]
    errors = catalog.load().ceilings["rdma.port_rcv_errors"]

    def on_port(metric: str, values: str) -> Series:
        return on_node(fleet, group, metric, values, device="mlx5_0", port="1")

    for row in groups:
        if not has_known_ports(row):
            continue
        devices = row.machine.rdma_devices
        ports = len(devices)
        # Of the ports for training alone: those of storage and management would make up for one that is down.
        state = select(fleet, STATE, group=row.name, device="~" + "|".join(devices))
        active = f"count by ({ON_NODE}) ({state} == {ACTIVE})"
        nodes = tuple(on_node(fleet, row, STATE, constant(ACTIVE), device=device, port="1") for device in devices)
        down = on_node(fleet, row, STATE, constant(1), device=devices[0], port="1")
        storage = on_node(fleet, row, STATE, constant(ACTIVE), device="storage0", port="1")
        yield AlertRule(
            name="RdmaPortDown",
            expr=f"{active} < {ports}",
            pending="2m",
            severity="page",
            summary=f"{{{{ $labels.node }}}}: {{{{ $value }}}} of {ports} RDMA ports are active",
            description="Jobs over several nodes fail, or are slow. Look at cable, transceiver and switch port.",
            doc='runbook "ib.ports"',
            command=VERIFY,
            basis=f"catalogue, {row.machine.name}",
            firing=(*nodes[1:], down, storage),
            silent=nodes,
            fires_at_s=180,
            twin=MISSING,
            labels={"group": row.name},
        )
    yield AlertRule(
        name="RdmaLinkFlaps",
        expr=f"increase({select(fleet, DOWNED)}[24h]) > {flaps:g}",
        pending="1m",
        severity="ticket",
        summary="{{ $labels.node }}: port {{ $labels.device }} lost its link {{ $value }} times in 24 hours",
        description="A cable or transceiver is loose or dirty, or a switch port fails.",
        doc='runbook "log.link_flap"',
        command=VERIFY,
        basis="catalogue, rdma.link_downed (documented: Azure/azurehpc-health-checks)",
        firing=(on_port(DOWNED, f"0x{samples(300)} {10 + flaps:g}x{samples(LONG_S)}"),),
        silent=(on_port(DOWNED, constant(9)),),
        fires_at_s=600,
        twin=MISSING,
    )
    yield AlertRule(
        name="RdmaReceiveErrors",
        expr=f"increase({select(fleet, RECEIVE_ERRORS)}[1h]) > {errors:g}",
        pending="1m",
        severity="ticket",
        summary="{{ $labels.node }}: port {{ $labels.device }} receives broken packets",
        description="A cable or transceiver gives bit errors, and packets are sent again.",
        doc='runbook "rdma.errors"',
        command=VERIFY,
        basis="catalogue, rdma.port_rcv_errors (unverified)",
        firing=(on_port(RECEIVE_ERRORS, f"0x{samples(300)} {2 * errors:g}x{samples(LONG_S)}"),),
        silent=(on_port(RECEIVE_ERRORS, constant(5000)),),
        fires_at_s=600,
        twin=MISSING,
    )
    names = "|".join(group.name for group in groups)
    node_up = select(fleet, "up", job=NODE_JOB, group="~" + names)
    yield AlertRule(
        name=MISSING,
        expr=f"{node_up} == 1 unless on (cluster, node) ({select(fleet, STATE)} == {ACTIVE})",
        pending="5m",
        severity="page",
        summary="{{ $labels.node }}: no RDMA port is active, or node_exporter shows none",
        description="The driver has no card, all links are down, or node_exporter runs without collector infiniband.",
        doc='runbook "ib.ports"',
        command=VERIFY,
        basis=f"catalogue, {', '.join(sorted({group.machine.name for group in groups}))}",
        firing=(up(fleet, group),),
        silent=(up(fleet, group), on_port(STATE, constant(ACTIVE))),
        fires_at_s=360,
    )
