"""`ssh` and `exec`: reach one node or all of them, over the pinned host keys."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated

import typer

from provisioner.cli.lifecycle import File, Sandbox

EXEC_DEADLINE_S = 600.0


def ssh(
    file: File,
    node: Annotated[str, typer.Argument(metavar="NODE")],
    command: Annotated[list[str] | None, typer.Argument(metavar="[COMMAND]…")] = None,
    sandbox: Sandbox = None,
) -> None:
    """Log in to a node, or run one command there, as ssh would. Exits as the remote does."""
    from provisioner import ssh as openssh
    from provisioner.session import open_cluster

    cluster = open_cluster(file, sandbox=sandbox)
    found = cluster.node(node)
    argv = openssh.argv(cluster.paths, found.name, *([] if command else ["-t"]))
    sys.stdout.flush()
    os.execvp(argv[0], [*argv, *(command or [])])  # noqa: S606 - no shell is started


def exec_(
    file: File,
    command: Annotated[list[str], typer.Argument(metavar="COMMAND…")],
    node: Annotated[list[str] | None, typer.Option("--node", help="Only there; may be given several times.")] = None,
    sandbox: Sandbox = None,
    timeout: Annotated[float, typer.Option(help="Seconds that a node may take.")] = EXEC_DEADLINE_S,
) -> None:
    """Run a command on all nodes at once; each line is headed by its node. Exits with the highest status."""
    from provisioner import ssh as openssh
    from provisioner.fleet import PARALLEL
    from provisioner.session import open_cluster

    cluster = open_cluster(file, sandbox=sandbox)
    names = [cluster.node(name).name for name in node] if node else [n.name for n in cluster.nodes()]

    def run(name: str) -> tuple[int, str]:
        argv = [*openssh.argv(cluster.paths, name), *command]
        try:
            done = subprocess.run(
                argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True,
                encoding="utf-8", errors="replace", timeout=timeout, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return 124, f"no answer within {timeout:g} s"
        return done.returncode, done.stdout

    worst = 0
    with ThreadPoolExecutor(max_workers=PARALLEL) as pool:
        for name, (status, text) in zip(names, pool.map(run, names), strict=True):
            for line in text.splitlines():
                typer.echo(f"{name}: {line}")
            if status:
                typer.echo(f"{name}: exit status {status}", err=True)
            worst = max(worst, status)
    if not names:
        typer.echo("no nodes", err=True)
    raise typer.Exit(worst)
