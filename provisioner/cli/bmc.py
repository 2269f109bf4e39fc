"""`gpuprov bmc`: the machines by their BMCs, whatever runs on them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer

from provisioner.cli import json_output, tables
from provisioner.cli.options import File, Json, Yes
from provisioner.errors import Exit, GpuprovError
from provisioner.text import printable

if TYPE_CHECKING:
    from provisioner.lifecycle.out_of_band import Looked, Managed
    from provisioner.redfish.side_by_side import Outcome
    from provisioner.verify.bmc import Finding

What = Literal["status", "power", "sel"]
_KINDS = {
    "on": ("On", "ForceOn"), "off": ("GracefulShutdown",), "force-off": ("ForceOff",),
    "restart": ("GracefulRestart",), "force-restart": ("ForceRestart", "PowerCycle"),
}  # fmt: skip
_MOST = 20
"""Entries of a log that are shown without --all."""


def bmc(
    file: File,
    what: Annotated[str, typer.Argument(metavar="status|power|sel", help="what to ask")],
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[on|off|…] [NODE…]", help="power: what to do; nodes or hosts, else all"),
    ] = None,
    json_: Json = False,
    timeout: Annotated[float, typer.Option("--timeout", metavar="SECONDS", min=1, help="For one machine.")] = 60.0,
    save: Annotated[
        Path | None, typer.Option("--save", metavar="DIR", help="Keep what each BMC showed as DIR/HOST.redfish.json.")
    ] = None,
    kept: Annotated[
        Path | None, typer.Option("--from", metavar="DIR", help="Read what --save kept; ask no BMC.", exists=True)
    ] = None,
    all_: Annotated[
        bool, typer.Option("--all", help="Every entry of the event logs, not the last ones alone.")
    ] = False,
    yes: Yes = False,
) -> None:
    """Ask the machines' BMCs: health and parts, power, event logs; switch machines on and off."""
    from provisioner.lifecycle import bmc_facts, out_of_band
    from provisioner.session import open_cluster

    names = list(words or [])
    if what not in get_args(What):
        raise GpuprovError(f"there is no `bmc {what}`", hint="gpuprov bmc FILE status, power or sel")
    order = names.pop(0) if what == "power" and names and names[0] in _KINDS else ""
    cluster = open_cluster(file, sandbox=False)
    # A certificate that is pinned at first contact is for a person to compare.
    cluster.events.subscribe(
        lambda event: typer.echo(f"{event.node}: {event.message}", err=True) if event.node else None
    )
    asked = out_of_band.machines(cluster, names)
    if kept is not None and order:
        raise GpuprovError("--from switches no machine", hint="leave --from or the switch out")
    outcomes = out_of_band.look_back(asked, kept) if kept is not None else out_of_band.look(cluster, asked, timeout)
    looked = {one.machine: one.value for one in outcomes if one.value is not None}
    if save is not None:
        for path in out_of_band.save(save, looked):
            typer.echo(f"kept in {path}", err=True)
        for one in outcomes:
            if one.value is None:
                typer.echo(f"{one.machine}: nothing to keep, its BMC was not read", err=True)
    if order:
        _switch(cluster, asked, outcomes, order, names, yes=yes, seconds=timeout)
        return
    findings = bmc_facts.findings(cluster, asked, looked, live=kept is None) if what == "status" else {}
    document: dict[str, Any] = {
        "cluster": cluster.spec.name,
        # A BMC can call its machine whatever it likes.
        "machines": [printable(_row(o, m, findings, what)) for m, o in zip(asked, outcomes, strict=True)],
    }
    if json_:
        json_output.write(document)
    else:
        _show(document, what, _MOST if not all_ else None)
    bad = [one for one in document["machines"] if one["error"] or any(f["status"] == "fail" for f in one["findings"])]
    raise typer.Exit(Exit.CHECK_FAILED if bad else Exit.OK)


def _row(outcome: Outcome[Looked], one: Managed, findings: dict[str, list[Finding]], what: str) -> dict[str, Any]:
    row: dict[str, Any] = {
        "host": one.host.name,
        "node": one.node or None,
        "bmc": one.host.bmc,
        "error": None,
        "findings": [],
        "events": [],
    }
    if outcome.value is None:
        error = outcome.error
        hint = getattr(error, "hint", "")
        where, said = getattr(error, "where", ""), getattr(error, "message", str(error))
        row["error"] = {
            "kind": getattr(error, "kind", ""),
            "message": f"{where}: {said}" if where and where != one.host.name else said,
            "hint": hint,
        }
        return row
    from provisioner.redfish.document import versions

    found = outcome.value.found
    known = found.gpus.read or found.gpus.complete
    row |= {
        "power": found.power, "health": found.health, "vendor": found.vendor or None, "model": found.model,
        "serial": found.identity.best, "bios": found.bios, "firmware": found.bmc,
        "gpus": len(found.gpus.read) if known else None, "watts": found.drawn.drawn_w, "versions": versions(found),
    }  # fmt: skip
    row["findings"] = [
        {"check": f.check, "status": f.status, "message": f.message, "action": f.action}
        for f in findings.get(one.host.name, [])
    ]
    if what == "sel":
        entries = sorted((e for log in outcome.value.logs for e in log.entries), key=lambda e: e.time)
        row["events"] = [
            {"log": e.log, "id": e.id, "time": e.time, "severity": e.severity, "message": e.message} for e in entries
        ]
    return row


def _show(document: dict[str, Any], what: str, most: int | None) -> None:
    from rich.table import Table
    from rich.text import Text

    machines = document["machines"]
    if what != "sel":
        made = Table(box=None, pad_edge=False)
        columns = [
            "host",
            "node",
            "power",
            *(["health", "gpus", "watts", "model", "serial"] if what == "status" else ["serial"]),
        ]
        cells = [[Text(_cell(one.get(column))) for column in columns] for one in machines]
        for number, column in enumerate(columns):
            widest = max((row[number].cell_len for row in cells), default=0)
            made.add_column(column, no_wrap=True, min_width=max(widest, len(column)))
        for row in cells:
            made.add_row(*row)
        tables.show(made)
    for one in machines:
        name = one["node"] or one["host"]
        if one["error"]:
            typer.echo(
                _line(f"{name}: {one['error']['message']}")
                + (f"\n  {one['error']['hint']}" if one["error"]["hint"] else "")
            )
        for f in one["findings"]:
            if f["status"] in ("warn", "fail"):
                word = "FAIL" if f["status"] == "fail" else "warning"
                typer.echo(
                    _line(
                        f"{name}: {word}: {f['check']}: {f['message']}" + (f" ({f['action']})" if f["action"] else "")
                    )
                )
        unknown = [f["check"] for f in one["findings"] if f["status"] == "unknown"]
        if unknown:
            typer.echo(f"{name}: unknown: {', '.join(unknown)}")
        events = one["events"] if most is None else one["events"][-most:]
        if len(events) < len(one["events"]):
            typer.echo(f"{name}: the last {len(events)} of {len(one['events'])} entries; --all shows every one")
        for e in events:
            typer.echo(_line(f"{name}: {e['time'] or '-'} {e['severity'] or '-'} {e['log']}: {e['message']}"))


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.0f}"
    return "?" if value is None else _line(value)


def _line(value: object) -> str:
    """What a BMC says, on one line: a line of its own would look like gpuprov's."""
    return " ".join(str(printable(str(value))).split())


def _switch(
    cluster: Any, asked: list[Managed], outcomes: list[Outcome[Looked]], order: str, names: list[str], *,
    yes: bool, seconds: float,
) -> None:  # fmt: skip
    """Switch machines, which a person confirms by their serial numbers."""
    from dataclasses import replace

    from provisioner.cli.confirm import confirmed
    from provisioner.errors import Declined
    from provisioner.lifecycle import out_of_band

    if not names:
        raise GpuprovError(f"power {order} needs the machines' names", hint=f"gpuprov bmc FILE power {order} NODE…")
    chosen, failed = [], False
    for one, outcome in zip(asked, outcomes, strict=True):
        if outcome.value is None:
            typer.echo(printable(f"{one.node or one.host.name}: {outcome.error}"), err=True)
            failed = True
            continue
        shown = outcome.value.found.identity.best or ""
        if not one.serial and yes:
            raise GpuprovError(
                f"{one.host.name} has no serial number to be known by; its BMC shows {_line(shown) or 'none'}",
                where=str(cluster.file),
                hint="give `serial` for this host in cluster.yaml, or leave --yes out and confirm it",
            )  # fmt: skip
        chosen.append(replace(one, serial=one.serial or shown))
    if chosen:
        listed = ", ".join(f"{one.node or one.host.name} ({_line(one.serial)})" for one in chosen)
        if not confirmed(f"power {order}: {listed}?", yes=yes, where=str(cluster.file), declined="nothing was changed"):
            raise Declined("nothing was changed")
        with cluster.exclusively("bmc"):
            for done in out_of_band.switch(cluster, chosen, _KINDS[order], seconds):
                if done.error is not None:
                    typer.echo(printable(str(done.error)), err=True)
                    failed = True
                else:
                    typer.echo(f"{done.machine}: {order} sent; power is {_line(done.value)} now")
    raise typer.Exit(Exit.PROVIDER_FAILED if failed else Exit.OK)
