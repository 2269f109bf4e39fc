"""What fio gives on a healthy machine: its own documents, captured, at other rates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CAPTURES = Path(__file__).parents[1] / "unit" / "verify" / "captures" / "fio"
FIO_CHECKS = {"storage.io", "storage.bandwidth", "storage.latency", "storage.media_errors"}
"""Judged by test_fio.py."""
SIZE = 8 << 30
REACHED = {"write": 8.1e9, "read": 16.9e9, "random": 1.2e6}
"""Bytes and, of small reads, operations a second."""
SMART = json.dumps({"critical_warning": 0, "media_errors": 2})


def output(phase: str, rate: float | None = None, **changes: Any) -> str:
    """fio's document of a part at a rate; `changes` are of its direction, `error` of the job."""
    document = json.loads((CAPTURES / f"{phase}-libaio-3.33.json").read_text())
    job, rate = document["jobs"][0], REACHED[phase] if rate is None else rate
    direction = job["write" if phase == "write" else "read"]
    block = 4096 if phase == "random" else 1 << 20
    direction |= {"bw_bytes": int(rate * block) if phase == "random" else int(rate), "io_bytes": 2 * SIZE}
    direction["iops"] = direction["bw_bytes"] / block
    job["error"] = changes.pop("error", 0)
    if "tail_ms" in changes:
        direction["clat_ns"]["percentile"]["99.900000"] = int(changes.pop("tail_ms") * 1e6)
    direction |= changes
    return json.dumps(document)


def part(phase: str, rate: float | None = None, rc: int | None = 0, **changes: Any) -> dict[str, Any]:
    text = output(phase, rate, **changes)
    return {"rc": rc, "timed_out": False, "seconds": 10.2, "error": "", "output": text}


def fio_json(scale: float = 1.0, **changes: Any) -> str:
    """fio.json of a node that reaches `scale` of REACHED; `changes` replace what stands in the document."""
    document = {
        "state": "ran", "place": "/scratch", "bytes": SIZE, "free": 28 << 40,
        "phases": {phase: part(phase, rate * scale) for phase, rate in REACHED.items()},
        "smart": {"before": {"nvme1": SMART}, "after": {"nvme1": SMART}},
    }  # fmt: skip
    return json.dumps(document | changes)
