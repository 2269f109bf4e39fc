"""`gpuprov replace`: a new machine for a bad one."""

from __future__ import annotations

from typing import Annotated

import typer

from provisioner.cli.confirm import confirmed
from provisioner.cli.exit import resumable
from provisioner.cli.options import File, Json, TerraformBinary, Yes
from provisioner.common.errors import Declined
from provisioner.common.text import counted
from provisioner.common.typed_command import typed


def replace(
    file: File,
    nodes: Annotated[list[str], typer.Argument(metavar="NODE…", help="nodes of FILE")],
    force_budget: Annotated[
        bool,
        typer.Option("--force-budget", help="Ignore quarantine.share; quarantine.most still holds."),
    ] = False,
    even_if_healthy: Annotated[
        bool, typer.Option("--even-if-healthy", help="Also replace nodes that the last verdict found healthy.")
    ] = False,
    sandbox: Annotated[
        bool | None, typer.Option("--sandbox/--no-sandbox", help="The sandbox, or the real fleet.")
    ] = None,
    yes: Yes = False,
    json_: Json = False,
    terraform: TerraformBinary = None,
) -> None:
    """Drain nodes, replace their machines, verify the new ones, put them into service. Resumes where it stopped."""
    from provisioner.cli.display import display
    from provisioner.cli.lifecycle import print_result
    from provisioner.lifecycle.replace import command as replacement
    from provisioner.lifecycle.session import open_cluster
    from provisioner.machines.terraform.binary import find

    cluster = open_cluster(file, sandbox=sandbox)
    cluster.require_rights()
    screen, options = display(quiet=json_), replacement.Options(force_budget, even_if_healthy)

    def confirm(changes: int) -> bool:
        new = "a new machine" if len(nodes) == 1 else "new machines"
        question = f"Destroy {', '.join(nodes)} of {cluster.label} and create {new} ({counted(changes, 'resource')})?"
        return confirmed(question, yes=yes, where=str(file), declined="nothing was destroyed", screen=screen)

    with resumable(f"resume with `{typed('replace', file, sandbox=cluster.sandbox, names=nodes)}`"), screen as show:
        cluster.events.subscribe(show)
        run = replacement.replace(
            cluster, find(terraform, needed=cluster.needs_terraform), nodes, options, confirm=confirm
        )
    if run.report is None:
        raise Declined("nothing was destroyed")
    print_result(run, cluster, as_json=json_)
    raise typer.Exit(run.exit)
