"""One node at work against the others of its group: who is slower, in the same run."""

from __future__ import annotations

from collections.abc import Callable

from provisioner.verify.baseline import busbw, compute, host_copy, memory, training
from provisioner.verify.check import check, skip
from provisioner.verify.checks.fleet import slower
from provisioner.verify.checks.load import LOAD, NEEDS, reached
from provisioner.verify.expectations import Expected
from provisioner.verify.facts import Facts
from provisioner.verify.peers import Peers


def _slower(node: Facts, expected: Expected, peers: Peers, of: Callable[[Facts], float | None], noun: str) -> None:
    """`slower` of fleet.py, but a node on which nothing was started has nothing to be compared."""
    if of(node) is None:
        reached(node, expected)
        skip("not measured: see load.completes")
    slower(node, expected, peers, of, noun)


@check(
    "fleet.slow_nccl",
    severity="fatal",
    documented="github microsoft/superbenchmark diagnosis rules; facebookresearch/gcm: outliers of all_reduce "
    "leave the pool",
    action="vendor",
    level="standard",
    needs=NEEDS,
    applies=lambda e: e.gpu_count > 1,
    otherwise="needs at least two GPUs",
    follows=(
        LOAD,
        "nccl.bandwidth",
        "nccl.transport",
        "load.peer_copy",
        "gpu.count",
        "nvlink.links",
        "nvswitch.fabric",
    ),
    says="This node's all_reduce is slower than its group's, and a job goes at the pace of its slowest node.",
)
def test_slow_nccl(node: Facts, expected: Expected, peers: Peers) -> None:
    _slower(node, expected, peers, busbw, "GB/s all_reduce")


@check(
    "fleet.slow_compute",
    severity="warn",
    action="vendor",
    level="standard",
    needs=NEEDS,
    follows=(
        *(
            LOAD,
            "load.compute_rate",
            "load.compute",
            "load.sustained",
            "load.throttle",
            "gpu.throttle",
            "gpu.power_brake",
        ),
        *("gpu.clocks", "gpu.power_limit", "fleet.hot"),
    ),
    says="This node's slowest GPU multiplies matrices slower than the rest of the group: every step waits for it.",
)
def test_slow_compute(node: Facts, expected: Expected, peers: Peers) -> None:
    _slower(node, expected, peers, compute, "TFLOP/s of matrix products")


@check(
    "fleet.slow_memory",
    severity="warn",
    action="vendor",
    level="standard",
    needs=NEEDS,
    follows=(LOAD, "load.memory_rate", "load.memory", "load.throttle", "gpu.ecc"),
    says="This node's GPU memory is slower than the rest of the group's. Look at ECC, remapped rows and temperature.",
)
def test_slow_memory(node: Facts, expected: Expected, peers: Peers) -> None:
    _slower(node, expected, peers, memory, "GB/s of GPU memory")


@check(
    "fleet.slow_host_copy",
    severity="warn",
    action="vendor",
    level="standard",
    needs=NEEDS,
    follows=(LOAD, "load.host_copy", "load.pcie_link", "gpu.pcie", "gpu.pcie_gen"),
    says="Copies between host and GPU are slower than on the rest of the group: look at PCIe, NUMA and power settings.",
)
def test_slow_host_copy(node: Facts, expected: Expected, peers: Peers) -> None:
    _slower(node, expected, peers, host_copy, "GB/s between host and GPU")


@check(
    "fleet.slow_training",
    severity="warn",
    action="vendor",
    level="standard",
    needs=NEEDS,
    follows=(
        *(LOAD, "load.training", "gpu.count", "nccl.bandwidth", "nccl.transport", "load.throttle"),
        *(f"load.{name}" for name in ("compute_rate", "compute", "memory_rate", "memory")),
        *(f"load.{name}" for name in ("host_copy", "peer_copy", "sustained")),
        *(f"fleet.slow_{name}" for name in ("nccl", "compute", "memory", "host_copy")),
    ),
    says="The reference model trains slower here than on the rest of the group, though no single part is that slow.",
)
def test_slow_training(node: Facts, expected: Expected, peers: Peers) -> None:
    _slower(node, expected, peers, training, "samples/s of training")
