"""Train a transformer with DeepSpeed's ZeRO: the GPUs share the optimizer (stage 1), the gradients too (2), and the
parameters too (3).

    torchrun --nproc-per-node gpu train_deepspeed.py --stage 2 --size 1b

torchrun starts it, not DeepSpeed's launcher: no host file, no ssh between nodes. The configuration is made of the
options, so that its batch sizes agree.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import deepspeed
import loop
import torch
from checkpoints import Failure
from plain import WARM_UP
from transformer import SIZES, Transformer, counting

TAG = "state"


class Zero(loop.Task):
    unit = "tokens"
    parts_everywhere = True

    def __init__(self, options: argparse.Namespace, processes: loop.Processes) -> None:
        if options.compile and options.stage == 3:
            raise Failure("--compile is for stages 1 and 2: stage 3 collects parameters inside the layers")
        self.options, self.processes, self.device = options, processes, processes.device
        self.size = SIZES[options.size]
        loop.choose_precision(options, self.device)
        self.units = options.sequence or self.size.sequence
        self.samples = options.batch * options.accumulate * processes.world
        self.operations = self.size.operations(self.units)
        self.learning_rate = options.learning_rate or self.size.learning_rate
        # DeepSpeed reads its optimizer's parts only with the stage and the number of processes that wrote them
        self.shape = {**self.size.shape(), "stage": options.stage, "processes": processes.world}
        self.conditions = {
            "model": options.size,
            "parameters": self.size.parameters(),
            "sequence": self.units,
            "parallel": f"zero-{options.stage}",
            "deepspeed": deepspeed.__version__,
        }
        model = Transformer(self.size).to(self.device)
        parameters = dict(model.named_parameters())
        for name, value in model.initial_values(options.seed, self.device):
            parameters[name].data.copy_(value)
        model.tune(options.activation_checkpointing, options.compile)
        optimizer = torch.optim.AdamW(
            model.parameters(), self.learning_rate, betas=(0.9, 0.95), weight_decay=0.1, fused=True
        )
        self.engine, self.optimizer, _, _ = deepspeed.initialize(
            model=model, optimizer=optimizer, config=configuration(options, processes.world)
        )

    def step(self, step: int, first_sample: int) -> torch.Tensor:
        options, total = self.options, torch.zeros((), device=self.device)
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate * min(1.0, (step + 1) / WARM_UP)
        for part in range(options.accumulate):
            number = first_sample + (self.processes.rank * options.accumulate + part) * options.batch
            tokens = counting(number, options.batch, self.units, options.seed)
            loss = self.engine(loop.send(tokens, self.device))
            self.engine.backward(loss)  # divides by the number of forward passes
            self.engine.step()  # changes parameters after the last of them alone
            total += loss.detach().float() / options.accumulate
        return total

    def save(self, folder: Path) -> None:
        self.engine.save_checkpoint(str(folder), tag=TAG)

    def load(self, folder: Path) -> None:
        self.engine.load_checkpoint(str(folder), tag=TAG)


def configuration(options: argparse.Namespace, world: int) -> dict[str, Any]:
    """DeepSpeed's configuration. It refuses one whose batch sizes do not agree."""
    return {
        "train_micro_batch_size_per_gpu": options.batch,
        "gradient_accumulation_steps": options.accumulate,
        "train_batch_size": options.batch * options.accumulate * world,
        "zero_optimization": {"stage": options.stage},
        "zero_allow_untested_optimizer": True,
        "bf16": {"enabled": options.precision == "bf16"},
        "fp16": {"enabled": options.precision == "fp16"},
        "gradient_clipping": 1.0,
        "steps_per_print": 10**9,
    }


def main() -> None:
    parser = loop.options(__doc__)
    parser.add_argument("--stage", type=int, choices=[1, 2, 3], default=2, help="of ZeRO")
    parser.add_argument("--size", choices=sorted(SIZES), default="125m")
    parser.add_argument("--sequence", "--seq", type=int, help="tokens of a sample; default: by size")
    loop.main(parser, Zero)


if __name__ == "__main__":
    main()
