"""`gpuprov bmc`: the machines by their BMCs, whatever runs on them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer

from provisioner.cli import json_output, tables
from provisioner.cli.options import File, Json, Yes
from provisioner.common.errors import Exit, GpuprovError
from provisioner.common.text import printable

if TYPE_CHECKING:
    from provisioner.lifecycle.out_of_band import Looked, Managed
    from provisioner.machines.redfish.side_by_side import Outcome
    from provisioner.output.bmc import BmcMachine, BmcOutput
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
    from provisioner.lifecycle.session import open_cluster
    from provisioner.output.bmc import BmcMachine, BmcOutput

    names = list(words or [])
    if what not in get_args(What):
        raise GpuprovError(f"there is no `bmc {what}`", hint="gpuprov bmc FILE status, power or sel")
    order = names.pop(0) if what == "power" and names and names[0] in _KINDS else ""
    cluster = open_cluster(file, sandbox=False)
    # A certificate that is pinned at first contact is for a person to compare.
    cluster.events.subscribe(
        lambda event: typer.echo(f"{event.node}: {event.message}", err=True) if event.node else None
    )
    machines = out_of_band.machines(cluster, names)
    if kept is not None and order:
        raise GpuprovError("--from switches no machine", hint="leave --from or the switch out")
    outcomes = (
        out_of_band.look_back(machines, kept) if kept is not None else out_of_band.look(cluster, machines, timeout)
    )
    looked = {outcome.machine: outcome.value for outcome in outcomes if outcome.value is not None}
    if save is not None:
        for path in out_of_band.save(save, looked):
            typer.echo(f"kept in {path}", err=True)
        for outcome in outcomes:
            if outcome.value is None:
                typer.echo(f"{outcome.machine}: nothing to keep, its BMC was not read", err=True)
    if order:
        _switch(cluster, machines, outcomes, order, names, yes=yes, seconds=timeout)
        return
    findings = bmc_facts.findings(cluster, machines, looked, live=kept is None) if what == "status" else {}
    # A BMC can call its machine whatever it likes.
    rows = [printable(_row(o, m, findings, what).to_json()) for m, o in zip(machines, outcomes, strict=True)]
    document = BmcOutput(cluster=cluster.spec.name, machines=[BmcMachine(**row) for row in rows])
    if json_:
        json_output.write(document)
    else:
        _show(document, what, _MOST if not all_ else None)
    bad = [row for row in document.machines if row.error or any(f.status == "fail" for f in row.findings)]
    raise typer.Exit(Exit.CHECK_FAILED if bad else Exit.OK)


def _row(outcome: Outcome[Looked], managed: Managed, findings: dict[str, list[Finding]], view: str) -> BmcMachine:
    from provisioner.machines.redfish.document import versions
    from provisioner.output.bmc import BmcError, BmcEvent, BmcFinding, BmcMachine

    row = BmcMachine(
        host=managed.host.name, node=managed.node or None, bmc=managed.host.bmc, error=None, findings=[], events=[]
    )
    if outcome.value is None:
        error = outcome.error
        location, message = getattr(error, "where", ""), getattr(error, "message", str(error))
        row.error = BmcError(
            kind=getattr(error, "kind", ""),
            message=f"{location}: {message}" if location and location != managed.host.name else message,
            hint=getattr(error, "hint", ""),
        )
        return row
    facts = outcome.value.found
    known = facts.gpus.read or facts.gpus.complete
    row.power, row.health = facts.power, facts.health
    row.vendor, row.model, row.serial = facts.vendor or None, facts.model, facts.identity.best
    row.bios, row.firmware = facts.bios, facts.bmc
    row.gpus, row.watts = len(facts.gpus.read) if known else None, facts.drawn.drawn_w
    row.versions = versions(facts)
    row.findings = [
        BmcFinding(check=f.check, status=f.status, message=f.message, action=f.action)
        for f in findings.get(managed.host.name, [])
    ]
    if view == "sel":
        entries = sorted((e for log in outcome.value.logs for e in log.entries), key=lambda e: e.time)
        row.events = [
            BmcEvent(log=e.log, id=e.id, time=e.time, severity=e.severity, message=e.message) for e in entries
        ]
    return row


def _show(document: BmcOutput, view: str, maximum: int | None) -> None:
    from rich.table import Table
    from rich.text import Text

    machines = document.machines
    if view != "sel":
        table = Table(box=None, pad_edge=False)
        columns = [
            "host",
            "node",
            "power",
            *(["health", "gpus", "watts", "model", "serial"] if view == "status" else ["serial"]),
        ]
        cells = [[Text(_cell(getattr(machine, column))) for column in columns] for machine in machines]
        for number, column in enumerate(columns):
            widest = max((row[number].cell_len for row in cells), default=0)
            table.add_column(column, no_wrap=True, min_width=max(widest, len(column)))
        for row in cells:
            table.add_row(*row)
        tables.show(table)
    for machine in machines:
        name = machine.node or machine.host
        if machine.error:
            typer.echo(
                _line(f"{name}: {machine.error.message}") + (f"\n  {machine.error.hint}" if machine.error.hint else "")
            )
        for f in machine.findings:
            if f.status in ("warn", "fail"):
                label = "FAIL" if f.status == "fail" else "warning"
                typer.echo(_line(f"{name}: {label}: {f.check}: {f.message}" + (f" ({f.action})" if f.action else "")))
        unknown = [f.check for f in machine.findings if f.status == "unknown"]
        if unknown:
            typer.echo(f"{name}: unknown: {', '.join(unknown)}")
        events = machine.events if maximum is None else machine.events[-maximum:]
        if len(events) < len(machine.events):
            typer.echo(f"{name}: the last {len(events)} of {len(machine.events)} entries; --all shows every one")
        for e in events:
            typer.echo(_line(f"{name}: {e.time or '-'} {e.severity or '-'} {e.log}: {e.message}"))


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.0f}"
    return "?" if value is None else _line(value)


def _line(value: object) -> str:
    """What a BMC says, on one line: a line of its own would look like gpuprov's."""
    return " ".join(str(printable(str(value))).split())


def _switch(
    cluster: Any, machines: list[Managed], outcomes: list[Outcome[Looked]], order: str, names: list[str], *,
    yes: bool, seconds: float,
) -> None:  # fmt: skip
    """Switch machines, which a person confirms by their serial numbers."""
    from dataclasses import replace

    from provisioner.cli.confirm import confirmed
    from provisioner.common.errors import Declined
    from provisioner.lifecycle import out_of_band

    if not names:
        raise GpuprovError(f"power {order} needs the machines' names", hint=f"gpuprov bmc FILE power {order} NODE…")
    chosen, failed = [], False
    for managed, outcome in zip(machines, outcomes, strict=True):
        if outcome.value is None:
            typer.echo(printable(f"{managed.node or managed.host.name}: {outcome.error}"), err=True)
            failed = True
            continue
        bmc_serial = outcome.value.found.identity.best or ""
        if not managed.serial and yes:
            raise GpuprovError(
                f"{managed.host.name} has no serial number to be known by; its BMC shows {_line(bmc_serial) or 'none'}",
                where=str(cluster.file),
                hint="give `serial` for this host in cluster.yaml, or leave --yes out and confirm it",
            )  # fmt: skip
        chosen.append(replace(managed, serial=managed.serial or bmc_serial))
    if chosen:
        listed = ", ".join(
            f"{chosen_machine.node or chosen_machine.host.name} ({_line(chosen_machine.serial)})"
            for chosen_machine in chosen
        )
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
