"""`make simulation`: histories from a seed on, and what they did."""

from __future__ import annotations

import argparse
import sys
import time

from tests.simulation.contracts import BrokenInvariant
from tests.simulation.machine import Totals, explore

BATCH = 100
"""Histories of one seed."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--histories", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0, help="of the first hundred histories; the next has the next one")
    parser.add_argument("--no-minimise", action="store_true", help="print the first broken history as it is")
    options = parser.parse_args()
    began, totals = time.monotonic(), Totals()
    try:
        for seed in range(options.seed, options.seed + max(1, options.histories // BATCH)):
            totals += explore(seed, min(BATCH, options.histories), minimise=not options.no_minimise)
    except BrokenInvariant as broken:
        print(f"seed {seed}:\n{broken}")
        return 1
    print("no contract was broken")
    print(f"{totals} in {time.monotonic() - began:.0f} s")
    for title, counts in (("commands", totals.commands), ("faults", totals.faults), ("changes", totals.changes)):
        print(f"{title}: {', '.join(f'{name} {count}' for name, count in counts.most_common())}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
