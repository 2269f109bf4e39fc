"""The programs of examples/recipes under torchrun, on this machine's CPU with gloo.

`GPUPROV_TORCH_PYTHON` names a Python that has PyTorch. Without it, one is installed under .cache/torch, once.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from filelock import FileLock

from provisioner.cli.sandbox import PYTORCH
from provisioner.monitoring.servers import free_port
from provisioner.sandbox import pytorch

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "examples" / "recipes"
PROGRAMS = RECIPES / "src"
PACKAGES = ("torch==2.13.0", "numpy")
"""numpy: torch.distributed sends Python objects with it, and each image of PyTorch has it."""
NODES_PYTHON = tuple(map(int, pytorch.PYTHON.split(".")))
FRAMEWORKS = ("setuptools", "wheel", "deepspeed==0.19.8", "megatron-core==0.16.1")
CUDA_ON_CPU = Path(__file__).parent / "cuda_on_cpu"
"""A folder for PYTHONPATH. Simulated: what Megatron-core asks of CUDA goes to the CPU."""
LIMIT_S = 300


class Run(NamedTuple):
    """What a torchrun ended with."""

    status: int
    output: str
    errors: str


@cache
def torch_python() -> Path:
    """A Python with PyTorch."""
    return Path(os.environ.get("GPUPROV_TORCH_PYTHON") or _installed("complete", PACKAGES))


@cache
def frameworks_python() -> Path:
    """A Python with PyTorch, DeepSpeed and Megatron-core."""
    return Path(os.environ.get("GPUPROV_TORCH_PYTHON") or _installed("frameworks", FRAMEWORKS))


def _installed(stage: str, packages: tuple[str, ...]) -> Path:
    """The Python under .cache/torch, with these packages beside PyTorch. `stage`: the file that says so."""
    folder = ROOT / ".cache" / "torch"
    python = folder / "bin" / "python"
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    folder.parent.mkdir(exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not (folder / "complete").exists():
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True, timeout=300)
            if sys.version_info[:2] == NODES_PYTHON:  # one copy of PyTorch on the disk
                pytorch.install(PYTORCH)
                (site,) = folder.glob("lib/python*/site-packages")
                (site / "pytorch.pth").write_text(f"{pytorch.folder() / 'site'}\n")
            else:
                subprocess.run([*install, *PACKAGES], check=True, timeout=1800)
            (folder / "complete").touch()
        if not (folder / stage).exists():
            # DeepSpeed has no wheel, and its setup imports PyTorch
            environment = {**os.environ, "DS_BUILD_OPS": "0", "DS_ACCELERATOR": "cpu"}
            subprocess.run([*install, "--no-build-isolation", *packages], check=True, timeout=1800, env=environment)
            (folder / stage).touch()
    return python


@contextmanager
def torchrun(
    program: str,
    *arguments: str,
    checkpoints: Path,
    processes: int = 2,
    rendezvous: tuple[str, ...] = ("--standalone",),
    python: Path | None = None,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[subprocess.Popen[str]]:
    """A started torchrun. It is killed with its processes if it still runs at the end of the block."""
    interpreter = str(python or torch_python())
    command = [interpreter, "-m", "torch.distributed.run", *rendezvous, "--nproc-per-node", str(processes)]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        "PYTHONWARNINGS": "ignore",
        "GPUPROV_CHECKPOINTS": str(checkpoints),
        "GLOO_SOCKET_IFNAME": "lo",
        **variables,
    }
    started = subprocess.Popen(
        [*command, str(PROGRAMS / program), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    try:
        yield started
    finally:
        if started.poll() is None:
            for pid in (*worker_pids(started.pid), started.pid):
                subprocess.run(["kill", "-KILL", str(pid)], check=False, capture_output=True)
        started.wait(LIMIT_S)


def finish(started: subprocess.Popen[str]) -> Run:
    """Wait for its end."""
    output, errors = started.communicate(timeout=LIMIT_S)
    return Run(started.returncode, output, errors)


def run(program: str, *arguments: str, checkpoints: Path, **options: Any) -> Run:
    """A whole torchrun on one node. `options`: those of `torchrun`."""
    with torchrun(program, *arguments, checkpoints=checkpoints, **options) as started:
        return finish(started)


@contextmanager
def nodes(
    program: str, *arguments: str, checkpoints: Sequence[Path], **options: Any
) -> Iterator[list[subprocess.Popen[str]]]:
    """A torchrun for each folder of checkpoints, as if each were a node of its own with one GPU."""
    port = free_port()
    with ExitStack() as stack:
        started = []
        for number, folder in enumerate(checkpoints):
            node_options = ("--nnodes", str(len(checkpoints)), "--node-rank", str(number))
            rendezvous = (*node_options, "--master-addr", "127.0.0.1", "--master-port", str(port))
            block = torchrun(program, *arguments, checkpoints=folder, processes=1, rendezvous=rendezvous, **options)
            started.append(stack.enter_context(block))
        yield started


def run_nodes(program: str, *arguments: str, checkpoints: Sequence[Path], **options: Any) -> list[Run]:
    """A whole training of several nodes. What the first node printed comes first."""
    with nodes(program, *arguments, checkpoints=checkpoints, **options) as started:
        return [finish(node) for node in started]


def wait_for_line(started: subprocess.Popen[str], beginning: str) -> list[str]:
    """Read the output up to a line that begins so. Returns the lines read."""
    assert started.stdout
    lines = list[str]()
    for line in started.stdout:
        lines.append(line)
        if line.startswith(beginning):
            return lines
    raise AssertionError(f"no line {beginning!r} in {''.join(lines)}{started.stderr.read() if started.stderr else ''}")


def worker_pids(torchrun_pid: int) -> list[int]:
    """The processes that torchrun started, by their rank on this node."""
    children = Path(f"/proc/{torchrun_pid}/task/{torchrun_pid}/children")
    pids = [int(pid) for pid in children.read_text().split()] if children.exists() else []
    return sorted(pids, key=_local_rank)


def metrics(file: Path) -> list[dict[str, Any]]:
    """The lines of a metrics file."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def losses(file: Path) -> dict[int, float]:
    """Loss by step of a metrics file."""
    return {row["step"]: row["loss"] for row in metrics(file) if "step" in row}


def _local_rank(pid: int) -> int:
    variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return next((int(value[11:]) for value in variables if value.startswith(b"LOCAL_RANK=")), -1)
