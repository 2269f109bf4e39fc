"""`bench`: training benchmarks, compared with the fleet's own baseline, the other nodes and published runs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from provisioner.cli import json_output
from provisioner.cli.options import File, Json, Sandbox
from provisioner.cli.remote_command import REMAINING
from provisioner.common.errors import Exit, GpuprovError
from provisioner.common.text import printable

if TYPE_CHECKING:
    from provisioner.output.bench import BenchOutput, BenchRun

LEAST_STEPS = 4


def bench(
    context: typer.Context,
    file: File,
    model: Annotated[
        list[str] | None, typer.Argument(metavar="[MODEL]…", help="resnet50, bert-large, bert-large-512, gpt-1b; all.")
    ] = None,
    group: Annotated[str | None, typer.Option("--group", help="Measure nodes of this group.")] = None,
    nodes: Annotated[int | None, typer.Option("--nodes", min=1, help="Use this many nodes; all by default.")] = None,
    node: Annotated[list[str] | None, typer.Option("--node", help="Use this node (repeatable).")] = None,
    scale: Annotated[
        list[str] | None, typer.Option("--scale", help="gpu, node or fleet (repeatable); all three by default.")
    ] = None,
    steps: Annotated[int, typer.Option("--steps", min=LEAST_STEPS, help="Steps of a run.")] = 120,
    image: Annotated[str | None, typer.Option("--image", help="An image of cluster.lock with PyTorch.")] = None,
    save_baseline: Annotated[
        bool, typer.Option("--save-baseline", help="Hold later runs to what this one reaches.")
    ] = False,
    sandbox: Sandbox = None,
    json_: Json = False,
) -> None:
    """Train known models on one GPU, on each node by itself and on all nodes, and compare what they reach.

    What stands behind -- goes to the programs, such as --batch 128.
    """
    from provisioner.common.suggest import did_you_mean
    from provisioner.lifecycle.jobs import bench as benchmark
    from provisioner.lifecycle.jobs.start import Options
    from provisioner.lifecycle.session import open_cluster
    from provisioner.workloads.benchmarks import MODELS

    models = tuple(model or MODELS)
    for name in models:
        if name not in MODELS:
            hint = did_you_mean(name, [*MODELS]) or f"models: {', '.join(MODELS)}"
            raise GpuprovError(f"there is no benchmark {name}", hint=hint)
    cluster = open_cluster(file, sandbox=sandbox)
    request = benchmark.Request(
        models,
        benchmark.scales_of(scale or ("gpu", "node", "fleet")),
        steps,
        context.meta.get(REMAINING, ()),
        Options(group=group, nodes=nodes, names=tuple(node or ()), image=image),
        save_baseline,
    )
    document = benchmark.bench(cluster, request, lambda text: print(printable(text), file=sys.stderr))
    if json_:
        json_output.write(document)
    else:
        _show(document)
    raise typer.Exit(Exit.OK if document.ok else Exit.CHECK_FAILED)


def _show(document: BenchOutput) -> None:
    """A row for each run, then what is wrong, and what it could be compared with."""
    from rich.table import Table

    from provisioner.cli import tables

    title = " (simulated hardware)" if document.sandbox else ""
    table = Table(
        title=f"{document.cluster}: {document.machine}{title}", title_justify="left", box=None, pad_edge=False
    )
    for column in ("model", "on", "GPUs", "rate", "10–90 % of steps", "MFU", "GiB", "efficiency", "baseline", "loss"):
        table.add_column(column, no_wrap=True)
    for run in document.runs:
        table.add_row(*_cells(run))
    tables.show(table)
    for run in document.runs:
        location = f"{run.model} on {', '.join(run.nodes)}"
        for problem in run.problems:
            typer.echo(f"{location}: {printable(problem)}")
        for row in run.published:
            span = f"{row.low:,.0f}" if row.low == row.high else f"{row.low:,.0f} to {row.high:,.0f}"
            typer.echo(f"{location}: published {span} {run.unit}/s with {row.conditions} ({row.source})")
    if missing := sorted({text for run in document.runs for text in run.missing}):
        typer.echo(f"not compared for want of: {', '.join(missing)}")


def _cells(run: BenchRun) -> list[str]:
    on = {"gpu": "one GPU", "node": run.nodes[0], "fleet": f"{len(run.nodes)} nodes"}[run.scale]
    if run.rate is None:
        return [run.model, on, "-", "failed", "-", "-", "-", "-", "-", "-"]
    return [
        run.model,
        on,
        str(run.gpus),
        f"{run.rate:,.0f} {run.unit}/s",
        f"{run.slow:,.0f}–{run.fast:,.0f}",
        "-" if run.mfu is None else f"{100 * run.mfu:.1f} %",
        "-" if run.peak_gib is None else f"{run.peak_gib:.1f}",
        "-" if run.efficiency is None else f"{100 * run.efficiency:.0f} %",
        "-" if run.baseline is None else f"{100 * run.rate / run.baseline:.0f} %",
        f"{run.first_loss:.2f} → {run.last_loss:.2f}",
    ]
