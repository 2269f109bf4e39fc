"""A small language model on random text with a rule in it: torchrun's processes, NCCL among them, checkpoints, restart.

What to take from it is its shape, not its model. Ends with status 1 where the loss does not fall. SIGTERM and SIGUSR1
write a checkpoint and end it; the next start goes on from there.
"""

import argparse
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WORDS, LENGTH, WIDTH, LAYERS = 512, 256, 512, 6


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.out = nn.Linear(WIDTH, WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        length = words.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=words.device)
        seen = self.embed(words) + self.place(torch.arange(length, device=words.device))
        return self.out(self.layers(seen, mask=mask, is_causal=True))


def batch(size: int, device: torch.device) -> torch.Tensor:
    """Each sequence counts on by a step of its own: what comes next follows from the two words before."""
    start = torch.randint(WORDS, (size, 1), device=device)
    step = torch.randint(1, 8, (size, 1), device=device)
    return (start + step * torch.arange(LENGTH + 1, device=device)) % WORDS


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--steps", type=int, default=500)
    asked.add_argument("--batch", type=int, default=32, help="sequences for each GPU and step")
    asked.add_argument("--checkpoint", type=Path, default=Path("checkpoint.pt"))
    given = asked.parse_args()

    gpus = torch.cuda.is_available()
    local = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local) if gpus else torch.device("cpu")
    if gpus:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if gpus else "gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1 + rank)

    model = DistributedDataParallel(Model().to(device), device_ids=[local] if gpus else None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    first = 0
    if given.checkpoint.exists():
        kept = torch.load(given.checkpoint, map_location=device, weights_only=True)
        model.module.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        first = kept["step"]

    asked_to_end = torch.zeros(1, device=device)
    for sign in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(sign, lambda *_: asked_to_end.fill_(1))

    def keep(step: int) -> None:
        if local == 0:  # one on each node: the next start may find any of them
            fresh = given.checkpoint.with_suffix(".new")
            state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, fresh)
            fresh.replace(given.checkpoint)

    losses, began = [], time.monotonic()
    for step in range(first, given.steps):
        words = batch(given.batch, device)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            guessed = model(words[:, :-1])
        loss = nn.functional.cross_entropy(guessed.float().flatten(0, 1), words[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if rank == 0 and (step + 1) % 10 == 0:
            speed = ranks * given.batch * LENGTH * len(losses) / (time.monotonic() - began)
            print(f"step {step + 1}: loss {losses[-1]:.3f}, {speed:,.0f} words/s", flush=True)
        dist.all_reduce(asked_to_end, op=dist.ReduceOp.MAX)  # all end at the same step
        if asked_to_end.item():
            keep(step + 1)
            dist.destroy_process_group()
            return 0
    keep(max(first, given.steps))
    dist.destroy_process_group()
    return 1 if len(losses) > 20 and losses[-1] > 0.9 * losses[0] else 0


if __name__ == "__main__":
    sys.exit(main())
