"""NVLink: the links of each GPU, and the path between every two."""

from __future__ import annotations

import re

import pytest
from gpu_node import Node

COLUMN = re.compile(r"GPU\d+")


def test_nvlinks_are_up(node: Node) -> None:
    links = node.expected["nvlinks_per_gpu"]
    if not any(links or ()) or node.expected["mig"]:
        pytest.skip("no NVLink, or MIG, which hides it")
    active: dict[int, int] = {}
    for line in node.output("nvidia-smi nvlink -s").splitlines():
        if match := re.match(r"\s*GPU (\d+):", line):
            gpu = int(match[1])
            active[gpu] = 0
        elif (match := re.match(r"\s*Link \d+: ([0-9.]+) GB/s", line)) and float(match[1]) > 0:
            active[gpu] += 1
    wrong = [f"GPU {gpu} has {active.get(gpu, 0)} of {minimum}" for gpu, minimum in enumerate(links)
             if active.get(gpu, 0) < minimum]  # fmt: skip
    node.require(not wrong, f"NVLinks are down: {', '.join(wrong)}", "nvlinks_per_gpu", "gpu_count")


def test_topology(node: Node) -> None:
    paths, count = node.expected["topology"], node.expected["gpu_count"]
    if not paths:
        pytest.skip("no path between GPUs is expected")
    cells: dict[str, list[str]] = {}
    for line in re.sub(r"\x1b\[[0-9;]*m", "", node.output("nvidia-smi topo -m")).splitlines():
        name, *row = line.split() or [""]
        if COLUMN.fullmatch(name) and row and not COLUMN.fullmatch(row[0]):
            cells[name] = row
    if 0 < len(cells) < count and len(cells) == len(node.gpus()):
        pytest.skip(f"{len(cells)} of {count} GPUs answer: see test_gpu_count")
    complete = len(cells) == count and all(len(row) >= count for row in cells.values())
    node.require(complete, f"the matrix has {len(cells)} of {count} GPUs", "gpu_count")
    wrong = []
    for pair, allowed in paths.items():
        a, b = map(int, pair.split("-"))
        path = {cells[f"GPU{a}"][b], cells[f"GPU{b}"][a]}
        if not path <= set(allowed):
            wrong.append(f"GPU{a} to GPU{b} is {'/'.join(sorted(path))}, not {' or '.join(allowed)}")
    node.require(not wrong, "; ".join(wrong[:4]), "topology", "gpu_count")
