"""`make fuzz`: edited captures for SECONDS, one target after the other, and what broke."""

from __future__ import annotations

import argparse
import resource
import sys
import time
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.fuzz.mutate import Case, cases
from tests.fuzz.targets import Target, targets

BATCH = 50
"""Examples of one target before the next has its turn."""
SLOW_S = 5.0
"""Seconds of a processor for one input of at most 400 kB: above it, the reader hangs as far as a person can tell."""
MEMORY = 4 << 30


@dataclass
class Totals:
    examples: int = 0
    slowest: dict[str, float] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)


class SlowError(AssertionError):
    """A reader took more than SLOW_S."""


def explore(name: str, target: Target, number: int, examples: int, totals: Totals, *, slow_s: float = SLOW_S) -> None:
    """Some edited files of one target. Raises what its reader must not raise, for the smallest edits that do it."""
    corpus = dict(target.corpus)

    @seed(number)
    @settings(
        max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink), print_blob=False, report_multiple_bugs=False,
    )  # fmt: skip
    @given(cases(sorted(corpus)))
    def try_case(case: Case) -> None:
        content = case.content(corpus)
        totals.examples += 1
        began = time.process_time()
        target.run(content)
        spent = time.process_time() - began
        totals.slowest[name] = max(spent, totals.slowest.get(name, 0.0))
        if spent > slow_s:
            raise SlowError(f"{spent:.1f} s for {len(content)} bytes")

    try_case()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="targets whose name has this text")
    parser.add_argument("--out", type=Path, help="a file for each defect: the edits that show it")
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    chosen = {name: target for name, target in targets().items() if options.only in name}
    totals, end = Totals(), time.monotonic() + options.seconds
    for number in count(options.seed):
        for name, target in chosen.items():
            if name in totals.broken or time.monotonic() > end:
                continue
            try:
                explore(name, target, number, BATCH, totals)
            except Exception as error:
                notes = "\n".join(getattr(error, "__notes__", ()))
                totals.broken[name] = f"seed {number}: {type(error).__name__}: {error}\n{notes}"
                print(f"BROKEN {name}: {totals.broken[name]}", flush=True)
                if options.out is not None:
                    options.out.mkdir(parents=True, exist_ok=True)
                    (options.out / f"{name.replace(' ', '-').replace('/', '-')}.txt").write_text(totals.broken[name])
        if time.monotonic() > end or len(totals.broken) == len(chosen):
            break
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(f"{totals.examples} examples of {len(chosen)} targets, {len(totals.broken)} broken, peak memory {peak} MiB")
    for name, spent in sorted(totals.slowest.items(), key=lambda row: -row[1])[:5]:
        print(f"  {name}: at most {spent:.2f} s")
    return 1 if totals.broken else 0


if __name__ == "__main__":
    sys.exit(main())
