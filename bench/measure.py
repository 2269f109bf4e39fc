"""Measuring: repetitions that take turns, medians, what a tree of processes needs, how busy the machine is."""

from __future__ import annotations

import os
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

DEADLINE_S = 1800.0
SAMPLE_S = 0.1


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of every repetition."""

    runs: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.runs)

    def __str__(self) -> str:
        if len(self.runs) == 1:
            return f"{_seconds(self.runs[0])} s"
        shortest, longest = _seconds(min(self.runs)), _seconds(max(self.runs))
        return f"{_seconds(self.median)} s ({shortest} to {longest}, {len(self.runs)} runs)"


def _seconds(value: float) -> str:
    return f"{value:.3f}" if value < 1 else f"{value:.2f}" if value < 10 else f"{value:.1f}"


@dataclass(frozen=True, slots=True)
class Done:
    """One command: how long it took, what it said, the most memory that it and its children held at once, MiB."""

    seconds: float
    stdout: str
    peak_mib: float


class Failed(Exception):
    """A command that was to be measured did not do its work; what it said is in the message."""


def run(
    argv: Sequence[str], *, cwd: Path | None = None, env: Mapping[str, str] | None = None, weigh: bool = False
) -> Done:
    """Run one command to its end. Raises Failed where it exits with another status than 0."""
    began = time.perf_counter()
    with subprocess.Popen(
        list(argv), cwd=cwd, env={**os.environ, **(env or {})}, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as child:  # fmt: skip
        scales = _Scales(child.pid) if weigh else None
        try:
            stdout, stderr = child.communicate(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            child.kill()
            raise Failed(f"{' '.join(argv)}: no end after {DEADLINE_S:g} s") from None
        seconds = time.perf_counter() - began
        peak = scales.stop() if scales else 0.0
    if child.returncode:
        raise Failed(f"{' '.join(argv)}: exit status {child.returncode}\n{stdout[-2000:]}\n{stderr[-2000:]}")
    return Done(seconds, stdout, peak)


def take_turns(*commands: Callable[[], Done], runs: int, warm_up: int = 1) -> tuple[Timing, ...]:
    """Time the commands in turn, so that a busy moment of the machine meets all of them; the first round warms up."""
    seconds: list[list[float]] = [[] for _ in commands]
    for number in range(warm_up + runs):
        for index, command in enumerate(commands):
            took = command().seconds
            if number >= warm_up:
                seconds[index].append(took)
    return tuple(Timing(tuple(s)) for s in seconds)


class _Scales:
    """Weighs a process and its descendants every SAMPLE_S: the sum of their proportional set sizes."""

    def __init__(self, root: int) -> None:
        self._root, self._peak, self._stop = root, 0.0, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> float:
        self._stop.set()
        self._thread.join()
        return self._peak

    def _watch(self) -> None:
        while not self._stop.wait(SAMPLE_S):
            self._peak = max(self._peak, sum(map(_pss_mib, _descendants(self._root))))


def _descendants(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    descendants, queue = [], [root]
    while queue:
        pid = queue.pop()
        descendants.append(pid)
        queue += children.get(pid, [])
    return descendants


def _pss_mib(pid: int) -> float:
    """Proportional set size: what is shared with others counts in parts (proc_pid_smaps(5), kB)."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:"))
    except (OSError, StopIteration):
        return 0.0
