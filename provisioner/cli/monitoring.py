"""monitoring: what watches a cluster, on a head node or elsewhere."""

from __future__ import annotations

import contextlib
import shlex
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from provisioner.cli import json_output
from provisioner.cli.options import File, Json, Sandbox
from provisioner.common.errors import GpuprovError, VerifyError
from provisioner.common.text import counted, few

if TYPE_CHECKING:
    from provisioner.lifecycle.session import Cluster
    from provisioner.output.monitoring import FaultAlerts, MonitoringTestOutput
    from provisioner.rundir.fleet import Node

app = typer.Typer(
    help="Prometheus, Alertmanager and Grafana of head nodes; rules, targets and dashboards for your own.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)


@app.callback()
def monitoring() -> None:
    """Prometheus, Alertmanager and Grafana of head nodes; rules, targets and dashboards for your own."""


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
        json_output.write(result)
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


@app.command()
def test(
    file: File,
    sandbox: Sandbox = None,
    fault: Annotated[
        list[str] | None, typer.Option("--fault", metavar="NAME", help="Only this fault of the sandbox (repeatable).")
    ] = None,
    speed: Annotated[
        int, typer.Option(min=1, max=60, help="Divide all times of the rules by this number; 1 takes hours.")
    ] = 15,
    as_json: Json = False,
) -> None:
    """Inject the faults of the sandbox, and report which alert fires for each, and after how long."""
    from provisioner.lifecycle.session import open_cluster
    from provisioner.monitoring import fault_alerts

    cluster = open_cluster(file, sandbox=sandbox)
    if not cluster.sandbox:
        raise GpuprovError("only nodes of the sandbox can have faults", hint="add --sandbox")
    cluster.require_rights()
    with cluster.alone_here("monitoring test"), tempfile.TemporaryDirectory(prefix="gpuprov-monitoring-") as folder:
        result = fault_alerts.run(
            cluster.spec, cluster.nodes(), cluster.paths.root, Path(folder), fault or (), speed,
            lambda line: typer.echo(line, err=True),
        )  # fmt: skip
    if as_json:
        json_output.write(result)
    else:
        _print_alerts(result)
    if result.healthy:
        names = few([row.alert for row in result.healthy], 5, ",")
        raise VerifyError(f"alerts fired for healthy nodes: {names}", hint="`gpuprov verify FILE --sandbox` shows why")
    if result.failed:
        raise VerifyError(f"{counted(len(result.failed), 'fault')} without the alert of its check: "
                          f"{few(result.failed, 5, ',')}")  # fmt: skip


@app.command(name="open")
def open_(
    file: File,
    head: Annotated[
        str | None, typer.Option("--head", metavar="GROUP", help="The group that runs it, where several do.")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port", min=1024, max=65_000, metavar="PORT",
            help="Port of this computer for Prometheus; the others get those after it.",
        ),
    ] = None,
    sandbox: Sandbox = None,
) -> None:  # fmt: skip
    """Lead ports of this computer to the servers of a head node, through ssh, until Ctrl-C."""
    from provisioner.lifecycle.session import open_cluster
    from provisioner.plan.roles.prometheus import ALERTMANAGER_PORT, GRAFANA_PORT, PROMETHEUS_PORT
    from provisioner.transport.tunnel import LOOPBACK, tunnel

    cluster = open_cluster(file, sandbox=sandbox)
    node = _head_node(cluster, head)
    programs = {f"Prometheus of {node.name}": PROMETHEUS_PORT, "Alertmanager": ALERTMANAGER_PORT}
    if cluster.spec.monitoring.has_grafana(node.group):
        programs["Grafana"] = GRAFANA_PORT
    with tunnel(cluster.paths, node.name, [*programs.values()], port) as local_ports:
        for (program, default_port), local_port in zip(programs.items(), local_ports, strict=True):
            typer.echo(f"{program}: http://{LOOPBACK}:{local_port}")
            if port is None and local_port != default_port:
                typer.echo(f"port {default_port} of this computer is in use; --port PORT chooses another", err=True)
        with contextlib.suppress(KeyboardInterrupt):
            typer.echo("Ctrl-C ends the connection")
            threading.Event().wait()


def _head_node(cluster: Cluster, group: str | None) -> Node:
    """The node that runs Prometheus. Raises GpuprovError where there is none, or which of several is not told."""
    heads = cluster.spec.monitoring.heads
    location = str(cluster.paths.spec)
    if not heads:
        raise GpuprovError(
            "no machine of this cluster runs Prometheus", where=location,
            hint="monitoring: {prometheus: {at: GROUP}} in cluster.yaml, then `gpuprov up`",
        )  # fmt: skip
    if group is not None and group not in heads:
        raise GpuprovError(f"group {group} does not run Prometheus", where=location, hint=f"one of {', '.join(heads)}")
    if group is None and len(heads) > 1:
        raise GpuprovError("several groups run Prometheus", where=location, hint=f"--head {' or --head '.join(heads)}")
    requested = group or heads[0]
    node = next((node for node in cluster.nodes() if node.group == requested), None)
    if node is None:
        raise GpuprovError(f"group {requested} has no machine yet", where=location, hint="`gpuprov up` makes it")
    return node


def _print_alerts(result: MonitoringTestOutput) -> None:
    """A line for each fault: what fired after how many seconds, or why nothing did."""
    rows = [(row.fault, row.check, _alerts_of(row)) for row in result.faults]
    widths = [max(len(row[column]) for row in (("fault", "check", ""), *rows)) for column in (0, 1)]
    typer.echo(f"{'fault':<{widths[0]}}  {'check':<{widths[1]}}  alerts, with seconds after the fault")
    for fault, check, alerts in rows:
        typer.echo(f"{fault:<{widths[0]}}  {check:<{widths[1]}}  {alerts}")
    fired = len(result.faults) - len(result.dark)
    typer.echo(
        f"{fired} of {counted(len(result.faults), 'fault')} fired an alert (measured {result.speed} times as fast)"
    )


def _alerts_of(row: FaultAlerts) -> str:
    alerts = [f"{alert.alert} {alert.seconds}{' (hidden)' if alert.hidden else ''}" for alert in row.alerts]
    return "; ".join([", ".join(alerts) or "none", *([row.reason] if row.reason else [])])
