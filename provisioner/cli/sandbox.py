"""`gpuprov sandbox`: list hardware faults, break sandbox nodes with them, mend them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from provisioner.cli import json_output

app = typer.Typer(
    help="Hardware faults on sandbox nodes: list, inject, clear.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

File = Annotated[Path, typer.Argument(metavar="FILE", help="cluster.yaml of the rehearsed cluster")]


@app.command("faults")
def faults(
    machine: Annotated[str | None, typer.Option(help="only faults that this machine type can have")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON document on standard output")] = False,
) -> None:
    """List the faults that can be injected, with the check that finds each."""
    from provisioner.sandbox.faults import list_faults

    listed = list_faults(machine)
    if as_json:
        rows = [{"name": f.name, "sentence": f.sentence, "check": f.check, "needs": f.needs} for f in listed]
        json_output.write({"faults": rows})
        return
    width = max(len(fault.name) for fault in listed)
    for fault in listed:
        typer.echo(f"{fault.name:<{width}}  {fault.sentence} (found by {fault.check}; needs {fault.needs})")


@app.command("fault")
def fault(
    file: File,
    node: Annotated[str, typer.Argument(metavar="NODE", help="name of the node, such as train-0")],
    name: Annotated[str, typer.Argument(metavar="FAULT", help="one of `gpuprov sandbox faults`")],
    gpu: Annotated[
        int | None, typer.Option("--gpu", help="index of the GPU; by default the fourth, or the last")
    ] = None,
) -> None:
    """Inject a fault into a node."""
    from provisioner.sandbox import containers, faults
    from provisioner.session import open_cluster

    faults.find_fault(name)
    found = containers.find_node(open_cluster(file, sandbox=True).paths.root, node)
    done = faults.inject(found.name, name, gpu=gpu)
    typer.echo(f"{node}: {faults.find_fault(done.name).sentence}", err=True)


@app.command("clear")
def clear(
    file: File,
    node: Annotated[str | None, typer.Argument(metavar="[NODE]", help="only this node")] = None,
    name: Annotated[str | None, typer.Argument(metavar="[FAULT]", help="only this fault")] = None,
) -> None:
    """Clear one fault, all faults of a node, or all faults of the cluster."""
    from provisioner.sandbox import containers, faults
    from provisioner.session import open_cluster

    cluster = open_cluster(file, sandbox=True).paths.root
    if name is not None:
        faults.find_fault(name)
    if node is not None:
        nodes = [containers.find_node(cluster, node)]
    else:
        nodes = [c for c in containers.list_containers(cluster) if c.role == "node" and c.state == "running"]
    for found in nodes:
        for mended in faults.clear(found.name, name):
            typer.echo(f"{found.node}: {mended.name} cleared", err=True)
