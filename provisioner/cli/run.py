"""`run`: start a training or any other command on nodes, follow it, stop it."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from provisioner.cli import json_output
from provisioner.cli.options import File, Json, Sandbox
from provisioner.cli.remote_command import REMAINING
from provisioner.common.errors import GpuprovError, Interrupted
from provisioner.common.text import counted, printable
from provisioner.common.typed_command import typed

if TYPE_CHECKING:
    from provisioner.lifecycle.jobs.follow import Follower
    from provisioner.lifecycle.session import Cluster
    from provisioner.output.job import JobRow
    from provisioner.rundir.fleet import Node
    from provisioner.workloads.recipe import Recipe

LOST_STATUS = 1
START_S = 120.0
"""Seconds from Slurm's start of a job until its nodes know it."""


def run(
    context: typer.Context,
    file: File,
    recipe: Annotated[
        str | None, typer.Argument(metavar="[RECIPE]", help="A recipe of gpuprov, or a folder with recipe.yaml.")
    ] = None,
    group: Annotated[str | None, typer.Option("--group", help="Run on nodes of this group.")] = None,
    nodes: Annotated[int | None, typer.Option("--nodes", min=1, help="Use this many nodes; all by default.")] = None,
    node: Annotated[list[str] | None, typer.Option("--node", help="Use this node (repeatable).")] = None,
    gpus_per_node: Annotated[
        int | None, typer.Option("--gpus-per-node", min=1, help="Processes that torchrun starts on a node.")
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the job and of its checkpoints; by default the recipe's.")
    ] = None,
    image: Annotated[
        str | None, typer.Option("--image", help="An image of cluster.lock; the first one with PyTorch.")
    ] = None,
    folder: Annotated[
        Path, typer.Option("--folder", metavar="DIR", help="With -- COMMAND: copy this folder to the nodes.")
    ] = Path(),
    env: Annotated[
        list[str] | None,
        typer.Option("--env", metavar="NAME[=VALUE]", help="Set a variable; NAME alone takes your value (repeatable)."),
    ] = None,
    checkpoints: Annotated[
        str | None, typer.Option("--checkpoints", metavar="PATH", help="Folder of checkpoints on the nodes.")
    ] = None,
    grace: Annotated[int, typer.Option("--grace", min=1, help="Seconds to write a checkpoint after a stop.")] = 120,
    detach: Annotated[bool, typer.Option("--detach", help="Do not follow the job.")] = False,
    list_: Annotated[bool, typer.Option("--list", help="List the jobs of the fleet.")] = False,
    logs: Annotated[str | None, typer.Option("--logs", metavar="ID", help="Follow a job, from its first line.")] = None,
    stop: Annotated[str | None, typer.Option("--stop", metavar="ID", help="Stop a job.")] = None,
    sandbox: Sandbox = None,
    json_: Json = False,
) -> None:
    """Run a recipe, or -- COMMAND, in a container on every node, and follow it. Ctrl-C stops it on all nodes.

    What stands behind -- goes to the recipe, or is the command. Exits with the status of the job.
    """
    from provisioner.lifecycle.session import open_cluster

    arguments: tuple[str, ...] = context.meta.get(REMAINING, ())
    if sum([list_, logs is not None, stop is not None, recipe is not None or bool(arguments)]) != 1:
        raise GpuprovError(
            "give one of RECIPE, -- COMMAND, --list, --logs ID, --stop ID",
            hint=f"gpuprov run {file} ddp, or gpuprov run {file} -- python train.py",
        )
    cluster = open_cluster(file, sandbox=sandbox)
    if list_:
        _list(cluster, json_=json_)
        return
    if logs is not None or stop is not None:
        _follow_or_stop(cluster, logs or stop or "", is_stop=stop is not None, json_=json_)
        return
    from provisioner.cli.display import display
    from provisioner.lifecycle.jobs import follow as jobs
    from provisioner.lifecycle.jobs.start import Options, start

    options = Options(
        group, nodes, tuple(node or ()), name, image, gpus_per_node, checkpoints, grace, _environment(env or ())
    )
    to_run, remaining = _recipe(recipe, arguments, folder)
    with display(quiet=json_) as show:
        cluster.events.subscribe(show)
        job = start(cluster, to_run, remaining, options)
    if job.slurm:
        _wait_in_queue(cluster, job.id, job.slurm, detach=detach, json_=json_)
        return
    hint = typed("run", file, sandbox=cluster.sandbox, names=["--logs", job.id])
    if detach:
        row = jobs.row_of(cluster, job.id, job.nodes)
        if json_:
            _write(cluster, row)
        else:
            typer.echo(f"{job.id} runs on {counted(len(job.nodes), 'node')}; follow it with `{hint}`")
        return
    print(f"{job.id} runs on {', '.join(n.name for n in job.nodes)}; Ctrl-C stops it", file=sys.stderr)
    _follow(cluster, job.id, job.nodes, dict(job.pids), json_=json_)


def _recipe(name: str | None, arguments: Sequence[str], folder: Path) -> tuple[Recipe, Sequence[str]]:
    """The recipe that runs, and its arguments."""
    from provisioner.workloads.recipe import Recipe, find

    if name is not None:
        if folder != Path():
            raise GpuprovError("--folder is for -- COMMAND", hint="a recipe names its folder in recipe.yaml")
        return find(name), arguments
    if not folder.is_dir():
        raise GpuprovError("not a folder", where=str(folder))
    base = re.sub(r"[^a-z0-9-]+", "-", Path(arguments[0]).name.lower()).strip("-")[:24].strip("-")
    return Recipe(base if base[:1].isalpha() else "job", folder.resolve(), tuple(arguments)), ()


def _wait_in_queue(cluster: Cluster, job_id: str, number: str, *, detach: bool, json_: bool) -> None:
    """Follow a job that Slurm has, from its time in the queue on. Ctrl-C cancels it."""
    from provisioner.lifecycle.jobs import follow, slurm_submit
    from provisioner.lifecycle.jobs.supervisor import STOPPED

    hint = typed("run", cluster.file, sandbox=cluster.sandbox, names=["--logs", job_id])
    if detach:
        if json_:
            json_output.write({"cluster": cluster.spec.name, "sandbox": cluster.sandbox, "slurm": number, "id": job_id})
        else:
            typer.echo(f"{job_id} is Slurm job {number}; follow it with `{hint}`")
        return
    print(f"{job_id} is Slurm job {number}; Ctrl-C cancels it", file=sys.stderr)
    try:
        has_started = slurm_submit.await_start(cluster, number, lambda text: print(text, file=sys.stderr))
        if not has_started:
            print(f"{job_id} was cancelled before it started", file=sys.stderr)
            raise typer.Exit(STOPPED)
        row, nodes, pids = follow.find(cluster, job_id, wait_s=START_S)
    except KeyboardInterrupt:
        slurm_submit.cancel(cluster, job_id)
        raise Interrupted(f"interrupted: {job_id} was cancelled") from None
    print(f"{job_id} runs on {', '.join(row.nodes)}", file=sys.stderr)
    _follow(cluster, job_id, nodes, pids, json_=json_)


def _environment(entries: Sequence[str]) -> dict[str, str]:
    """--env NAME=VALUE, and --env NAME, whose value is in nobody's arguments."""
    environment = {}
    for entry in entries:
        name, equals, value = entry.partition("=")
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise GpuprovError(f"--env {name}: not the name of a variable", hint="--env NAME=VALUE")
        if not equals and name not in os.environ:
            raise GpuprovError(f"--env {name}: the variable is not set", hint="export it, or pass --env NAME=VALUE")
        text = value if equals else os.environ[name]
        if "\n" in text:
            raise GpuprovError(f"--env {name}: the value has a line break, which docker does not take")
        environment[name] = text
    return environment


def _follow_or_stop(cluster: Cluster, job_id: str, *, is_stop: bool, json_: bool) -> None:
    """Follow a job that was started before, or stop it."""
    from provisioner.lifecycle.jobs import follow
    from provisioner.lifecycle.quarantine.actions import person

    if cluster.spec.scheduler.slurm is not None:
        from provisioner.lifecycle.jobs import slurm_submit

        if (waiting := slurm_submit.queued(cluster).get(job_id)) is not None:
            if not is_stop:
                _wait_in_queue(cluster, job_id, waiting[0], detach=False, json_=json_)
                return
            slurm_submit.cancel(cluster, job_id)
            print(f"{job_id} is cancelled: it had not started", file=sys.stderr)
            return
    row, nodes, pids = follow.find(cluster, job_id)
    if is_stop and row.state != "running":
        raise GpuprovError(f"job {job_id} does not run: {_ending(row)}", where=cluster.spec.name)
    if is_stop:
        errors = follow.stop(cluster, nodes, job_id, f"stopped by {person()}")
        if len(errors) == len(nodes):
            raise GpuprovError(f"no node took the request: {errors[nodes[0].name]}", where=cluster.spec.name)
    _follow(cluster, job_id, nodes, pids, json_=json_, silent=is_stop, looks=True)


class _HungUp(BaseException):
    """The terminal was closed: the job goes on."""


def _hang_up(*_: object) -> None:
    raise _HungUp


def _follow(
    cluster: Cluster,
    job_id: str,
    nodes: Sequence[Node],
    pids: dict[str, int | None],
    *,
    json_: bool,
    silent: bool = False,
    looks: bool = False,
) -> None:
    """Print the logs until the job ends, then how. Ends this command with the job's status. `looks`: Ctrl-C ends this
    command, and not the job, which another one has started."""
    from provisioner.lifecycle.jobs import follow
    from provisioner.lifecycle.jobs.follow import Follower

    several = len(nodes) > 1

    def show(name: str, line: str) -> None:
        if not silent:
            print(f"{name}: {line}" if several else line, file=sys.stderr if json_ else sys.stdout, flush=True)

    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup
        signal.signal(signal.SIGHUP, _hang_up)
    follower = Follower(cluster, job_id, nodes, pids, show)
    try:
        if looks:
            follower.follow()
            interrupted = False
        else:
            interrupted = _follow_to_end(cluster, follower, job_id, nodes)
    except KeyboardInterrupt:
        follower.end()
        stop = typed("run", cluster.file, sandbox=cluster.sandbox, names=["--stop", job_id])
        raise Interrupted(f"interrupted: {job_id} goes on; `{stop}` stops it") from None
    except _HungUp:
        follower.end()
        raise typer.Exit(0) from None
    row = follow.await_end(cluster, job_id, nodes)
    if json_:
        _write(cluster, row)
    else:
        print(f"{job_id} {_ending(row)}", file=sys.stderr)
    if interrupted:
        raise Interrupted(f"interrupted: {job_id} was stopped on all nodes")
    raise typer.Exit(0 if silent and row.state != "running" else LOST_STATUS if row.status is None else row.status)


def _follow_to_end(cluster: Cluster, follower: Follower, job_id: str, nodes: Sequence[Node]) -> bool:
    """Whether Ctrl-C has stopped the job."""
    from provisioner.lifecycle.jobs import follow
    from provisioner.lifecycle.quarantine.actions import person

    try:
        follower.follow()
    except KeyboardInterrupt:
        print(f"stopping {job_id}; press Ctrl-C again to leave", file=sys.stderr)
    else:
        return False
    hint = (
        f"{job_id} is being stopped: `{typed('run', cluster.file, sandbox=cluster.sandbox, names=['--logs', job_id])}`"
    )
    try:
        errors = follow.stop(cluster, nodes, job_id, f"stopped by {person()}")
        for name, reason in errors.items():
            print(f"{name}: did not take the request: {reason}", file=sys.stderr)
        follower.follow()
    except KeyboardInterrupt:
        follower.end()
        raise Interrupted(hint) from None
    return True


def _ending(row: JobRow) -> str:
    seconds = (row.ended or time.time()) - row.began
    took = f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds:.0f} s"
    return printable(f"{row.state} after {took}" + (f": {row.reason}" if row.reason else ""))  # type: ignore[no-any-return]


def _write(cluster: Cluster, row: JobRow) -> None:
    from provisioner.output.job import JobOutput

    json_output.write(JobOutput(cluster=cluster.spec.name, sandbox=cluster.sandbox, job=row))


def _list(cluster: Cluster, *, json_: bool) -> None:
    """The jobs that the nodes know."""
    from rich.table import Table

    from provisioner.cli import tables
    from provisioner.lifecycle.jobs import follow
    from provisioner.output.job import JobsOutput

    rows, silent = follow.rows_of(cluster, cluster.nodes())
    if cluster.spec.scheduler.slurm is not None:
        rows = [*follow.queued_rows(cluster), *rows]
    if json_:
        document = JobsOutput(cluster=cluster.spec.name, sandbox=cluster.sandbox, jobs=rows, silent=silent)
        json_output.write(document)
        return
    table = Table("job", "state", "nodes", "began", "owner", "reason", box=None, pad_edge=False)
    for row in rows:
        began = time.strftime("%Y-%m-%d %H:%M", time.localtime(row.began))
        table.add_row(row.id, row.state, ", ".join(row.nodes), began, printable(row.owner), printable(row.reason))
    if rows:
        tables.show(table)
    else:
        typer.echo("no jobs")
    for name, reason in silent.items():
        print(f"{name}: does not answer: {reason}", file=sys.stderr)
