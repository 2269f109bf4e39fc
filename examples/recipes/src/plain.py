"""One step in plain PyTorch: accumulated gradients, mixed precision, clipping, warm-up. With DistributedDataParallel,
unless a subclass spreads the model in another way."""

from __future__ import annotations

import argparse
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import loop
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WARM_UP = 20
"""Steps in which the learning rate grows."""


class PlainTask(loop.Task):
    """A model, its optimizer and the loss of some samples. Subclasses set the attributes and write `loss`.

    `clip`: largest norm of the gradients; None does not clip.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    learning_rate: float
    clip: float | None = 1.0

    def __init__(self, options: argparse.Namespace, processes: loop.Processes) -> None:
        self.options, self.processes, self.device = options, processes, processes.device
        self.dtype = loop.choose_precision(options, processes.device)
        self.samples = options.batch * options.accumulate * processes.world
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.dtype == torch.float16)

    def loss(self, first_sample: int, count: int) -> torch.Tensor:
        """Mean loss of `count` samples from number `first_sample` on."""
        raise NotImplementedError

    def replicate(self, model: nn.Module) -> DistributedDataParallel:
        """The model on this GPU, the same on all."""
        devices = [self.device.index] if self.device.type == "cuda" else None
        return DistributedDataParallel(model.to(self.device), device_ids=devices, gradient_as_bucket_view=True)

    def step(self, step: int, first_sample: int) -> torch.Tensor:
        options, total = self.options, torch.zeros((), device=self.device)
        for part in range(options.accumulate):
            number = first_sample + (self.processes.rank * options.accumulate + part) * options.batch
            with self.synchronise(part == options.accumulate - 1):
                with self.autocast():
                    loss = self.loss(number, options.batch) / options.accumulate
                self.scaler.scale(loss).backward()
            total += loss.detach()
        if self.clip:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate * min(1.0, (step + 1) / WARM_UP)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        return total

    def synchronise(self, last: bool) -> AbstractContextManager[Any]:
        """Gradients are averaged over the processes in the last forward pass of a step alone."""
        assert isinstance(self.model, DistributedDataParallel)
        return nullcontext() if last else self.model.no_sync()

    def autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32)

    def save(self, folder: Path) -> None:
        if self.processes.local == 0:
            state = {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "scaler": self.scaler.state_dict(),
            }
            with (folder / "state.pt").open("wb") as file:
                torch.save(state, file)

    def load(self, folder: Path) -> None:
        state = torch.load(folder / "state.pt", map_location="cpu", weights_only=True, mmap=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])
