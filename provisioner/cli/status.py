"""`gpuprov status`: the nodes, and with --watch a living view of them while a run is at work."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from provisioner.cli import json_output, tables
from provisioner.cli.options import Json, Sandbox
from provisioner.cli.status_table import table
from provisioner.common.errors import GpuprovError
from provisioner.common.paths import ClusterPaths
from provisioner.common.text import counted, few, printable
from provisioner.common.typed_command import completed, typed, typed_file

if TYPE_CHECKING:
    from provisioner.output.status import NodeMaintained, StatusNode, StatusOutput, StatusRun


def status(
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="cluster.yaml; without it all clusters below this folder.")
    ] = None,
    sandbox: Sandbox = None,
    json_: Json = False,
    offline: Annotated[bool, typer.Option("--offline", help="Read local files only; connect to no node.")] = False,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Follow the run in progress; Ctrl-C stops watching.")
    ] = False,
) -> None:
    """Show each node: its stage, last verdict, the lock that it runs, and what differs from it. Without FILE: the
    clusters below this folder."""
    if file is None:
        if watch:
            raise GpuprovError("--watch needs a cluster", hint="gpuprov status FILE --watch")
        _all_clusters(json_=json_)
        return
    from provisioner.lifecycle.session import open_cluster
    from provisioner.lifecycle.status import status as read

    if watch:
        from provisioner.cli.watch import watch as follow

        if json_:
            raise GpuprovError("--watch and --json cannot be combined", hint="for JSON, read the run's events.jsonl")
        follow(open_cluster(file, sandbox=sandbox, offline=offline))
        return
    document = read(open_cluster(file, sandbox=sandbox, offline=offline), ask=not offline)
    if json_:
        json_output.write(document)
        return
    for line in first_lines(document, file):
        typer.echo(line)
    tables.show(table(document, offline=offline))
    for line in lines(document, file):
        typer.echo(line)


def _all_clusters(*, json_: bool) -> None:
    from rich.table import Table

    from provisioner.lifecycle.clusters import below

    rows = below(Path.cwd())
    if json_:
        from provisioner.output.status import ClustersOutput

        json_output.write(ClustersOutput(clusters=rows))
        return
    if not rows:
        typer.echo("no cluster below this folder")
        return
    rendered = Table(box=None, pad_edge=False)
    for column in ("cluster", "file", "nodes", "healthy", "run"):
        rendered.add_column(column, overflow="fold")
    for row in rows:
        file = _below(row.file or row.created_from)
        if not row.file and row.created_from:
            file += " (renamed)" if row.renamed_to else " (missing)"
        nodes = "?" if row.nodes is None else str(row.nodes)
        name = f"{row.cluster} (sandbox)" if row.sandbox else row.cluster
        rendered.add_row(name, file, nodes, str(row.healthy), _run_text(row.run))
    tables.show(rendered)
    for row in rows:
        if not row.file and row.renamed_to:
            name, file = row.cluster, _below(row.created_from)
            typer.echo(f"{name}: {file} has `name: {row.renamed_to}` now; every command needs `name: {name}` there")


def _below(file: str | None) -> str:
    """A file as a person in this folder types it."""
    return str(printable(str(Path(file).relative_to(Path.cwd())))) if file else "-"


def _run_text(run: StatusRun | None) -> str:
    if run is None:
        return "-"
    stage = f" at {run.stage}" if run.stage and run.state != "done" else ""
    return f"{run.command}: {run.state}{stage}"


RESUMED = ("up", "down", "replace", "upgrade", "maintain")
"""Commands that go on where they were broken off, when they are called again."""


def first_lines(document: StatusOutput, file: Path) -> Iterator[str]:
    """What is at work on the cluster, or was broken off and waits for somebody."""
    run, fleet_file = document.run, typed_file(file, sandbox=document.sandbox)
    if run is None or run.state == "done":
        return
    stage = f", at stage {run.stage}" if run.stage else ""
    since = datetime.fromtimestamp(run.since, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    if run.state == "at work":
        owner_text = f" of {run.user}" if run.user else ""
        watch = f"gpuprov status {fleet_file} --watch"
        holder = f"process {run.process}{owner_text}"
        yield f"`gpuprov {run.command}` ({holder}) has been at work since {since}{stage}: `{watch}`"
    elif run.command in RESUMED:
        replaced = [row.name for row in document.nodes if row.replace]
        state = {"interrupted": "was interrupted", "killed": "was killed", "failed": "failed"}[run.state]
        ended = f"the last `gpuprov {run.command}`, begun {since}, {state}{stage}"
        if run.command == "replace" and not replaced:
            yield f"{ended}; it has changed no machine"
        else:
            yield f"{ended}; `{' '.join(['gpuprov', run.command, fleet_file, *replaced])}` goes on"


def _line(value: str) -> str:
    """What a BMC says, on one line: a line of its own would look like gpuprov's."""
    return " ".join(str(printable(value)).split())


def _lock_command(file: Path, *, sandbox: bool) -> str:
    """Renews the lock that counts: a sandbox takes its versions from the one beside the file."""
    has_user_lock = ClusterPaths(file, "", sandbox=False).user_lock.exists()
    real = " --no-sandbox" if sandbox and has_user_lock else ""
    return typed("lock", file, sandbox=sandbox and not has_user_lock) + real


IN_SERVICE = ({"IDLE"}, {"ALLOCATED"}, {"MIXED"}, {"COMPLETING"})


def _scheduler_lines(node: StatusNode, fleet_file: str) -> Iterator[str]:
    """What Slurm has of a node that gets no jobs."""
    if (scheduler := node.scheduler) is None or {*scheduler.state} in IN_SERVICE:
        return
    if scheduler.error:
        yield f"{node.name}: Slurm was not asked: {_line(scheduler.error)}"
        return
    reason = f" by {scheduler.user}: {scheduler.reason}" if scheduler.reason else ""
    hint = f" (`gpuprov verify {fleet_file} --node {node.name}` proves it)" if scheduler.is_ours else ""
    yield f"{node.name}: Slurm has it {_line('+'.join(scheduler.state) + reason)}{hint}"


def lines(document: StatusOutput, file: Path) -> Iterator[str]:
    """What a `status` document says beside the table, a line each."""
    from provisioner.lifecycle import running_cost
    from provisioner.lifecycle.block_ends import ending
    from provisioner.lifecycle.planning import node_lines
    from provisioner.rundir import placement
    from provisioner.verify.report.terminal import in_quarantine

    fleet_file = typed_file(file, sandbox=document.sandbox)
    is_at_work = document.run is not None and document.run.state == "at work"
    for node in document.nodes:
        if not is_at_work:  # a run that installs changes what differs while it is read
            yield from (f"{node.name}: {line}" for line in node_lines(node, fleet_file))
        if bmc := node.bmc:
            text = f"power {bmc.power or 'unknown'}, health {bmc.health or 'unknown'}"
            if bmc.error:
                yield f"{node.name}: its BMC could not be read: {_line(bmc.error)}"
            elif (bmc.power, bmc.health) != ("On", "OK"):
                yield f"{node.name}: its BMC says: {_line(text)} (`gpuprov bmc {fleet_file} status {node.name}`)"
        yield from _scheduler_lines(node, fleet_file)
        if node.quarantine:
            yield f"{node.name}: {in_quarantine(node.name, node.quarantine, fleet_file)}"
        if node.replace:
            replace_command = f"gpuprov replace {fleet_file} {node.name}"
            yield f"{node.name}: replacement: {node.replace.step}" + (
                "" if is_at_work else f"; `{replace_command}` resumes it"
            )
        if node.maintained:
            yield f"{node.name}: {_maintained(node.maintained)}"
        if node.upgrade:
            reason = f": {node.upgrade.reason}" if node.upgrade.reason else ""
            yield f"{node.name}: upgrade: {node.upgrade.step}{reason}"
    if document.upgrade and document.upgrade.phase != "done":
        reason = f": {document.upgrade.reason}" if document.upgrade.reason else ""
        yield f"upgrade to {document.upgrade.to}: {document.upgrade.phase}{reason}"
    yield from placement.lines(document.site_choices)
    for site, text in {}.items() if is_at_work else document.failed.items():
        yield f"site {site}: the last `gpuprov up` failed there: {completed(text, fleet_file)}"
    if changes := document.lock_changes:
        command = _lock_command(file, sandbox=document.sandbox)
        yield f"the lock is older than {file} ({few(changes, 3)}); `{command}` renews it"
    yield from ending(document.ends)
    yield from running_cost.lines(document.cost) if document.cost else ()
    if document.report:
        yield f"report: {document.report}"
    if partial := document.partial_report:
        yield f"newer report of {few(partial.nodes, 8, ',')}: {partial.report}"


def _maintained(row: NodeMaintained) -> str:
    """The last maintenance of a node."""
    parts = [f"maintained {row.at}", f"{counted(len(row.packages), 'package')} patched so far"]
    parts += [f"{counted(len(row.waiting), 'security update')} not taken"] if row.waiting else []
    parts += [f"a reboot is due ({printable(row.due)})"] if row.due else []
    return ", ".join(parts)
