"""Faults that show under load alone, and what a load leaves behind: rows like those of fault_list.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from provisioner.sandbox.fault_list import Change, Fault, Json, _has_links, _nvidia
from provisioner.sandbox.fault_list_gpu import NVLINK, REASON, _has_rows


def _gpu(**values: Any) -> Change:
    """One GPU reaches that share of a measure, or gives that value."""

    def change(machine: Json, gpu: int) -> None:
        machine["gpus"][gpu].setdefault("load", {}).update(values)

    return change


def _all(**values: Any) -> Change:
    def change(machine: Json, _gpu: int) -> None:
        for gpu in machine["gpus"]:
            gpu.setdefault("load", {}).update(values)

    return change


def _node(**values: Any) -> Change:
    def change(machine: Json, _gpu: int) -> None:
        machine.setdefault("load", {}).update(values)

    return change


def _shows(when: str, **values: Any) -> Change:
    """`a__b="x"` under load: the element a/b of one GPU reads x meanwhile. After it: the GPU has the value for good."""

    def change(machine: Json, gpu: int) -> None:
        changes = {path.replace("__", "/"): value for path, value in values.items()} if when == "under_load" else values
        machine["gpus"][gpu].setdefault(when, {}).update(changes)

    return change


def _throttle(machine: Json, gpu: int) -> None:
    machine["gpus"][gpu].setdefault("under_load", {})[REASON + "thermal_slowdown"] = "Active"


def _ecc(machine: Json, gpu: int) -> None:
    ecc = machine["gpus"][gpu]["ecc"]
    both = {period: {**ecc[period], "dram": ecc[period]["dram"] + 1} for period in ("volatile", "aggregate")}
    machine["gpus"][gpu]["after_load"] = {"ecc": {**ecc, **both}}


def _links(machine: Json, gpu: int) -> None:
    links = machine["gpus"][gpu]["links"]
    machine["gpus"][gpu]["after_load"] = {"links": [{**links[0], "errors": {"Replay": 7}}, *links[1:]]}


def _log(template: str) -> Change:
    def change(machine: Json, gpu: int) -> None:
        slot = machine["gpus"][gpu]["pci"][4:].rpartition(".")[0].lower()
        machine.setdefault("load", {})["kernel_log"] = [template.format(pci=slot)]

    return change


def _several(machine: Json) -> bool:
    return _nvidia(machine) and len(machine["gpus"]) > 1


def _limited(limit: str) -> Callable[[Json], bool]:
    """GPUs of which somebody has published what they reach."""
    return lambda machine: limit in machine["reaches"].get("gpu_limits", ())


def _wide(machine: Json) -> bool:
    return _nvidia(machine) and machine["gpus"][0]["pcie"]["gen"] > 1


def _scratch(**values: Any) -> Change:
    """What fio finds on the local disks."""

    def change(machine: Json, _gpu: int) -> None:
        machine.setdefault("scratch", {}).update(values)

    return change


def _failing_flash(machine: Json, _gpu: int) -> None:
    machine["disks"][0].setdefault("smart", {})["failing"] = True


def _promised(machine: Json) -> bool:
    return bool(machine["disks"]) and "scratch_limited" in machine["reaches"]


def _local_disks(machine: Json) -> bool:
    return bool(machine["disks"])


RATED = "GPUs with a published rate"
MORE = "more than one NVIDIA GPU"
DISKS = "local disks"
WIDTH = "pci__pci_gpu_link_info__link_widths__current_link_width"

FAULTS: tuple[Fault, ...] = (
    Fault("load-crash", "a program that loads the GPUs dies", "load.completes",
          change=_node(fails="RuntimeError: CUDA error: an illegal memory access was encountered")),
    Fault("load-hang", "a program that loads the GPUs does not end", "load.completes", change=_node(hangs=True)),
    Fault("wrong-products", "one GPU multiplies wrongly now and then", "load.results", change=_gpu(wrong_products=3)),
    Fault("other-product", "one GPU computes other bits than its neighbours", "load.results", _several, MORE,
          _gpu(digest=4243)),
    Fault("copies-wrong", "what other GPUs copy to one GPU arrives wrong, and nothing reports it", "load.copies",
          _several, MORE, _gpu(wrong_peer=196608)),
    Fault("host-copy-wrong", "what the host copies to one GPU arrives wrong", "load.copies",
          change=_gpu(wrong_h2d=4096)),
    Fault("gpu-slow", "one GPU multiplies a fifth slower than its neighbours", "load.compute", _several, MORE,
          _gpu(tflops=0.8)),
    Fault("memory-slow", "one GPU's memory is a fifth slower than its neighbours'", "load.memory", _several, MORE,
          _gpu(memory_gbps=0.8)),
    Fault("gpus-slow", "all GPUs multiply at a fifth of their rate", "load.compute_rate", _limited("gpu_compute"),
          RATED, _all(tflops=0.2)),
    Fault("memories-slow", "the memory of all GPUs goes at a quarter of its rate", "load.memory_rate",
          _limited("gpu_memory"), RATED, _all(memory_gbps=0.25)),
    Fault("clocks-fall", "all GPUs fall to 70 % after the first second", "load.sustained", change=_all(sustained=0.7)),
    Fault("host-copy-slow", "one GPU's copies with the host go at half their rate", "load.host_copy", _several, MORE,
          _gpu(h2d_gbps=0.45, d2h_gbps=0.45)),
    Fault("peer-copy-slow", "one GPU's copies to its neighbour go through the host", "load.peer_copy", _several, MORE,
          _gpu(peer_gbps=0.1)),
    Fault("nccl-slow", "all_reduce reaches a third of its bandwidth", "nccl.bandwidth",
          lambda m: _several(m) and "limited" in m["reaches"], "a published all_reduce bandwidth", _node(busbw=0.33)),
    Fault("nccl-wrong", "all_reduce gives wrong values", "nccl.bandwidth", _several, MORE, _node(wrong=512)),
    Fault("nccl-fallback", "NCCL goes over sockets within the node", "nccl.transport", _several, MORE,
          _node(transports={"P2P": 96, "NET/Socket": 32})),
    Fault("loss-nan", "the reference training's loss is NaN", "load.training", change=_node(loss=float("nan"))),
    Fault("throttles-under-load", "one GPU slows down by heat once it works", "load.throttle", change=_throttle),
    Fault("clock-locked", "one GPU works at a fifth of its clock, and nothing holds it down", "load.clock",
          change=_shows("under_load", clocks__sm_clock="210 MHz")),
    Fault("pstate-low", "one GPU stays in performance state P8 at work", "load.pstate",
          change=_shows("under_load", performance_state="P8")),
    Fault("pcie-narrow-under-load", "one GPU's PCIe link falls to x8 once it works", "load.pcie_link", _wide,
          "a PCIe link that can fall", _shows("under_load", **{WIDTH: "8x"})),
    Fault("lost-under-load", "one GPU falls off the bus while it works", "load.xid", change=_log(
          "NVRM: Xid (PCI:{pci}): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")),
    Fault("gone-after-load", "one GPU is lost when the load has ended, and the kernel says nothing", "load.survives",
          _several, MORE, _shows("after_load", lost=True)),
    Fault("ecc-under-load", "one GPU has an uncorrectable memory error once it works", "load.ecc", _has_rows,
          "GPUs that remap rows", _ecc),
    Fault("nvlink-under-load", "one NVLink repeats transfers once it carries data", "load.nvlink", _has_links, NVLINK,
          _links),
    Fault("slow-scratch", "scratch goes at a third of its disks' rate", "storage.bandwidth", _promised,
          "local disks with a published rate", _scratch(speed=0.33)),
    Fault("scratch-flash-fails", "an NVMe disk counts more errors of its flash", "storage.media_errors", _local_disks,
          DISKS, _failing_flash),
    Fault("scratch-io-error", "writes to scratch fail", "storage.io", _local_disks, DISKS, _scratch(errno=5)),
    Fault("scratch-stutters", "some small reads of scratch take half a second", "storage.latency", _local_disks, DISKS,
          _scratch(tail_ms=480)),
)  # fmt: skip
"""Found at level standard and above; at level quick a node with one of these looks healthy."""
