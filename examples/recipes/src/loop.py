"""What the programs of this folder share: options, processes, the loop over steps, signals, log line and metrics.

A program writes a `Task` (model, data, optimizer) and calls `main`. torchrun starts it, by hand or by `gpuprov run`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn, TextIO

import torch
import torch.distributed as dist
from checkpoints import Checkpoints, Failure

JUDGED_STEPS = 20
"""A shorter run says nothing about the loss."""


@dataclass(frozen=True)
class Processes:
    """The processes of this training: one for each GPU. `node`: number of this machine, `local`: number of the GPU."""

    rank: int
    world: int
    local: int
    local_world: int
    device: torch.device

    @property
    def node(self) -> int:
        return self.rank // self.local_world

    @property
    def nodes(self) -> int:
        return self.world // self.local_world


class Task:
    """A training as the loop needs it. Subclasses set the attributes and write the methods.

    `unit`: what the speed counts (tokens, images, sequences). `samples`: samples of a step, of all processes together.
    `units`: units of one sample. `operations`: floating-point operations of one unit forward and backward, None where
    nobody counted them. `shape`: what a checkpoint must have in common with this training. `parts_everywhere`: whether
    the state lies in the processes of all nodes, so that one node alone cannot write it.
    """

    unit: str
    samples: int
    units: int = 1
    operations: float | None = None
    shape: dict[str, Any]
    conditions: dict[str, Any]
    parts_everywhere = False

    def step(self, step: int, first_sample: int) -> torch.Tensor:
        """One optimizer step on this process's part of the samples; its mean loss, without gradient."""
        raise NotImplementedError

    def save(self, folder: Path) -> None:
        """Write the state into the folder. Every process of a node calls it with the same folder."""
        raise NotImplementedError

    def load(self, folder: Path) -> None:
        """Read what `save` wrote."""
        raise NotImplementedError


def options(description: str | None, **defaults: Any) -> argparse.ArgumentParser:
    """The options that every program has. `defaults`: other defaults than these."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--steps", type=int, default=500, help="steps in all, those before an interruption included")
    parser.add_argument("--batch", type=int, default=8, help="samples for each GPU and each forward pass")
    parser.add_argument("--accumulate", type=int, default=1, help="forward passes for each step")
    parser.add_argument("--precision", choices=["bf16", "fp16", "fp32"], help="default: bf16 on GPUs, fp32 on a CPU")
    parser.add_argument("--activation-checkpointing", action="store_true", help="compute again instead of keeping")
    parser.add_argument("--compile", action="store_true", help="torch.compile")
    parser.add_argument("--learning-rate", type=float, help="after 20 steps of warm-up; default: by model")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--checkpoint-every", type=int, default=500, metavar="STEPS")
    parser.add_argument("--keep", type=int, default=2, help="number of checkpoints to keep, at least 1")
    parser.add_argument("--no-checkpoints", action="store_true", help="neither read nor write any")
    parser.add_argument("--metrics", type=Path, metavar="FILE", help="JSON lines: conditions, then each step")
    parser.add_argument("--log-every", type=int, default=10, metavar="STEPS")
    parser.add_argument(
        "--peak-tflops", type=float, default=os.environ.get("GPUPROV_PEAK_TFLOPS"), help="of one GPU, for the MFU"
    )
    parser.set_defaults(**defaults)
    return parser


def start_processes() -> Processes:
    """Join the process group that torchrun prepared."""
    gpus = torch.cuda.is_available()
    local = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local) if gpus else torch.device("cpu")
    if gpus:
        torch.cuda.set_device(device)
    # gloo beside NCCL: for what the processes tell each other about checkpoints
    dist.init_process_group("cpu:gloo,cuda:nccl" if gpus else "gloo", timeout=timedelta(minutes=10))
    local_world = int(os.environ["LOCAL_WORLD_SIZE"])
    return Processes(dist.get_rank(), dist.get_world_size(), local, local_world, device)


def choose_precision(options: argparse.Namespace, device: torch.device) -> torch.dtype:
    """The type of the arithmetic; also sets `options.precision`. Raises Failure where the GPU lacks it."""
    if options.precision is None:
        options.precision = "bf16" if device.type == "cuda" else "fp32"
    if (
        options.precision == "bf16"
        and device.type == "cuda"
        and not torch.cuda.is_bf16_supported(including_emulation=False)
    ):
        raise Failure(f"{torch.cuda.get_device_name(device)} has no bf16; pass --precision fp16")
    return {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[options.precision]


def send(batch: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A batch on the GPU. From pinned memory, so that the copy does not wait for the step before."""
    return batch.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else batch


@dataclass
class Stop:
    """SIGTERM and SIGUSR1 ask for the end; SIGINT (Ctrl-C) does as well."""

    requested: bool = False

    def listen(self) -> None:
        for sign in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
            signal.signal(sign, self._handle)

    def _handle(self, *_: object) -> None:
        self.requested = True


@dataclass
class Record:
    """Log line and metrics, of the first process alone."""

    task: Task
    options: argparse.Namespace
    processes: Processes
    file: TextIO | None = None
    recent: list[float] = field(default_factory=list)

    def begin(self) -> None:
        device, options = self.processes.device, self.options
        if self.processes.rank or not options.metrics:
            return
        conditions = {
            **self.task.conditions,
            "unit": self.task.unit,
            "operations_per_unit": self.task.operations,
            "batch": options.batch,
            "accumulate": options.accumulate,
            "precision": options.precision,
            "activation_checkpointing": options.activation_checkpointing,
            "compile": options.compile,
            "gpus": self.processes.world,
            "gpus_per_node": self.processes.local_world,
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "nccl": ".".join(map(str, torch.cuda.nccl.version())) if device.type == "cuda" else None,
        }
        self.file = options.metrics.open("w", encoding="utf-8")
        self._write({"conditions": conditions})

    def add(self, step: int, loss: float, seconds: float) -> None:
        """`step`: number of steps done. `seconds`: duration of this step."""
        if self.processes.rank:
            return
        device, options = self.processes.device, self.options
        amount = self.task.samples * self.task.units
        peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
        if self.file:
            name = "tokens" if self.task.unit == "tokens" else "samples"
            self._write({"step": step, "loss": loss, "seconds": seconds, name: amount, "peak_bytes": peak})
        self.recent.append(seconds)
        if step % options.log_every and step != options.steps:
            return
        speed = amount * len(self.recent) / sum(self.recent)
        line = f"step {step}: loss {loss:.3f}, {speed:.0f} {self.task.unit}/s"
        if options.peak_tflops and self.task.operations and device.type == "cuda":
            line += f", {speed * self.task.operations / (self.processes.world * options.peak_tflops * 1e12):.3f} MFU"
        if peak is not None:
            line += f", {peak / 2**30:.1f} GiB"
        print(line, flush=True)
        self.recent.clear()

    def _write(self, row: dict[str, Any]) -> None:
        assert self.file
        self.file.write(json.dumps(row) + "\n")
        self.file.flush()


@dataclass
class Training:
    """The loop over steps. The result of a step is read while the GPU computes the next one."""

    task: Task
    options: argparse.Namespace
    processes: Processes
    stop: Stop
    checkpoints: Checkpoints | None
    progress: dict[str, Any] = field(default_factory=lambda: {"step": 0, "samples": 0, "first_loss": None})
    losses: list[float] = field(default_factory=list)

    def run(self) -> int:
        """Train up to `--steps`, or until a signal. Returns the exit status."""
        task, progress, record = self.task, self.progress, Record(self.task, self.options, self.processes)
        if self.checkpoints:
            progress.update(self.checkpoints.restore(task.load) or {})
        record.begin()
        stopped, saved, reports = False, progress["step"], list[tuple[int, torch.Tensor]]()
        clock = time.monotonic()
        ahead = 1 if self.processes.device.type == "cuda" else 0

        def read_report() -> bool:
            """Wait for the oldest step that was not read yet; whether a process was asked to stop."""
            nonlocal clock
            step, report = reports.pop(0)
            loss, requests = report.tolist()
            seconds, clock = time.monotonic() - clock, time.monotonic()
            if not math.isfinite(loss):
                raise Failure(f"the loss of step {step} is {loss}")
            if progress["first_loss"] is None:
                progress["first_loss"] = loss
            self.losses.append(loss)
            record.add(step, loss, seconds)
            return requests > 0

        while progress["step"] < self.options.steps and not stopped:
            reports.append((progress["step"] + 1, self._step()))
            due = self.checkpoints is not None and progress["step"] % self.options.checkpoint_every == 0
            while len(reports) > (0 if due else ahead):
                stopped = read_report() or stopped
            if due:
                self._save()
                saved, clock = progress["step"], time.monotonic()
        while reports:
            stopped = read_report() or stopped
        if self.checkpoints and saved != progress["step"]:
            self._save()
        if stopped and progress["step"] < self.options.steps:
            self._say(f"stopped after step {progress['step']}")
            return 0
        return self._judge()

    def _step(self) -> torch.Tensor:
        """One step of all processes: their mean loss, and how many of them were asked to stop. Not awaited."""
        torch.manual_seed(
            self.options.seed * 1_000_003 + self.progress["step"] * self.processes.world + self.processes.rank
        )
        loss = self.task.step(self.progress["step"], self.progress["samples"])
        self.progress["step"] += 1
        self.progress["samples"] += self.task.samples
        requests = torch.full((), float(self.stop.requested), device=loss.device)
        report = torch.stack([loss.float() / self.processes.world, requests])
        dist.all_reduce(report)
        return report

    def _save(self) -> None:
        assert self.checkpoints
        began = time.monotonic()
        self.checkpoints.save(self.progress, self.task.save, self.task.parts_everywhere)
        self._say(f"checkpoint of step {self.progress['step']} written in {time.monotonic() - began:.1f} s")

    def _judge(self) -> int:
        """1 where enough steps did not lower the loss."""
        if len(self.losses) <= JUDGED_STEPS:
            return 0
        first, last = self.progress["first_loss"], sum(self.losses[-5:]) / 5
        if last <= 0.9 * first:
            return 0
        self._say(f"the loss does not fall: {first:.3f} at the first step, {last:.3f} at the last five")
        return 1

    def _say(self, text: str) -> None:
        if self.processes.rank == 0:
            print(text, flush=True)


def main(parser: argparse.ArgumentParser, make_task: Callable[[argparse.Namespace, Processes], Task]) -> NoReturn:
    """Run a program: parse the options, make the task, train, and end this process."""
    options = parser.parse_args()
    if options.keep < 1 or options.checkpoint_every < 1 or options.batch < 1 or options.accumulate < 1:
        parser.error("--keep, --checkpoint-every, --batch and --accumulate are at least 1")
    status, stop = 1, Stop()
    stop.listen()  # from the beginning: torchrun ends all processes when one fails, and process 0 has to say why
    try:
        processes = start_processes()
        task = make_task(options, processes)
        checkpoints = None
        if not options.no_checkpoints:
            folder = Path(os.environ.get("GPUPROV_CHECKPOINTS", "checkpoints"))
            checkpoints = Checkpoints(folder, options.keep, task.shape, processes.device)
        status = Training(task, options, processes, stop, checkpoints).run()
        dist.destroy_process_group()
    except Failure as failure:  # every process has the same one
        if dist.get_rank() == 0:
            print(f"error: {failure}", file=sys.stderr)
    except Exception:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    # Without the destructors: gloo's wait for a thread that waits for Python (seen with PyTorch 2.13)
    os._exit(status)
