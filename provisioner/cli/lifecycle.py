"""`lock`, `plan`, `up`, `down`, `status`: the cluster's life."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from provisioner.cli import answer, tables
from provisioner.errors import Declined, Exit, GpuprovError, Interrupted

if TYPE_CHECKING:
    from provisioner.cli.display import Bars, Lines
    from provisioner.lifecycle.up import Confirm, Run
    from provisioner.plan import Plan
    from provisioner.session import Cluster

File = Annotated[Path, typer.Argument(metavar="FILE", help="cluster.yaml")]
Sandbox = Annotated[
    bool | None,
    typer.Option("--sandbox/--no-sandbox", help="Rehearse on this machine: podman nodes with simulated hardware."),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
TerraformBinary = Annotated[
    str | None, typer.Option("--terraform", metavar="PATH", help="The terraform or tofu to run.")
]


def lock(
    file: File,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]…", help="With --upgrade: only these components (driver, cuda, nccl …)."),
    ] = None,
    sandbox: Sandbox = None,
    upgrade: Annotated[
        bool, typer.Option("--upgrade", help="Take newer versions: of everything, or of the components named.")
    ] = False,
    explain: Annotated[
        str | None, typer.Option("--explain", metavar="NAME", help="Say why a component has its version, and stop.")
    ] = None,
) -> None:
    """Choose versions that go together and write cluster.lock. What is locked stays where it still fits."""
    from provisioner.cli.display import display
    from provisioner.lifecycle import locking
    from provisioner.paths import private_dir
    from provisioner.session import open_cluster
    from provisioner.stack import lockfile

    cluster = open_cluster(file, sandbox=sandbox)
    if explain is not None:
        typer.echo("\n".join(locking.explain(cluster, explain)))
        return
    cluster.require_rights()
    before = lockfile.read(cluster.paths.lock_file)
    keep = locking.kept(before, upgrade=upgrade, names=names or [])
    with display() as show:
        cluster.events.subscribe(show)
        if cluster.sandbox:
            private_dir(cluster.paths.root)
        made = locking.renew(cluster, cluster.events, keep)
    changes = lockfile.changes(before, made)
    for change in changes or ["nothing moves"]:
        typer.echo(change)
    typer.echo(f"written: {cluster.paths.lock_file}", err=True)


def plan(file: File, sandbox: Sandbox = None, json_: Json = False, terraform: TerraformBinary = None) -> None:
    """Say what `up` would make and change. Makes nothing."""
    from provisioner.cli.display import display
    from provisioner.lifecycle import planning
    from provisioner.session import open_cluster
    from provisioner.workspace.binary import find

    with display(quiet=json_) as show:
        cluster = open_cluster(file, sandbox=sandbox)
        cluster.require_rights()
        cluster.events.subscribe(show)
        document = planning.plan(cluster, find(terraform))
    if json_:
        answer.give(document)
    else:
        typer.echo(planning.text(document))
    if any(finding["status"] == "blocks" for finding in document["findings"]):
        raise typer.Exit(Exit.PROVIDER_FAILED)


def up(
    file: File, sandbox: Sandbox = None, yes: Yes = False, json_: Json = False, terraform: TerraformBinary = None
) -> None:
    """Make the fleet, install the stack, prove every node. Safe to run again: it goes on where it stopped."""
    from provisioner.cli.display import display
    from provisioner.lifecycle import up as lifecycle
    from provisioner.process import interrupt
    from provisioner.session import open_cluster
    from provisioner.workspace.binary import find

    cluster = open_cluster(file, sandbox=sandbox)
    cluster.require_rights()
    for sign in (signal.SIGINT, signal.SIGTERM):
        signal.signal(sign, interrupt)
    screen = display(quiet=json_)
    confirm = _confirm(screen, cluster, yes=yes)
    try:
        with screen as show:
            cluster.events.subscribe(show)
            run = lifecycle.up(cluster, find(terraform), confirm=confirm)
    except KeyboardInterrupt:
        again = f"`{_again(file, cluster.sandbox)}` goes on from here."
        raise Interrupted("interrupted. Nothing is lost", hint=again) from None
    if run.report is None:
        raise Declined("nothing was made")
    tell(run, as_json=json_)
    for name, what in run.waiting.items():
        typer.echo(f"{name} stays on the lock that it runs; a new one would change {', '.join(what)}", err=True)
    if run.waiting:
        again = f"gpuprov upgrade {file}{' --sandbox' if cluster.sandbox else ''}"
        typer.echo(f"{len(run.waiting)} nodes run an older lock than is wanted: `{again}` moves them", err=True)
    raise typer.Exit(run.exit)


def _again(file: Path, sandbox: bool) -> str:
    return f"gpuprov up {file}{' --sandbox' if sandbox else ''}"


def _confirm(screen: Bars | Lines, cluster: Cluster, *, yes: bool) -> Confirm:
    from provisioner.cost import telling
    from provisioner.cost import wanted as asked_for

    def ask(wanted: Plan, changes: int) -> bool:
        if yes:
            return True
        if not sys.stdin.isatty():
            raise GpuprovError(
                f"{changes} Terraform changes, and nobody to ask",
                where=str(cluster.file),
                hint="give --yes to make them",
            )
        what = ", ".join(f"{g.spec.count} × {g.machine.name}" for g in wanted.groups)
        with screen.paused():
            if cluster.sandbox:
                return typer.confirm(f"Rehearse {what} ({changes} changes)?", err=True)
            there = {node.name for node in cluster.nodes()}
            missing = {g.name: len(set(g.node_names()) - there) for g in wanted.groups}
            price = telling.making(asked_for(cluster.spec), missing)
            return typer.confirm(f"Make {what} ({changes} changes{f'; new: {price}' if price else ''})?", err=True)

    return ask


def tell(run: Run, *, as_json: bool) -> None:
    """Print what a run did and found."""
    assert run.report is not None
    if as_json:
        document = run.report.to_json()
        document["ok"] = run.healthy
        document["seconds"] = run.seconds
        document["changes"] = {"resources": run.resources, "configured": run.configured}
        document["report"] = str(run.page)
        document["waiting"] = run.waiting
        answer.give(document)
        return
    from provisioner.verify.report.terminal import table

    tables.show(table(run.report))
    seconds = ", ".join(f"{stage} {took:.1f} s" for stage, took in run.seconds.items())
    typer.echo(f"{run.changes} changes in {sum(run.seconds.values()):.1f} s ({seconds})")
    typer.echo(f"report: {run.page}")


def down(
    file: File, sandbox: Sandbox = None, yes: Yes = False, json_: Json = False, terraform: TerraformBinary = None
) -> None:
    """Remove everything that `up` made, and say so."""
    from provisioner.cli.display import display
    from provisioner.lifecycle import down as lifecycle
    from provisioner.session import open_cluster
    from provisioner.workspace.binary import find

    cluster = open_cluster(file, sandbox=sandbox)
    if not cluster.paths.exists():
        _say_down(cluster.spec.name, 0, as_json=json_)
        return
    cluster.require_rights()
    names = lifecycle.made(cluster)
    if not yes:
        if not sys.stdin.isatty():
            raise GpuprovError(
                f"{len(names)} nodes would be removed, and nobody to ask", where=str(file), hint="give --yes"
            )
        if not typer.confirm(f"Remove {', '.join(names) or 'what is left'} of {cluster.spec.name}?", err=True):
            raise Declined("nothing was removed")
    with display(quiet=json_) as show:
        cluster.events.subscribe(show)
        removal = lifecycle.down(cluster, find(terraform))
    _say_down(cluster.spec.name, removal.removed, as_json=json_)


def _say_down(name: str, removed: int, *, as_json: bool) -> None:
    if as_json:
        answer.give({"cluster": name, "removed": removed, "left": []})
    else:
        typer.echo(f"{name}: {removed} resources removed, nothing is left" if removed else f"{name}: nothing is there")


def status(
    file: File,
    sandbox: Sandbox = None,
    json_: Json = False,
    offline: Annotated[bool, typer.Option("--offline", help="Read files only; ask no node.")] = False,
) -> None:
    """Nodes, how far they are, their last verdict, which lock they run, and what differs from it."""
    from provisioner.lifecycle import spent
    from provisioner.lifecycle.status import status as read
    from provisioner.session import open_cluster

    document = read(open_cluster(file, sandbox=sandbox, offline=offline), ask=not offline)
    if json_:
        answer.give(document)
        return
    from rich.table import Table

    from provisioner.lifecycle.planning import told
    from provisioner.verify.report.terminal import in_quarantine

    simulated = " (simulated hardware)" if document["sandbox"] else ""
    table = Table(title=f"{document['cluster']}{simulated}", title_justify="left", box=None, pad_edge=False)
    for column in ("node", "machine", "site", "address", "stage", "healthy", "driver", "as locked"):
        table.add_column(column, overflow="fold", no_wrap=column in ("node", "machine", "address"))
    for node in document["nodes"]:
        verdict = {True: "yes", False: "NO", None: "-"}[node["ok"]]
        drift = "-" if not node["address"] or offline else "?" if node["drift"] is None else "NO"
        table.add_row(
            node["name"], node["machine"], node["site"], node["address"] or "-", node["stage"], verdict,
            node["driver"] or "-", "yes" if node["drift"] == [] else drift,
        )  # fmt: skip
    tables.show(table)
    for node in document["nodes"]:
        for line in told(node):
            typer.echo(f"{node['name']}: {line}")
        if node["quarantine"]:
            typer.echo(f"{node['name']}: {in_quarantine(node['quarantine'])}")
        if node["replace"]:
            again = f"gpuprov replace {file} {node['name']}"
            typer.echo(f"{node['name']}: replacement: {node['replace']['step']}; `{again}` goes on")
        if node["upgrade"]:
            reason = f": {node['upgrade']['reason']}" if node["upgrade"]["reason"] else ""
            typer.echo(f"{node['name']}: upgrade: {node['upgrade']['step']}{reason}")
    if document["upgrade"] and document["upgrade"]["phase"] != "done":
        reason = f": {document['upgrade']['reason']}" if document["upgrade"]["reason"] else ""
        typer.echo(f"upgrade to {document['upgrade']['to']}: {document['upgrade']['phase']}{reason}")
    for line in spent.lines(document["cost"]) if document["cost"] else ():
        typer.echo(line)
    if document["report"]:
        typer.echo(f"report: {document['report']}")


def unlock(file: File, sandbox: Sandbox = None) -> None:
    """Clear what a dead run left of its lock. A living one is never disturbed."""
    from provisioner.session import open_cluster

    cluster = open_cluster(file, sandbox=sandbox)
    if not cluster.paths.exists() and cluster.sharing is None:
        typer.echo(f"{cluster.spec.name}: nothing is there")
        return
    with cluster.alone_here("unlock"):  # raises LockedError while a holder here lives: the kernel knows
        stale = [str(path) for path in sorted(cluster.paths.root.glob("sites/*/.terraform.tfstate.lock.info"))]
        for info in stale:
            Path(info).unlink()
        if cluster.sharing:
            stale += cluster.sharing.clear()
    typer.echo(f"{cluster.spec.name}: no run holds it" + (f", {len(stale)} stale file(s) removed" if stale else ""))


def upgrade(
    file: File,
    sandbox: Sandbox = None,
    yes: Yes = False,
    json_: Json = False,
    batch: Annotated[str | None, typer.Option(metavar="N|N%", help="Nodes moved at once, after the canaries.")] = None,
    canary: Annotated[str | None, typer.Option(metavar="NODE", help="The node that goes first.")] = None,
    rollback_all: Annotated[
        bool, typer.Option("--rollback-all", help="Bring back also the nodes that have moved already.")
    ] = False,
    again: Annotated[bool, typer.Option("--again", help="Try a release that was rolled back here.")] = False,
    terraform: TerraformBinary = None,
) -> None:
    """Move a running fleet to the lock that cluster.yaml wants now: canary, batches, stop and roll back."""
    from provisioner.cli.display import display
    from provisioner.lifecycle import upgrade as lifecycle
    from provisioner.process import interrupt
    from provisioner.session import open_cluster
    from provisioner.workspace.binary import find

    cluster = open_cluster(file, sandbox=sandbox)
    cluster.require_rights()
    options = lifecycle.Options(_batch(batch), canary, rollback_all, again)
    for sign in (signal.SIGINT, signal.SIGTERM):
        signal.signal(sign, interrupt)
    screen = display(quiet=json_)

    def confirm(moving: dict[str, list[str]], size: int, first: list[str]) -> bool:
        if yes:
            return True
        if not sys.stdin.isatty():
            raise GpuprovError(
                "nodes would be moved, and nobody to ask", where=str(file), hint="give --yes to move them"
            )
        with screen.paused():
            for what in dict.fromkeys(", ".join(changed) for changed in moving.values()):
                typer.echo(f"{sum(', '.join(c) == what for c in moving.values())} nodes: {what}", err=True)
            return typer.confirm(f"Go on, first {', '.join(first) or 'what was begun'}, then {size} at once?", err=True)

    try:
        with screen as show:
            cluster.events.subscribe(show)
            done = lifecycle.upgrade(cluster, find(terraform), options, confirm=confirm)
    except KeyboardInterrupt:
        raise Interrupted("interrupted. Nothing is lost", hint="the same command goes on from here.") from None
    document = lifecycle.document(cluster, done)
    if json_:
        answer.give(document)
    else:
        for node in document["nodes"]:
            driver = f"driver {node['driver']}" if node["driver"] else f"lock {node['lock']}"
            typer.echo(f"{node['name']}: {node['step']}, {driver}" + (f" ({node['reason']})" if node["reason"] else ""))
        typer.echo(document["message"], err=not done.ok)
    raise typer.Exit(done.exit)


def _batch(text: str | None) -> int | str | None:
    if text is None:
        return None
    number = text.removesuffix("%")
    if not number.isdecimal() or not 1 <= int(number) <= (100 if text.endswith("%") else 10_000):
        raise GpuprovError(f"--batch {text}: a number of nodes, or a percentage such as 25%")
    return text if text.endswith("%") else int(number)
