"""Slurm's HealthCheckProgram on a node: tells slurmctld what the node's own checks said last, as the node's comment.

It reads the metrics of the timer gpuprov-health (verify/health.py) and starts no check itself. Whether the node is
drained is the head node's to decide (on_head.py, watch): nodes cannot drain their fleet. Only the standard library of
Python 3.8 and later; role slurm_node puts the file on the node. slurmd runs it as root with SLURMD_NODENAME, and ends
it after 60 s (slurm.conf(5)).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

BAD = "gpuprov bad: "
STALE = 3
"""Intervals of the timer after which a verdict is too old: the node may be anything."""
UNKNOWN = 3
"""Verdicts in a row without an answer, before the node counts as bad."""
SAMPLE = re.compile(r'^gpuprov_check\{check="([a-z0-9_.]+)",severity="fatal"\} 0$', re.M)
AHEAD_S = 60.0
"""Seconds that a verdict may be in the future."""
CHECKS = 3
"""Names of checks in a comment at most."""
DEADLINE_S = 50


def judge(
    text: str | None, current: float, every_s: float, proven: float, earlier: dict[str, Any]
) -> dict[str, Any]:  # fmt: skip
    """`comment` for slurmctld, "" for a healthy node; `at` of the verdict; how many `unknown` there were in a row.
    `proven`: when gpuprov took the node in, which an older verdict does not change."""
    at = number(text or "", "gpuprov_check_timestamp_seconds") or 0.0
    at = at if at <= current + AHEAD_S else 0.0  # of a clock that was put back since; NaN is none, too
    proven = min(proven, current)
    unknown = earlier.get("unknown", 0)
    if current - max(at, proven) > STALE * every_s:
        since = f"no verdict for {(current - max(at, proven)) / 60:.0f} minutes"
        return {"comment": BAD + since, "at": at, "unknown": unknown}
    if at < proven:
        return {"comment": "", "at": at, "unknown": 0}
    failed = SAMPLE.findall(text or "")
    if failed:
        more = f" and {len(failed) - CHECKS} more" if len(failed) > CHECKS else ""
        return {"comment": BAD + ", ".join(failed[:CHECKS]) + more, "at": at, "unknown": 0}
    if number(text or "", "gpuprov_node_ok") == 1:
        return {"comment": "", "at": at, "unknown": 0}
    unknown += at != earlier.get("at")
    comment = f"{BAD}{unknown} verdicts in a row without an answer" if unknown >= UNKNOWN else ""
    return {"comment": comment, "at": at, "unknown": unknown}


def number(text: str, metric: str) -> float | None:
    """The value of a metric without labels."""
    match = re.search(rf"^{metric} (\S+)$", text, re.M)
    try:
        return float(match[1]) if match else None
    except ValueError:
        return None


def read(path: Path) -> str | None:
    """A file's text; None where there is none."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def main(arguments: list[str]) -> int:
    """FILE.prom SECONDS MARKER STATE.json: tell slurmctld what is new."""
    metrics, every_s, marker, memory = Path(arguments[0]), float(arguments[1]), Path(arguments[2]), Path(arguments[3])
    proven = marker.stat().st_mtime if marker.exists() else 0.0
    try:
        earlier = json.loads(read(memory) or "{}")
    except ValueError:
        earlier = {}
    earlier = earlier if isinstance(earlier, dict) else {}
    state = judge(read(metrics), time.time(), every_s, proven, earlier)
    # A bad verdict is reported again when it is a new one: a resume has taken the comment away. A comment of somebody
    # else stays: only what this program has set is removed.
    reported = (earlier.get("comment", ""), earlier.get("reported", 0))
    if (state["comment"], state["at"] if state["comment"] else 0) != reported:
        node = os.environ["SLURMD_NODENAME"]
        command = ["scontrol", "update", f"nodename={node}", f"comment={state['comment']}"]
        done = subprocess.run(
            command, capture_output=True, text=True, encoding="utf-8", errors="replace", timeout=DEADLINE_S, check=False
        )
        if done.returncode:
            print(done.stderr.strip(), file=sys.stderr)
            return 1
    state["reported"] = state["at"] if state["comment"] else 0
    fresh = memory.with_suffix(".new")
    fresh.write_text(json.dumps(state), encoding="utf-8")
    fresh.replace(memory)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
