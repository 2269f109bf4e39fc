"""Memory of one GPU in training, by named part, in bytes, as ranges.

States (weights, gradients, optimizer) of mixed-precision Adam: 2 + 2 + 12 bytes a parameter, ZeRO divides them by stage
(arXiv:1910.02054, table 1); 4 bytes of gradients where a framework keeps them in fp32 (github NVIDIA/Megatron-LM
docs/source/api-guide/dist_optimizer.md: 18 bytes, 6 + 12/d). FSDP: fp32 weights and gradients, 16 bytes, all divided.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from provisioner.workloads.published import Recompute, Shape
from provisioner.workloads.ranges import Range, exact, total
from provisioner.workloads.shapes import Model, kv_width, layer_parameters

Kind = Literal["DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3", "FSDP", "TP×PP"]
KINDS: tuple[Kind, ...] = ("DDP", "ZeRO-1", "ZeRO-2", "FSDP", "ZeRO-3", "TP×PP")
"""From the simplest to the most complex: the first that fits is recommended."""
RECOMPUTES: tuple[Recompute, ...] = ("none", "selective", "full")
"""From the fastest to the smallest."""
RUNTIME_BYTES = 1343 * 2**20
"""CUDA context and kernels of PyTorch on one GPU: github huggingface/transformers
docs/source/en/model_memory_anatomy.md @7d5e65fe (1343 MB)."""
BUCKET_BYTES = 2 * 5e8
"""reduce_bucket_size (and allgather_bucket_size) of DeepSpeed, 5e8 values of 2 bytes: github deepspeedai/DeepSpeed
docs/_tutorials/zero.md @0101896a."""
LIVE_BYTES = 2 * 1e9
"""stage3_max_live_parameters of DeepSpeed, 1e9 values of 2 bytes: the same page."""
LOGIT_BYTES = Range(4, 12)
"""Bytes for each logit: 4 in github NVIDIA/Megatron-LM megatron/training/theoretical_memory_usage.py @00caa53a; 12 in
PyTorch without fused loss: logits and their gradient in bf16, the loss's copy and its gradient in fp32."""
MODEL_BYTES = 2
"""A value in bf16."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How the work is divided among `gpus`. `tensor` × `pipeline` GPUs hold one copy of the model."""

    kind: Kind
    gpus: int
    tensor: int = 1
    pipeline: int = 1

    @property
    def copies(self) -> int:
        """GPUs that hold the same part of the model: data parallelism."""
        return self.gpus // (self.tensor * self.pipeline)

    @property
    def title(self) -> str:
        """DDP, FSDP …, TP 8 × PP 4."""
        return f"TP {self.tensor} × PP {self.pipeline}" if self.kind == "TP×PP" else self.kind


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of one GPU. `buffers`: gathered parameters and communication; `runtime`: CUDA context and kernels."""

    weights: Range
    gradients: Range
    optimizer: Range
    activations: Range
    buffers: Range
    runtime: Range

    @property
    def states(self) -> Range:
        """What grows with the parameters alone."""
        return total((self.weights, self.gradients, self.optimizer))

    @property
    def allocated(self) -> Range:
        """What PyTorch reports as allocated: all but the runtime."""
        return total((self.states, self.activations, self.buffers))

    @property
    def total(self) -> Range:
        """The sum of all parts."""
        return self.allocated.plus(self.runtime)

    def parts(self) -> Iterator[tuple[str, Range]]:
        """Name and bytes of each part."""
        for name in ("weights", "gradients", "optimizer", "activations", "buffers", "runtime"):
            yield name, getattr(self, name)


def memory(model: Model, layout: Layout, micro_batch: int, sequence: int, recompute: Recompute) -> Memory:
    """Memory of the GPU that holds most. `micro_batch`: sequences of one GPU in one forward pass."""
    weights, gradients, optimizer = states(model, layout)
    return Memory(
        weights,
        gradients,
        optimizer,
        activations(model.shape, layout, micro_batch * sequence, recompute),
        buffers(model, layout),
        Range(0, RUNTIME_BYTES),
    )


def states(model: Model, layout: Layout) -> tuple[Range, Range, Range]:
    """Bytes of weights, gradients and optimizer."""
    count, shards = model.parameters, layout.copies
    match layout.kind:
        case "DDP":
            return exact(2 * count), Range(2 * count, 4 * count), exact(12 * count)
        case "ZeRO-1":
            return exact(2 * count), Range(2 * count, 4 * count), exact(12 * count / shards)
        case "ZeRO-2":
            return exact(2 * count), Range(2 * count / shards, 4 * count / shards), exact(12 * count / shards)
        case "ZeRO-3":
            return exact(2 * count / shards), Range(2 * count / shards, 4 * count / shards), exact(12 * count / shards)
        case "FSDP":
            return exact(4 * count / shards), exact(4 * count / shards), exact(8 * count / shards)
        case "TP×PP":
            part = stage_parameters(model, layout)
            return exact(2 * part), exact(4 * part), exact(12 * part / shards)


def stage_parameters(model: Model, layout: Layout) -> float:
    """Parameters of the GPU that holds most: its layers and, on the first and the last stage, an embedding (github
    NVIDIA/Megatron-LM megatron/training/theoretical_memory_usage.py: the most loaded shard)."""
    shape = model.shape
    embedding = shape.vocabulary * shape.hidden
    end_stage = embedding if shape.tied or layout.pipeline > 1 else 2 * embedding
    blocks = max(0.0, model.parameters - embedding * (1 if shape.tied else 2))
    return (blocks / layout.pipeline + end_stage) / layout.tensor


def activations(shape: Shape, layout: Layout, tokens: int, recompute: Recompute) -> Range:
    """Bytes of activations for that many tokens of one GPU's micro-batch, with FlashAttention and sequence parallelism.

    A pipeline's first stage keeps as many micro-batches as there are stages: all layers' worth; its last one has the
    logits.
    """
    layer = layer_bytes(shape)
    stored = {"none": layer, "selective": _selective_bytes(shape), "full": exact(MODEL_BYTES * shape.hidden)}[recompute]
    working = Range(0, 0) if recompute == "none" else layer
    first = stored.times(shape.layers).plus(working)
    logits = LOGIT_BYTES.times(shape.vocabulary)
    last = stored.times(shape.layers / layout.pipeline).plus(working).plus(logits)
    largest = Range(max(first.low, last.low), max(first.high, last.high)) if layout.pipeline > 1 else last
    return largest.times(tokens / layout.tensor)


def layer_bytes(shape: Shape) -> Range:
    """Bytes that one layer keeps for each token without recomputation.

    34·hidden for an MLP of two matrices of width 4·hidden (arXiv:2205.05198, table 2), 18·hidden + 4·feed_forward in
    Megatron-LM's own estimate. With a gated MLP every operation keeps its input: 10·hidden + 4·kv + 8·feed_forward.
    """
    low = 18 * shape.hidden + 4 * shape.feed_forward
    every_input = 10 * shape.hidden + 4 * kv_width(shape) + 8 * shape.feed_forward
    return Range(low, max(low, every_input)) if shape.gated else exact(low)


def _selective_bytes(shape: Shape) -> Range:
    """Bytes of one layer for each token where every second matrix product and attention are kept: torchtitan's
    selective recomputation `op` (github pytorch/torchtitan torchtitan/parallelisms/parallelize_llama.py @582fe7d1)."""
    values = 4 * shape.hidden + kv_width(shape) + shape.feed_forward
    if not shape.gated:  # one product for queries, keys and values
        values = 3 * shape.hidden + 2 * kv_width(shape) + shape.feed_forward
    return exact(MODEL_BYTES * values)


def buffers(model: Model, layout: Layout) -> Range:
    """Bytes of gathered parameters and of communication. At most those of the whole model, in bf16 or fp32."""
    shape, model_bytes = model.shape, MODEL_BYTES * model.parameters
    match layout.kind:
        case "DDP":  # 4 bytes: buckets beside the gradients, unless gradient_as_bucket_view (PyTorch, DDP)
            return Range(0, 4 * model.parameters) if layout.gpus > 1 else exact(0)
        case "ZeRO-1" | "ZeRO-2":
            return Range(min(BUCKET_BYTES, model_bytes), min(2 * BUCKET_BYTES, model_bytes))
        case "ZeRO-3":
            low = 2 * MODEL_BYTES * layer_parameters(shape)
            return Range(min(low, model_bytes), min(max(low, LIVE_BYTES) + BUCKET_BYTES, model_bytes))
        case "FSDP":  # two layers in bf16, the embeddings, and a layer's gradient in fp32
            embeddings = shape.vocabulary * shape.hidden * (1 if shape.tied else 2)
            low = MODEL_BYTES * (2 * layer_parameters(shape) + embeddings)
            return Range(min(low, model_bytes), min(low + 4 * (layer_parameters(shape) + embeddings), 3 * model_bytes))
        case "TP×PP":
            return exact(0)
