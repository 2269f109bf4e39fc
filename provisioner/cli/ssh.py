"""`ssh` and `exec`: reach one node or all of them, over the pinned host keys."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from provisioner.cli.options import File, Sandbox
from provisioner.common.errors import GpuprovError
from provisioner.common.text import few, printable

if TYPE_CHECKING:
    from provisioner.lifecycle.session import Cluster

EXEC_DEADLINE_S = 600.0
LONGEST_S = 7 * 86400.0


def ssh(
    file: File,
    node: Annotated[str, typer.Argument(metavar="NODE")],
    command: Annotated[list[str] | None, typer.Argument(metavar="[COMMAND]…")] = None,
    sandbox: Sandbox = None,
) -> None:
    """Log in to a node, or run one command there, as ssh would. Exits with the status of the remote command."""
    from provisioner.lifecycle.session import open_cluster
    from provisioner.transport import process
    from provisioner.transport import ssh as openssh

    cluster = open_cluster(file, sandbox=sandbox)
    fleet_node = cluster.node(node)
    argv = openssh.argv(cluster.paths, fleet_node.name, *openssh.UNSHARED, *([] if command else ["-t"]))
    sys.stdout.flush()
    process.release()
    os.execvp(argv[0], [*argv, *(command or [])])  # noqa: S606 - no shell is started


def cp(
    file: File,
    source: Annotated[str, typer.Argument(metavar="SRC", help="PATH, or NODE:PATH.")],
    target: Annotated[str, typer.Argument(metavar="DST", help="PATH, or NODE:PATH.")],
    recursive: Annotated[bool, typer.Option("--recursive", "-r", help="Folders with all that is in them.")] = False,
    sandbox: Sandbox = None,
) -> None:
    """Copy a file to a node or from one, with scp, over the pinned host key. Exits with scp's status."""
    from provisioner.lifecycle.session import open_cluster
    from provisioner.transport import process
    from provisioner.transport import ssh as openssh

    cluster = open_cluster(file, sandbox=sandbox)
    sides = [_side(cluster, text) for text in (source, target)]
    if sum(node != "" for node, _ in sides) != 1:
        raise GpuprovError(
            f"exactly one of {source} and {target} has to be on a node", where=str(file),
            hint=f"gpuprov cp {cluster.typed_file} ./data NODE:/tmp, or NODE:/var/log/syslog .",
        )  # fmt: skip
    argv = openssh.copy_argv(cluster.paths, sides[0], sides[1], recursive=recursive)
    sys.stdout.flush()
    process.release()
    os.execvp(argv[0], argv)  # noqa: S606 - no shell is started


def _side(cluster: Cluster, text: str) -> tuple[str, str]:
    """Node and path; no node for a path of this computer's. Raises GpuprovError for a node that is not there."""
    node, colon, path = text.partition(":")
    return (cluster.node(node).name, path) if colon and "/" not in node else ("", text)


def ssh_config(file: File, sandbox: Sandbox = None) -> None:
    """Print an ssh configuration with a host CLUSTER-NODE for each node, for an Include in ~/.ssh/config: ssh, scp,
    rsync and editors then reach the nodes over the pinned host keys."""
    from provisioner.lifecycle.session import open_cluster
    from provisioner.transport import ssh_config as configuration

    cluster = open_cluster(file, sandbox=sandbox)
    names = _selected(cluster, (), ())
    typer.echo(configuration.user_config(cluster.paths, names), nl=False)


def exec_(
    file: File,
    command: Annotated[list[str], typer.Argument(metavar="COMMAND…")],
    node: Annotated[list[str] | None, typer.Option("--node", help="Only on this node; can be repeated.")] = None,
    group: Annotated[
        list[str] | None, typer.Option("--group", help="Only on the nodes of this group; can be repeated.")
    ] = None,
    sandbox: Sandbox = None,
    timeout: Annotated[float, typer.Option(help="Timeout of each node, in seconds.")] = EXEC_DEADLINE_S,
) -> None:
    """Run a command on all nodes at once, or on those named. Each line is prefixed with its node. Exits with the
    highest status."""
    from provisioner.lifecycle.remote_exec import run_on
    from provisioner.lifecycle.session import open_cluster

    if not 0 < timeout <= LONGEST_S:  # also what is no number: nan
        raise GpuprovError(f"invalid --timeout {timeout:g}: expected a number of seconds, at most {LONGEST_S:.0f}")
    cluster = open_cluster(file, sandbox=sandbox)
    names = _selected(cluster, node or [], group or [])

    def show(name: str, status: int, text: str) -> None:
        for line in text.splitlines():
            typer.echo(f"{name}: {printable(line)}")
        if status:
            typer.echo(f"{name}: exit status {status}", err=True)

    worst = run_on(cluster.paths, names, command, show, timeout_s=timeout)
    raise typer.Exit(worst)


def _selected(cluster: Cluster, names: Sequence[str], groups: Sequence[str]) -> list[str]:
    """Nodes by their names and groups, all of them where none is named, in the fleet's order. Raises GpuprovError."""
    nodes, file = cluster.nodes(), cluster.file
    if not nodes:
        hint = f"run `gpuprov up {cluster.typed_file}` first"
        raise GpuprovError("there is no fleet yet", where=str(file), hint=hint)
    present = sorted({node.group for node in nodes})
    for group in groups:
        if group not in present:
            hint = f"groups with nodes: {few(present, 8, ',')}"
            raise GpuprovError(f"there is no node of group {group}", where=str(file), hint=hint)
    selected = {cluster.node(name).name for name in names}
    everything = not (names or groups)
    return [node.name for node in nodes if everything or node.name in selected or node.group in groups]
