"""`gpuprov quarantine`, `release`: a person takes nodes out of service, or puts them back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from provisioner.common.errors import Exit, GpuprovError

if TYPE_CHECKING:
    from provisioner.common.events import Event
    from provisioner.lifecycle.session import Cluster

File = Annotated[Path, typer.Argument(metavar="FILE", help="cluster.yaml")]
Nodes = Annotated[list[str], typer.Argument(metavar="NODE…", help="nodes of FILE")]
Sandbox = Annotated[bool | None, typer.Option("--sandbox/--no-sandbox", help="the sandbox, or the real fleet")]


def quarantine(
    file: File,
    nodes: Nodes,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="why; shown by `status` and reports")],
    sandbox: Sandbox = None,
) -> None:
    """Drain nodes and keep them in quarantine, in your name, until they are released."""
    from provisioner.lifecycle import hooks
    from provisioner.lifecycle.quarantine import actions as lifecycle

    if not hooks.plain(reason):
        raise GpuprovError("--reason is empty", hint="pass a reason; `status` and reports show it")
    cluster = _open(file, sandbox)
    bad = lifecycle.put(cluster, nodes, reason, lifecycle.person())
    for name in dict.fromkeys(nodes):
        typer.echo(
            f"{name}: in quarantine" + (f", but not drained: {bad[name]}" if name in bad else ""), err=name in bad
        )
    held_count, bound = len(lifecycle.quarantined_nodes(cluster)), cluster.spec.quarantine.bound(len(cluster.nodes()))
    if held_count > bound:
        typer.echo(f"{held_count} nodes are in quarantine, more than the automatic limit ({bound})", err=True)
    raise typer.Exit(Exit.CHECK_FAILED if bad else Exit.OK)


def release(file: File, nodes: Nodes, sandbox: Sandbox = None) -> None:
    """Put nodes in quarantine back into service, whoever quarantined them."""
    from provisioner.lifecycle.quarantine import actions as lifecycle

    cluster = _open(file, sandbox)
    free, bad = lifecycle.release(cluster, nodes)
    machines = {node.name for node in cluster.nodes()}
    for name in dict.fromkeys(nodes):
        if name in bad:
            typer.echo(f"{name}: not put back into service: {bad[name]}", err=True)
        else:
            released = "back in service" if name in machines else "out of quarantine; its machine is gone"
            typer.echo(f"{name}: was not in quarantine" if name in free else f"{name}: {released}")
    raise typer.Exit(Exit.CHECK_FAILED if bad else Exit.OK)


def _open(file: Path, sandbox: bool | None) -> Cluster:
    from provisioner.lifecycle.session import open_cluster

    cluster = open_cluster(file, sandbox=sandbox)
    cluster.events.subscribe(_tell_warning)
    return cluster


def _tell_warning(event: Event) -> None:
    from provisioner.cli.display import print_event

    if event.kind == "warning":
        print_event(event, "warning: ")
