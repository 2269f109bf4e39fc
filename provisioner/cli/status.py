"""`gpuprov status`: the nodes, and with --watch a living view of them while a run is at work."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from provisioner.cli import json_output, tables
from provisioner.cli.options import File, Json, Sandbox
from provisioner.errors import GpuprovError
from provisioner.text import printable

if TYPE_CHECKING:
    from rich.table import Table


def status(
    file: File,
    sandbox: Sandbox = None,
    json_: Json = False,
    offline: Annotated[bool, typer.Option("--offline", help="Read local files only; connect to no node.")] = False,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Follow the run in progress; Ctrl-C stops watching.")
    ] = False,
) -> None:
    """Show each node: its stage, last verdict, the lock that it runs, and what differs from it."""
    from provisioner.lifecycle.status import status as read
    from provisioner.session import open_cluster

    if watch:
        from provisioner.cli.watch import watch as follow

        if json_:
            raise GpuprovError("--watch and --json cannot be combined", hint="for JSON, read the run's events.jsonl")
        follow(open_cluster(file, sandbox=sandbox, offline=offline))
        return
    document = read(open_cluster(file, sandbox=sandbox, offline=offline), ask=not offline)
    if json_:
        json_output.write(document)
        return
    tables.show(table(document, offline=offline))
    for line in lines(document, file):
        typer.echo(line)


def table(document: dict[str, Any], *, offline: bool) -> Table:
    """The nodes of a `status` document, a row each."""
    from rich.table import Table

    simulated = " (simulated hardware)" if document["sandbox"] else ""
    made = Table(title=f"{document['cluster']}{simulated}", title_justify="left", box=None, pad_edge=False)
    # In a terminal the one site of all goes without saying: the columns are for what can't be broken.
    several = len({node["site"] for node in document["nodes"]}) > 1 or not sys.stdout.isatty()
    columns = ["node", "machine", *(["site"] if several else []), "address", "stage", "healthy", "driver", "as locked"]
    for column in columns:
        made.add_column(column, overflow="fold", no_wrap=column != "as locked")
    for node in document["nodes"]:
        verdict = {True: "yes", False: "NO", None: "-"}[node["ok"]]
        drift = "-" if not node["address"] or offline else "?" if node["drift"] is None else "NO"
        made.add_row(
            node["name"], node["machine"], *([node["site"]] if several else []), node["address"] or "-", node["stage"],
            verdict, node["driver"] or "-", "yes" if node["drift"] == [] else drift,
        )  # fmt: skip
    return made


def _line(value: str) -> str:
    """What a BMC says, on one line: a line of its own would look like gpuprov's."""
    return " ".join(str(printable(value)).split())


def lines(document: dict[str, Any], file: Path) -> Iterator[str]:
    """What a `status` document says beside the table, a line each."""
    from provisioner.lifecycle import running_cost
    from provisioner.lifecycle.block_ends import ending
    from provisioner.lifecycle.planning import told
    from provisioner.verify.report.terminal import in_quarantine

    for node in document["nodes"]:
        for line in told(node):
            yield f"{node['name']}: {line}"
        if bmc := node.get("bmc"):
            said = ", ".join(f"{key} {bmc[key] or 'unknown'}" for key in ("power", "health"))
            if bmc["error"]:
                yield f"{node['name']}: its BMC could not be read: {_line(bmc['error'])}"
            elif (bmc["power"], bmc["health"]) != ("On", "OK"):
                yield f"{node['name']}: its BMC says: {_line(said)} (`gpuprov bmc {file} status {node['name']}`)"
        if node["quarantine"]:
            yield f"{node['name']}: {in_quarantine(node['name'], node['quarantine'], file)}"
        if node["replace"]:
            again = f"gpuprov replace {file} {node['name']}"
            yield f"{node['name']}: replacement: {node['replace']['step']}; `{again}` resumes it"
        if node["upgrade"]:
            reason = f": {node['upgrade']['reason']}" if node["upgrade"]["reason"] else ""
            yield f"{node['name']}: upgrade: {node['upgrade']['step']}{reason}"
    if document["upgrade"] and document["upgrade"]["phase"] != "done":
        reason = f": {document['upgrade']['reason']}" if document["upgrade"]["reason"] else ""
        yield f"upgrade to {document['upgrade']['to']}: {document['upgrade']['phase']}{reason}"
    for site, said in document.get("failed", {}).items():
        yield f"site {site}: the last `gpuprov up` failed there: {said}"
    yield from ending(document["ends"])
    yield from running_cost.lines(document["cost"]) if document["cost"] else ()
    if document["report"]:
        yield f"report: {document['report']}"
