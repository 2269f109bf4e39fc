"""size: memory, machines, days and cost of a training, before anything is bought."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from provisioner.cli import json_output, tables
from provisioner.cli.options import Json
from provisioner.common.errors import GpuprovError

if TYPE_CHECKING:
    from rich.table import Table

    from provisioner.catalog import Catalog
    from provisioner.output.size import SizeMachine, SizeOutput, SizeRange, SizeStrategy
    from provisioner.workloads.sizing import Request

GIB = 2**30
LEAST_SHOWN = 0.001
"""Smaller amounts are printed as less than this."""
NOT_IN_OVERVIEW = ("checkpoint interval:", "list price: not in the catalogue")
"""The overview has no column for it, or says so in the column."""
SHOWN_NAMES = 6
"""Machine types of a reason; the document has all of them."""


def size(
    params: Annotated[
        str | None, typer.Option("--params", metavar="COUNT", help="Parameters of the model, such as 13B.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="NAME", help="A model with a published shape instead, such as llama3-8b."),
    ] = None,
    tokens: Annotated[str, typer.Option("--tokens", metavar="COUNT", help="Tokens to train on, such as 300B.")] = "",
    seq: Annotated[int, typer.Option("--seq", metavar="TOKENS", help="Length of a sequence.")] = 4096,
    machine: Annotated[
        list[str] | None,
        typer.Option("--machine", metavar="NAME", help="Show this machine type in detail. May be repeated."),
    ] = None,
    gpus: Annotated[int | None, typer.Option("--gpus", metavar="NUMBER", help="Use exactly so many GPUs.")] = None,
    deadline: Annotated[
        str | None, typer.Option("--deadline", metavar="TIME", help="Use the machines that finish in time: 14d, 36h.")
    ] = None,
    precision: Annotated[
        Literal["bf16", "fp8"], typer.Option("--precision", help="Precision of matrix products.")
    ] = "bf16",
    micro_batch: Annotated[
        int, typer.Option("--micro-batch", metavar="NUMBER", help="Sequences of one GPU in one forward pass.")
    ] = 1,
    region: Annotated[
        str | None, typer.Option("--region", metavar="REGION", help="Use list prices of this region.")
    ] = None,
    write_rate: Annotated[
        float | None,
        typer.Option("--write-rate", metavar="GB/S", help="Rate at which all machines together write a checkpoint."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Estimate memory, machines, days and cost of training a transformer.

    Ranges come from published training runs. What no source gives is reported as unknown."""
    from provisioner import catalog
    from provisioner.workloads.document import document, survey

    known = catalog.load()
    machines = [known.machine(name) for name in dict.fromkeys(machine or ())]
    request = _request(
        params, model, tokens, seq, gpus=gpus, deadline=deadline, precision=precision, micro_batch=micro_batch,
        region=region, write_rate=write_rate,
    )  # fmt: skip
    if region is not None:
        _check_region(region, known)
    answer = document(request, machines, known) if machines else survey(request, known)
    if as_json:
        json_output.write(answer)
    else:
        _show(answer, detailed=bool(machines))


def _request(
    params: str | None,
    model: str | None,
    tokens: str,
    seq: int,
    *,
    gpus: int | None,
    deadline: str | None,
    precision: Literal["bf16", "fp8"],
    micro_batch: int,
    region: str | None,
    write_rate: float | None,
) -> Request:
    """The options as a request. Raises GpuprovError for the first that is wrong."""
    from provisioner.workloads.quantities import count, days
    from provisioner.workloads.shapes import published_model, scaled_model
    from provisioner.workloads.sizing import Request

    if (params is None) == (model is None):
        raise GpuprovError("pass either --params or --model", hint="gpuprov size --params 13B --tokens 300B")
    if not tokens:
        raise GpuprovError("--tokens is missing", hint="such as --tokens 300B: the tokens that the training reads")
    _check("--seq", seq, 128, 1_048_576, "--seq 4096")
    _check("--micro-batch", micro_batch, 1, 1024, "--micro-batch 1")
    if gpus is not None:
        _check("--gpus", gpus, 1, 131_072, "--gpus 64")
    if gpus is not None and deadline is not None:
        raise GpuprovError("--gpus and --deadline exclude each other", hint="--deadline chooses the number of GPUs")
    if write_rate is not None:
        _check("--write-rate", write_rate, 0.01, 100_000, "--write-rate 20")
    if params is not None:
        trained = scaled_model(count(params, "--params", "13B", 1e8, 1e13), seq)
    else:
        trained = published_model(model or "", seq)
    return Request(
        trained,
        count(tokens, "--tokens", "300B", 1e6, 1e14),
        seq,
        micro_batch,
        precision,
        None if deadline is None else days(deadline, "--deadline"),
        gpus,
        region,
        write_rate,
    )


def _check(option: str, value: float, low: float, high: float, example: str) -> None:
    if not low <= value <= high:
        raise GpuprovError(f"{option} {value} is outside {low:,} to {high:,}", hint=f"such as {example}")


def _check_region(region: str, catalog: Catalog) -> None:
    """Raises GpuprovError for a region in which the catalogue has no price."""
    from provisioner.common.suggest import did_you_mean

    regions = sorted({price.region for machine in catalog.machines() for price in catalog.prices(machine)})
    if region not in regions:
        raise GpuprovError(
            f"--region {region}: the catalogue has no list price in this region",
            hint=did_you_mean(region, regions, limit=2) or f"such as {', '.join(regions[:3])}",
        )


def _show(answer: SizeOutput, *, detailed: bool) -> None:
    from provisioner.common.text import few
    from provisioner.workloads.quantities import short

    name = answer.model.name
    head = "" if answer.model.assumption else f"{name}: "
    deadline = "" if answer.deadline is None else f", in {answer.deadline:.3g} days"
    typer.echo(
        f"{head}{short(answer.model.parameters)} parameters, {short(answer.tokens)} tokens, "
        f"sequence {answer.sequence}, {answer.precision}, micro-batch {answer.micro_batch}{deadline}"
    )
    if answer.model.assumption:
        typer.echo(f"assumed: {answer.model.assumption}")
    typer.echo(f"one checkpoint: {_span(answer.checkpoint, 1 / GIB)} GiB")
    if detailed:
        for row in answer.machines:
            _show_machine(row)
    elif answer.machines:
        _overview(answer)
    else:
        typer.echo("\nno machine type of the catalogue has an answer")
    for left_out in answer.left_out:
        typer.echo(f"left out: {left_out.reason}: {few(left_out.machines, SHOWN_NAMES, ',')}")
    typer.echo("\nnot included: " + "; ".join(answer.unknown))


def _overview(answer: SizeOutput) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    right = {"machines", "GPUs", "tokens/s of a GPU", "days", "list price", "failures"}
    for column in (
        "machine",
        "machines",
        "GPUs",
        "strategy",
        "tokens/s of a GPU",
        "days",
        "list price",
        "",
        "failures",
    ):
        table.add_column(column, justify="right" if column in right else "left", no_wrap=True)
    for row in answer.machines:
        price = "unknown" if row.cost is None else f"{_optional(row.cost.total)} {row.cost.currency}"
        table.add_row(
            row.machine,
            _span(row.machines),
            str(row.gpus),
            _chosen(row),
            _optional(row.rate),
            _optional(row.days),
            price,
            row.cost.region if row.cost else "",
            _optional(row.failures),
        )
    typer.echo()
    tables.show(table)
    typer.echo("\ndetails and sources of one type: --machine NAME; spot prices: gpuprov cost --machine NAME")
    texts = (text for row in answer.machines for text in row.unknown if not text.startswith(NOT_IN_OVERVIEW))
    for text in dict.fromkeys(texts):
        names = [row.machine for row in answer.machines if text in row.unknown]
        typer.echo(f"unknown for {_abridged(names)}: {text}")


def _abridged(names: list[str]) -> str:
    from provisioner.common.text import few

    return few(names, 3, ",")


def _chosen(row: SizeMachine) -> str:
    strategy = _recommended(row)
    if strategy is None:
        return "none"
    recomputed = "" if strategy.recompute == "none" else f", {strategy.recompute} recomputation"
    return f"{row.recommended}{recomputed}" + ("" if strategy.verdict == "fits" else " (may fit)")


def _recommended(row: SizeMachine) -> SizeStrategy | None:
    return next((strategy for strategy in row.strategies if _title(strategy) == row.recommended), None)


def _title(strategy: SizeStrategy) -> str:
    if strategy.strategy == "TP×PP":
        return f"TP {strategy.tensor} × PP {strategy.pipeline}"
    return strategy.strategy


def _show_machine(row: SizeMachine) -> None:
    """One machine type in detail."""
    noun = "machine" if row.machines.high == 1 else "machines"
    typer.echo(f"\n{row.machine}: {_span(row.machines)} {noun}, {row.gpus} × {row.gpu} ({row.provider})")
    typer.echo(row.advice)
    typer.echo(f"\nmemory of one GPU in GiB, of {row.gpu_memory / GIB:.1f}:")
    tables.show(_memory(row))
    mfu = "" if row.mfu is None else f" (MFU {_span(row.mfu, 100)} %)"
    lines = [
        ("tokens/s of a GPU", _optional(row.rate) + mfu),
        ("days", _optional(row.days)),
        ("list price", _price(row)),
        ("spot price", row.spot),
        ("failures", _optional(row.failures)),
        ("time between failures", f"{_span(row.between_failures)} hours"),
        (
            "checkpoint every",
            "unknown" if row.checkpoint_interval is None else f"{_span(row.checkpoint_interval)} hours",
        ),
    ]
    if row.checkpoint_overhead is not None:
        label, text = lines[-1]
        lines[-1] = (label, f"{text}; checkpoints and repeated steps take {_span(row.checkpoint_overhead, 100)} %")
    typer.echo()
    for label, text in lines:
        typer.echo(f"{label + ':':<23}{text}")
    if row.runs:
        typer.echo(f"published runs: {row.similarity}")
        for source in dict.fromkeys(run.source for run in row.runs):
            typer.echo(f"  {source}")
            for run in row.runs:
                if run.source == source:
                    typer.echo(f"    {run.conditions}: {run.rate:,g} tokens/s")
    for text in row.unknown:
        typer.echo(f"unknown: {text}")


def _price(row: SizeMachine) -> str:
    from provisioner.common.text import money

    if row.cost is None:
        return "unknown"
    hour = money(row.cost.hour, row.cost.currency)
    source = f"{row.cost.region}, {hour} an hour and machine, {row.cost.date}"
    return f"{_optional(row.cost.total)} {row.cost.currency} ({source})" if row.cost.total else f"unknown ({source})"


def _memory(row: SizeMachine) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    parts = [part.name for part in row.strategies[0].parts]
    for column in ("strategy", "recompute", *parts, "total", ""):
        table.add_column(column, justify="right" if column in (*parts, "total") else "left", no_wrap=True)
    for strategy in row.strategies:
        amounts = [_span(part.bytes, 1 / GIB) for part in strategy.parts]
        total = _span(strategy.total, 1 / GIB)
        table.add_row(_title(strategy), strategy.recompute, *amounts, total, strategy.verdict)
    return table


def _optional(value: SizeRange | None) -> str:
    return "unknown" if value is None else _span(value)


def _span(value: SizeRange, factor: float = 1) -> str:
    """Both bounds as people read them; one where they look the same."""
    low, high = (_bound(bound * factor) for bound in (value.low, value.high))
    return low if low == high else f"{low}–{high}"


def _bound(value: float) -> str:
    if value >= 100 or float(value).is_integer():
        return f"{value:,.0f}"
    if value < LEAST_SHOWN:
        return f"<{LEAST_SHOWN}"
    return f"{value:.1f}" if value >= 1 else f"{value:.2g}"
