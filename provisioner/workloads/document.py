"""`gpuprov size --json`: the answer for every machine type that fits, and the reasons for the others."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, log10

from provisioner.catalog import Catalog
from provisioner.catalog.models import Machine
from provisioner.output.size import (
    SizeCost,
    SizeLeftOut,
    SizeMachine,
    SizeModel,
    SizeOutput,
    SizePart,
    SizeRange,
    SizeRun,
    SizeStrategy,
)
from provisioner.workloads import published
from provisioner.workloads.published import Measurement
from provisioner.workloads.ranges import Range
from provisioner.workloads.sizing import (
    MIB,
    MachineSize,
    Request,
    Strategy,
    advice,
    checkpoint_bytes,
    size_machine,
)

NOT_INCLUDED = (
    "fragmentation of PyTorch's allocator and buffers of NCCL are in no part of the memory",
    "days have no failures, restarts, evaluation or slow data",
    "the published rates are of other teams' code, batch sizes and versions",
)
DIGITS = 4
"""Significant digits of a bound."""


def document(request: Request, machines: Sequence[Machine], catalog: Catalog) -> SizeOutput:
    """The document for machine types that a user names. Raises GpuprovError."""
    return _document(request, [size_machine(request, machine, catalog) for machine in machines], {}, catalog)


def survey(request: Request, catalog: Catalog) -> SizeOutput:
    """The document for all machine types of the catalogue. Those without an answer stand in `left_out`."""
    results: list[MachineSize] = []
    reasons: dict[str, list[str]] = {}
    for machine in catalog.listed.values():
        if not machine.gpu_count or machine.retired:
            continue
        if request.gpus is not None and request.gpus % machine.gpu_count:
            reasons.setdefault(f"{request.gpus} GPUs are not whole machines", []).append(machine.name)
            continue
        result = size_machine(request, machine, catalog)
        if result.recommended is None:
            reasons.setdefault("the model does not fit", []).append(machine.name)
        elif result.throughput is None:
            reason = (
                "no RDMA between machines, or no NVLink in them"
                if _has_runs(request, machine)
                else "no published training throughput"
            )
            reasons.setdefault(f"days are unknown: {reason}", []).append(machine.name)
        elif request.region is not None and result.cost is None:
            reasons.setdefault(f"no list price in {request.region}", []).append(machine.name)
        else:
            results.append(result)
    return _document(request, sorted(results, key=_order), reasons, catalog)


def _has_runs(request: Request, machine: Machine) -> bool:
    return any(row.gpu == machine.gpu_model and row.precision == request.precision for row in published.measurements())


def _order(result: MachineSize) -> tuple[bool, int, float]:
    """USD first, then CNY, cheapest first in each; without a price by days."""
    if result.cost is not None and result.cost.total is not None:
        return (False, -ord(result.cost.price.currency[0]), result.cost.total.low)
    return (True, 0, result.days.low if result.days else 0)


def _document(
    request: Request, results: Sequence[MachineSize], reasons: dict[str, list[str]], catalog: Catalog
) -> SizeOutput:
    shape = request.model.shape
    return SizeOutput(
        model=SizeModel(
            name=shape.name,
            parameters=int(request.model.parameters),
            layers=shape.layers,
            hidden=shape.hidden,
            heads=shape.heads,
            kv_heads=shape.kv_heads,
            feed_forward=shape.feed_forward,
            vocabulary=shape.vocabulary,
            source=published.shape_source(shape),
            assumption=request.model.assumption,
        ),
        tokens=int(request.tokens),
        sequence=request.sequence,
        micro_batch=request.micro_batch,
        precision=request.precision,
        deadline=request.deadline,
        checkpoint=_range(checkpoint_bytes(request.model)),
        machines=[_machine(result, catalog) for result in results],
        left_out=[SizeLeftOut(reason=reason, machines=names) for reason, names in reasons.items()],
        unknown=list(NOT_INCLUDED),
        sources=[f"{row.fleet}: {row.source}" for row in published.failure_rates()],
    )


def _machine(result: MachineSize, catalog: Catalog) -> SizeMachine:
    machine, throughput = result.machine, result.throughput
    return SizeMachine(
        machine=machine.name,
        provider=machine.provider,
        gpu=machine.gpu_model,
        gpu_memory=machine.gpu_memory_mib * MIB,
        machines=_range(result.machines),
        gpus=result.gpus,
        strategies=[_strategy(row) for row in result.strategies],
        recommended=result.recommended.layout.title if result.recommended else None,
        advice=advice(result),
        rate=_optional(throughput.rate if throughput else None),
        mfu=_optional(throughput.mfu if throughput else None),
        similarity=throughput.similarity if throughput else "",
        runs=[_run(row) for row in throughput.rows] if throughput else [],
        days=_optional(result.days),
        cost=_cost(result),
        spot=_spot(machine, catalog),
        failures=_optional(result.failures),
        between_failures=_range(result.between_failures),
        checkpoint_interval=_optional(result.interval),
        checkpoint_overhead=_optional(result.overhead),
        unknown=list(result.unknown),
    )


def _strategy(row: Strategy) -> SizeStrategy:
    return SizeStrategy(
        strategy=row.layout.kind,
        tensor=row.layout.tensor,
        pipeline=row.layout.pipeline,
        recompute=row.recompute,
        parts=[SizePart.model_validate({"name": name, "bytes": _range(part)}) for name, part in row.memory.parts()],
        total=_range(row.memory.total),
        verdict=row.verdict,
    )


def _cost(result: MachineSize) -> SizeCost | None:
    if result.cost is None:
        return None
    price = result.cost.price
    return SizeCost(
        region=price.region,
        currency=price.currency,
        hour=price.price,
        total=_optional(result.cost.total),
        date=price.date,
    )


def _spot(machine: Machine, catalog: Catalog) -> str:
    """The catalogue has no spot prices: they move, and the provider is asked."""
    provider = catalog.provider(machine.provider)
    if "spot" not in provider.capacity:
        return f"{machine.provider} sells no spot machines"
    return f"moves with the market: `gpuprov cost --machine {machine.name}` asks {machine.provider}"


def _run(row: Measurement) -> SizeRun:
    source = published.measurement_sources()[row.source]
    return SizeRun(conditions=row.conditions, rate=row.rate, source=source.text)


def _optional(value: Range | None) -> SizeRange | None:
    return None if value is None else _range(value)


def _range(value: Range) -> SizeRange:
    return SizeRange(low=_rounded(value.low), high=_rounded(value.high))


def _rounded(value: float) -> float | int:
    """To DIGITS significant digits; a whole number without a point."""
    if not value:
        return 0
    rounded = round(value, DIGITS - 1 - floor(log10(abs(value))))
    return int(rounded) if float(rounded).is_integer() else rounded
