"""The rows of data/*.yaml as frozen models: shapes of models, measured throughput, peak rates, failure rates."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from pydantic import Field

from provisioner.catalog.models import Row
from provisioner.common import yaml_text
from provisioner.common.errors import GpuprovError
from provisioner.common.suggest import did_you_mean

Precision = Literal["bf16", "fp8"]
Recompute = Literal["none", "selective", "full"]
"""Activations that the backward pass computes again instead of keeping them."""
Counts = Literal["full", "without_embeddings", "causal"]
"""How a source counts the operations of a token (head of throughput.yaml)."""


class Shape(Row):
    """The shape of a transformer. Widths are numbers of values, `vocabulary` of tokens."""

    name: str
    layers: int = Field(gt=0)
    hidden: int = Field(gt=0)
    heads: int = Field(gt=0)
    kv_heads: int = Field(gt=0)
    feed_forward: int = Field(gt=0)
    vocabulary: int = Field(gt=0)
    gated: bool
    tied: bool
    positions: bool
    source: str


class Measurement(Row):
    """A published training run: `rate` is tokens/s of one GPU."""

    model: str
    gpu: str
    gpus: int = Field(gt=0)
    sequence: int = Field(gt=0)
    micro_batch: int | None = None
    precision: Precision
    recompute: Recompute | Literal["unknown"]
    rate: float = Field(gt=0)
    mfu: float | None = None
    tflops: float | None = None
    network: float | None = None
    source: str

    @property
    def conditions(self) -> str:
        """The run in one line: mpt-7b on 8 × A100-SXM4-80GB, sequence 2048, bf16, recompute none."""
        return (
            f"{self.model} on {self.gpus} × {self.gpu}, sequence {self.sequence}, {self.precision}, "
            f"recompute {self.recompute}"
        )


class MeasurementSource(Row):
    """Where measurements were published."""

    counts: Counts
    text: str


class Peak(Row):
    """Dense matrix products of one GPU in bf16, TFLOP/s, without sparsity."""

    gpu: str
    bf16: float = Field(gt=0)
    source: str


class FailureRate(Row):
    """Failures that end a job, for 1000 machines of 8 GPUs in one day."""

    fleet: str
    rate: float = Field(gt=0)
    source: str


@cache
def _document(name: str) -> dict[str, Any]:
    document: dict[str, Any] = yaml_text.load(
        files("provisioner.workloads").joinpath("data", f"{name}.yaml").read_bytes()
    )
    return document


@cache
def shapes() -> Mapping[str, Shape]:
    """The published shapes by name."""
    return {row["name"]: Shape.model_validate(row) for row in _document("models")["models"]}


def shape(name: str) -> Shape:
    """The published shape of that name. Raises GpuprovError with the nearest names."""
    known = shapes()
    if name not in known:
        suggestion = did_you_mean(name, known, limit=2)
        listed = f"known models: {', '.join(known)}; or pass --params, such as --params 13B"
        raise GpuprovError(
            f"--model {name}: the shape of this model is not known",
            hint=f"{suggestion} {listed}" if suggestion else listed,
        )
    return known[name]


def shape_source(row: Shape) -> str:
    """Where a shape was published."""
    return str(_document("models")["sources"][row.source])


@cache
def measurements() -> tuple[Measurement, ...]:
    """All published training runs."""
    return tuple(Measurement.model_validate(row) for row in _document("throughput")["rows"])


@cache
def measurement_sources() -> Mapping[str, MeasurementSource]:
    """Where they were published, by the id that `Measurement.source` gives."""
    return {key: MeasurementSource.model_validate(row) for key, row in _document("throughput")["sources"].items()}


@cache
def peaks() -> Mapping[str, Peak]:
    """Peak rates by the slug of the GPU; a GPU without a source is left out."""
    return {row["gpu"]: Peak.model_validate(row) for row in _document("reference")["peaks"]}


@cache
def failure_rates() -> tuple[FailureRate, ...]:
    """Published failure rates of large fleets."""
    return tuple(FailureRate.model_validate(row) for row in _document("reference")["failures"])
