"""What a healthy node's fabric.json says, and the parts of runs that it is made of."""

from __future__ import annotations

import json
from typing import Any

from provisioner.catalog.models import Machine
from provisioner.verify.expectations import Expected
from provisioner.verify.parsers.load import MARK
from tests.support.healthy_perftest import names, rails

FABRIC_CHECKS = {"fabric.transport", "fabric.pairs", "fabric.path", "fabric.ring"}
"""Judged by test_fabric_checks.py."""
WAYS = {"efa": "NET/AWS Libfabric+GDR", "infiniband": "NET/IB+GDR", "roce": "NET/IB+GDR"}


def fabric_json(row: Machine, **changes: Any) -> str:
    """Of a node that worked with two others and in a ring of four."""
    transports = {"P2P": 96, WAYS.get(row.network.kind, "NET/Socket"): 32}
    pair: dict[str, Any] = {
        "good": True,
        "gbps": 900.0,
        "bytes": 1 << 32,
        "why": "",
        "transports": transports,
        "latency_us": 31.0,
    }
    if row.network.kind in ("infiniband", "roce"):
        pair["rails"] = rails(row)
    document = {
        "state": "fine", "why": "", "nodes": 4, "rounds": 3, "wrong_way": False, "floor_gbps": None,
        "usual_gbps": 901.0,
        "pairs": [{**pair, "partner": "train-1"}, {**pair, "partner": "train-2"}], "paths": [],
        "ring": {"nodes": [f"train-{i}" for i in range(4)], "good": True, "why": "", "gbps": 880.0},
        "simulated": False,
        "grown": {f"{name}/1": {"tx_bytes" if row.network.kind == "efa" else "port_xmit_data": 4 << 30}
                  for name in names(row)},
    }  # fmt: skip
    return json.dumps(document | changes)


def part(expected: Expected, nodes: int, busbw: float = 44.0, **changes: Any) -> dict[str, Any]:
    """The first node's part of a run of several that went well; `changes` are of the result."""
    ranks = nodes * expected.gpu_count
    result = {
        "torch": "2.9.0", "cuda": "13.0", "nccl": "2.27.7", "device": "cuda", "ranks": ranks, "dtype": "bfloat16",
        "gpus": [{"rank": i, "index": i % expected.gpu_count} for i in range(ranks)],
        "all_reduce": [{"bytes": 1 << 30, "busbw_gbps": busbw * 0.95}, {"bytes": 1 << 31, "busbw_gbps": busbw}],
        "wrong": 0, "train": None, "transports": {"P2P": 96, WAYS.get(expected.network, "NET/Socket"): 32},
    }  # fmt: skip
    return done(f"{MARK}phase all_reduce\n{MARK}result " + json.dumps(result | changes))


def done(output: str = "", **changes: Any) -> dict[str, Any]:
    """Any other node's part."""
    return {
        "state": "ran", "launcher": "docker nvcr.io/nvidia/pytorch:25.10-py3", "rc": 0, "timed_out": False,
        "seconds": 31.0, "output": output, "error": "",
    } | changes  # fmt: skip
