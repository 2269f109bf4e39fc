"""`gpuprov ack`: somebody has looked at a warning, and it is theirs until it ends."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from provisioner.common.errors import Exit, GpuprovError

File = Annotated[Path, typer.Argument(metavar="FILE", help="cluster.yaml")]
NodeName = Annotated[str | None, typer.Argument(metavar="[NODE]", help="node of FILE")]
CheckName = Annotated[str | None, typer.Argument(metavar="[CHECK]", help="what warns, as `verify` names it")]
Sandbox = Annotated[bool | None, typer.Option("--sandbox/--no-sandbox", help="the sandbox, or the real fleet")]


def ack(
    file: File,
    node: NodeName = None,
    check: CheckName = None,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="why; shown by `verify` and reports")] = "",
    until: Annotated[str, typer.Option("--until", metavar="TIME", help="14d, 36h or 2026-01-31")] = "14d",
    remove: Annotated[bool, typer.Option("--remove", help="have it warn again")] = False,
    sandbox: Sandbox = None,
) -> None:
    """Acknowledge a warning of a node: it is shown as yours, and warns again when it ends. Without NODE: list them."""
    from provisioner.lifecycle import acknowledgements, hooks
    from provisioner.lifecycle.quarantine.actions import person
    from provisioner.lifecycle.session import open_cluster

    cluster, current_time = open_cluster(file, sandbox=sandbox), datetime.now(UTC)
    if remove and check is None:
        missing = "CHECK is" if node else "NODE and CHECK are"
        raise GpuprovError(
            f"{missing} missing", hint=f"for example `gpuprov ack FILE {node or 'NODE'} host.next_boot --remove`"
        )
    if node is None:
        rows = acknowledgements.load(cluster.paths)
        if not rows:
            typer.echo(f"no warning of {cluster.spec.name} is acknowledged", err=True)
        for row in rows:
            ended = "" if row.holds(current_time) else " (it has ended, and warns again)"
            parts = f" ({', '.join(row.parts)})" if row.parts != (row.check,) else ""
            typer.echo(f"{row.node} {row.check}{parts}: {row.owner} until {row.until}: {row.reason}{ended}")
        return
    if check is None:
        raise GpuprovError("CHECK is missing", hint="for example `gpuprov ack FILE NODE host.next_boot --reason TEXT`")
    name = acknowledgements.known(check)
    if remove:
        was_removed, covered = acknowledgements.remove(cluster, node, name)
        outcome = f"{name} {'warns again' if was_removed else 'was not acknowledged'}"
        if covered is not None:
            outcome = f"{name} stays acknowledged by {covered.owner} as part of {covered.check}: {covered.reason}"
        typer.echo(f"{node}: {outcome}")
        raise typer.Exit(Exit.OK)
    if not hooks.plain(reason):
        raise GpuprovError("--reason is missing or empty", hint="pass a reason; `verify` and reports show it")
    added = acknowledgements.add(
        cluster, node, name, hooks.plain(reason), acknowledgements.until(until, current_time), person()
    )
    of = f" ({', '.join(added.parts)})" if added.parts != (name,) else ""
    typer.echo(f"{node}: {name}{of} is acknowledged by {added.owner} until {added.until}")
