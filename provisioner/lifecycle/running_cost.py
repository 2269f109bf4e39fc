"""What a fleet has cost so far, by list prices and by the time that gpuprov has known each machine.

An estimate: a machine counts from the moment that it was first seen, which is after it was made, until the moment that
it was seen to be gone. What was paid for spot, or by a discount, is on the provider's bill alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from provisioner.common.errors import GpuprovError
from provisioner.common.text import money
from provisioner.lifecycle.cost import as_of, offer
from provisioner.lifecycle.session import Cluster
from provisioner.output.cost import SpentOutput, SpentSum
from provisioner.rundir import node_state
from provisioner.rundir.fleet import Node
from provisioner.rundir.node_state import FORM, SeenMachine


def note_machines(cluster: Cluster, nodes: Iterable[Node]) -> None:
    """Write down when machines were first seen, and when they were first gone. A sandbox costs nothing."""
    if cluster.sandbox:
        return
    timestamp, present = _text(datetime.now(UTC)), {node.id: node for node in nodes}
    known = node_state.load(cluster.paths).machines
    for number, node in present.items():
        if number not in known:
            site, group = cluster.spec.sites.get(node.site), cluster.spec.groups.get(node.group)
            known[number] = SeenMachine(
                node=node.name,
                machine=node.machine,
                region=getattr(site, "region", ""),
                kind=group.capacity.kind if group else "on-demand",
                since=timestamp,
            )
    rows = {
        number: asdict(row) | {"until": None if number in present else row.until or timestamp}
        for number, row in known.items()
    }
    node_state.note(cluster.paths, machines=rows)


def so_far(cluster: Cluster, at: datetime | None = None) -> SpentOutput | None:
    """What the machines have cost; None where no machine was seen."""
    moment, machines = at or datetime.now(UTC), node_state.load(cluster.paths).machines
    if cluster.sandbox or not machines:
        return None
    sums: dict[str, dict[str, Any]] = {}
    unknown = []
    for row in machines.values():
        try:
            machine = cluster.spec.catalog.machine(row.machine)
            listing = offer(machine, row.region, "block" if row.kind == "block" else "on-demand")
        except (GpuprovError, KeyError):
            unknown.append(row.node)
            continue
        if listing.each is None:
            unknown += [] if listing.price == "nothing" else [row.node]
            continue
        end = _time(row.until) if row.until else moment
        total = sums.setdefault(listing.currency, {"amount": 0.0, "hour": 0.0, "dates": set()})
        total["amount"] += listing.each * max(0.0, (end - _time(row.since)).total_seconds()) / 3600
        total["hour"] += listing.each if row.until is None else 0.0
        total["dates"].add(listing.date)
    cost_rows = [
        SpentSum(
            currency=currency,
            amount=round(total["amount"], 2),
            hour=round(total["hour"], 4),
            dates=sorted(total["dates"]),
        )
        for currency, total in sums.items()
    ]
    return SpentOutput(since=min(row.since for row in machines.values()), sums=cost_rows, unknown=sorted(set(unknown)))


def lines(spent: SpentOutput) -> list[str]:
    """The same for a person."""
    messages = [
        f"cost so far: about {money(total.amount, total.currency)}, {money(total.hour, total.currency)} an "
        f"hour now; an estimate: list prices on demand (of {as_of(total.dates)}) × the time since gpuprov first saw "
        f"each machine, the first on {spent.since}"
        for total in spent.sums
    ]
    if spent.unknown:
        messages.append(f"cost so far unknown: {', '.join(spent.unknown)}: no list price")
    return messages


def _time(text: str) -> datetime:
    return datetime.strptime(text, FORM).replace(tzinfo=UTC)


def _text(moment: datetime) -> str:
    return moment.strftime(FORM)
