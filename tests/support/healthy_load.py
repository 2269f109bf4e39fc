"""What the load program and the looks at the node around it give on a healthy machine."""

from __future__ import annotations

import json
import re
from typing import Any

from provisioner.catalog import load
from provisioner.catalog.models import Machine
from provisioner.verify.parsers.load import MARK

LOAD_CHECKS = {
    "load.completes", "load.results", "load.copies", "load.compute", "load.outlier", "load.memory",
    "load.sustained", "load.host_copy",
    "load.peer_copy", "load.training", "load.throttle", "load.pcie_link", "load.survives", "load.ecc", "load.nvlink",
    "load.pcie_replay", "load.xid", "load.stray_process", "nccl.transport", "load.slowed", "load.rdma_link",
    "load.rdma_retries", "load.compute_rate", "load.memory_rate", "load.temperature",
    "load.net_errors", "load.pstate", "load.clock", "load.power", "load.temperature_spread",
}  # fmt: skip
"""Judged by test_load_checks.py."""
REACH_CHECKS = {"net.sources", "net.lookup"}
"""Judged there too."""
RATES = {"h2d_gbps": 56.0, "d2h_gbps": 55.0, "memory_gbps": 2900.0, "peer_gbps": 390.0, "tflops": 640.0}


def result(row: Machine, busbw: float = 900.0) -> dict[str, Any]:
    """The program's own result: every GPU alike, every rate above what anybody asks for."""
    count = row.gpu_count
    linked = any(cell.startswith("NV") for cell in row.peer_cells)
    gpu = {**RATES, "peer_gbps": RATES["peer_gbps"] if count > 1 else None}
    limits = load().gpu_limits(row)
    gpu["memory_gbps"] = max(gpu["memory_gbps"] or 0, limits.get("gpu_memory", 0) * 1.2)
    gpu["tflops"] = max(gpu["tflops"] or 0, limits.get("gpu_compute", 0) * 1.2)
    last = gpu["tflops"] - 20
    pairs = [[i, j, 0] for i in range(count) for j in range(count) if i != j]
    return {
        "torch": "2.9.0", "cuda": "13.0", "nccl": "2.27.7", "device": "cuda", "ranks": count, "dtype": "bfloat16",
        "gpus": [
            {**gpu, "rank": i, "index": i, "tflops_last": last + i, "digest": -77, "wrong_products": 0, "numa_node": 0,
             "wrong_h2d": 0, "wrong_d2h": 0, **({"wrong_peers": pairs} if i == 0 else {})}
            for i in range(count)
        ],
        "all_reduce": [{"bytes": 1 << 30, "busbw_gbps": busbw * 0.96}, {"bytes": 8 << 30, "busbw_gbps": busbw}]
        if count > 1 else [],
        "wrong": 0,
        "train": {"samples_per_s": 3600.0, "loss_first": 9.1, "loss_last": 6.3},
        "transports": {"P2P" if linked else "SHM": 16 * count} if count > 1 else {},
    }  # fmt: skip


def ran(program_result: dict[str, Any] | None, **changes: Any) -> str:
    """load.json of a program that ran and printed that result, or none."""
    lines = [f"{MARK}phase {name}" for name in ("copies", "compute", "all_reduce", "train")]
    lines += [MARK + "result " + json.dumps(program_result)] if program_result is not None else []
    document = {
        "state": "ran", "launcher": "docker nvcr.io/nvidia/pytorch:25.10-py3", "rc": 0, "timed_out": False,
        "seconds": 61.0, "output": "\n".join(lines), "error": "",
    }  # fmt: skip
    return json.dumps(document | changes)


def load_files(row: Machine, texts: dict[str, Any]) -> dict[str, str]:
    """load.json and what was asked again, of a node whose other files are `texts`."""
    later_files = {
        "nvidia-smi.xml": ("nvidia-smi-load.xml", "nvidia-smi-after.xml"),
        "nvlink-errors.txt": ("nvlink-errors-after.txt",),
        "dmesg.txt": ("dmesg-after.txt",),
        "rdma.json": ("rdma-after.json",),
    }
    files = {after: str(texts[first]) for first, names in later_files.items() if first in texts for after in names}
    if "nvidia-smi-load.xml" in files:
        # The captured GPU was idle at its full PCIe generation; under load it says the same of every machine.
        files["nvidia-smi-load.xml"] = _awake(files["nvidia-smi-load.xml"])
        files["nvidia-smi-samples.csv"] = samples(row, 2)
    if "host.json" in texts:
        files["interfaces-after.json"] = json.dumps(json.loads(str(texts["host.json"]))["interfaces"])
    answers = {"status": 200, "seconds": 0.21, "resolve_seconds": 0.004, "error": ""}
    reach = {"addresses": {"https://archive.test/ubuntu": answers, "https://nvcr.io/v2/": answers | {"status": 401}}}
    return {"load.json": ran(result(row)), "reach.json": json.dumps({**reach, "proxy": False}), **files}


def samples(row: Machine, times: int, hot: tuple[int, int, int] = (-1, 0, 0)) -> str:
    """nvidia-smi-samples.csv: all GPUs cool but one, `hot` as its index, its own degrees and its memory's."""
    head = "index, temperature.gpu, temperature.memory, clocks.current.sm [MHz], power.draw [W]\n"
    rows = [
        "{}, {}, {}, 1410 MHz, 391.20 W\n".format(i, *(hot[1:] if i == hot[0] else (30, "N/A")))
        for i in range(row.gpu_count)
    ]
    return (head + "".join(rows)) * times


def _awake(xml: str) -> str:
    best = re.findall(r"<max_link_gen>(\d+)</max_link_gen>", xml)
    clocks = re.findall(r"<max_clocks>.*?<sm_clock>(\d+)", xml, re.S)
    xml = re.sub(r"<performance_state>P\d+<", "<performance_state>P0<", xml)
    xml = re.sub(r"<gpu_util>\d+ %<", "<gpu_util>100 %<", xml)
    if clocks:
        xml = re.sub(r"(<clocks>.*?<sm_clock>)\d+", rf"\g<1>{clocks[0]}", xml, flags=re.S)
    return re.sub(r"<current_link_gen>\d+</current_link_gen>", f"<current_link_gen>{best[0]}</current_link_gen>", xml)
