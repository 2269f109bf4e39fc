"""`ssh` and `exec`: reach one node or all of them, over the pinned host keys."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from provisioner.cli.options import File, Sandbox
from provisioner.errors import GpuprovError
from provisioner.text import printable

EXEC_DEADLINE_S = 600.0
LONGEST_S = 7 * 86400.0


def ssh(
    file: File,
    node: Annotated[str, typer.Argument(metavar="NODE")],
    command: Annotated[list[str] | None, typer.Argument(metavar="[COMMAND]…")] = None,
    sandbox: Sandbox = None,
) -> None:
    """Log in to a node, or run one command there, as ssh would. Exits with the status of the remote command."""
    from provisioner import process
    from provisioner import ssh as openssh
    from provisioner.session import open_cluster

    cluster = open_cluster(file, sandbox=sandbox)
    found = cluster.node(node)
    # A connection of its own: a command that is killed ends the ones that are shared, and a login must not go with it.
    own = ("-o", "ControlMaster=no", "-o", "ControlPath=none")
    argv = openssh.argv(cluster.paths, found.name, *own, *([] if command else ["-t"]))
    sys.stdout.flush()
    process.release()
    os.execvp(argv[0], [*argv, *(command or [])])  # noqa: S606 - no shell is started


def exec_(
    file: File,
    command: Annotated[list[str], typer.Argument(metavar="COMMAND…")],
    node: Annotated[list[str] | None, typer.Option("--node", help="Only on this node; can be repeated.")] = None,
    sandbox: Sandbox = None,
    timeout: Annotated[float, typer.Option(help="Timeout of each node, in seconds.")] = EXEC_DEADLINE_S,
) -> None:
    """Run a command on all nodes at once; each line is prefixed with its node. Exits with the highest status."""
    from provisioner.lifecycle.remote_exec import run_on
    from provisioner.session import open_cluster

    if not 0 < timeout <= LONGEST_S:  # also what is no number: nan
        raise GpuprovError(f"invalid --timeout {timeout:g}: expected a number of seconds, at most {LONGEST_S:.0f}")
    cluster = open_cluster(file, sandbox=sandbox)
    names = [cluster.node(name).name for name in node] if node else [n.name for n in cluster.nodes()]
    if not names:
        raise GpuprovError("there is no fleet yet", where=str(file), hint=f"run `gpuprov up {file}` first")

    def show(name: str, status: int, text: str) -> None:
        for line in text.splitlines():
            typer.echo(f"{name}: {printable(line)}")
        if status:
            typer.echo(f"{name}: exit status {status}", err=True)

    worst = run_on(cluster.paths, names, command, show, timeout_s=timeout)
    raise typer.Exit(worst)
