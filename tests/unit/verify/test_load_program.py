"""The load program's copies: one GPU at a time, in memory of the GPU's own NUMA node. PyTorch is a stand-in here."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

PROGRAM = Path(__file__).parents[3] / "provisioner/verify/load/program.py"


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Any:
    torch: Any = ModuleType("torch")
    torch.distributed = ModuleType("torch.distributed")
    memory = SimpleNamespace(copy_=lambda *_, **__: None, zero_=lambda: None)
    torch.empty = torch.zeros = torch.empty_like = lambda *_, **__: memory
    torch.uint8, torch.device = "uint8", lambda *name: name
    torch.cuda = SimpleNamespace(device_count=lambda: 4)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch.distributed", torch.distributed)
    spec = importlib.util.spec_from_file_location("load_program", PROGRAM)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Node:
    """Rank `local` of four, which writes down between which barriers it copied."""

    def __init__(self, local: int) -> None:
        self.local, self.processes, self.tiny, self.cuda, self.device = local, 4, False, True, "cuda"
        self.barriers, self.copied = 0, list[int]()

    def free(self) -> int:
        return 80 << 30

    def barrier(self) -> None:
        self.barriers += 1

    def seconds(self, work: Any, repeat: int) -> float:
        work()
        self.copied.append(self.barriers)
        return 0.5


def test_no_two_gpus_copy_over_the_host_or_to_a_peer_at_once(program: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "bind_to_gpu_node", lambda address: 1)
    turns = []
    for local in range(4):
        node = Node(local)
        rates = program.copies(node)
        within, *crossing = node.copied
        assert within == 0 and len(crossing) == 3  # within its own memory; then to, from the host and to its neighbour
        turns.append(set(crossing))
        assert node.barriers == 5
        assert (rates["h2d_gbps"], rates["numa_node"]) == (pytest.approx((1 << 30) / 0.5 / 1e9), 1)
    assert turns == [{1}, {2}, {3}, {4}]


def test_latency_is_the_median_of_rounds_at_their_slowest_rank(program: Any) -> None:
    program.torch.ones = lambda *_, **__: None
    program.dist.all_reduce = lambda value: None
    took = iter([3e-5, 9e-3, 4e-5, 5e-5, 2e-5])  # one round met a hiccup
    node = SimpleNamespace(dtype="x", device="cuda", seconds=lambda work, repeat: next(took), all=lambda v: [v / 2, v])
    assert program.latency(node) == pytest.approx(40.0)


def gpu_at(root: Path, numa: str, cpus: str) -> None:
    device, node = root / "bus/pci/devices/0000:10:1c.0", root / "devices/system/node/node1"
    device.mkdir(parents=True)
    node.mkdir(parents=True)
    (device / "numa_node").write_text(numa)
    (node / "cpulist").write_text(cpus)


def test_a_process_is_bound_to_the_processors_beside_its_gpu(
    program: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound: list[set[int]] = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cpus: bound.append(cpus))
    gpu_at(tmp_path, "1\n", "24-26,72\n")
    assert program.bind_to_gpu_node("0000:10:1c.0", str(tmp_path)) == 1
    assert bound == [{24, 25, 26, 72}]


@pytest.mark.parametrize("numa", ["-1\n", "", "x"])
def test_where_no_numa_node_is_known_the_result_says_none(program: Any, tmp_path: Path, numa: str) -> None:
    gpu_at(tmp_path, numa, "0-3\n")
    assert program.bind_to_gpu_node("0000:10:1c.0", str(tmp_path)) is None
    assert program.bind_to_gpu_node("", str(tmp_path)) is None


def test_processors_that_the_container_may_not_use_bind_to_nothing(
    program: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(pid: int, cpus: set[int]) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "sched_setaffinity", refused)
    gpu_at(tmp_path, "1\n", "24-26\n")
    assert program.bind_to_gpu_node("0000:10:1c.0", str(tmp_path)) is None


def test_without_a_gpu_library_the_address_is_unknown(program: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError("cannot open shared object file")

    monkeypatch.setattr(program.ctypes, "CDLL", missing)
    assert program.pci_address(0) == ""
