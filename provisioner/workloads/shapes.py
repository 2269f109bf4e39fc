"""Parameters and operations of a transformer, from its shape."""

from __future__ import annotations

from dataclasses import dataclass
from math import log

from provisioner.workloads import published
from provisioner.workloads.published import Counts, Shape


@dataclass(frozen=True, slots=True)
class Model:
    """A model to train. `parameters`: as the user or the shape says. `assumption`: what of the shape nobody said, as a
    sentence; empty for a published shape."""

    shape: Shape
    parameters: float
    assumption: str = ""


def parameters(shape: Shape, sequence: int) -> int:
    """Number of parameters. `sequence`: tokens, for models with learned positions; biases are not counted.

    >>> round(parameters(published.shape("llama3-8b"), 8192) / 1e9, 2)
    8.03
    """
    embeddings = shape.vocabulary * shape.hidden * (1 if shape.tied else 2)
    if shape.positions:
        embeddings += sequence * shape.hidden
    return embeddings + shape.layers * layer_parameters(shape) + shape.hidden


def layer_parameters(shape: Shape) -> int:
    """Number of parameters of one layer."""
    attention = 2 * shape.hidden**2 + 2 * shape.hidden * kv_width(shape)
    feed_forward = (3 if shape.gated else 2) * shape.hidden * shape.feed_forward
    return attention + feed_forward + 2 * shape.hidden


def kv_width(shape: Shape) -> int:
    """Width of the keys (and of the values) of all heads together."""
    return shape.hidden * shape.kv_heads // shape.heads


def token_operations(model: Model, sequence: int, counts: Counts = "full") -> float:
    """Floating-point operations of one token's forward and backward pass, without recomputation.

    6N + 12·layers·hidden·sequence (github mosaicml/llm-foundry, scripts/train/benchmarking/README.md, "MFU"). The other
    ways to count are those of sources: throughput.yaml.
    """
    attention = 12.0 * model.shape.layers * model.shape.hidden * sequence
    weights = model.parameters
    if counts != "full":
        weights -= model.shape.vocabulary * model.shape.hidden
    return 6 * weights + (attention / 2 if counts == "causal" else attention)


def published_model(name: str, sequence: int) -> Model:
    """A model by the name of its published shape. Raises GpuprovError."""
    row = published.shape(name)
    return Model(row, float(parameters(row, sequence)))


def scaled_model(parameter_count: float, sequence: int) -> Model:
    """A model of that many parameters: the nearest published shape, its layers and widths scaled alike."""
    candidates = published.shapes().values()
    nearest = min(candidates, key=lambda row: abs(log(parameters(row, sequence) / parameter_count)))
    factor = (parameter_count / parameters(nearest, sequence)) ** (1 / 3)
    heads = max(1, round(nearest.heads * factor))
    kv_heads = heads if nearest.kv_heads == nearest.heads else min(nearest.kv_heads, heads)
    width = nearest.hidden // nearest.heads
    hidden = heads * width
    scaled = nearest.model_copy(
        update={
            "name": f"{parameter_count / 1e9:g}B",
            "layers": max(1, round(nearest.layers * factor)),
            "hidden": hidden,
            "heads": heads,
            "kv_heads": kv_heads,
            "feed_forward": max(1, round(nearest.feed_forward * hidden / nearest.hidden)),
        }
    )
    assumption = (
        f"the shape is that of {nearest.name}, scaled to {scaled.layers} layers of width {scaled.hidden}; "
        "--model takes a published shape"
    )
    return Model(scaled, parameter_count, assumption)
