"""How long a file of ten thousand nodes takes from its text to Terraform's, and how long the text gets."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from bench.measure import Timing, run
from bench.promises import Promise

GROUPS, LIMIT_S = 50, 1.0
FEW, MANY = 50, 10_000


def measure(runs: int) -> list[Promise]:
    seconds, length = [], {}
    with tempfile.TemporaryDirectory() as name:
        for nodes in (FEW, MANY):
            file = Path(name) / f"{nodes}.yaml"
            file.write_text(_text(nodes // GROUPS))
            for number in range(runs + 1):
                done = run([sys.executable, "-m", "bench.render_once", str(file)])
                length[nodes] = json.loads(done.stdout)["characters"]
                if nodes == MANY and number:
                    seconds.append(done.seconds)
    took = Timing(tuple(seconds))
    return [
        Promise(
            f"validate, plan and render {MANY:,} nodes in {GROUPS} groups", f"at most {LIMIT_S:g} s",
            f"{took}, Python's start included", took.median, LIMIT_S, unit="s", numbers={"runs": took.runs},
        ),
        Promise(
            f"Terraform's text, {MANY:,} nodes against {FEW} in {GROUPS} groups", "at most 1.05 ×",
            f"{length[MANY]:,} against {length[FEW]:,} characters", length[MANY] / length[FEW], 1.05, numbers=length,
        ),
    ]  # fmt: skip


def _text(count: int) -> str:
    groups = "\n".join(
        f"  g{n}: {{ machine: p4d.24xlarge, count: {count}, placement: cluster }}" for n in range(GROUPS)
    )
    site = "{ provider: aws, region: us-east-1, zones: [us-east-1a, us-east-1b] }"
    return f"name: many\nsites:\n  here: {site}\naccess: {{ allow: [203.0.113.0/24] }}\ngroups:\n{groups}\n"
