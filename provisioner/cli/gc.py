"""gc: what a crash left behind, found by tag; a cluster that is named is removed."""

from __future__ import annotations

import re
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from provisioner import catalog
from provisioner.cli import json_output
from provisioner.cli.confirm import confirmed
from provisioner.common.errors import Exit, GpuprovError, ProviderError
from provisioner.common.text import counted, printable

if TYPE_CHECKING:
    from provisioner.lifecycle.gc import Cluster, Remainder
    from provisioner.machines.providers.orphans import Orphans
    from provisioner.output.gc import GcOutput
    from provisioner.spec.models import ClusterSpec

MOST_IDS = 4
"""Of one kind, told one by one."""


def gc(
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="cluster.yaml: its regions are looked at")
    ] = None,
    region: Annotated[
        list[str] | None, typer.Option("--region", metavar="REGION", help="A region instead. May be repeated.")
    ] = None,
    provider: Annotated[
        str | None, typer.Option("--provider", metavar="NAME", help="Of --region, where several could be meant.")
    ] = None,
    sandbox: Annotated[bool, typer.Option("--sandbox", help="Containers of sandboxes on this machine.")] = False,
    cluster: Annotated[
        str | None, typer.Option("--cluster", metavar="NAME", help="Remove what is left of this cluster.")
    ] = None,
    identity: Annotated[
        str | None,
        typer.Option("--id", metavar="ID", help="Which one, where several clusters have that name; none: without id."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Find by tag what a crash left behind; remove it where a cluster is named that nobody here knows."""
    from provisioner import spec
    from provisioner.lifecycle import gc as lifecycle

    if identity is not None and cluster is None:
        raise GpuprovError("--id needs --cluster NAME")
    loaded = spec.load(file) if file is not None else None
    places = _places(loaded, region or [], provider, sandbox=sandbox)
    folders = [*([file.absolute().parent] if file is not None else []), Path.cwd(), *Path.cwd().parents]
    try:
        remainder = lifecycle.look(places, folders, loaded)
    except ProviderError as error:
        if as_json:  # nobody knows what is there: that is gc's answer too
            json_output.write(_document(lifecycle.Remainder((), (error.message,)), 0, []))
        raise
    removed, leftovers = 0, list[str]()
    if not as_json:
        _show(remainder, hint=cluster is None)
    chosen = lifecycle.chosen(remainder, cluster, identity) if cluster is not None else []
    if chosen and _may(chosen, yes=yes):
        removed, leftovers = lifecycle.remove(places, chosen, lambda line: typer.echo(printable(line), err=True))
    if as_json:
        json_output.write(_document(remainder, removed, leftovers))
    elif cluster is not None:
        typer.echo(f"{cluster}: {removed} things removed" if chosen else f"{cluster}: nothing is there")
    for line in leftovers:
        typer.echo(printable(f"left: {line}"), err=True)
    if leftovers or remainder.unknown:
        raise typer.Exit(Exit.PROVIDER_FAILED)


def _places(loaded: ClusterSpec | None, regions: list[str], provider: str | None, *, sandbox: bool) -> list[Orphans]:
    """Where to look. Raises GpuprovError where nobody said so."""
    from provisioner.machines.providers import base as providers
    from provisioner.spec.site import CloudSite

    if sandbox:
        return [_orphans(providers.SANDBOX, "")]
    able = providers.with_capability("orphans")
    regions_to_scan = [(provider or _provider_of(name, able), name) for name in regions]
    if loaded is not None and not regions:
        sites = [site for site in loaded.sites.values() if isinstance(site, CloudSite)]
        regions_to_scan = list(dict.fromkeys((site.provider, site.region) for site in sites))
    if not regions_to_scan:
        raise GpuprovError("nothing to scan: pass a cluster.yaml with a cloud's site, --region or --sandbox")
    return [_orphans(name, region) for name, region in regions_to_scan]


def _provider_of(region: str, able: list[str]) -> str:
    """The only provider whose regions have names like that. Raises GpuprovError where several have."""
    rows = {row.name: row.region for row in catalog.load().providers()}
    fits = [name for name in able if re.fullmatch(rows[name], region)]
    if len(fits) != 1:
        raise GpuprovError(f"--region {region} needs --provider", hint=f"one of {', '.join(fits or able)}")
    return fits[0]


def _orphans(name: str, region: str) -> Orphans:
    """Who looks in a region. Raises GpuprovError where gpuprov can't look there."""
    from provisioner.machines.providers import base as providers

    provider = providers.find(name)
    scanner = provider.orphans(region) if provider else None
    if scanner is None:
        raise GpuprovError(
            f"gpuprov cannot look for leftovers at {name}", hint="it made nothing there; look at its console"
        )
    return scanner


def _may(chosen: list[Cluster], *, yes: bool) -> bool:
    """Whether a person wants it."""
    name = chosen[0].name
    count = sum(not resource.kept for cluster in chosen for resource in cluster.things)
    question = f"Remove these {counted(count, 'resource')} of {name}? Somebody else may be using them."
    if confirmed(question, yes=yes, where=name, declined="nothing was removed"):
        return True
    typer.echo("nothing was removed", err=True)
    return False


def _show(remainder: Remainder, *, hint: bool) -> None:

    def say(line: str) -> None:  # names and ids are whatever somebody wrote there
        typer.echo(printable(line))

    for cluster in remainder.clusters:
        site = f", site {cluster.site}" if cluster.site else ""
        age = f", the oldest {_age(cluster.since)} old" if cluster.since else ""
        which = f", id {cluster.identity}" if cluster.identity else ""
        known = f"alive here ({cluster.alive})" if cluster.alive else "nobody on this machine knows it"
        say(f"{cluster.place}: cluster {cluster.name}{site}{which}: {len(cluster.things)} things{age}; {known}")
        for kind, count in Counter(resource.kind for resource in cluster.things).items():
            of_kind = [resource for resource in cluster.things if resource.kind == kind]
            ids = [f"{t.id} ({t.state})" if t.state else t.id for t in of_kind[:MOST_IDS]]
            more = [f"and {count - MOST_IDS} more"] if count > MOST_IDS else []
            kept_text = f": {of_kind[0].kept}" if of_kind[0].kept else ""
            say(f"  {counted(count, kind)}: {', '.join(ids + more)}{kept_text}")
    for line in remainder.unknown:
        say(f"unknown: {line}")
    if not remainder.clusters and not remainder.unknown:
        say("nothing with gpuprov's tags is there")
    if hint and any(not cluster.alive for cluster in remainder.clusters):
        say("a colleague's cluster looks the same from here: ask, then name the one to remove with --cluster NAME")


def _age(since: datetime) -> str:
    hours = (datetime.now(UTC) - since).total_seconds() / 3600
    return (
        f"{hours / 24:.0f} days" if hours >= 48 else f"{hours:.0f} hours" if hours >= 2 else f"{hours * 60:.0f} minutes"
    )


def _document(remainder: Remainder, removed: int, leftovers: list[str]) -> GcOutput:
    from provisioner.output.gc import GcOutput, LeftCluster, LeftThing

    def text(moment: datetime | None) -> str | None:
        return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if moment else None

    clusters = [
        LeftCluster(
            cluster=cluster.name, identity=cluster.identity, site=cluster.site, place=cluster.place,
            alive=cluster.alive, since=text(cluster.since),
            things=[
                LeftThing(
                    kind=row.kind, id=row.id, name=row.name, state=row.state, since=text(row.since), kept=row.kept
                )
                for row in cluster.things
            ],
        )
        for cluster in remainder.clusters
    ]  # fmt: skip
    return GcOutput(clusters=clusters, removed=removed, left=leftovers, unknown=list(remainder.unknown))
