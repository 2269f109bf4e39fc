"""What a benchmark's metrics say, and how they compare: with the fleet's own baseline, with the other nodes, with
published runs. Pure functions of the metrics that examples/recipes/src/loop.py writes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from statistics import median, quantiles
from typing import Any

from pydantic import BaseModel, ConfigDict

from provisioner.common import yaml_text
from provisioner.common.errors import GpuprovError

WARM_UP = 20
"""Steps that are not counted: compilation, caches, clocks. Of a shorter run, its first half."""
TOLERANCE = 0.05
"""Share below its own baseline, or below the median of the nodes, from which on a rate is slow. A smaller difference
is noise: equal machines of one vendor differ by 5 to 13 % (lambdal/deeplearning-benchmark)."""
PEERS = 3
"""Nodes from which on they are compared with their median."""
NOT_COMPARED = ("torch", "cuda", "nccl", "device", "operations_per_unit", "unit")
"""Conditions that follow from the image and the machine, which the key has."""


@dataclass(frozen=True, slots=True)
class Model:
    """A model of `gpuprov bench`: its recipe, and arguments before those of the user."""

    recipe: str
    arguments: tuple[str, ...] = ()


MODELS: Mapping[str, Model] = {
    "resnet50": Model("bench-resnet50"),
    "bert-large": Model("bench-bert"),
    "bert-large-512": Model("bench-bert", ("--sequence", "512", "--batch", "16")),
    "gpt-1b": Model("bench-gpt"),
}


@dataclass(frozen=True, slots=True)
class Measured:
    """One run. `rate`: units (tokens, images, sequences) per second of all GPUs, by the median step; `slow`, `fast`:
    the rates of the 90th and 10th percentile of the steps' durations; `mfu`: share of the GPUs' dense peak, None where
    no peak is known; `peak_gib`: the most that PyTorch allocated on the first GPU."""

    conditions: Mapping[str, Any]
    unit: str
    gpus: int
    steps: int
    rate: float
    slow: float
    fast: float
    mfu: float | None
    peak_gib: float | None
    first_loss: float
    last_loss: float


def read(text: str, peak_tflops: float | None) -> Measured:
    """The metrics of a run: JSON lines, the conditions first. Raises GpuprovError for any other text."""
    try:
        first, *rows = [json.loads(line) for line in text.splitlines()]
        conditions = dict(first["conditions"])
        counted = [row for row in rows if row["step"] > min(WARM_UP, len(rows) // 2)]
        seconds = [float(row["seconds"]) for row in counted]
        amount = float(counted[0].get("tokens") or counted[0]["samples"])
        tenths = quantiles(seconds, n=10) if len(seconds) > 1 else [seconds[0]] * 9
        rate, gpus = amount / median(seconds), int(conditions["gpus"])
        operations = conditions["operations_per_unit"]
        mfu = rate * float(operations) / (gpus * peak_tflops * 1e12) if operations and peak_tflops else None
        peak = counted[-1]["peak_bytes"]
        return Measured(
            conditions, str(conditions["unit"]), gpus, len(counted), rate, amount / tenths[-1], amount / tenths[0],
            mfu if conditions["device"] != "cpu" else None, peak / 2**30 if peak else None, float(rows[0]["loss"]),
            median(float(row["loss"]) for row in rows[-5:]),
        )  # fmt: skip
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, ZeroDivisionError) as error:
        raise GpuprovError(f"the metrics of the run are not understood: {type(error).__name__}: {error}") from None


def key(measured: Measured, machine: str, nodes: int, image: str) -> str:
    """What two runs must have in common to be compared: machine, nodes, GPUs, image by digest, and every condition."""
    conditions = {name: value for name, value in measured.conditions.items() if name not in NOT_COMPARED}
    parts = {"machine": machine, "nodes": nodes, "image": image, **conditions}
    return json.dumps(parts, sort_keys=True)


def slow_peers(rates: Mapping[str, float]) -> dict[str, float]:
    """Nodes that are slow beside the others: node → its share of the median."""
    if len(rates) < PEERS:
        return {}
    typical = median(rates.values())
    return {name: rate / typical for name, rate in rates.items() if rate < (1 - TOLERANCE) * typical}


class Published(BaseModel):
    """A published run. `rate`: units per second of all `gpus`, lowest and highest of the published values;
    `conditions`: in which it differs from the recipe's own, or that are not known."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    model: str
    gpu: str
    gpus: int
    unit: str
    low: float
    high: float
    conditions: str
    source: str


@cache
def published() -> Sequence[Published]:
    """All of them, with the sources in full."""
    document = yaml_text.load(files("provisioner.workloads").joinpath("data", "benchmarks.yaml").read_bytes())
    return tuple(
        Published.model_validate(
            {**row, "source": document["sources"][row["source"]], "low": float(row["low"]), "high": float(row["high"])}
        )
        for row in document["rows"]
    )


def published_for(model: str, gpu: str, gpus: int) -> list[Published]:
    """The published runs of a model on as many GPUs of that kind."""
    return [row for row in published() if (row.model, row.gpu, row.gpus) == (model, gpu, gpus)]
