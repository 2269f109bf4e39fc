"""`maintain`: patches, clean-up and reboots in a window."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from provisioner.cli import json_output
from provisioner.cli.confirm import confirmed
from provisioner.cli.exit import resumable
from provisioner.cli.options import File, Json, Sandbox, Yes
from provisioner.common.text import counted, few, printable
from provisioner.common.typed_command import typed

if TYPE_CHECKING:
    from provisioner.output.maintain import MaintainNode


def maintain(
    file: File,
    sandbox: Sandbox = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what each node needs, and change nothing.")] = False,
    at_once: Annotated[bool, typer.Option("--now", help="Maintain at once, also outside of the window.")] = False,
    yes: Yes = False,
    json_: Json = False,
) -> None:
    """Install security updates, clean up and reboot: canaries, then batches; stop at the first unhealthy node."""
    from provisioner.cli.display import display
    from provisioner.lifecycle.maintain import command as lifecycle
    from provisioner.lifecycle.session import open_cluster

    cluster = open_cluster(file, sandbox=sandbox)
    cluster.require_rights()
    screen = display(quiet=json_)

    def confirm(turn: dict[str, list[str]], size: int, first: list[str]) -> bool:
        order = f"first {few(first, 8, ',') or 'nodes in progress'}, then {size} at once"
        return confirmed(
            f"Maintain {counted(len(turn), 'node')} of {cluster.label}, {order}?",
            yes=yes,
            where=str(file),
            declined="no node was touched",
            screen=screen,
            details="\n".join(f"{name}: {printable(', '.join(needed))}" for name, needed in turn.items()),
        )

    with resumable(f"resume with `{typed('maintain', file, sandbox=cluster.sandbox)}`"), screen as show:
        cluster.events.subscribe(show)
        done = lifecycle.maintain(cluster, lifecycle.Options(dry_run, at_once), confirm=confirm)
    document = lifecycle.document(cluster, done)
    if json_:
        json_output.write(document)
    else:
        for node in document.nodes:
            for line in _lines(node, dry_run=dry_run):
                typer.echo(printable(line))
        typer.echo(printable(document.message), err=not done.ok)
    raise typer.Exit(done.exit)


def _lines(node: MaintainNode, *, dry_run: bool) -> list[str]:
    """What is said of a node."""
    details = [node.reason] if node.reason else []
    if dry_run:
        details += node.needs
    else:
        details += [f"{counted(len(node.packages), 'package')} of its group's set"] if node.packages else []
        details += [f"{node.freed / 2**20:,.0f} MiB freed"] if node.freed else []
        details += [f"rebooted ({node.rebooted})"] if node.rebooted else []
        details += [f"a reboot is due ({node.due})"] if node.due and not node.rebooted else []
    lines = [f"{node.name}: {node.step}" + (f": {', '.join(details)}" if details else "")]
    if dry_run:
        lines += [f"  {name} {version}" for name, version in node.updates.items()]
    lines += [f"  not taken: {name} ({reason})" for name, reason in node.waiting.items()]
    return lines
