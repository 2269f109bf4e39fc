"""One budget for a whole bundle: whatever is packed in whatever, reading it ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from provisioner.common.errors import GpuprovError

TOTAL = 512 * 1024 * 1024
"""Bytes that are unpacked of everything together: a sosreport of a large node is a tenth of it."""
MEMBERS = 50_000
"""Files and members of archives together."""
SECONDS = 300.0
"""From the first byte to the last piece. The largest bundle that TOTAL allows takes a minute on two slow cores."""


class SpentError(GpuprovError):
    """A bundle takes more than it may."""

    code = "bundle_too_large"


@dataclass
class Budget:
    """What reading one bundle may still take. Each method raises SpentError once that is spent."""

    where: str = ""
    """The bundle's path, for errors."""
    size: int = field(default_factory=lambda: TOTAL)
    members: int = field(default_factory=lambda: MEMBERS)
    seconds: float = field(default_factory=lambda: SECONDS)
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._bytes_left, self._members_left = self.size, self.members
        self._end = self.clock() + self.seconds

    def spend(self, count: int) -> None:
        """`count` bytes more were unpacked (0: only the clock is read)."""
        self._bytes_left -= count
        if self._bytes_left < 0:
            raise self._spent(f"it unpacks to more than {self.size >> 20} MiB")
        if self.clock() > self._end:
            raise self._spent(f"reading it takes more than {self.seconds:.0f} s")

    def count_member(self) -> None:
        """One file or one member of an archive more."""
        self._members_left -= 1
        if self._members_left < 0:
            raise self._spent(f"it has more than {self.members} files")
        self.spend(0)

    def refuse_size(self, size: int) -> None:
        """Refuse what says of itself that it has more bytes than everything together may have."""
        if size > self.size:
            allowed = f"everything together may have {self.size >> 20} MiB"
            raise self._spent(f"a member says that it has {size} bytes: {allowed}")

    def _spent(self, message: str) -> SpentError:
        return SpentError(message, where=self.where, hint="pass the files that matter")
