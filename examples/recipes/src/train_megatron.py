"""Train a GPT of Megatron-core: each layer's matrices cut over GPUs (tensor parallelism), the layers dealt out to GPUs
(pipeline parallelism), the rest of the GPUs with other data.

    torchrun --nproc-per-node 8 train_megatron.py --size 7b --tensor 4 --pipeline 2 --accumulate 8

--accumulate is the number of micro batches in the pipeline. Keep --tensor within a node: it speaks at every layer.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import loop
import torch
from checkpoints import Failure
from megatron.core import __version__ as megatron_version
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import (
    get_gpt_layer_local_spec,
    get_gpt_layer_with_transformer_engine_spec,
)
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer import TransformerConfig
from plain import WARM_UP
from torch.nn import functional
from transformer import SIZES, counting

try:
    import transformer_engine
except ImportError:
    transformer_engine = None  # slower: attention and norms of PyTorch


class Megatron(loop.Task):
    unit = "tokens"
    parts_everywhere = True

    def __init__(self, options: argparse.Namespace, processes: loop.Processes) -> None:
        self.options, self.processes, self.device = options, processes, processes.device
        self.size = SIZES[options.size]
        self._check(options, processes)
        self.dtype = loop.choose_precision(options, self.device)
        parallel_state.initialize_model_parallel(options.tensor, options.pipeline)
        torch.manual_seed(options.seed + 100 * parallel_state.get_pipeline_model_parallel_rank())
        if self.device.type == "cuda":
            tensor_parallel.model_parallel_cuda_manual_seed(options.seed)
        self.replicas = parallel_state.get_data_parallel_world_size()
        self.units = options.sequence or self.size.sequence
        self.samples = options.batch * options.accumulate * self.replicas
        self.operations = self.size.operations(self.units)
        self.learning_rate = options.learning_rate or self.size.learning_rate
        self.shape = {**self.size.shape(), "tensor": options.tensor, "pipeline": options.pipeline}
        self.conditions = {
            "model": options.size,
            "parameters": self.size.parameters(),
            "sequence": self.units,
            "parallel": f"megatron tp{options.tensor} pp{options.pipeline} dp{self.replicas}",
            "megatron_core": megatron_version,
            "transformer_engine": getattr(transformer_engine, "__version__", None),
        }
        self.last_stage = parallel_state.is_pipeline_last_stage()
        self.config = self._transformer_config()
        model = GPTModel(
            self.config,
            get_gpt_layer_with_transformer_engine_spec()
            if transformer_engine
            else get_gpt_layer_local_spec(normalization="RMSNorm"),
            vocab_size=self.size.vocabulary,
            max_sequence_length=self.units,
            pre_process=parallel_state.is_pipeline_first_stage(),
            post_process=self.last_stage,
            share_embeddings_and_output_weights=False,
            position_embedding_type="rope",
        ).to(self.device, self.dtype)
        sums = DistributedDataParallelConfig(grad_reduce_in_fp32=True)
        self.model = DistributedDataParallel(self.config, sums, model)
        self.model.broadcast_params()
        rules = OptimizerConfig(
            optimizer="adam",
            lr=self.learning_rate,
            weight_decay=0.1,
            adam_beta2=0.95,
            clip_grad=1.0,
            bf16=self.dtype == torch.bfloat16,
            params_dtype=self.dtype,
        )
        self.optimizer = get_megatron_optimizer(rules, [self.model])
        self.config.grad_scale_func = self.optimizer.scale_loss
        self.config.finalize_model_grads_func = finalize_model_grads

    def step(self, step: int, first_sample: int) -> torch.Tensor:
        self.model.zero_grad_buffer()
        self.optimizer.zero_grad()
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate * min(1.0, (step + 1) / WARM_UP)
        losses = get_forward_backward_func()(
            forward_step_func=self._forward,
            data_iterator=self._batches(first_sample),
            model=[self.model],
            num_microbatches=self.options.accumulate,
            seq_length=self.units,
            micro_batch_size=self.options.batch,
            forward_only=False,
        )
        self.optimizer.step()
        if not self.last_stage:
            return torch.zeros((), device=self.device)
        # Only the last stage has the loss, and the loop takes the mean over all processes
        return torch.stack([loss["loss"] for loss in losses]).mean() * self.options.pipeline

    def save(self, folder: Path) -> None:
        if parallel_state.get_data_parallel_rank() == 0:
            with (folder / self._file()).open("wb") as file:
                torch.save({"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}, file)

    def load(self, folder: Path) -> None:
        state = torch.load(folder / self._file(), map_location=self.device, weights_only=False)  # our own, verified
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])

    def _file(self) -> str:
        tensor, pipeline = (
            parallel_state.get_tensor_model_parallel_rank(),
            parallel_state.get_pipeline_model_parallel_rank(),
        )
        return f"tensor-{tensor}-pipeline-{pipeline}.pt"

    def _batches(self, first_sample: int) -> Iterator[torch.Tensor]:
        """The micro batches of this replica: the same ones in all GPUs that share it."""
        options, replica = self.options, parallel_state.get_data_parallel_rank()
        for part in range(options.accumulate):
            number = first_sample + (replica * options.accumulate + part) * options.batch
            tokens = counting(number, options.batch, self.units, options.seed)
            yield loop.send(tokens, self.device)

    def _forward(
        self, batches: Iterator[torch.Tensor], model: torch.nn.Module
    ) -> tuple[torch.Tensor, Callable[[torch.Tensor], tuple[torch.Tensor, dict[str, torch.Tensor]]]]:
        tokens = next(batches)
        positions = torch.arange(self.units, device=self.device).expand(len(tokens), -1)
        return model(tokens[:, :-1].contiguous(), positions, None, labels=tokens[:, 1:].contiguous()), _mean

    def _transformer_config(self) -> TransformerConfig:
        size, options = self.size, self.options
        recompute: dict[str, Any] = {}
        if options.activation_checkpointing:
            recompute = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
        return TransformerConfig(
            num_layers=size.layers,
            hidden_size=size.hidden,
            num_attention_heads=size.heads,
            ffn_hidden_size=size.feed_forward,
            tensor_model_parallel_size=options.tensor,
            pipeline_model_parallel_size=options.pipeline,
            pipeline_dtype=self.dtype,
            params_dtype=self.dtype,
            bf16=self.dtype == torch.bfloat16,
            normalization="RMSNorm",
            activation_func=functional.silu,
            gated_linear_unit=True,
            add_bias_linear=False,
            hidden_dropout=0.0,
            attention_dropout=0.0,
            use_cpu_initialization=self.device.type == "cpu",
            gradient_accumulation_fusion=False,
            **recompute,
        )

    def _check(self, options: argparse.Namespace, processes: loop.Processes) -> None:
        """Raises Failure for what does not fit together."""
        parts = options.tensor * options.pipeline
        if processes.world % parts:
            raise Failure(
                f"--tensor {options.tensor} × --pipeline {options.pipeline} does not divide {processes.world} GPUs"
            )
        if self.size.heads % options.tensor or self.size.layers % options.pipeline:
            raise Failure(
                f"{options.size} has {self.size.heads} heads and {self.size.layers} layers: "
                "--tensor has to divide the heads, --pipeline the layers"
            )
        if options.compile or options.precision == "fp16":
            raise Failure(
                "Megatron-core brings its own kernels: neither --compile nor --precision fp16 is supported here"
            )


def _mean(losses: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    loss = losses.float().mean()
    return loss, {"loss": loss.detach().clone()}  # the schedule divides the first in place


def main() -> None:
    parser = loop.options(__doc__)
    parser.add_argument("--tensor", type=int, default=1, metavar="GPUS", help="GPUs that share each layer")
    parser.add_argument(
        "--pipeline", type=int, default=1, metavar="GPUS", help="GPUs that have a part of the layers each"
    )
    parser.add_argument("--size", choices=sorted(SIZES), default="125m")
    parser.add_argument("--sequence", "--seq", type=int, help="tokens of a sample; default: by size")
    loop.main(parser, Megatron)


if __name__ == "__main__":
    main()
