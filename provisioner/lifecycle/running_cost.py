"""What a fleet has cost so far, by list prices and by the time that gpuprov has known each machine.

An estimate: a machine counts from the moment that it was first seen, which is after it was made, until the moment that
it was seen to be gone. What was paid for spot, or by a discount, is on the provider's bill alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from provisioner.common.errors import GpuprovError
from provisioner.common.text import money
from provisioner.lifecycle.cost import as_of, offer
from provisioner.lifecycle.session import Cluster
from provisioner.rundir import node_state
from provisioner.rundir.fleet import Node

SEEN = "machines"
"""Key of state.json: id → {"node", "machine", "region", "kind", "since", "until"}; `until` is null while it stands."""


def note_machines(cluster: Cluster, nodes: Iterable[Node]) -> None:
    """Write down when machines were first seen, and when they were first gone. A sandbox costs nothing."""
    if cluster.sandbox:
        return
    timestamp, known, present = _text(datetime.now(UTC)), _known(cluster), {node.id: node for node in nodes}
    for number, node in present.items():
        if number not in known:
            site, group = cluster.spec.sites.get(node.site), cluster.spec.groups.get(node.group)
            known[number] = {
                "node": node.name,
                "machine": node.machine,
                "region": getattr(site, "region", ""),
                "kind": group.capacity.kind if group else "on-demand",
                "since": timestamp,
                "until": None,
            }
    for number, row in known.items():
        if number in present:
            row["until"] = None
        elif row["until"] is None:
            row["until"] = timestamp
    node_state.note(cluster.paths, **{SEEN: known})


def so_far(cluster: Cluster, at: datetime | None = None) -> dict[str, Any] | None:
    """{"since", "sums": [{"currency", "amount", "hour", "dates"}], "unknown": [node]}; None where no machine was seen.

    `hour` is what the machines that are there now cost for one; `unknown` names those whose price is not known."""
    moment, rows = at or datetime.now(UTC), _known(cluster)
    if cluster.sandbox or not rows:
        return None
    sums: dict[str, dict[str, Any]] = {}
    unknown = []
    for row in rows.values():
        try:
            machine = cluster.spec.catalog.machine(row["machine"])
            listing = offer(machine, row["region"], "block" if row["kind"] == "block" else "on-demand")
        except (GpuprovError, KeyError):
            unknown.append(row["node"])
            continue
        if listing.each is None:
            unknown += [] if listing.price == "nothing" else [row["node"]]
            continue
        end = _time(row["until"]) if row["until"] else moment
        total = sums.setdefault(listing.currency, {"amount": 0.0, "hour": 0.0, "dates": set()})
        total["amount"] += listing.each * max(0.0, (end - _time(row["since"])).total_seconds()) / 3600
        total["hour"] += listing.each if row["until"] is None else 0.0
        total["dates"].add(listing.date)
    cost_rows = [
        {
            "currency": currency,
            "amount": round(total["amount"], 2),
            "hour": round(total["hour"], 4),
            "dates": sorted(total["dates"]),
        }
        for currency, total in sums.items()
    ]
    return {"since": min(row["since"] for row in rows.values()), "sums": cost_rows, "unknown": sorted(set(unknown))}


def lines(spent: Mapping[str, Any]) -> list[str]:
    """The same for a person."""
    messages = [
        f"cost so far: about {money(total['amount'], total['currency'])}, {money(total['hour'], total['currency'])} an "
        f"hour now; an estimate: list prices on demand (of {as_of(total['dates'])}) × the time since gpuprov first saw "
        f"each machine, the first on {spent['since']}"
        for total in spent["sums"]
    ]
    if spent["unknown"]:
        messages.append(f"cost so far unknown: {', '.join(spent['unknown'])}: no list price")
    return messages


def _known(cluster: Cluster) -> dict[str, dict[str, Any]]:
    """What state.json has; rows that are damaged are left out."""
    table = node_state.load(cluster.paths).get(SEEN)
    keys = {"node", "machine", "region", "kind", "since", "until"}
    valid_rows = {}
    for number, row in table.items() if isinstance(table, dict) else ():
        if isinstance(row, dict) and set(row) >= keys and _is_time(row["since"]):
            valid_rows[number] = {**row, "until": row["until"] if _is_time(row["until"]) else None}
    return valid_rows


def _is_time(value: object) -> bool:
    try:
        return isinstance(value, str) and bool(_time(value))
    except ValueError:
        return False


def _time(text: str) -> datetime:
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)


def _text(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
