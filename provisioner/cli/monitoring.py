"""monitoring: what a Prometheus, Alertmanager and Grafana of one's own need to watch a cluster."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from provisioner.cli import json_output
from provisioner.cli.options import File, Json, Sandbox
from provisioner.common.text import counted

app = typer.Typer(
    help="Prometheus rules, scrape targets, Alertmanager routes, Grafana dashboards.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)


@app.callback()
def monitoring() -> None:
    """Prometheus rules, scrape targets, Alertmanager routes, Grafana dashboards."""


@app.command()
def export(
    file: File,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where the files go; several clusters may share it.")],
    sandbox: Sandbox = None,
    as_json: Json = False,
) -> None:
    """Write rules, targets and dashboards of a cluster for your own Prometheus and Grafana."""
    from provisioner.lifecycle.session import open_cluster
    from provisioner.monitoring import export as exported

    cluster = open_cluster(file, sandbox=sandbox)
    result = exported.write(folder, cluster.spec, cluster.nodes(), sandbox=cluster.sandbox)
    if as_json:
        json_output.write(result.model_dump(mode="json"))
        return
    typer.echo(
        f"{result.folder}: {counted(result.alerts, 'alerting rule')}, targets of {counted(result.nodes, 'node')}, "
        f"{counted(len(exported.dashboard_names()), 'dashboard')}"
    )
    for name in result.edited:
        typer.echo(f"kept {name}: it was edited; compare it with an export into an empty folder")
    for name in result.removed:
        typer.echo(f"removed {name}: of an earlier export")
    for sentence in result.missing:
        typer.echo(f"not watched: {sentence}")
    quoted_folder = shlex.quote(str(folder))
    typer.echo(
        f"test them: promtool check config {quoted_folder}/prometheus.yml && "
        f"promtool test rules {quoted_folder}/rule-tests/*.yml; install them: `gpuprov docs monitoring`"
    )
