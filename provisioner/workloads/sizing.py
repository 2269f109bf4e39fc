"""Machines for a training: how the model fits, how many machines, days, cost, failures, checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil, sqrt
from typing import Literal

from provisioner.catalog import Catalog
from provisioner.catalog.models import Machine
from provisioner.catalog.prices import Price
from provisioner.common.errors import GpuprovError
from provisioner.workloads import published
from provisioner.workloads.memory import KINDS, RECOMPUTES, Kind, Layout, Memory, memory
from provisioner.workloads.published import Precision, Recompute
from provisioner.workloads.ranges import Range, spanning
from provisioner.workloads.shapes import Model
from provisioner.workloads.throughput import Throughput, estimate, training_days

Verdict = Literal["fits", "may fit", "does not fit"]
"""fits: the upper bound is below the GPU's memory; may fit: only the lower bound is."""
MOST_MACHINES = 1024
"""Of one type, in the search for the fewest that fit."""
MIB = 2**20
GPUS_PER_FAILING_MACHINE = 8
"""GPUs of a machine in the published failure rates."""
CHECKPOINT_BYTES = Range(12, 14)
"""Bytes of a parameter in a checkpoint: weights and both moments in fp32, 12; 14 with another copy of the weights in
bf16 (states of arXiv:1910.02054, without gradients)."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be trained. `sequence`: tokens; `micro_batch`: sequences; `deadline`: days; `gpus`: the number that
    the user chose; `write_rate`: GB/s at which all machines together write a checkpoint."""

    model: Model
    tokens: float
    sequence: int
    micro_batch: int = 1
    precision: Precision = "bf16"
    deadline: float | None = None
    gpus: int | None = None
    region: str | None = None
    write_rate: float | None = None


@dataclass(frozen=True, slots=True)
class Strategy:
    """One way to divide the model among the GPUs, with the fastest recomputation that fits."""

    layout: Layout
    recompute: Recompute
    memory: Memory
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Cost:
    """List price of the training. `price`: of one machine for an hour; `total`: in the price's currency, None where the
    days are unknown."""

    price: Price
    total: Range | None


@dataclass(frozen=True, slots=True)
class MachineSize:
    """The training on one machine type. None stands for unknown, and `unknown` says why. `machines`: how many;
    `days`: with the larger number of them; `failures`: over the run; `between_failures` and `interval`: hours between
    failures and between checkpoints; `overhead`: share of the time that checkpoints and repeated steps take."""

    machine: Machine
    machines: Range
    strategies: tuple[Strategy, ...]
    recommended: Strategy | None
    throughput: Throughput | None
    days: Range | None
    cost: Cost | None
    failures: Range | None
    between_failures: Range
    interval: Range | None
    overhead: Range | None
    unknown: tuple[str, ...] = field(default=())

    @property
    def gpus(self) -> int:
        """GPUs of the larger number of machines."""
        return int(self.machines.high) * self.machine.gpu_count


def size_machine(request: Request, machine: Machine, catalog: Catalog) -> MachineSize:
    """The training on machines of one type. Raises GpuprovError for a machine without GPUs, and for a number of GPUs
    that its machines do not have."""
    if not machine.gpu_count:
        raise GpuprovError(f"{machine.name} has no GPU", hint="`gpuprov catalog` lists machines with GPUs")
    unknown: list[str] = []
    counts = _machine_counts(request, machine)
    largest = int(counts.high)
    candidates = strategies(request, machine, largest)
    recommended = recommend(candidates)
    throughput = _throughput(request, machine, largest, recommended, unknown)
    days = training_days(throughput, request.tokens, largest * machine.gpu_count) if throughput else None
    gpu_days = training_days(throughput, request.tokens, 1) if throughput else None
    price = _price(request, machine, catalog, unknown)
    cost = Cost(price, gpu_days.times(24 * price.price / machine.gpu_count) if gpu_days else None) if price else None
    rates = failure_rate()
    failures = Range(rates.low * gpu_days.low, rates.high * gpu_days.high) if gpu_days else None
    gpus = largest * machine.gpu_count
    between = Range(24 / (rates.high * gpus), 24 / (rates.low * gpus))
    interval, overhead = _checkpoints(request, machine, largest, between, catalog, unknown)
    return MachineSize(
        machine, counts, candidates, recommended, throughput, days, cost, failures, between, interval, overhead,
        tuple(unknown),
    )  # fmt: skip


def strategies(request: Request, machine: Machine, machine_count: int) -> tuple[Strategy, ...]:
    """Every way to divide the model, from the simplest to the most complex. A single GPU has one: DDP."""
    gpus = machine_count * machine.gpu_count
    kinds: tuple[Kind, ...] = KINDS if gpus > 1 else ("DDP",)
    candidates = (
        _divided(request, machine, gpus) if kind == "TP×PP" else _with_recompute(request, machine, Layout(kind, gpus))
        for kind in kinds
    )
    return tuple(candidate for candidate in candidates if candidate is not None)


def recommend(candidates: tuple[Strategy, ...]) -> Strategy | None:
    """DDP where it fits: ZeRO and FSDP are slower on a model that fits one GPU (DeepSpeed issue 6936, OLMo issue 762).
    Else what fits with the least recomputation, the simplest first. None where nothing may fit."""
    for verdict in ("fits", "may fit"):
        matches = [row for row in candidates if row.verdict == verdict]
        if matches:
            return min(matches, key=lambda row: 0 if row.layout.kind == "DDP" else 1 + RECOMPUTES.index(row.recompute))
    return None


def advice(result: MachineSize) -> str:
    """The recommendation as a sentence."""
    chosen, simplest = result.recommended, result.strategies[0]
    memory_gib = result.machine.gpu_memory_mib / 1024
    if chosen is None:
        return f"no strategy fits in {memory_gib:.0f} GiB on {result.gpus} GPUs: use more GPUs or a shorter sequence"
    recomputed = "" if chosen.recompute == "none" else f" with {chosen.recompute} recomputation"
    if chosen is simplest:
        return f"DDP {chosen.verdict}{recomputed}"
    needed = simplest.memory.total.times(1 / 2**30)
    return (
        f"DDP needs {needed.low:,.0f} to {needed.high:,.0f} of {memory_gib:.0f} GiB; "
        f"{chosen.layout.title} {chosen.verdict}{recomputed}"
    )


def checkpoint_bytes(model: Model) -> Range:
    """Bytes of one checkpoint, optimizer included."""
    return CHECKPOINT_BYTES.times(model.parameters)


def failure_rate() -> Range:
    """Failures that end a job, for one GPU in one day."""
    return spanning(row.rate for row in published.failure_rates()).times(1 / (1000 * GPUS_PER_FAILING_MACHINE))


def _machine_counts(request: Request, machine: Machine) -> Range:
    """How many machines: as the user says, as the deadline needs, or the fewest that the model fits on. With a deadline
    the lower bound needs the best published rate, the upper bound the worst."""
    if request.gpus is not None:
        if request.gpus % machine.gpu_count:
            below = max(1, request.gpus // machine.gpu_count) * machine.gpu_count
            raise GpuprovError(
                f"--gpus {request.gpus} is not a multiple of the {machine.gpu_count} GPUs of {machine.name}",
                hint=f"such as --gpus {below}",
            )
        return Range(*[request.gpus // machine.gpu_count] * 2)
    fewest = _fewest(request, machine)
    if request.deadline is None:
        return Range(fewest, fewest)
    high = _in_time(request, machine, fewest, request.deadline)
    throughput = _estimate(request, machine, recommend(strategies(request, machine, high)))
    if throughput is None:
        return Range(fewest, fewest)
    best = training_days(throughput, request.tokens, machine.gpu_count).low / request.deadline
    return Range(min(high, max(fewest, _ceiling(best))), high)


def _in_time(request: Request, machine: Machine, fewest: int, deadline: float) -> int:
    """The number of machines with which the worst published rate meets the deadline. With more machines less is
    recomputed, which changes the rate: so it is computed again for each number. The largest of a cycle is taken."""
    count, counts = fewest, list[int]()
    while count not in counts:
        counts.append(count)
        throughput = _estimate(request, machine, recommend(strategies(request, machine, count)))
        if throughput is None:
            return fewest
        alone = training_days(throughput, request.tokens, machine.gpu_count)
        count = max(fewest, _ceiling(alone.high / deadline))
    return max(counts[counts.index(count) :])


def _ceiling(value: float) -> int:
    """The next whole number; one billionth above a whole number is an error of rounding."""
    return ceil(round(value, 9))


def _fewest(request: Request, machine: Machine) -> int:
    """The smallest power of two of machines on which a strategy fits; where none does, on which one may fit, or 1."""
    may_fit = None
    for count in _powers(MOST_MACHINES):
        recommended = recommend(strategies(request, machine, count))
        if recommended and recommended.verdict == "fits":
            return count
        if recommended and may_fit is None:
            may_fit = count
    return may_fit or 1


def _with_recompute(request: Request, machine: Machine, layout: Layout) -> Strategy:
    """The layout with the fastest recomputation that fits, else that may fit, else the smallest."""
    tried = []
    for recompute in RECOMPUTES:
        used = memory(request.model, layout, request.micro_batch, request.sequence, recompute)
        tried.append(Strategy(layout, recompute, used, _verdict(used, machine)))
    return _first_that_fits(tried) or tried[-1]


def _divided(request: Request, machine: Machine, gpus: int) -> Strategy | None:
    """Tensor parallelism within a machine's NVLink and pipeline parallelism: the smallest that fits. None where the
    number of GPUs can't be divided."""
    tried = [_with_recompute(request, machine, layout) for layout in _divided_layouts(request, machine, gpus)]
    return _first_that_fits(tried) or (tried[-1] if tried else None)


def _first_that_fits(tried: Sequence[Strategy]) -> Strategy | None:
    verdicts: tuple[Verdict, ...] = ("fits", "may fit")
    return next((row for verdict in verdicts for row in tried if row.verdict == verdict), None)


def _divided_layouts(request: Request, machine: Machine, gpus: int) -> Iterator[Layout]:
    """By the number of GPUs that hold one copy of the model; tensor parallelism first."""
    shape = request.model.shape
    tensors = [
        tensor
        for tensor in _powers(machine.gpu_count if machine.nvlink.topology != "none" else 1)
        if machine.gpu_count % tensor == 0 and shape.heads % tensor == 0
    ]
    layouts = [
        Layout("TP×PP", gpus, tensor, pipeline)
        for tensor in tensors
        for pipeline in _powers(min(shape.layers, gpus))
        if tensor * pipeline > 1 and gpus % (tensor * pipeline) == 0
    ]
    yield from sorted(layouts, key=lambda layout: (layout.tensor * layout.pipeline, layout.pipeline))


def _powers(limit: int) -> list[int]:
    """1, 2, 4 … up to the limit."""
    return [1 << exponent for exponent in range(limit.bit_length()) if 1 << exponent <= limit]


def _verdict(used: Memory, machine: Machine) -> Verdict:
    available = machine.gpu_memory_mib * MIB
    if used.total.high <= available:
        return "fits"
    return "may fit" if used.total.low <= available else "does not fit"


def _estimate(request: Request, machine: Machine, recommended: Strategy | None) -> Throughput | None:
    recompute = recommended.recompute if recommended else None
    return estimate(request.model, machine.gpu_model, request.sequence, request.precision, recompute)


def _throughput(
    request: Request, machine: Machine, machine_count: int, recommended: Strategy | None, unknown: list[str]
) -> Throughput | None:
    """The rate of one GPU; None where it is unknown, with the reason added to `unknown`."""
    if recommended is None:
        return None
    if machine_count > 1 and not machine.rdma:
        unknown.append(
            f"days: the published runs have RDMA between machines, {machine.name} has {machine.network.kind} "
            f"({_network_gbps(machine):g} Gbit/s)"
        )
        return None
    if machine_count > 1 and machine.nvlink.topology == "none":
        unknown.append(f"days: the published runs have NVLink between the GPUs of a machine, {machine.name} does not")
        return None
    throughput = _estimate(request, machine, recommended)
    if throughput is None:
        precisions = sorted({row.precision for row in published.measurements() if row.gpu == machine.gpu_model})
        known = f"; published for --precision {', '.join(precisions)}" if precisions else ""
        unknown.append(f"days: no published training throughput of {machine.gpu_model} in {request.precision}{known}")
        return None
    if not throughput.is_similar:
        names = ", ".join(dict.fromkeys(row.model for row in throughput.rows))
        unknown.append(f"rate at this size and sequence: fewer than two such runs are published; it is that of {names}")
    if machine_count * machine.gpu_count > throughput.largest_run:
        unknown.append(f"rate on more than {throughput.largest_run} GPUs: no similar run is published")
    faster = [row.network for row in throughput.rows if row.network and row.network > _network_gbps(machine)]
    if machine_count > 1 and faster:
        unknown.append(
            f"slowdown by the network: published runs have {max(faster):g} Gbit/s between machines, "
            f"these have {_network_gbps(machine):g}"
        )
    return throughput


def _network_gbps(machine: Machine) -> float:
    return machine.network.total_gbps or machine.network.ports * machine.network.rate_gbps


def _price(request: Request, machine: Machine, catalog: Catalog, unknown: list[str]) -> Price | None:
    """The list price in the region of the request, else the lowest of the first currency that the catalogue has."""
    prices = catalog.prices(machine)
    if request.region is not None:
        prices = tuple(price for price in prices if price.region == request.region)
    if not prices:
        reason = catalog.without_price(machine)
        unknown.append(
            f"list price: {reason}" if reason else f"list price: not in the catalogue{_in_region(request.region)}"
        )
        return None
    currency = prices[0].currency
    return min((price for price in prices if price.currency == currency), key=lambda price: price.price)


def _in_region(region: str | None) -> str:
    return f" for {region}" if region else ""


def _checkpoints(
    request: Request, machine: Machine, machine_count: int, between: Range, catalog: Catalog, unknown: list[str]
) -> tuple[Range | None, Range | None]:
    """Hours between checkpoints, and the share of the time that checkpoints and repeated steps take: Young, sqrt(2 ×
    write × time between failures) (J. W. Young, A first order approximation to the optimum checkpoint interval, 1974).
    """
    scratch = catalog.scratch_limits(machine).get("scratch_write")
    rate = request.write_rate or (scratch * machine_count if scratch else None)
    if rate is None:
        unknown.append("checkpoint interval: the write rate of the storage is unknown; pass --write-rate GB/s")
        return None, None
    write = checkpoint_bytes(request.model).times(1 / (rate * 1e9 * 3600))
    interval = Range(sqrt(2 * write.low * between.low), sqrt(2 * write.high * between.high))
    overhead = Range(sqrt(2 * write.low / between.high), sqrt(2 * write.high / between.low))
    return interval, overhead
