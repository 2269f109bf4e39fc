"""List prices beside what is planned, asked and shown: the same words everywhere."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from provisioner.common.text import money
from provisioner.lifecycle.cost import Wanted, as_of, offer, totals, wanted
from provisioner.lifecycle.cost.document import document
from provisioner.output.cost import PlannedCost
from provisioner.spec.models import ClusterSpec


def planned(spec: ClusterSpec, sites: Collection[str]) -> PlannedCost:
    """What `plan` says of the price of the groups at these sites, as `cost` does without asking."""
    full = document([group for group in wanted(spec) if group.site in sites], [], None)
    return PlannedCost(hours=full.hours, groups=full.groups, totals=full.totals, not_included=full.not_included)


def lines(cost: PlannedCost) -> list[str]:
    """The price of a plan for a person."""
    sentences = []
    for total in cost.totals.on_demand.sums:
        hour, month = (money(amount, total.currency) for amount in (total.hour, total.month))
        sentences.append(
            f"list price on demand: {hour} an hour, {month} in a month of {cost.hours} hours "
            f"(prices of {as_of(total.dates)}; {', '.join(total.groups)})"
        )
    names_by_reason: dict[str, list[str]] = {}
    for group in cost.groups:
        first = group.ways[0]
        if first.each is None:
            reason_text = first.unknown + (f"; {first.action}" if first.action else "")
            head = reason_text if first.price == "nothing" else f"price as {first.kind} is unknown: {reason_text}"
            names_by_reason.setdefault(head, []).append(group.group or "")
    return sentences + [f"{', '.join(names)}: {reason}" for reason, names in names_by_reason.items()]


def making(fleet: Sequence[Wanted], missing: Mapping[str, int]) -> str:
    """What machines that are about to be made cost for an hour, in a few words; empty where none is. `missing`: group →
    how many of its machines are not there yet."""
    new = [replace(group, count=missing[group.group]) for group in fleet if missing.get(group.group)]
    offers = [(group.group, group.count, offer(group.machine, group.region)) for group in new]
    parts = [
        f"{money(total.hour, total.currency)} an hour at list prices of {as_of(total.dates)}"
        for total in totals(offers)
    ]
    unknown = [group for group, _, priced in offers if priced.each is None and priced.price != "nothing"]
    if unknown:
        parts.append(f"price unknown: {', '.join(unknown)}")
    return ", ".join(parts)
