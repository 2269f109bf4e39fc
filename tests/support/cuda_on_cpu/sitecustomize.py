"""Simulated: what Megatron-core asks of CUDA goes to the CPU, in the processes of a training. Python imports this
module by itself when its folder is in PYTHONPATH."""

from __future__ import annotations

import os
from contextlib import nullcontext
from typing import Any

if "LOCAL_RANK" in os.environ:
    import torch
    from megatron.core.tensor_parallel import random
    from torch.overrides import TorchFunctionMode

    class CudaOnCpu(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            arguments = dict(kwargs or {})
            if str(arguments.get("device", "")).startswith("cuda"):
                arguments["device"] = "cpu"
            if function is torch.Tensor.cuda:
                return args[0]
            result = function(*args, **arguments)
            if function is torch.Tensor.type and isinstance(result, str):
                return result.replace("torch.", "torch.cuda.")
            return result

    CudaOnCpu().__enter__()
    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.cuda.synchronize = lambda *_: None
    random.CudaRNGStatesTracker.fork = lambda *_: nullcontext()
