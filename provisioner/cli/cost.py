"""cost: what a fleet or a machine costs, here and elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from provisioner.cli import json_output, tables
from provisioner.errors import GpuprovError

WIDTH = 120
"""Of tables, where the terminal is narrower: a line that wraps can be read, a number that is cut is another number."""

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from provisioner.spec.models import ClusterSpec


def cost(
    file: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="cluster.yaml")] = None,
    machine: Annotated[str | None, typer.Option("--machine", metavar="NAME", help="One machine instead.")] = None,
    region: Annotated[
        list[str] | None,
        typer.Option("--region", metavar="REGION", help="Compare these regions alone. May be repeated."),
    ] = None,
    offline: Annotated[bool, typer.Option("--offline", help="List prices only; ask no provider.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """List prices, spot as it is and was, and the same fleet in other regions."""
    from provisioner import catalog, spec
    from provisioner.cost import Wanted, wanted
    from provisioner.cost.document import document
    from provisioner.cost.regions import compare, listen

    if (file is None) == (machine is None):
        raise GpuprovError("a cluster.yaml or --machine is needed, and not both", hint="gpuprov cost cluster.yaml")
    if file is not None:
        loaded, choices = _with_chosen_sites(file, spec.load(file))
        fleet, cluster = wanted(loaded), loaded.name
    else:
        assert machine is not None
        found = catalog.load().machine(machine)
        fleet, cluster, choices = [Wanted(found)], None, []
    _known(fleet[0].provider if machine else None, region or [])
    places = compare([one for one in fleet if catalog.load().provider(one.provider).sells], region or [])
    heard = None if offline else listen(fleet, places, spot=machine is not None)
    answer = document(fleet, places, heard, cluster=cluster) | {"site_choices": choices}
    if as_json:
        json_output.write(answer)
    else:
        _show(answer, machine, wide=not region)


def _with_chosen_sites(file: Path, loaded: ClusterSpec) -> tuple[ClusterSpec, list[dict[str, Any]]]:
    """The file with the site of each group that was chosen among several, by the run directory of the real cluster,
    and these choices (placement.rows)."""
    from provisioner import placement
    from provisioner.paths import ClusterPaths

    paths = ClusterPaths(file, loaded.name, sandbox=False)
    placed = placement.place(loaded, paths)
    return placed, placement.rows(placed, paths)


def _known(provider: Any, regions: list[str]) -> None:
    """A region that is spelt wrong is told, rather than had no price."""
    import re

    from provisioner import catalog

    sellers = catalog.load().providers()
    for name in regions:
        if not any(p.region and re.fullmatch(p.region, name) for p in sellers if provider in (None, p.name)):
            raise GpuprovError(f"--region {name}: no provider names its regions so", hint="such as us-east-1")


def _show(answer: dict[str, Any], machine: str | None, *, wide: bool) -> None:
    """Tables for people. `wide`: all regions are compared, and spot is told zone by zone only where the fleet is."""
    from provisioner import placement

    if sentence := _of_own_machines(answer):
        typer.echo(sentence)
        return
    console = tables.console(least=WIDTH)
    where = {group["region"] for group in answer["groups"] if group["region"]}
    head = f"{answer['cluster'] or machine}: list prices on demand, Linux; a month is {answer['hours']} hours"
    typer.echo(head + (f"; {', '.join(sorted(where))}" if where else ""))
    if answer["groups"]:
        _groups(console, answer)
    for line in placement.lines(answer["site_choices"]):
        typer.echo(line)
    for group in answer["groups"]:
        if group["spot"] and group["spot"]["zones"]:
            _spot(console, group["machine"], group["region"], group["spot"])
    if answer["regions"]:
        _regions(console, answer, one=machine)
    elif machine:
        _nothing(machine)
    if machine and not wide:
        _spots(console, answer)
    if answer["not_included"]:
        typer.echo(f"\nnot included: {'; '.join(answer['not_included'])}")


def _of_own_machines(answer: dict[str, Any]) -> str:
    """The answer for a fleet that is not bought: no table, because each of its cells would say the same."""
    groups = answer["groups"]
    if not groups or any(way["price"] != "nothing" for group in groups for way in group["ways"]):
        return ""
    machines = ", ".join(f"{group['count']} × {group['machine']}" for group in groups)
    subject = f"{answer['cluster']}: {machines}" if answer["cluster"] else groups[0]["machine"]
    return f"{subject}: {groups[0]['ways'][0]['unknown']}"


def _table(*columns: str, numbers: tuple[str, ...] = ()) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in numbers else "left", no_wrap=True)
    return table


def _groups(console: Console, answer: dict[str, Any]) -> None:
    from provisioner.cost import money

    numbers = ("each an hour", "an hour", "a month")
    table = _table("group", "machines", "bought", *numbers, numbers=numbers)
    why: dict[str, list[str]] = {}
    for group in answer["groups"]:
        name = group["group"] or group["machine"]
        for index, way in enumerate(group["ways"]):
            head = (name, f"{group['count']} × {group['machine']}") if index == 0 else ("", "")
            kind = way["kind"] if index == 0 else f"or {way['kind']}"
            amounts = ["nothing" if way["price"] == "nothing" else "unknown"] * 3
            if way["each"] is not None:
                amounts = [money(way[key], way["currency"]) for key in ("each", "hour", "month")]
            table.add_row(*head, kind, *amounts)
            said = way["unknown"] + (f"; {way['action']}" if way["action"] else "")
            said = said or (f"the price in {way['zone']} now" if way["zone"] else way["note"])
            if said:
                why.setdefault(said if way["price"] == "nothing" else f"{way['kind']}: {said}", []).append(name)
    typer.echo()
    console.print(table)
    for reason, names in why.items():
        typer.echo(f"{', '.join(dict.fromkeys(names))}: {reason}")
    listed, asked = answer["totals"]["on_demand"], answer["totals"]["wanted"]
    for line in _totals("on demand", listed):
        typer.echo(line)
    if asked != listed:
        for line in _totals("as it is bought now", asked):
            typer.echo(line)


def _totals(what: str, total: dict[str, Any]) -> list[str]:
    from provisioner.cost import as_of, money

    lines = []
    without = f", without {', '.join(total['unknown'])}: unknown" if total["unknown"] else ""
    for one in total["sums"]:
        dates = f" (list prices of {as_of(one['dates'])})" if one["dates"] else ""
        hour, month = money(one["hour"], one["currency"]), money(one["month"], one["currency"])
        lines.append(f"total {what}: {hour} an hour, {month} a month{dates}{without}")
    return lines or [f"total {what}: unknown"]


def _spot(console: Console, machine: str, region: str, spot: dict[str, Any]) -> None:
    from provisioner.cost import money

    typer.echo(f"\nspot: one {machine} in {region} for an hour, now and over the last {spot['days']} days")
    numbers = ("now", "low", "median", "high", "saves")
    table = _table("zone", *numbers, numbers=numbers)
    for zone in spot["zones"]:
        prices = (zone[key] for key in ("now", "low", "median", "high"))
        amounts = ("-" if price is None else money(price, zone["currency"]) for price in prices)
        table.add_row(zone["zone"], *amounts, "-" if zone["saving"] is None else f"{zone['saving']:.0%}")
    console.print(table)


def _spots(console: Console, answer: dict[str, Any]) -> None:
    for place in answer["regions"]:
        for there in place["machines"]:
            if there["spot"] and there["spot"]["zones"]:
                _spot(console, there["machine"], place["region"], there["spot"])


def _regions(console: Console, answer: dict[str, Any], *, one: str | None) -> None:
    from provisioner.cost import as_of, money

    compared = any(place["against"] is not None for place in answer["regions"])
    numbers = ("an hour", "a month", *(("against here",) if compared else ()))
    asked = any(there["unknown"] != "not asked" for place in answer["regions"] for there in place["machines"])
    spot = any(_from(place) for place in answer["regions"])
    typer.echo(f"\n{'one machine' if one else 'the same fleet'} by region, on demand")
    more = (*(("one as spot, from",) if spot else ()), *(("sold in",) if asked else ()))
    table = _table("region", *numbers, "as of", *more, numbers=(*numbers, "one as spot, from"))
    why: dict[str, list[str]] = {}
    for place in answer["regions"]:
        amounts = ["unknown", "unknown"]
        if place["hour"] is not None:
            amounts = [money(place[key], place["currency"]) for key in ("hour", "month")]
        if compared:
            amounts.append("-" if place["here"] or place["against"] is None else f"{place['against']:+.0%}")
        name = place["region"] + (" (here)" if place["here"] else "")
        table.add_row(
            name,
            *amounts,
            as_of(place["dates"]) or "-",
            *((_from(place) or "-",) if spot else ()),
            *((_sold(place),) if asked else ()),
        )
        if place["unknown"]:
            why.setdefault(place["unknown"], []).append(place["region"])
        for there in place["machines"]:
            if there["unknown"] not in ("", "not asked"):
                said = there["unknown"] + (f"; {there['action']}" if there["action"] else "")
                why.setdefault(f"whether it is sold there is unknown: {said}", []).append(place["region"])
    console.print(table)
    for reason, names in why.items():
        where = dict.fromkeys(names)
        typer.echo(f"{'everywhere' if len(where) == len(answer['regions']) > 1 else ', '.join(where)}: {reason}")
    if not asked:
        why_not = (
            "was not asked (--offline)" if not answer["asked"] else "can't be asked: look at the provider's console"
        )
        typer.echo(f"where it is sold {why_not}")


def _from(place: dict[str, Any]) -> str:
    """What spot costs now in the cheapest zone, where the fleet is of one type; empty where nobody knows."""
    from provisioner.cost import money

    zones = [zone for there in place["machines"] if there["spot"] for zone in there["spot"]["zones"] or ()]
    if len(place["machines"]) != 1 or not zones:
        return ""
    cheapest = min(zones, key=lambda zone: float(zone["now"]))
    return f"{money(cheapest['now'], cheapest['currency'])} ({cheapest['zone'].removeprefix(place['region'])})"


def _sold(place: dict[str, Any]) -> str:
    """The zones that sell every machine."""
    told = [there["zones"] for there in place["machines"]]
    if any(zones is None for zones in told):
        return "unknown"
    common = set.intersection(*(set(zones) for zones in told))
    return ", ".join(zone.removeprefix(place["region"]) for zone in sorted(common)) or "nowhere"


def _nothing(machine: str) -> None:
    from provisioner import catalog
    from provisioner.cost import offer

    found = offer(catalog.load().machine(machine), "any region")
    said = catalog.load().without_price(catalog.load().machine(machine)) or found.unknown
    typer.echo(f"unknown: {said}" + (f" ({found.action})" if found.action else ""))
