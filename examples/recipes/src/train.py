"""Train a transformer with DistributedDataParallel (every GPU has the whole model), or with fully_shard, also called
FSDP2 (the GPUs of a node share it, nodes are replicas).

    torchrun --nproc-per-node gpu train.py --parallel ddp --size 125m --compile
    torchrun --nproc-per-node gpu train.py --parallel fsdp2 --size 7b --activation-checkpointing

Ends with status 1 where the loss does not fall. SIGTERM and SIGUSR1 write a checkpoint and end it; the next start
continues there.
"""

from __future__ import annotations

import argparse
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import loop
import torch
import torch.distributed.checkpoint as dcp
from checkpoints import Failure
from plain import PlainTask
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import distribute_tensor
from transformer import SIZES, Transformer, counting


class Language(PlainTask):
    """A transformer with DistributedDataParallel and automatic mixed precision."""

    unit = "tokens"

    def __init__(self, options: argparse.Namespace, processes: loop.Processes) -> None:
        super().__init__(options, processes)
        self.size = SIZES[options.size]
        self.units = options.sequence or self.size.sequence
        self.operations = self.size.operations(self.units)
        self.shape = self.size.shape()
        self.learning_rate = options.learning_rate or self.size.learning_rate
        self.conditions = {
            "model": options.size,
            "parameters": self.size.parameters(),
            "sequence": self.units,
            "parallel": options.parallel,
        }
        with torch.device("meta"):
            model = Transformer(self.size)
        model.tune(options.activation_checkpointing, options.compile)
        self.model = self.spread(model)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), self.learning_rate, betas=(0.9, 0.95), weight_decay=0.1, fused=True
        )

    def spread(self, model: Transformer) -> nn.Module:
        """The model on the GPUs, with its first values."""
        model.to_empty(device=self.device)
        parameters = dict(model.named_parameters())
        for name, value in model.initial_values(self.options.seed, self.device):
            parameters[name].data.copy_(value)
        return self.replicate(model)

    def loss(self, first_sample: int, count: int) -> torch.Tensor:
        tokens = counting(first_sample, count, self.units, self.options.seed)
        return self.model(loop.send(tokens, self.device))


class FullyShard(Language):
    """fully_shard: parameters, gradients and optimizer are spread over the GPUs of a node, or of all nodes."""

    def spread(self, model: Transformer) -> nn.Module:
        if self.dtype == torch.float16:
            raise Failure("fsdp2 takes bf16 or fp32; --precision fp16 is for ddp")
        options, processes = self.options, self.processes
        self.conditions["shard"] = options.shard
        self.parts_everywhere = options.shard == "all" and processes.nodes > 1
        if processes.nodes == 1 or self.parts_everywhere:
            mesh = init_device_mesh(self.device.type, (processes.world,), mesh_dim_names=("shard",))
        else:
            grid = (processes.nodes, processes.local_world)
            mesh = init_device_mesh(self.device.type, grid, mesh_dim_names=("replicate", "shard"))
        self.group = mesh["shard"].get_group()
        policy = MixedPrecisionPolicy(param_dtype=self.dtype, reduce_dtype=torch.float32)
        for layer in model.layers:
            fully_shard(layer, mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh, mp_policy=policy)
        model.to_empty(device=self.device)
        parameters = dict(model.named_parameters())
        for name, value in model.initial_values(options.seed, self.device):
            parameter = parameters[name].data
            parameter.to_local().copy_(distribute_tensor(value, mesh, parameter.placements).to_local())
        return model

    def synchronise(self, last: bool) -> AbstractContextManager[Any]:
        self.model.set_requires_gradient_sync(last)
        return nullcontext()

    def autocast(self) -> AbstractContextManager[Any]:
        return nullcontext()  # the policy has the precision

    def save(self, folder: Path) -> None:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        writer = dcp.FileSystemWriter(folder)
        dcp.save({"model": model, "optimizer": optimizer}, storage_writer=writer, process_group=self.group)

    def load(self, folder: Path) -> None:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        dcp.load({"model": model, "optimizer": optimizer}, checkpoint_id=folder, process_group=self.group)
        set_state_dict(self.model, self.optimizer, model_state_dict=model, optim_state_dict=optimizer)


def make_task(options: argparse.Namespace, processes: loop.Processes) -> loop.Task:
    return (Language if options.parallel == "ddp" else FullyShard)(options, processes)


def main() -> None:
    parser = loop.options(__doc__)
    parser.add_argument("--parallel", choices=["ddp", "fsdp2"], default="ddp")
    parser.add_argument("--size", choices=sorted(SIZES), default="125m")
    parser.add_argument("--sequence", "--seq", type=int, help="tokens of a sample; default: by size")
    parser.add_argument(
        "--shard", choices=["node", "all"], default="node", help="fsdp2: over the GPUs of a node, or all"
    )
    loop.main(parser, make_task)


if __name__ == "__main__":
    main()
