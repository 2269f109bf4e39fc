"""The shape of `gpuprov size --json`. What is unknown is null; `unknown` says why."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, WithJsonSchema

from provisioner.output.base import Number, OpenOutput

Currency = Annotated[str, WithJsonSchema({"enum": ["USD", "CNY"], "type": "string"})]
"""As the provider names it."""


class SizeRange(OpenOutput):
    """A value between two bounds."""

    low: Number
    high: Number


class SizeModel(OpenOutput):
    """The model to train."""

    name: str
    parameters: Number
    layers: int
    hidden: int = Field(description="Width of a layer")
    heads: int
    kv_heads: int = Field(description="Heads of keys and values")
    feed_forward: int = Field(description="Width of the MLP")
    vocabulary: int = Field(description="Tokens")
    source: str = Field(description="Where the shape was published")
    assumption: str = Field(description="What of the shape was assumed, or empty")


class SizePart(OpenOutput):
    """Memory of one GPU for one purpose."""

    name: Literal["weights", "gradients", "optimizer", "activations", "buffers", "runtime"]
    bytes: SizeRange


class SizeStrategy(OpenOutput):
    """One way to divide the model among the GPUs."""

    strategy: Literal["DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3", "FSDP", "TP×PP"]
    tensor: int = Field(description="GPUs of tensor parallelism")
    pipeline: int = Field(description="Stages of pipeline parallelism")
    recompute: Literal["none", "selective", "full"] = Field(description="Recomputation of activations")
    parts: list[SizePart]
    total: SizeRange = Field(description="Bytes of one GPU")
    verdict: Literal["fits", "may fit", "does not fit"] = Field(
        description="fits: the upper bound is below the memory of the GPU; may fit: only the lower bound is"
    )


class SizeCost(OpenOutput):
    """List price of the training, on demand."""

    region: str
    currency: Currency
    hour: Number = Field(description="One machine")
    total: SizeRange | None = Field(description="null: the days are unknown")
    date: str = Field(description="Of the list price")


class SizeRun(OpenOutput):
    """A published training run."""

    conditions: str
    rate: Number = Field(description="Tokens per second of one GPU")
    source: str


class SizeMachine(OpenOutput):
    """The training on one machine type."""

    machine: str
    provider: str
    gpu: str
    gpu_memory: int = Field(description="Bytes")
    machines: SizeRange = Field(description="With --deadline: by the best and by the worst published rate")
    gpus: int = Field(description="Of the larger number of machines; days and memory are for these")
    strategies: list[SizeStrategy]
    recommended: str | None = Field(description="null: no strategy fits")
    advice: str
    rate: SizeRange | None = Field(description="Tokens per second of one GPU")
    mfu: SizeRange | None = Field(description="Share of the GPU's peak rate in bf16")
    similarity: str = Field(description="Which published runs the rate is from, or empty")
    runs: list[SizeRun] = Field(description="These runs")
    days: SizeRange | None = Field(description="Without failures and restarts")
    cost: SizeCost | None
    spot: str = Field(description="What is known of the spot price")
    failures: SizeRange | None = Field(description="That end the job, over the run")
    between_failures: SizeRange = Field(description="Hours")
    checkpoint_interval: SizeRange | None = Field(description="Hours")
    checkpoint_overhead: SizeRange | None = Field(
        description="Share of the time that checkpoints and repeated steps take"
    )
    unknown: list[str]


class SizeLeftOut(OpenOutput):
    """Machine types without an answer."""

    reason: str
    machines: list[str]


class SizeOutput(OpenOutput):
    """`gpuprov size --json`"""

    model: SizeModel
    tokens: Number
    sequence: int = Field(description="Tokens")
    micro_batch: int = Field(description="Sequences of one GPU in one forward pass")
    precision: Literal["bf16", "fp8"]
    deadline: Number | None = Field(description="Days")
    checkpoint: SizeRange = Field(description="Bytes of one checkpoint, optimizer included")
    machines: list[SizeMachine] = Field(description="Cheapest first; without a price by days")
    left_out: list[SizeLeftOut]
    unknown: list[str] = Field(description="What no estimate includes")
    sources: list[str] = Field(description="Of failure rates")
