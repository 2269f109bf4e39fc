"""Deadlines for what is done in turn in one process, so that a text or a check which does not end costs itself alone.

A signal breaks off whatever runs, a regular expression too (Python looks at signals while one is matched). Seconds are
of the processor where a busy machine must change nothing, and of the clock for what waits.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")
AGAIN_S = 0.1
"""A signal that came in a place where Python drops exceptions (a destructor) comes again."""


class TooLong(BaseException):
    """What ran has had its time. No Exception: nothing on the way may take it for its own."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raises TooLong in the block when it has had that many seconds of the processor. Of no effect outside of the main
    thread, which alone gets signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise TooLong

    previous = signal.signal(signal.SIGPROF, stop)
    timer = signal.setitimer(signal.ITIMER_PROF, seconds, AGAIN_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, previous)
        signal.setitimer(signal.ITIMER_PROF, *timer)


class Watch:
    """Turns of which none lasts: two timers tick, and a turn that sees two ticks of one ends with TooLong. A turn costs
    no system call, and there are hundreds of thousands."""

    def __init__(self, processor_s: float, clock_s: float) -> None:
        self.turn = 0
        self.active = False
        self._last_turns = {signal.SIGPROF: 0, signal.SIGALRM: 0}
        for number, timer, seconds in (
            (signal.SIGPROF, signal.ITIMER_PROF, processor_s),
            (signal.SIGALRM, signal.ITIMER_REAL, clock_s),
        ):
            signal.signal(number, self._tick)
            signal.setitimer(timer, seconds, seconds)

    def _tick(self, number: int, _frame: FrameType | None) -> None:
        which = signal.Signals(number)
        if self.active and self._last_turns[which] == self.turn:
            raise TooLong
        self._last_turns[which] = self.turn

    def run(self, call: Callable[..., T], *arguments: Any) -> T:
        """Call it in a turn of its own. Raises TooLong after one to two times the seconds of a timer."""
        self.turn += 1
        self.active = True
        try:
            return call(*arguments)
        finally:
            self.active = False

    @contextmanager
    def one(self) -> Iterator[None]:
        """The same for a block."""
        self.turn += 1
        self.active = True
        try:
            yield
        finally:
            self.active = False

    def end(self) -> None:
        """No tick comes any more."""
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
