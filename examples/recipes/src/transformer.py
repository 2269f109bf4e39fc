"""A language model with the shapes of Llama, and sequences with a rule in them.

Each layer may compute its activations again (`recompute`) and may be compiled by itself: its hooks stay outside.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

WORDS = 512
"""Words of the vocabulary that occur in the data."""


@dataclass(frozen=True)
class Size:
    layers: int
    hidden: int
    heads: int
    feed_forward: int
    vocabulary: int
    learning_rate: float
    sequence: int

    def shape(self) -> dict[str, Any]:
        """What another training must have in common to read a checkpoint of this one."""
        return {name: value for name, value in asdict(self).items() if name not in ("learning_rate", "sequence")}

    def parameters(self) -> int:
        layer = 4 * self.hidden**2 + 3 * self.hidden * self.feed_forward + 2 * self.hidden
        return 2 * self.vocabulary * self.hidden + self.layers * layer + self.hidden

    def operations(self, sequence: int) -> float:
        """Floating-point operations of a token forward and backward, without recomputation: 6N + 12·layers·hidden·s."""
        return 6.0 * self.parameters() + 12.0 * self.layers * self.hidden * sequence


SIZES = {
    "tiny": Size(2, 64, 4, 176, WORDS, 3e-3, 64),
    "125m": Size(12, 768, 12, 2048, 32000, 6e-4, 2048),
    "1b": Size(24, 2048, 16, 5632, 32000, 2e-4, 2048),
    "7b": Size(32, 4096, 32, 11008, 32000, 1e-4, 2048),
}


class Norm(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(states, self.weight.shape, self.weight.to(states.dtype), 1e-5)


class Layer(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads, self.recompute = size.heads, False
        self.attention_norm, self.feed_forward_norm = Norm(size.hidden), Norm(size.hidden)
        self.query_key_value = nn.Linear(size.hidden, 3 * size.hidden, bias=False)
        self.attention_out = nn.Linear(size.hidden, size.hidden, bias=False)
        self.gate_up = nn.Linear(size.hidden, 2 * size.feed_forward, bias=False)
        self.down = nn.Linear(size.feed_forward, size.hidden, bias=False)

    def forward(self, states: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
        if self.recompute and self.training:
            return checkpoint(self.block, states, rotation, use_reentrant=False)
        return self.block(states, rotation)

    def block(self, states: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
        batch, length, hidden = states.shape
        projected = self.query_key_value(self.attention_norm(states))
        query, key, value = projected.view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        query, key = _rotate(query, rotation), _rotate(key, rotation)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        states = states + self.attention_out(mixed.transpose(1, 2).reshape(batch, length, hidden))
        gate, up = self.gate_up(self.feed_forward_norm(states)).chunk(2, dim=-1)
        return states + self.down(functional.silu(gate) * up)


class Transformer(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.size = size
        self.embedding = nn.Embedding(size.vocabulary, size.hidden)
        self.layers = nn.ModuleList(Layer(size) for _ in range(size.layers))
        self.norm = Norm(size.hidden)
        self.out = nn.Linear(size.hidden, size.vocabulary, bias=False)
        self.cross_entropy = _cross_entropy

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Mean loss of guessing each token from those before it. `tokens`: (batch, sequence + 1)."""
        states = self.embedding(tokens[:, :-1])
        if torch.is_autocast_enabled(states.device.type):
            states = states.to(torch.get_autocast_dtype(states.device.type))
        rotation = _rotation(states.shape[1], self.size.hidden // self.size.heads, states)
        for layer in self.layers:
            states = layer(states, rotation)
        return self.cross_entropy(self.out(self.norm(states)), tokens[:, 1:])

    def tune(self, recompute: bool, compile_layers: bool) -> None:
        """Compute activations again in the backward pass; compile each layer, and the loss."""
        for layer in self.layers:
            layer.recompute = recompute
            if compile_layers:
                layer.block = torch.compile(layer.block)
        if compile_layers:
            self.cross_entropy = torch.compile(_cross_entropy)

    def initial_values(self, seed: int, device: torch.device) -> Iterator[tuple[str, torch.Tensor]]:
        """First value of each parameter, one after the other: the same however the parameters are spread."""
        generator = torch.Generator(device)
        for number, (name, parameter) in enumerate(self.named_parameters()):
            if name.endswith("norm.weight"):
                yield name, torch.ones(parameter.shape, device=device)
                continue
            generator.manual_seed(seed * 1_000_003 + number)
            deviation = (
                0.02 / (2 * self.size.layers) ** 0.5 if name.endswith(("attention_out.weight", "down.weight")) else 0.02
            )
            yield name, torch.empty(parameter.shape, device=device).normal_(0, deviation, generator=generator)


def counting(first_sample: int, count: int, sequence: int, seed: int) -> torch.Tensor:
    """Sequences that count on by a step of their own: what comes next follows from the two tokens before.

    A function of the samples' numbers, so that an interrupted training goes on with the same data. Shape:
    (count, sequence + 1). Your own data belongs here: read sample i of a file or a shard.
    """
    rows = torch.empty(count, 2, dtype=torch.int64)
    generator = torch.Generator()
    for row in range(count):
        generator.manual_seed(seed * 1_000_000_007 + first_sample + row)
        rows[row] = torch.randint(WORDS, (2,), generator=generator)
    return (rows[:, :1] + (1 + rows[:, 1:] % 7) * torch.arange(sequence + 1)) % WORDS


def _cross_entropy(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.float().flatten(0, 1), tokens.flatten())


def _rotation(length: int, width: int, like: torch.Tensor) -> torch.Tensor:
    """Cosines and sines of rotary positions. Shape: (2, length, width / 2)."""
    frequencies = 10000.0 ** -(torch.arange(0, width, 2, device=like.device) / width)
    angles = torch.arange(length, device=like.device)[:, None] * frequencies
    return torch.stack([angles.cos(), angles.sin()]).to(like.dtype)


def _rotate(states: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
    first, second = states.chunk(2, dim=-1)
    cosine, sine = rotation
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)
