"""`gpuprov replace`: a new machine for a bad one."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from provisioner.errors import Declined, GpuprovError, Interrupted

if TYPE_CHECKING:
    from provisioner.plan import Plan


def replace(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="cluster.yaml")],
    nodes: Annotated[list[str], typer.Argument(metavar="NODE…", help="nodes of it")],
    force_budget: Annotated[
        bool,
        typer.Option("--force-budget", help="More at once than quarantine.share; never more than quarantine.most."),
    ] = False,
    even_if_healthy: Annotated[
        bool, typer.Option("--even-if-healthy", help="Also nodes that the last verdict found healthy.")
    ] = False,
    sandbox: Annotated[
        bool | None, typer.Option("--sandbox/--no-sandbox", help="The rehearsal, or the real fleet.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
    terraform: Annotated[
        str | None, typer.Option("--terraform", metavar="PATH", help="The terraform or tofu to run.")
    ] = None,
) -> None:
    """Drain nodes, make new machines for them, prove those, put them into service. Goes on where it stopped."""
    from provisioner.cli.display import display
    from provisioner.cli.lifecycle import tell
    from provisioner.lifecycle import replacing
    from provisioner.process import interrupt
    from provisioner.session import open_cluster
    from provisioner.workspace.binary import find

    cluster = open_cluster(file, sandbox=sandbox)
    cluster.require_rights()
    for sign in (signal.SIGINT, signal.SIGTERM):
        signal.signal(sign, interrupt)
    screen, options = display(quiet=json_), replacing.Options(force_budget, even_if_healthy)

    def confirm(_: Plan, changes: int) -> bool:
        if yes:
            return True
        if not sys.stdin.isatty():
            raise GpuprovError("machines would be destroyed, and nobody to ask", where=str(file), hint="give --yes")
        with screen.paused():
            return typer.confirm(f"Destroy {', '.join(nodes)} and make new ones ({changes} changes)?", err=True)

    try:
        with screen as show:
            cluster.events.subscribe(show)
            run = replacing.replace(cluster, find(terraform), nodes, options, confirm=confirm)
    except KeyboardInterrupt:
        raise Interrupted("interrupted. Nothing is lost", hint="the same command goes on from here.") from None
    if run.report is None:
        raise Declined("nothing was replaced")
    tell(run, as_json=json_)
    raise typer.Exit(run.exit)
