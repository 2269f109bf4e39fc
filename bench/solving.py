"""How long it takes to solve forty groups, each another machine: versions, packages and images, nothing pinned."""

from __future__ import annotations

import sys

from bench.measure import Timing, run
from bench.promises import Promise

GROUPS, LIMIT_S = 40, 0.2
ONCE = f"""
import time
from provisioner import catalog, stack
from provisioner.spec.models import ClusterSpec
names = catalog.load().names()[:{GROUPS}]
groups = {{f"g{{n}}": {{"machine": name}} for n, name in enumerate(names)}}
sites = {{"here": {{"provider": "baremetal"}}}}
spec = ClusterSpec.model_validate({{"name": "many", "sites": sites, "groups": groups}})
began = time.perf_counter()
assert len(stack.solve(spec)) == {GROUPS}
print(time.perf_counter() - began)
"""


def measure(runs: int) -> list[Promise]:
    """A process of its own for each run, so that nothing is remembered; its start is not counted."""
    took = Timing(tuple(float(run([sys.executable, "-c", ONCE]).stdout) for _ in range(runs)))
    return [
        Promise(
            f"solve {GROUPS} groups of {GROUPS} machine types", f"under {LIMIT_S:g} s", f"{took}, data read included",
            took.median, LIMIT_S, unit="s", numbers={"runs": took.runs},
        )
    ]  # fmt: skip
