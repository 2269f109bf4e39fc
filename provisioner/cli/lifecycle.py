"""`lock`, `plan`, `up`, `upgrade`, `down`, `unlock`: the cluster's life."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from provisioner.cli import json_output, tables
from provisioner.cli.confirm import confirmed
from provisioner.cli.exit import resumable
from provisioner.cli.options import File, Json, Sandbox, Sites, TerraformBinary, Yes
from provisioner.common.errors import Declined, Exit, GpuprovError
from provisioner.common.text import counted
from provisioner.common.typed_command import typed

if TYPE_CHECKING:
    from provisioner.cli.display import Bars, Lines
    from provisioner.lifecycle.node_changes import NodeChanges
    from provisioner.lifecycle.session import Cluster
    from provisioner.lifecycle.up import Confirm, Run
    from provisioner.plan.models import Plan, PlannedGroup

MOST_NAMES = 8
"""Of nodes, in a question."""


def lock(
    file: File,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]…", help="With --upgrade: only these components (driver, cuda, nccl …)."),
    ] = None,
    sandbox: Sandbox = None,
    upgrade: Annotated[
        bool, typer.Option("--upgrade", help="Upgrade to newer versions: all components, or only those named.")
    ] = False,
    explain: Annotated[
        str | None, typer.Option("--explain", metavar="NAME", help="Explain why a component has its version, and exit.")
    ] = None,
) -> None:
    """Choose compatible versions and write cluster.lock. Locked versions are kept where they still fit."""
    from provisioner.cli.display import display
    from provisioner.common.paths import private_dir
    from provisioner.lifecycle import locking
    from provisioner.lifecycle.session import open_cluster
    from provisioner.stack import lockfile

    cluster = open_cluster(file, sandbox=sandbox)
    if explain is not None:
        typer.echo("\n".join(locking.explain(cluster, explain)))
        return
    cluster.require_rights()
    previous = lockfile.read(cluster.paths.lock_file)
    keep = locking.kept(previous, upgrade=upgrade, names=names or [])
    with display() as show:
        cluster.events.subscribe(show)
        if cluster.sandbox:
            private_dir(cluster.paths.root)
        renewed = locking.renew(cluster, cluster.events, keep)
    changes = lockfile.changes(previous, renewed)
    for change in changes or ["no version changes"]:
        typer.echo(change)
    taken = " (the sandbox's; --no-sandbox locks for real machines)" if cluster.sandbox and sandbox is None else ""
    typer.echo(f"written: {cluster.paths.lock_file}{taken}", err=True)


def plan(
    file: File, sandbox: Sandbox = None, site: Sites = None, json_: Json = False, terraform: TerraformBinary = None
) -> None:
    """Show what `up` would create, change and cost. Creates nothing."""
    from provisioner.cli.display import display
    from provisioner.lifecycle import planning
    from provisioner.lifecycle.session import open_cluster
    from provisioner.machines.terraform.binary import find

    with display(quiet=json_) as show:
        cluster = open_cluster(file, sandbox=sandbox)
        cluster.require_rights()
        cluster.events.subscribe(show)
        document = planning.plan(cluster, find(terraform, needed=cluster.needs_terraform), only=site or ())
    if json_:
        json_output.write(document)
    else:
        typer.echo(planning.text(document, cluster.typed_file))
    if any(finding.status == "blocks" for finding in document.findings):
        raise typer.Exit(Exit.PROVIDER_FAILED)


def up(
    file: File, sandbox: Sandbox = None, site: Sites = None, yes: Yes = False, json_: Json = False,
    terraform: TerraformBinary = None,
) -> None:  # fmt: skip
    """Create the fleet, install the stack, verify every node. Safe to run again: it resumes where it stopped."""
    from provisioner.cli.display import display
    from provisioner.lifecycle import up as lifecycle
    from provisioner.lifecycle.session import open_cluster
    from provisioner.machines.terraform.binary import find

    cluster = open_cluster(file, sandbox=sandbox)
    cluster.require_rights()
    screen = display(quiet=json_)
    confirm = _confirm(screen, cluster, yes=yes)
    with resumable(f"resume with `{typed('up', file, sandbox=cluster.sandbox, sites=site or ())}`"), screen as show:
        cluster.events.subscribe(show)
        run = lifecycle.up(cluster, find(terraform, needed=cluster.needs_terraform), confirm=confirm, only=site or ())
    if run.report is None:
        raise Declined("nothing was created")
    print_result(run, cluster, as_json=json_)
    for name, components in run.waiting.items():
        typer.echo(f"{name} keeps its lock; the new one would change {', '.join(components)}", err=True)
    if run.waiting:
        command = f"gpuprov upgrade {cluster.typed_file}"
        they = f"{counted(len(run.waiting), 'node')} {'runs' if len(run.waiting) == 1 else 'run'} an older lock"
        if run.rolled_back:
            advice = (
                f"the new one was rolled back ({run.rolled_back}): change {file}, or retry with `{command} --again`"
            )
        else:
            advice = f"`{command}` moves {'it' if len(run.waiting) == 1 else 'them'} to the new one"
        typer.echo(f"{they}; {advice}", err=True)
    for name, error in run.failed.items():
        typer.echo(f"gpuprov: site {name} failed, the others went on: {error}", err=True)
    for name, error in run.partly.items():
        typer.echo(f"gpuprov: machines of site {name} failed, the others went on: {error}", err=True)
    if run.exit == Exit.OK and run.changes and not json_:
        node, fleet_file = run.report.nodes[0].name, cluster.typed_file
        watch = f", `gpuprov monitoring open {fleet_file}`" if cluster.spec.monitoring.heads else ""
        typer.echo(f"next: `gpuprov ssh {fleet_file} {node}`, `gpuprov status {fleet_file}`{watch}", err=True)
    raise typer.Exit(run.exit)


def _confirm(screen: Bars | Lines, cluster: Cluster, *, yes: bool) -> Confirm:
    from provisioner.lifecycle.cost import summary
    from provisioner.lifecycle.cost import wanted as asked_for

    def ask(desired: Plan, changes: NodeChanges) -> bool:
        new = [(group, len({*group.node_names()} & {*changes.create})) for group in desired.groups]
        price = ""
        if not cluster.sandbox and not yes:
            price = summary.making(asked_for(cluster.spec), {group.name: count for group, count in new})
        counts = f"{counted(changes.total, 'resource')}{f'; new: {price}' if price else ''}"
        if cluster.spec.verify.reboot != "never" and (changes.create or changes.recreate):
            which = "every new machine" if cluster.spec.verify.reboot == "all" else "one new machine of each group"
            counts += f"; then {which} is rebooted"
        creations = [
            (group, f"{count} {group.machine.name}{_from_image(desired, group)}") for group, count in new if count
        ]
        location = f"{_sites(cluster, desired)}{' in the sandbox' if cluster.sandbox else ''}"
        question = f"{_intended(cluster, desired, changes, creations)}{location} ({counts})?"
        return confirmed(question, yes=yes, where=str(cluster.file), declined="nothing was created", screen=screen)

    return ask


def _from_image(desired: Plan, group: PlannedGroup) -> str:
    golden = desired.images.get(group.name)
    return f" from image {golden.name} {golden.build}" if golden else ""


def _sites(cluster: Cluster, desired: Plan) -> str:
    """Where groups with several sites are created, and which sites are next without capacity there."""
    from provisioner.rundir import placement

    rows = [
        row for row in placement.rows(cluster.spec, cluster.paths)
        if row.group in {group.name for group in desired.groups}
    ]  # fmt: skip
    return f" ({'; '.join(placement.lines(rows))})" if rows else ""


def _intended(
    cluster: Cluster, desired: Plan, changes: NodeChanges, creations: Sequence[tuple[PlannedGroup, str]]
) -> str:
    """What is about to be done, in words: machines that are made by number (`creations`, by group), all others by name;
    and what is done to machines that exist already, apart from those that are created and removed."""
    from provisioner.lifecycle.node_changes import by_reason

    sites = {**changes.sites, **{node.name: node.site for node in cluster.nodes()}}
    sites |= {name: group.site for group in desired.groups for name in group.node_names()}
    existing_nodes = {name for name, site in sites.items() if _exist(cluster, site)}
    configured = [group for group, _ in creations if _exist(cluster, group.site)]
    clauses = [
        f"{verb} {', '.join(text for group, text in creations if (group in configured) is exist)}"
        for verb, exist in (("create", False), (_verb(cluster, configured), True))
        if any((group in configured) is exist for group, _ in creations)
    ]
    for node_names, created, existing in (
        (changes.recreate, "recreate", "take another machine for"),
        (changes.change, "change", "change"),
        (changes.remove, "remove", "give back"),
    ):
        by_verb: dict[str, list[str]] = {}
        for name in node_names:
            by_verb.setdefault(existing if name in existing_nodes else created, []).append(name)
        for verb, names in by_verb.items():
            for reason, affected in by_reason(names, changes.reasons).items():
                clauses.append(f"{verb} {_some(affected)}{f' ({reason})' if reason else ''}")
    text = "; ".join(clauses) or "change no machine, but what they share"
    return text[0].upper() + text[1:]


def _exist(cluster: Cluster, site: str) -> bool:
    """Whether the machines of a site existed before the cluster."""
    return not cluster.sandbox and site in cluster.spec.sites and cluster.providers.at(site).hosts is not None


def _verb(cluster: Cluster, groups: Sequence[PlannedGroup]) -> str:
    """What is done to machines that exist: those that have only a BMC are installed first."""
    managed = [cluster.providers.at(group.site).management for group in groups]
    installs = any(management is not None and management.installation is not None for management in managed)
    return "install through their BMCs and configure" if installs else "configure"


def print_result(run: Run, cluster: Cluster, *, as_json: bool) -> None:
    """Print what a run did and found."""
    assert run.report is not None
    if as_json:
        from provisioner.output.error import FailureOutput
        from provisioner.output.report import ChangesOutput
        from provisioner.verify.report.document import report_document

        document = report_document(run.report)
        document.ok = run.healthy and not run.failed and not run.partly
        document.seconds = run.seconds
        document.changes = ChangesOutput(resources=run.resources, configured=run.configured)
        document.report = str(run.page)
        document.waiting = run.waiting
        document.failed = {
            site: FailureOutput(code=error.code, message=error.message, where=error.where, hint=error.hint)
            for site, error in (run.partly | run.failed).items()
        }
        json_output.write(document)
        return
    from provisioner.verify.report.terminal import table

    if sys.stdout.isatty():
        typer.echo()  # below the rows of the run
    tables.show(table(run.report, file=cluster.typed_file, absent=run.absent, quick_note=_quick_note(run, cluster)))
    seconds = ", ".join(f"{stage} {took:.1f} s" for stage, took in run.seconds.items())
    if run.failed:
        typer.echo(f"not in this report, because their site failed: nodes of {', '.join(run.failed)}")
    if run.partly:
        typer.echo(f"not in this report: machines of {', '.join(run.partly)} that failed")
    if run.rebooted:
        typer.echo(f"proven once more after a reboot: {', '.join(run.rebooted)}")
    done = f"{counted(run.resources, 'resource')} changed, {counted(run.configured, 'node')} configured"
    typer.echo(f"{done if run.changes else 'nothing changed'} in {sum(run.seconds.values()):.1f} s ({seconds})")
    typer.echo(f"report: {run.page}")


def _quick_note(run: Run, cluster: Cluster) -> str:
    """Why a run looked less deep than cluster.yaml says; "" where it did not."""
    configured_level = cluster.spec.verify.level
    if run.report is None or run.report.level != "quick" or configured_level == "quick":
        return ""
    return (
        f"quick was enough: each node was proven with this lock before, and nothing on it differs from it; "
        f"`gpuprov verify {cluster.typed_file}` repeats level {configured_level}"
    )


def down(
    file: File, sandbox: Sandbox = None, yes: Yes = False, json_: Json = False, terraform: TerraformBinary = None,
    keep_reports: Annotated[
        Path | None, typer.Option("--keep-reports", metavar="DIR", help="Copy the reports of all runs here first.")
    ] = None,
) -> None:  # fmt: skip
    """Remove everything that `up` created, and verify that nothing is left."""
    from provisioner.cli.display import display
    from provisioner.cli.output_folder import refuse_unwritable
    from provisioner.lifecycle import down as lifecycle
    from provisioner.lifecycle.session import open_to_remove
    from provisioner.machines.terraform.binary import find

    cluster = open_to_remove(file, sandbox=sandbox, note=lambda text: typer.echo(text, err=True))
    if not cluster.paths.exists():
        _say_down(cluster.spec.name, 0, {}, as_json=json_)
        return
    cluster.require_rights()
    names = lifecycle.recorded_nodes(cluster)
    question = f"{_removal(cluster, names)} of {cluster.label}?"
    if not confirmed(question, yes=yes, where=str(file), declined="nothing was removed"):
        raise Declined("nothing was removed")
    if keep_reports is not None:
        refuse_unwritable(keep_reports)
        copied = lifecycle.copy_reports(cluster, keep_reports)
        typer.echo(f"{counted(copied, 'report')} copied to {keep_reports}", err=True)
    command = typed("down", file, sandbox=cluster.sandbox)
    with resumable(f"resume with `{command}`"), display(quiet=json_) as show:
        cluster.events.subscribe(show)
        removal = lifecycle.down(cluster, find(terraform, needed=cluster.needs_terraform))
    _say_down(cluster.spec.name, removal.removed, removal.stays, as_json=json_)


def _removal(cluster: Cluster, names: Sequence[str]) -> str:
    """What `down` is about to do with these nodes, in words."""
    existing: set[str] = set() if cluster.needs_terraform else {*names}
    with contextlib.suppress(GpuprovError):  # a damaged nodes.json is reported by the command itself
        existing |= {node.name for node in cluster.nodes() if _exist(cluster, node.site)}
    created = [name for name in names if name not in existing]
    clauses = [f"remove {_some(created) or 'all remaining resources'}"] if created or not names else []
    if reset_names := [name for name in names if name in existing]:
        clauses.append(f"undo gpuprov's changes on {_some(reset_names)}")
    text = " and ".join(clauses)
    return text[0].upper() + text[1:]


def _some(names: Sequence[str]) -> str:
    """Names for a question: few of them as they are, of many the first and how many more."""
    more = len(names) - MOST_NAMES
    return ", ".join(names if more <= 0 else [*names[:MOST_NAMES], f"{more} more"])


def _say_down(name: str, removed: int, stays: Mapping[str, Sequence[str]], *, as_json: bool) -> None:
    if as_json:
        from provisioner.output.down import DownOutput

        unchanged = {node: [*sentences] for node, sentences in stays.items()}
        json_output.write(DownOutput(cluster=name, removed=removed, left=[], stays=unchanged))
    elif stays:
        typer.echo(f"{name}: gpuprov's changes are undone on {counted(len(stays), 'machine')}; they run on, and keep:")
        for node, sentences in stays.items():
            for sentence in sentences:
                typer.echo(f"  {node}: {sentence}")
    else:
        typer.echo(
            f"{name}: {counted(removed, 'resource')} removed, nothing is left"
            if removed
            else f"{name}: nothing to remove"
        )


def unlock(file: File, sandbox: Sandbox = None) -> None:
    """Clear the lock of a dead run. The lock of a running process is never cleared."""
    from provisioner.lifecycle import unlocking
    from provisioner.lifecycle.session import open_cluster

    cluster = open_cluster(file, sandbox=sandbox)
    if not cluster.paths.exists() and cluster.sharing is None:
        typer.echo(f"{cluster.spec.name}: not locked")
        return
    stale = unlocking.unlock(cluster)
    typer.echo(f"{cluster.spec.name}: not locked" + (f", {counted(len(stale), 'stale file')} removed" if stale else ""))


def upgrade(
    file: File,
    sandbox: Sandbox = None,
    yes: Yes = False,
    json_: Json = False,
    batch: Annotated[str | None, typer.Option(metavar="N|N%", help="Nodes to move at once.")] = None,
    canary: Annotated[str | None, typer.Option(metavar="NODE", help="The node to move first.")] = None,
    rollback_all: Annotated[
        bool, typer.Option("--rollback-all", help="Also roll back the nodes that have moved already.")
    ] = False,
    again: Annotated[bool, typer.Option("--again", help="Retry a release that was rolled back.")] = False,
    terraform: TerraformBinary = None,
) -> None:
    """Move a running fleet to the current lock: canaries, then batches; stop and roll back on failure."""
    from provisioner.cli.display import display
    from provisioner.lifecycle.session import open_cluster
    from provisioner.lifecycle.upgrade import command as lifecycle
    from provisioner.machines.terraform.binary import find

    cluster = open_cluster(file, sandbox=sandbox)
    cluster.require_rights()
    options = lifecycle.Options(_batch(batch), canary, rollback_all, again)
    screen = display(quiet=json_)

    def confirm(moving: dict[str, list[str]], size: int, first: list[str]) -> bool:
        order = f"first {_some(first) or 'nodes in progress'}, then {size} at once"
        question = f"Upgrade {counted(len(moving), 'node')} of {cluster.label}, {order}?"
        details = _upgrade_details(moving, {node.name: node.group for node in cluster.nodes()})
        return confirmed(
            question, yes=yes, where=str(file), declined="no node was moved", screen=screen, details=details
        )

    with resumable(f"resume with `{typed('upgrade', file, sandbox=cluster.sandbox)}`"), screen as show:
        cluster.events.subscribe(show)
        done = lifecycle.upgrade(cluster, find(terraform, needed=cluster.needs_terraform), options, confirm=confirm)
    document = lifecycle.document(cluster, done)
    if json_:
        json_output.write(document)
    else:
        for node in document.nodes:
            lock = f"lock {node.lock}" if node.lock else "never verified"
            driver = f"driver {node.driver}" if node.driver else lock
            typer.echo(f"{node.name}: {node.step}, {driver}" + (f" ({node.reason})" if node.reason else ""))
        typer.echo(document.message, err=not done.ok)
    raise typer.Exit(done.exit)


def _upgrade_details(moving: Mapping[str, Sequence[str]], groups: Mapping[str, str]) -> str:
    """What an upgrade changes, a block for the nodes of each group on which it is the same, a line for each change."""
    blocks: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for name, changed in moving.items():
        blocks.setdefault((groups.get(name, name), tuple(changed)), []).append(name)
    lines = []
    for (group, changed), names in blocks.items():
        lines.append(f"{group}: {counted(len(names), 'node')} ({_some(names)})")
        lines += [f"  {change}" for change in changed or ("back to the lock that it had",)]
    return "\n".join(lines)


def _batch(text: str | None) -> int | str | None:
    if text is None:
        return None
    number = text.removesuffix("%")
    if not number.isdecimal() or not 1 <= int(number) <= (100 if text.endswith("%") else 10_000):
        raise GpuprovError(f"invalid --batch {text}: expected a number of nodes, or a percentage such as 25%")
    return text if text.endswith("%") else int(number)
