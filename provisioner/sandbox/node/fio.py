"""fio: nothing is written or read; it prints what the machine's local disks are said to reach, as fio 3 prints it."""

from __future__ import annotations

import json
import sys

from . import state

TYPE_CHECKING = False  # typing would be a tenth of what a tool takes to start
if TYPE_CHECKING:
    from typing import Any

    Json = dict[str, Any]

KEYS = {"write": "scratch_write", "read": "scratch_read"}
TAIL_MS = 3.2
"""999 of 1,000 small reads end within this."""


def fio(arguments: list[str], _version: str) -> int:
    options = dict(a[2:].partition("=")[::2] for a in arguments if a.startswith("--"))
    if "version" in options:
        print("fio-3.33")
        return 0
    kind = options.get("rw")
    if kind not in ("write", "read", "randread") or options.get("output-format") != "json" or "filename" not in options:
        print("fio: this form is not simulated by gpuprov", file=sys.stderr)
        return 1
    machine = state.hardware()
    reaches, broken = machine["reaches"], machine.get("scratch", {})
    block = 4096 if kind == "randread" else 1 << 20
    rate = reaches["scratch_iops"] * block if kind == "randread" else reaches[KEYS[kind]] * 1e9
    rate *= broken.get("speed", 1)
    size, error = int(options.get("io_size", options["size"])), int(broken.get("errno", 0))
    time_based = "time_based" in options
    seconds = float(options.get("runtime", 1)) if time_based else size / max(rate, 1)
    done = 0 if error else int(rate * seconds) if time_based else size
    direction = "write" if kind == "write" else "read"
    tail = int(broken.get("tail_ms", TAIL_MS) * 1e6)
    counters = {
        "io_bytes": done, "io_kbytes": done // 1024, "bw_bytes": 0 if error else int(rate), "bw": int(rate / 1024),
        "iops": 0.0 if error else round(rate / block, 3), "runtime": int(seconds * 1000), "total_ios": done // block,
        "clat_ns": {"min": 40000, "max": tail * 2, "percentile": {"50.000000": tail // 4, "99.900000": tail}},
    }  # fmt: skip
    none = {"io_bytes": 0, "bw_bytes": 0, "iops": 0.0, "runtime": 0, "total_ios": 0}
    job = {
        "jobname": options.get("name", kind),
        "groupid": 0,
        "error": error,
        "read": none,
        "write": none,
        direction: counters,
    }
    print(json.dumps({"fio version": "fio-3.33", "simulated": True, "jobs": [job], "disk_util": []}, indent=2))
    if error:
        print(f"fio: io_u error on file {options['filename']}: Input/output error", file=sys.stderr)
    return 1 if error else 0
