"""How long a thousand nodes take from the outputs of their tools to the report, and what it weighs."""

from __future__ import annotations

import sys

from bench.fleet import ROOT
from bench.measure import Timing, run
from bench.promises import Promise

NODES, MACHINE = 1000, "dgx-h100"
LIMIT_S, LIMIT_MIB = 15.0, 700.0
ONCE = f"""
import sys, tempfile, time
from pathlib import Path
sys.path.insert(0, {str(ROOT)!r})
from provisioner.common.events import Events
from provisioner.verify.report import write
from provisioner.verify.run import verify
from provisioner.verify.subject import Subject
from tests.support.healthy_bundle import bundle, expected, nth
wanted = expected({MACHINE!r})
nodes = [Subject(f"n{{i}}", "all", "here", {MACHINE!r}, bundle(nth({MACHINE!r}, i)), wanted) for i in range({NODES})]
with tempfile.TemporaryDirectory() as folder:
    began = time.perf_counter()
    report = verify(nodes, events=Events())
    write(report, Path(folder), title="bench")
    took = time.perf_counter() - began
assert report.ok and len(report.nodes) == {NODES}, [c for c in report.nodes[0].checks if c.condemns]
print(took, len(report.nodes[0].checks))
"""


def measure(runs: int) -> list[Promise]:
    """A process of its own for each run. Bundles of healthy nodes are in its memory, as after the last answer came
    over ssh: what is measured is reading, judging, and writing all three reports."""
    done = [run([sys.executable, "-c", ONCE], weigh=True) for _ in range(runs)]
    took = Timing(tuple(float(run_result.stdout.split()[0]) for run_result in done))
    checks, peak = int(done[0].stdout.split()[1]), max(run_result.peak_mib for run_result in done)
    return [
        Promise(
            f"{NODES:,} nodes from facts to report", f"at most {LIMIT_S:g} s", f"{took}, {checks} checks each",
            took.median, LIMIT_S, unit="s", numbers={"runs": took.runs, "checks": checks},
        ),
        Promise(
            f"memory of that, {NODES:,} nodes", f"at most {LIMIT_MIB:g} MiB",
            f"{peak:.0f} MiB at its peak, all processes", peak, LIMIT_MIB, unit="MiB",
        ),
    ]  # fmt: skip
