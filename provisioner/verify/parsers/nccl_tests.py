"""`all_reduce_perf`: bus bandwidth in GB/s and whether the values were right.

Traps: old layouts without a root column, other collectives without a redop; an "error" column of floats in place of
"#wrong"; N/A where validation is off; prefixes of srun -l, mpirun --tag-output, pdsh and kubectl; headers without "#";
NCCL lines inside the table; an average made low by tiny sizes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from provisioner.verify.parsers import Unreadable, first_line, lines, number
from provisioner.verify.tool import Tool

_RANK = re.compile(r"^#\s+Rank\s+([0-9]{1,6})\b")
_PREFIX = re.compile(r"^\s*(?:[0-9]{1,6}:|\[[^\]\s]{1,120}\](?:<std[a-z]{3}>)?:?|[A-Za-z][\w.-]{0,80}:)\s?(?=[\s#0-9])")
_AVERAGE = re.compile(r"Avg bus bandwidth\s*:\s*(\S+)")
_START = re.compile(r"nThread ([0-9]{1,4}) nGpus ([0-9]{1,4})\b")
_ROW = re.compile(r"^\s*[0-9]+\s+[0-9]+\s+[a-z0-9_]+\s+(?:[a-z]+\s|[0-9.-]+\s)")


@dataclass(frozen=True, slots=True)
class Nccl:
    """Peak and average bus bandwidth in GB/s over both halves of the table; `wrong` sums the #wrong
    cells of the worse half (None where
    validation was off or the column is an error margin)."""

    avg_busbw_gbps: float | None
    max_busbw_gbps: float | None
    ranks: int | None
    wrong: int | None = None
    out_of_bounds_ok: bool | None = None
    failure: str | None = None


def parse(text: str) -> Nccl:
    ranks: int | None = None
    average: float | None = None
    bounds: bool | None = None
    wrong: int | None = None
    failure: str | None = None
    counts_wrong = started = False
    titles: list[str] = []
    peak: list[float] = []
    for raw in lines(text):
        line = _PREFIX.sub("", raw)
        if match := _RANK.match(line):
            ranks = max(ranks or 0, int(match[1]) + 1)
        elif match := _START.search(line):
            started = True
            if int(match[1]) * int(match[2]) > 1:
                ranks = max(ranks or 0, int(match[1]) * int(match[2]))
        elif "busbw" in line and "algbw" in line:
            started, counts_wrong = True, bool(re.search(r"#?wrong", line))
            titles = line.replace("#", " ").split()
        elif match := _AVERAGE.search(line):
            average = number(match[1])
        elif "Out of bounds values" in line:
            bounds = "OK" in line
        elif re.search(r"Test (CUDA |NCCL )?failure", line):
            failure = failure or line.strip()[:200]
        elif _ROW.match(line) and (started or len(line.split()) >= 12):  # people paste the rows without their head
            started = True
            halves = _halves(line.split(), titles)
            peak += [busbw for busbw, _ in halves if busbw is not None]
            bad = [int(cell) for _, cell in halves if counts_wrong and re.fullmatch("[0-9]{1,12}", cell, re.ASCII)]
            if bad:
                wrong = (wrong or 0) + max(bad)
    if not started and failure is None:
        raise Unreadable(f"no run of nccl-tests: {first_line(text)}")
    return Nccl(average, max(peak, default=None), ranks, wrong, bounds, failure)


def _halves(tokens: list[str], titles: list[str]) -> list[tuple[float | None, str]]:
    """(busbw, wrong), out of place and in place: time algbw busbw wrong, twice. They begin where the header has the
    first time; a collective that reduces nothing can leave the column of the operation empty. Without a header there
    are four or five columns before them, with a name of an operation among them."""
    has_operation = len(tokens) > 3 and tokens[3].isalpha()
    if "time" in titles:
        offset = titles.index("time") - ("redop" in titles and not has_operation)
    else:
        offset = (5 if len(tokens) >= 13 else 4) if has_operation else len(tokens)
    remaining = tokens[offset:]
    return [(number(remaining[i + 2]), remaining[i + 3]) for i in (0, 4) if len(remaining) > i + 3]


TOOLS = (Tool(file="all_reduce.txt", field="nccl", parse=parse, asked="load", label="all_reduce_perf"),)
