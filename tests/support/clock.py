"""Time that passes only while somebody waits: how often something is tried does not hang on how busy a computer is."""

from __future__ import annotations


class Clock:
    """In place of the module `time`, for code that waits with `sleep` until `monotonic` has come to a deadline."""

    def __init__(self) -> None:
        self._now = 1000.0

    def monotonic(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self._now += seconds
