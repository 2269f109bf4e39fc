"""cost: what a fleet or a machine costs, here and elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from provisioner.cli import json_output, tables
from provisioner.common.errors import GpuprovError

WIDTH = 120
"""Of tables, where the terminal is narrower: a line that wraps can be read, a number that is cut is another number."""

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from provisioner.output.cost import CostOutput, CostRegion, CostTotal, SpotOutput
    from provisioner.output.site_choice import SiteChoiceOutput
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
    from provisioner.lifecycle.cost import Wanted, wanted
    from provisioner.lifecycle.cost.document import document
    from provisioner.lifecycle.cost.regions import compare, listen

    if (file is None) == (machine is None):
        raise GpuprovError("a cluster.yaml or --machine is needed, and not both", hint="gpuprov cost cluster.yaml")
    if file is not None:
        loaded, choices = _with_chosen_sites(file, spec.load(file))
        fleet, cluster = wanted(loaded), loaded.name
    else:
        assert machine is not None
        machine_type = catalog.load().machine(machine)
        fleet, cluster, choices = [Wanted(machine_type)], None, []
    _known(fleet[0].provider if machine else None, region or [])
    places = compare([group for group in fleet if catalog.load().provider(group.provider).sells], region or [])
    heard = None if offline else listen(fleet, places, spot=machine is not None)
    answer = document(fleet, places, heard, cluster=cluster)
    answer.site_choices = choices
    if as_json:
        json_output.write(answer)
    else:
        _show(answer, machine, wide=not region)


def _with_chosen_sites(file: Path, loaded: ClusterSpec) -> tuple[ClusterSpec, list[SiteChoiceOutput]]:
    """The file with the site of each group that was chosen among several, by the run directory of the real cluster,
    and these choices (placement.rows)."""
    from provisioner.common.paths import ClusterPaths
    from provisioner.rundir import placement

    paths = ClusterPaths(file, loaded.name, sandbox=False)
    placed = placement.with_chosen_sites(loaded, paths)
    return placed, placement.rows(placed, paths)


def _known(provider: Any, regions: list[str]) -> None:
    """A region that is spelt wrong is told, rather than had no price."""
    import re

    from provisioner import catalog

    sellers = catalog.load().providers()
    for name in regions:
        if not any(p.region and re.fullmatch(p.region, name) for p in sellers if provider in (None, p.name)):
            raise GpuprovError(f"--region {name}: no provider names its regions so", hint="such as us-east-1")


def _show(answer: CostOutput, machine: str | None, *, wide: bool) -> None:
    """Tables for people. `wide`: all regions are compared, and spot is told zone by zone only where the fleet is."""
    from provisioner.rundir import placement

    if sentence := _of_own_machines(answer):
        typer.echo(sentence)
        return
    console = tables.console(minimum_width=WIDTH)
    regions = {group.region for group in answer.groups if group.region}
    head = f"{answer.cluster or machine}: list prices on demand, Linux; a month is {answer.hours} hours"
    typer.echo(head + (f"; {', '.join(sorted(regions))}" if regions else ""))
    if answer.groups:
        _groups(console, answer)
    for line in placement.lines(answer.site_choices):
        typer.echo(line)
    for group in answer.groups:
        if group.spot and group.spot.zones:
            _spot(console, group.machine, group.region or "", group.spot)
    if answer.regions:
        _regions(console, answer, machine=machine)
    elif machine:
        _nothing(machine)
    if machine and not wide:
        _spots(console, answer)
    if answer.not_included:
        typer.echo(f"\nnot included: {'; '.join(answer.not_included)}")


def _of_own_machines(answer: CostOutput) -> str:
    """The answer for a fleet that is not bought: no table, because each of its cells would say the same."""
    groups = answer.groups
    if not groups or any(option.price != "nothing" for group in groups for option in group.ways):
        return ""
    machines = ", ".join(f"{group.count} × {group.machine}" for group in groups)
    subject = f"{answer.cluster}: {machines}" if answer.cluster else groups[0].machine
    return f"{subject}: {groups[0].ways[0].unknown}"


def _table(*columns: str, numbers: tuple[str, ...] = ()) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in numbers else "left", no_wrap=True)
    return table


def _groups(console: Console, answer: CostOutput) -> None:

    numbers = ("each an hour", "an hour", "a month")
    table = _table("group", "machines", "bought", *numbers, numbers=numbers)
    names_by_reason: dict[str, list[str]] = {}
    for group in answer.groups:
        name = group.group or group.machine
        for index, option in enumerate(group.ways):
            head = (name, f"{group.count} × {group.machine}") if index == 0 else ("", "")
            kind = option.kind if index == 0 else f"or {option.kind}"
            amounts = ["nothing" if option.price == "nothing" else "unknown"] * 3
            if option.each is not None:
                amounts = [_money(amount, option.currency) for amount in (option.each, option.hour, option.month)]
            table.add_row(*head, kind, *amounts)
            remark = option.unknown + (f"; {option.action}" if option.action else "")
            remark = remark or (f"the price in {option.zone} now" if option.zone else option.note)
            if remark:
                names_by_reason.setdefault(
                    remark if option.price == "nothing" else f"{option.kind}: {remark}", []
                ).append(name)
    typer.echo()
    console.print(table)
    for reason, names in names_by_reason.items():
        typer.echo(f"{', '.join(dict.fromkeys(names))}: {reason}")
    listed, as_bought = answer.totals.on_demand, answer.totals.wanted
    for line in _totals("on demand", listed):
        typer.echo(line)
    if as_bought != listed:
        for line in _totals("as it is bought now", as_bought):
            typer.echo(line)


def _money(amount: float | None, currency: str | None) -> str:
    from provisioner.common.text import money

    return "unknown" if amount is None or currency is None else money(amount, currency)


def _totals(label: str, total: CostTotal) -> list[str]:
    from provisioner.common.text import money
    from provisioner.lifecycle.cost import as_of

    lines = []
    without = f", without {', '.join(total.unknown)}: unknown" if total.unknown else ""
    for amount in total.sums:
        dates = f" (list prices of {as_of(amount.dates)})" if amount.dates else ""
        hour, month = money(amount.hour, amount.currency), money(amount.month, amount.currency)
        lines.append(f"total {label}: {hour} an hour, {month} a month{dates}{without}")
    return lines or [f"total {label}: unknown"]


def _spot(console: Console, machine: str, region: str, spot: SpotOutput) -> None:
    from provisioner.common.text import money

    typer.echo(f"\nspot: one {machine} in {region} for an hour, now and over the last {spot.days} days")
    numbers = ("now", "low", "median", "high", "saves")
    table = _table("zone", *numbers, numbers=numbers)
    for zone in spot.zones or ():
        prices = (zone.now, zone.low, zone.median, zone.high)
        amounts = ("-" if price is None else money(price, zone.currency) for price in prices)
        table.add_row(zone.zone, *amounts, "-" if zone.saving is None else f"{zone.saving:.0%}")
    console.print(table)


def _spots(console: Console, answer: CostOutput) -> None:
    for region_row in answer.regions:
        for machine_row in region_row.machines:
            if machine_row.spot and machine_row.spot.zones:
                _spot(console, machine_row.machine, region_row.region, machine_row.spot)


def _regions(console: Console, answer: CostOutput, *, machine: str | None) -> None:
    from provisioner.lifecycle.cost import as_of

    compared = any(region_row.against is not None for region_row in answer.regions)
    numbers = ("an hour", "a month", *(("against here",) if compared else ()))
    is_asked = any(
        machine_row.unknown != "not asked" for region_row in answer.regions for machine_row in region_row.machines
    )
    spot = any(_from(region_row) for region_row in answer.regions)
    typer.echo(f"\n{'one machine' if machine else 'the same fleet'} by region, on demand")
    more = (*(("one as spot, from",) if spot else ()), *(("sold in",) if is_asked else ()))
    table = _table("region", *numbers, "as of", *more, numbers=(*numbers, "one as spot, from"))
    names_by_reason: dict[str, list[str]] = {}
    for priced_region in answer.regions:
        amounts = ["unknown", "unknown"]
        if priced_region.hour is not None:
            amounts = [_money(amount, priced_region.currency) for amount in (priced_region.hour, priced_region.month)]
        if compared:
            amounts.append(
                "-" if priced_region.here or priced_region.against is None else f"{priced_region.against:+.0%}"
            )
        name = priced_region.region + (" (here)" if priced_region.here else "")
        table.add_row(
            name,
            *amounts,
            as_of(priced_region.dates) or "-",
            *((_from(priced_region) or "-",) if spot else ()),
            *((_sold(priced_region),) if is_asked else ()),
        )
        if priced_region.unknown:
            names_by_reason.setdefault(priced_region.unknown, []).append(priced_region.region)
        for machine_row in priced_region.machines:
            if machine_row.unknown not in ("", "not asked"):
                reason_text = machine_row.unknown + (f"; {machine_row.action}" if machine_row.action else "")
                names_by_reason.setdefault(f"whether it is sold there is unknown: {reason_text}", []).append(
                    priced_region.region
                )
    console.print(table)
    for reason, names in names_by_reason.items():
        region_names = dict.fromkeys(names)
        typer.echo(
            f"{'everywhere' if len(region_names) == len(answer.regions) > 1 else ', '.join(region_names)}: {reason}"
        )
    if not is_asked:
        why_not = "was not asked (--offline)" if not answer.asked else "can't be asked: look at the provider's console"
        typer.echo(f"where it is sold {why_not}")


def _from(region_row: CostRegion) -> str:
    """What spot costs now in the cheapest zone, where the fleet is of one type; empty where nobody knows."""
    from provisioner.common.text import money

    zones = [zone for machine_row in region_row.machines if machine_row.spot for zone in machine_row.spot.zones or ()]
    if len(region_row.machines) != 1 or not zones:
        return ""
    cheapest = min(zones, key=lambda zone: float(zone.now))
    return f"{money(cheapest.now, cheapest.currency)} ({cheapest.zone.removeprefix(region_row.region)})"


def _sold(region_row: CostRegion) -> str:
    """The zones that sell every machine."""
    zone_lists = [machine_row.zones for machine_row in region_row.machines]
    known = [set(zones) for zones in zone_lists if zones is not None]
    if len(known) < len(zone_lists):
        return "unknown"
    common = set.intersection(*known)
    return ", ".join(zone.removeprefix(region_row.region) for zone in sorted(common)) or "nowhere"


def _nothing(machine: str) -> None:
    from provisioner import catalog
    from provisioner.lifecycle.cost import offer

    unpriced = offer(catalog.load().machine(machine), "any region")
    reason = catalog.load().without_price(catalog.load().machine(machine)) or unpriced.unknown
    typer.echo(f"unknown: {reason}" + (f" ({unpriced.action})" if unpriced.action else ""))
