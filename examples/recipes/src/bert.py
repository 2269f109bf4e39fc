"""Pretraining of BERT-large (masked tokens, next sentence) with DistributedDataParallel, on sequences made up.

torchrun --nproc-per-node gpu bert.py --sequence 128 --batch 64
torchrun --nproc-per-node gpu bert.py --sequence 512 --batch 16
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import loop
import torch
from plain import PlainTask
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformer import WORDS, counting

MASK = WORDS
"""The token in place of a hidden one."""


@dataclass(frozen=True)
class Size:
    layers: int
    hidden: int
    heads: int
    vocabulary: int
    learning_rate: float


SIZES = {
    "tiny": Size(2, 64, 4, 4096, 3e-3),
    "large": Size(24, 1024, 16, 30528, 1e-4),  # 30522 tokens, padded to a multiple of 64
}


class Layer(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.query_key_value = nn.Linear(size.hidden, 3 * size.hidden)
        self.attention_out = nn.Linear(size.hidden, size.hidden)
        self.up, self.down = nn.Linear(size.hidden, 4 * size.hidden), nn.Linear(4 * size.hidden, size.hidden)
        self.attention_norm, self.feed_forward_norm = nn.LayerNorm(size.hidden), nn.LayerNorm(size.hidden)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        batch, length, hidden = states.shape
        query, key, value = self.query_key_value(states).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        dropout = 0.1 if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(query, key, value, dropout_p=dropout)
        mixed = self.attention_out(mixed.transpose(1, 2).reshape(batch, length, hidden))
        states = self.attention_norm(states + functional.dropout(mixed, 0.1, self.training))
        update = self.down(functional.gelu(self.up(states)))
        return self.feed_forward_norm(states + functional.dropout(update, 0.1, self.training))


class Bert(nn.Module):
    def __init__(self, size: Size, length: int) -> None:
        super().__init__()
        self.recompute = False
        self.tokens, self.positions = nn.Embedding(size.vocabulary, size.hidden), nn.Embedding(length, size.hidden)
        self.sentences, self.norm = nn.Embedding(2, size.hidden), nn.LayerNorm(size.hidden)
        self.layers = nn.ModuleList(Layer(size) for _ in range(size.layers))
        self.pool, self.next_sentence = nn.Linear(size.hidden, size.hidden), nn.Linear(size.hidden, 2)
        self.transform, self.transform_norm = nn.Linear(size.hidden, size.hidden), nn.LayerNorm(size.hidden)
        self.out_bias = nn.Parameter(torch.zeros(size.vocabulary))
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, 0, 0.02)

    def forward(
        self, tokens: torch.Tensor, positions: torch.Tensor, hidden_tokens: torch.Tensor, follows: torch.Tensor
    ) -> torch.Tensor:
        """Mean loss. `tokens`: (batch, length). `positions`, `hidden_tokens`: (batch, predictions), where a token is
        hidden and which. `follows`: (batch,), whether the second half continues the first."""
        length = tokens.shape[1]
        place = torch.arange(length, device=tokens.device)
        states = self.tokens(tokens) + self.positions(place) + self.sentences((place >= length // 2).long())
        states = functional.dropout(self.norm(states), 0.1, self.training)
        for layer in self.layers:
            states = checkpoint(layer, states, use_reentrant=False) if self.recompute else layer(states)
        masked = states.gather(1, positions[..., None].expand(-1, -1, states.shape[2]))
        masked = self.transform_norm(functional.gelu(self.transform(masked)))
        logits = functional.linear(
            masked, self.tokens.weight, self.out_bias
        )  # the embedding's weights, as in the paper
        pooled = torch.tanh(self.pool(states[:, 0]))
        return functional.cross_entropy(
            logits.float().flatten(0, 1), hidden_tokens.flatten()
        ) + functional.cross_entropy(self.next_sentence(pooled).float(), follows)


class Pretraining(PlainTask):
    unit = "sequences"

    def __init__(self, options: argparse.Namespace, processes: loop.Processes) -> None:
        super().__init__(options, processes)
        size = SIZES[options.size]
        self.predictions = max(1, options.sequence * 20 // 128)
        self.operations = _operations(size, options.sequence, self.predictions)
        self.shape = {"model": f"bert-{options.size}", "sequence": options.sequence}
        self.conditions = {
            "model": f"bert-{options.size}",
            "sequence": options.sequence,
            "predictions": self.predictions,
            "parallel": "ddp",
            "data": "synthetic",
        }
        self.learning_rate = options.learning_rate or size.learning_rate
        torch.manual_seed(options.seed)
        model = Bert(size, options.sequence)
        model.recompute = options.activation_checkpointing
        if options.compile:
            for layer in model.layers:
                layer.compile()
        self.model = self.replicate(model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), self.learning_rate, weight_decay=0.01, fused=True)

    def loss(self, first_sample: int, count: int) -> torch.Tensor:
        options = self.options
        tokens = counting(first_sample, count, options.sequence - 1, options.seed)
        follows = torch.arange(first_sample, first_sample + count) % 2
        tokens[:, options.sequence // 2 :] += (1 - follows)[:, None] * (WORDS // 2)
        tokens %= WORDS
        generator = torch.Generator().manual_seed(options.seed * 1_000_000_007 + first_sample)
        positions = torch.rand(count, options.sequence, generator=generator).topk(self.predictions).indices
        hidden_tokens = tokens.gather(1, positions)
        tokens.scatter_(1, positions, MASK)
        batch = (tokens, positions, hidden_tokens, follows)
        return self.model(*(loop.send(part, self.device) for part in batch))


def _operations(size: Size, length: int, predictions: int) -> float:
    """Floating-point operations of one sequence forward and backward: layers, attention, and the predicted tokens."""
    layers = length * size.layers * (6 * 12 * size.hidden**2 + 12 * size.hidden * length)
    return float(layers + 6 * predictions * size.hidden * (size.vocabulary + size.hidden))


def main() -> None:
    parser = loop.options(__doc__, batch=64, no_checkpoints=True)
    parser.add_argument("--size", choices=sorted(SIZES), default="large")
    parser.add_argument("--sequence", "--seq", type=int, default=128, help="tokens of a sample")
    loop.main(parser, Pretraining)


if __name__ == "__main__":
    main()
