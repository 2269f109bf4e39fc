"""How fast a GPU trains a model: from published runs on the same GPU, in TFLOP/s, as a range."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import log

from provisioner.workloads import published
from provisioner.workloads.published import Measurement, Precision, Recompute
from provisioner.workloads.ranges import Range, spanning
from provisioner.workloads.shapes import Model, published_model, token_operations

NEEDED_ROWS = 2
"""One published run gives a number; two give a range."""
SECONDS_PER_DAY = 86_400


@dataclass(frozen=True, slots=True)
class Throughput:
    """The rate of one GPU. `tflops`: TFLOP/s of the model's own operations; `rate`: tokens/s; `mfu`: share of the peak
    in bf16, None where no source gives the peak; `rows`: the published runs; `similarity`: how they were chosen;
    `is_similar`: they are of half to twice the parameters and the sequence."""

    tflops: Range
    rate: Range
    mfu: Range | None
    rows: tuple[Measurement, ...]
    similarity: str
    is_similar: bool

    @property
    def largest_run(self) -> int:
        """GPUs of the largest published run."""
        return max(row.gpus for row in self.rows)


def measured_tflops(row: Measurement) -> float:
    """TFLOP/s of one GPU in a published run, by gpuprov's own count of operations (shapes.token_operations)."""
    model = published_model(row.model, row.sequence)
    return row.rate * token_operations(model, row.sequence) / 1e12


def estimate(
    model: Model,
    gpu: str,
    sequence: int,
    precision: Precision,
    recompute: Recompute | None = None,
    rows: Iterable[Measurement] | None = None,
) -> Throughput | None:
    """The rate of one GPU; None where nobody has published a run on this GPU in this precision.

    Rows of similar models count (half to twice the parameters and the sequence, the same recomputation). Where fewer
    than two are published, the condition is loosened step by step.
    """
    candidates = [
        row
        for row in (published.measurements() if rows is None else rows)
        if row.gpu == gpu and row.precision == precision
    ]
    if not candidates:
        return None
    chosen, similarity = _similar(candidates, model, sequence, recompute)
    is_similar = all(_is_near(row, model, sequence, 2) for row in chosen)
    tflops = spanning(measured_tflops(row) for row in chosen)
    rate = tflops.times(1e12 / token_operations(model, sequence))
    peak = published.peaks().get(gpu)
    mfu = tflops.times(1 / peak.bf16) if peak else None
    return Throughput(tflops, rate, mfu, tuple(chosen), similarity, is_similar)


def training_days(throughput: Throughput, tokens: float, gpus: int) -> Range:
    """Days of training on that many GPUs, without failures and restarts."""
    return Range(
        tokens / (throughput.rate.high * gpus * SECONDS_PER_DAY),
        tokens / (throughput.rate.low * gpus * SECONDS_PER_DAY),
    )


def _similar(
    candidates: Sequence[Measurement], model: Model, sequence: int, recompute: Recompute | None
) -> tuple[Sequence[Measurement], str]:
    """The rows under the strictest condition that at least two meet, and the condition in words."""
    similar = [row for row in candidates if _is_near(row, model, sequence, 2)]
    same = [row for row in similar if recompute is None or row.recompute == recompute]
    for rows, similarity in (
        (same, "half to twice the parameters and the sequence" + (f", recompute {recompute}" if recompute else "")),
        (similar, "half to twice the parameters and the sequence, any recompute"),
        ([row for row in candidates if _is_near(row, model, sequence, 4)], "a quarter to four times the parameters"),
    ):
        if len(rows) >= NEEDED_ROWS:
            return rows, similarity
    return _nearest(candidates, model), "the models of the nearest sizes that are published on this GPU"


def _nearest(candidates: Sequence[Measurement], model: Model) -> Sequence[Measurement]:
    """All rows of the model nearest in size, and of the next, until there are enough."""

    def distance(row: Measurement) -> float:
        return abs(log(published_model(row.model, row.sequence).parameters / model.parameters))

    chosen: list[Measurement] = []
    for name in dict.fromkeys(row.model for row in sorted(candidates, key=distance)):
        if len(chosen) >= NEEDED_ROWS:
            break
        chosen += [row for row in candidates if row.model == name]
    return chosen


def _is_near(row: Measurement, model: Model, sequence: int, factor: float) -> bool:
    row_parameters = published_model(row.model, row.sequence).parameters
    return 1 / factor <= row_parameters / model.parameters <= factor and 1 / factor <= row.sequence / sequence <= factor
