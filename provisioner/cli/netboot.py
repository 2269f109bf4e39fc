"""`gpuprov netboot`: machines without an operating system, installed over the network."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from provisioner.cli.options import File, Yes
from provisioner.common import ownership
from provisioner.common.errors import Declined, Exit
from provisioner.common.text import counted, printable

if TYPE_CHECKING:
    from provisioner.common.events import Event


def netboot(
    file: File,
    site: Annotated[str | None, typer.Option("--site", metavar="NAME", help="The site, of several.")] = None,
    run: Annotated[bool, typer.Option("--run", help="Answer the machines and install them. Needs root.")] = False,
    yes: Yes = False,
) -> None:
    """Write the configuration with which machines start from the network; with --run, install them."""
    from provisioner.cli.confirm import confirmed
    from provisioner.lifecycle import netboot as lifecycle
    from provisioner.lifecycle.session import open_cluster

    cluster = open_cluster(file, sandbox=False)
    if not run:
        with cluster.exclusively("netboot"):
            ready = lifecycle.ready(cluster, site)
            typer.echo(f"wrote {lifecycle.write(ready)}")
            for host, step in lifecycle.steps(ready).items():
                typer.echo(f"{host}: {step or 'would be installed'}")
        command = f"sudo {ownership.program()} netboot {file} --run"
        typer.echo(f"nothing was started; `{command}` answers them on {ready.how.interface}", err=True)
        return
    lifecycle.refuse_without_root(file)
    cluster.events.subscribe(_print_event)
    with cluster.exclusively("netboot"):
        ready = lifecycle.ready(cluster, site)
        lost = ", ".join(f"{host.name} ({host.serial})" for host in ready.overwritten())
        question = (
            f"Answer {counted(len(ready.hosts), 'machine')} on {ready.how.interface} and install them"
            f"{f', overwriting the disks of {lost}' if lost else ''}?"
        )
        if not confirmed(question, yes=yes, where=str(file), declined="nothing was started"):
            raise Declined("nothing was started")
        done = lifecycle.run(ready)
    for host, ended in done.items():
        typer.echo(printable(f"{host}: {': '.join(filter(None, ended))}"))
    if all(ended.step == "installed" for ended in done.values()):
        typer.echo(f"next: gpuprov up {file}", err=True)
        return
    raise typer.Exit(Exit.PROVIDER_FAILED)


_TELLING = re.compile(r"DHCPACK| ignored$|tftp.*(sent|error|failed)|no address")
"""Lines of dnsmasq's log that a person at the machines wants; all of them are in the run's events.jsonl."""


def _print_event(event: Event) -> None:
    if event.stage == "fleet" and (event.node or not event.message.startswith("dnsmasq")):
        typer.echo(f"{event.node}: {event.message}" if event.node else event.message, err=True)
    elif event.stage == "fleet" and _TELLING.search(event.message):
        typer.echo(event.message, err=True)
