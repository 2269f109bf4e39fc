"""Many BMCs at once: one that is slow, or hangs, holds none of the others."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from provisioner.machines.redfish.errors import BmcError

T = TypeVar("T")

AT_ONCE = 64
GRACE_S = 5.0
"""Seconds beyond the deadline for what a BMC's thread has to put in order."""


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    """What became of one machine: `value`, or the `error`."""

    machine: str
    value: T | None = None
    error: Exception | None = None


def each(
    machines: Sequence[str], work: Callable[[str], T], seconds: float, stop: threading.Event | None = None
) -> Iterator[Outcome[T]]:
    """Work on every machine in a thread of its own, at most AT_ONCE at a time; outcomes as they come. `seconds`: for
    one machine; one that takes longer is given up, and its thread left behind. `stop`: set where the caller is
    interrupted, and then the threads have some seconds to close their sessions."""
    threads: list[threading.Thread] = []
    try:
        yield from _each(machines, work, seconds, threads)
    except BaseException:
        if stop is not None:
            stop.set()
            end = time.monotonic() + GRACE_S
            for thread in threads:
                thread.join(max(0.0, end - time.monotonic()))
        raise


def _each(
    machines: Sequence[str], work: Callable[[str], T], seconds: float, threads: list[threading.Thread]
) -> Iterator[Outcome[T]]:
    done: queue.Queue[Outcome[T]] = queue.Queue()
    waiting, running = list(machines), dict[str, float]()

    def run_one(machine: str) -> None:
        try:
            done.put(Outcome(machine, work(machine)))
        except Exception as error:
            done.put(Outcome(machine, error=error))

    while waiting or running:
        while waiting and len(running) < AT_ONCE:
            machine = waiting.pop(0)
            running[machine] = time.monotonic() + seconds + GRACE_S
            threads.append(threading.Thread(target=run_one, args=(machine,), daemon=True, name=f"bmc {machine}"))
            threads[-1].start()
        try:
            outcome = done.get(timeout=max(0.01, min(running.values()) - time.monotonic()))
        except queue.Empty:
            for machine in [name for name, until in running.items() if until <= time.monotonic()]:
                del running[machine]
                late = BmcError(
                    f"its BMC did not answer within {seconds:.0f} s", where=machine, kind="slow",
                    hint="look at its load and network; reset the BMC if it stays",
                )  # fmt: skip
                yield Outcome(machine, error=late)
            continue
        if running.pop(outcome.machine, None) is not None:  # not one that was given up
            yield outcome
