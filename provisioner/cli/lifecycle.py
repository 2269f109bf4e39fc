"""`lock`, `plan`, `up`, `down`, `status`: the cluster's life."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from provisioner.errors import Exit, GpuprovError

if TYPE_CHECKING:
    from provisioner.cli.display import Bars, Lines
    from provisioner.lifecycle.up import Confirm, Run
    from provisioner.plan import Plan

File = Annotated[Path, typer.Argument(metavar="FILE", help="cluster.yaml")]
Sandbox = Annotated[
    bool | None,
    typer.Option("--sandbox/--no-sandbox", help="Rehearse on this machine: podman nodes with simulated hardware."),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
TerraformBinary = Annotated[
    str | None, typer.Option("--terraform", metavar="PATH", help="The terraform or tofu to run.")
]


def lock(
    file: File,
    sandbox: Sandbox = None,
    upgrade: Annotated[bool, typer.Option("--upgrade", help="Choose again, even where the lock still fits.")] = False,
) -> None:
    """Choose versions that go together and write cluster.lock."""
    from provisioner.cli.display import display
    from provisioner.lifecycle import locking
    from provisioner.session import open_cluster

    with display() as show:
        cluster = open_cluster(file, sandbox=sandbox)
        cluster.events.subscribe(show)
        if cluster.sandbox:
            cluster.paths.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        made = locking.renew(cluster, cluster.events) if upgrade else locking.current(cluster, cluster.events)
    for name, group in made.groups.items():
        versions = {"driver": group.driver, "CUDA": group.cuda_toolkit, "NCCL": group.nccl}
        known = [f"{what} {version}" for what, version in versions.items() if version]
        typer.echo(f"{name}: {', '.join(known) or 'nothing of NVIDIA'}")
    typer.echo(f"written: {cluster.paths.lock_file}", err=True)


def plan(file: File, sandbox: Sandbox = None, json_: Json = False, terraform: TerraformBinary = None) -> None:
    """Say what `up` would make and change. Makes nothing."""
    from provisioner.cli.display import display
    from provisioner.lifecycle import planning
    from provisioner.session import open_cluster
    from provisioner.workspace.binary import find

    with display(quiet=json_) as show:
        cluster = open_cluster(file, sandbox=sandbox)
        cluster.events.subscribe(show)
        document = planning.plan(cluster, find(terraform))
    if json_:
        _print_json(document)
    else:
        typer.echo(planning.text(document))
    if any(finding["status"] == "blocks" for finding in document["findings"]):
        raise typer.Exit(Exit.PROVIDER_FAILED)


def up(
    file: File, sandbox: Sandbox = None, yes: Yes = False, json_: Json = False, terraform: TerraformBinary = None
) -> None:
    """Make the fleet, install the stack, prove every node. Safe to run again: it goes on where it stopped."""
    from provisioner.cli.display import display
    from provisioner.lifecycle import up as lifecycle
    from provisioner.process import interrupt
    from provisioner.session import open_cluster
    from provisioner.workspace.binary import find

    cluster = open_cluster(file, sandbox=sandbox)
    for sign in (signal.SIGINT, signal.SIGTERM):
        signal.signal(sign, interrupt)
    screen = display(quiet=json_)
    confirm = _confirm(screen, yes=yes, file=file, simulated=cluster.sandbox)
    try:
        with screen as show:
            cluster.events.subscribe(show)
            run = lifecycle.up(cluster, find(terraform), confirm=confirm)
    except KeyboardInterrupt:
        typer.echo(f"\ninterrupted. Nothing is lost; `{_again(file, cluster.sandbox)}` goes on from here.", err=True)
        raise typer.Exit(Exit.INTERRUPTED) from None
    if run.report is None:
        typer.echo("nothing was made", err=True)
        raise typer.Exit(Exit.OK)
    _tell(run, as_json=json_)
    raise typer.Exit(run.exit)


def _again(file: Path, sandbox: bool) -> str:
    return f"gpuprov up {file}{' --sandbox' if sandbox else ''}"


def _confirm(screen: Bars | Lines, *, yes: bool, file: Path, simulated: bool) -> Confirm:
    def ask(wanted: Plan, changes: int) -> bool:
        if yes:
            return True
        if not sys.stdin.isatty():
            raise GpuprovError(
                f"{changes} Terraform changes, and nobody to ask", where=str(file), hint="give --yes to make them"
            )
        what = ", ".join(f"{g.spec.count} × {g.machine.name}" for g in wanted.groups)
        with screen.paused():
            return typer.confirm(f"{'Rehearse' if simulated else 'Make'} {what} ({changes} changes)?", err=True)

    return ask


def _tell(run: Run, *, as_json: bool) -> None:
    assert run.report is not None
    if as_json:
        document = run.report.to_json()
        document["ok"] = run.healthy
        document["seconds"] = run.seconds
        document["changes"] = {"resources": run.resources, "configured": run.configured}
        document["report"] = str(run.page)
        _print_json(document)
        return
    from rich.console import Console

    from provisioner.verify.report.terminal import table

    Console().print(table(run.report))
    seconds = ", ".join(f"{stage} {took:.1f} s" for stage, took in run.seconds.items())
    typer.echo(f"{run.changes} changes in {sum(run.seconds.values()):.1f} s ({seconds})")
    typer.echo(f"report: {run.page}")


def down(
    file: File, sandbox: Sandbox = None, yes: Yes = False, json_: Json = False, terraform: TerraformBinary = None
) -> None:
    """Remove everything that `up` made, and say so."""
    from provisioner.cli.display import display
    from provisioner.lifecycle import down as lifecycle
    from provisioner.session import open_cluster
    from provisioner.workspace.binary import find

    cluster = open_cluster(file, sandbox=sandbox)
    if not cluster.paths.exists():
        _say_down(cluster.spec.name, 0, as_json=json_)
        return
    names = lifecycle.made(cluster)
    if not yes:
        if not sys.stdin.isatty():
            raise GpuprovError(
                f"{len(names)} nodes would be removed, and nobody to ask", where=str(file), hint="give --yes"
            )
        if not typer.confirm(f"Remove {', '.join(names) or 'what is left'} of {cluster.spec.name}?", err=True):
            typer.echo("nothing was removed", err=True)
            return
    with display(quiet=json_) as show:
        cluster.events.subscribe(show)
        removal = lifecycle.down(cluster, find(terraform))
    _say_down(cluster.spec.name, removal.removed, as_json=json_)


def _say_down(name: str, removed: int, *, as_json: bool) -> None:
    if as_json:
        _print_json({"cluster": name, "removed": removed, "left": []})
    else:
        typer.echo(f"{name}: {removed} resources removed, nothing is left" if removed else f"{name}: nothing is there")


def status(file: File, sandbox: Sandbox = None, json_: Json = False) -> None:
    """Nodes, their addresses, how far they are, and their last verdict."""
    from provisioner.lifecycle.status import status as read
    from provisioner.session import open_cluster

    document = read(open_cluster(file, sandbox=sandbox))
    if json_:
        _print_json(document)
        return
    from rich.console import Console
    from rich.table import Table

    simulated = " (simulated hardware)" if document["sandbox"] else ""
    table = Table(title=f"{document['cluster']}{simulated}", title_justify="left", box=None, pad_edge=False)
    for column in ("node", "machine", "site", "address", "stage", "healthy"):
        table.add_column(column)
    for node in document["nodes"]:
        verdict = {True: "yes", False: "NO", None: "-"}[node["ok"]]
        table.add_row(node["name"], node["machine"], node["site"], node["address"] or "-", node["stage"], verdict)
    Console().print(table)
    if document["report"]:
        typer.echo(f"report: {document['report']}")


def unlock(file: File, sandbox: Sandbox = None) -> None:
    """Clear what a dead run left of its lock. A living one is never disturbed."""
    from provisioner.session import open_cluster

    cluster = open_cluster(file, sandbox=sandbox)
    if not cluster.paths.exists():
        typer.echo(f"{cluster.spec.name}: nothing is there")
        return
    with cluster.exclusively("unlock"):  # raises LockedError while the holder lives: the kernel knows
        stale = sorted(cluster.paths.root.glob("sites/*/.terraform.tfstate.lock.info"))
        for info in stale:
            info.unlink()
    typer.echo(f"{cluster.spec.name}: no run holds it" + (f", {len(stale)} stale file(s) removed" if stale else ""))


def _print_json(document: dict[str, Any]) -> None:
    typer.echo(json.dumps(document, indent=2))
