"""The shape of `gpuprov bench --json`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from provisioner.output.base import OpenOutput

Scale = Literal["gpu", "node", "fleet"]


class BenchPublished(OpenOutput):
    """A published run of the same model on as many of the same GPUs; its conditions are others."""

    low: float
    high: float
    conditions: str
    source: str


class BenchRun(OpenOutput):
    """One run of a model."""

    model: str
    scale: Scale = Field(description="gpu: one GPU; node: one node by itself; fleet: all nodes together")
    nodes: list[str]
    job: str
    ok: bool = Field(description="It ended well, and is as fast as its baseline and the other nodes")
    problems: list[str] = Field(description="Why it is not ok")
    gpus: int = 0
    unit: str = Field(default="", description="What is counted: tokens, images, sequences")
    rate: float | None = Field(default=None, description="Units per second of all GPUs, of the median step")
    slow: float | None = Field(default=None, description="The same, of the 90th percentile of the steps' durations")
    fast: float | None = Field(default=None, description="The same, of the 10th percentile")
    steps: int = Field(default=0, description="Steps that were counted")
    mfu: float | None = Field(default=None, description="Share of the GPUs' dense bf16 peak")
    peak_gib: float | None = Field(default=None, description="The most that PyTorch allocated on the first GPU")
    first_loss: float | None = None
    last_loss: float | None = None
    efficiency: float | None = Field(default=None, description="Rate of a GPU, as a share of that of the gpu scale")
    baseline: float | None = Field(default=None, description="The fleet's own rate in the same conditions")
    peers: float | None = Field(default=None, description="Median rate of the nodes by themselves")
    published: list[BenchPublished] = Field(default_factory=list)
    missing: list[str] = Field(default_factory=list, description="What it could not be compared with")
    conditions: dict[str, Any] = Field(default_factory=dict)


class BenchOutput(OpenOutput):
    """`gpuprov bench --json`"""

    cluster: str
    sandbox: bool = Field(default=False, description="Whether it is the sandbox of the file's cluster")
    ok: bool
    machine: str
    image: str = Field(description="Digest of the container image")
    runs: list[BenchRun]
