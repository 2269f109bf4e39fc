"""A clock that is wrong for every Python program of a node, the probe among them; a container's real clock is its
computer's. Loaded by a .pth file when Python starts; without the file CLOCK it does nothing."""

from __future__ import annotations

import time
from contextlib import suppress

CLOCK = "/etc/gpuprov-sandbox/clock"
"""Seconds by which the clock is ahead."""

# PTH123: every start of Python pays for an import
with suppress(OSError, ValueError), open(CLOCK, encoding="utf-8") as _stream:
    _real, _ahead = time.time, float(_stream.read())
    time.time = lambda: _real() + _ahead
