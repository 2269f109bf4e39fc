"""List prices beside what is planned, asked and shown: the same words everywhere."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from provisioner.cost import Wanted, as_of, money, offer, totals, wanted
from provisioner.cost.document import document
from provisioner.spec.models import ClusterSpec


def planned(spec: ClusterSpec, sites: Collection[str]) -> dict[str, Any]:
    """What `plan` says of the price of the groups at these sites: {"hours", "groups", "totals", "not_included"}, as
    `cost` does without asking."""
    said = document([one for one in wanted(spec) if one.site in sites], [], None)
    return {key: said[key] for key in ("hours", "groups", "totals", "not_included")}


def lines(cost: Mapping[str, Any]) -> list[str]:
    """The price of a plan for a person."""
    told = []
    for total in cost["totals"]["on_demand"]["sums"]:
        hour, month = (money(total[key], total["currency"]) for key in ("hour", "month"))
        told.append(
            f"list price on demand: {hour} an hour, {month} in a month of {cost['hours']} hours "
            f"(prices of {as_of(total['dates'])}; {', '.join(total['groups'])})"
        )
    why: dict[str, list[str]] = {}
    for group in cost["groups"]:
        first = group["ways"][0]
        if first["each"] is None:
            said = first["unknown"] + (f"; {first['action']}" if first["action"] else "")
            head = said if first["price"] == "nothing" else f"price as {first['kind']} is unknown: {said}"
            why.setdefault(head, []).append(group["group"])
    return told + [f"{', '.join(names)}: {reason}" for reason, names in why.items()]


def making(fleet: Sequence[Wanted], missing: Mapping[str, int]) -> str:
    """What machines that are about to be made cost for an hour, in a few words; empty where none is. `missing`: group →
    how many of its machines are not there yet."""
    new = [replace(one, count=missing[one.group]) for one in fleet if missing.get(one.group)]
    offers = [(one.group, one.count, offer(one.machine, one.region)) for one in new]
    told = [
        f"{money(total.hour, total.currency)} an hour at list prices of {as_of(total.dates)}"
        for total in totals(offers)
    ]
    unknown = [group for group, _, found in offers if found.each is None and found.price != "nothing"]
    if unknown:
        told.append(f"price unknown: {', '.join(unknown)}")
    return ", ".join(told)
