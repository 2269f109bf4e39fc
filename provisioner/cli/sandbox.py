"""`gpuprov sandbox`: list faults, break sandbox nodes or a site's cloud with them, mend them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from provisioner.cli import json_output
from provisioner.common.errors import GpuprovError

if TYPE_CHECKING:
    from provisioner.lifecycle.session import Cluster

app = typer.Typer(
    help="Faults of sandbox nodes and of their clouds: list, inject, clear.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

File = Annotated[Path, typer.Argument(metavar="FILE", help="cluster.yaml of the sandbox cluster")]


@app.command("faults")
def faults(
    machine: Annotated[str | None, typer.Option(help="only faults that this machine type can have")] = None,
    machines: Annotated[
        Path | None, typer.Option(metavar="FILE", help="a file with machine types, such as a cluster.yaml")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON document on standard output")] = False,
) -> None:
    """List the faults that can be injected, with the check that finds each, and those of a site."""
    from provisioner import catalog
    from provisioner.sandbox import site_faults, state_faults
    from provisioner.sandbox.faults import list_faults
    from provisioner.spec.machine_types import extended
    from provisioner.verify.merged_checks import reported

    listed = list_faults(machine, extended(catalog.load(), machines))
    sites = site_faults.FAULTS if machine is None else ()
    states = state_faults.FAULTS if machine is None else ()
    if as_json:
        rows = [{"name": f.name, "sentence": f.sentence, "check": reported(f.check), "needs": f.needs} for f in listed]
        of_sites = [{"name": fault.name, "sentence": fault.sentence} for fault in (*sites, *states)]
        json_output.write({"faults": rows, "site_faults": of_sites})
        return
    width = max(len(fault.name) for fault in listed)
    for fault in listed:
        typer.echo(f"{fault.name:<{width}}  {fault.sentence} (found by {reported(fault.check)}; needs {fault.needs})")
    for site_fault in sites:
        typer.echo(f"{site_fault.name:<{width}}  {site_fault.sentence} (of a site, while machines are made)")
    for state in states:
        typer.echo(f"{state.name:<{width}}  {state.sentence} (of a site that was made)")


@app.command("fault")
def fault(
    file: File,
    node: Annotated[str, typer.Argument(metavar="NODE|SITE", help="name of the node, such as train-0, or of a site")],
    name: Annotated[str, typer.Argument(metavar="FAULT", help="one of `gpuprov sandbox faults`")],
    gpu: Annotated[
        int | None, typer.Option("--gpu", help="index of the GPU; by default the fourth, or the last")
    ] = None,
) -> None:
    """Inject a fault into a node, or into the cloud of a site."""
    from provisioner.lifecycle.session import open_cluster
    from provisioner.sandbox import containers, faults, site_faults, state_faults

    of_site = site_faults.find(name)
    cluster = open_cluster(file, sandbox=True)
    if of_site is not None:
        if gpu is not None:
            raise GpuprovError("--gpu is for faults of a node", hint=f"{name} is a fault of a site, which has no GPU")
        workspace = _site(cluster, node, name)
        if of_site[0].says:
            _refuse_zone(cluster, node, of_site[1])
        site_faults.inject(workspace, name)
        typer.echo(f"{node}: {of_site[0].told(of_site[1])}", err=True)
        return
    if (of_state := state_faults.find(name)) is not None:
        state_faults.inject(_site(cluster, node, name), of_state)
        typer.echo(f"{node}: {of_state.sentence}", err=True)
        return
    faults.find_fault(name)
    container = containers.find_node(cluster.paths.root, node)
    try:
        done = faults.inject(container.name, name, gpu=gpu)
    except GpuprovError as error:  # a person knows the node, not its container
        location = node if error.where == container.name else error.where
        raise GpuprovError(error.message, where=location, hint=error.hint) from None
    typer.echo(f"{node}: {faults.find_fault(done.name).sentence}", err=True)


@app.command("clear")
def clear(
    file: File,
    node: Annotated[str | None, typer.Argument(metavar="[NODE|SITE]", help="only this node, or site")] = None,
    name: Annotated[str | None, typer.Argument(metavar="[FAULT]", help="only this fault")] = None,
) -> None:
    """Clear one fault, all faults of a node or a site, or all faults of the cluster."""
    from provisioner.lifecycle.session import open_cluster
    from provisioner.sandbox import containers, faults, site_faults

    opened = open_cluster(file, sandbox=True)
    cluster = opened.paths.root
    for site in opened.spec.sites if node is None else [node] if node in opened.spec.sites else ():
        for fault_name in site_faults.clear(opened.paths.site(site), name):
            typer.echo(f"{site}: {fault_name} cleared", err=True)
    if node in opened.spec.sites:
        return
    if name is not None:
        faults.find_fault(name)
    if node is not None:
        nodes = [containers.find_node(cluster, node)]
    else:
        nodes = [c for c in containers.list_containers(cluster) if c.role == "node" and c.state == "running"]
    for container in nodes:
        for cleared in faults.clear(container.name, name):
            typer.echo(f"{container.node}: {cleared.name} cleared", err=True)


PYTORCH = "2.13.0"
"""The release for sandbox nodes; each recipe of gpuprov runs on it."""


@app.command("pytorch")
def pytorch(
    pip_arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[PIP OPTION]…", help="behind --: options of pip, such as an index")
    ] = None,
    version: Annotated[str, typer.Option(help="the release to install")] = PYTORCH,
) -> None:
    """Install PyTorch for sandbox nodes, which train on the processors. Needed once for `gpuprov run … --sandbox`."""
    from provisioner.sandbox import pytorch as installation
    from provisioner.sandbox.runtime import require_root

    require_root()
    is_new = installation.install(version, pip_arguments or ())
    typer.echo(
        f"PyTorch {version} {'is installed' if is_new else 'is there already'}: {installation.folder()}", err=True
    )


def _site(cluster: Cluster, name: str, fault: str) -> Path:
    """The workspace of a site of the file. Raises GpuprovError for one that it does not have."""
    if name not in cluster.spec.sites:
        message = f"there is no site {name}"
        if any(name == node for group, many in cluster.spec.groups.items() for node in _nodes(group, many.count)):
            message = f"{name} is a node, and {fault} is a fault of a site"
        raise GpuprovError(message, hint=f"sites: {', '.join(cluster.spec.sites)}")
    return cluster.paths.site(name)


def _nodes(group: str, count: int) -> list[str]:
    return [f"{group}-{number}" for number in range(count)]


def _refuse_zone(cluster: Cluster, site: str, zone: str) -> None:
    """Raise GpuprovError for a zone that the site can't be asked in: such a fault would refuse nothing."""
    from provisioner import catalog

    settings = cluster.spec.sites[site]
    region = getattr(settings, "region", "")
    if not zone or not region:
        return
    provider, zones = catalog.load().provider(settings.provider), tuple(getattr(settings, "zones", ()))
    if zone not in zones if zones else not provider.is_zone(zone, region):
        hint = f"zones: {', '.join(zones)}" if zones else f"{provider.title} calls zones of {region} otherwise"
        raise GpuprovError(f"{zone} is not a zone of {site}", hint=hint)
