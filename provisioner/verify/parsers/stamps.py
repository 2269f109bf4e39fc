"""When a line of a kernel log was written, in any of the styles of dmesg, journalctl and syslog."""

from __future__ import annotations

import re
from datetime import datetime

_SINCE_BOOT = re.compile(r"^(?:\w+\s*:\w+\s*: )?(?:<\d{1,3}>)?\[\s*([0-9]{1,10}\.[0-9]{1,9})\]")
_RAW = re.compile(r"^[0-9]{1,4},[0-9]{1,12},([0-9]{1,16}),")
"""/dev/kmsg: priority, number, microseconds since the boot."""
_ISO = re.compile(r"^([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2})")
_CLOCK = re.compile(r"^\[?(?:\w{3} )?(\w{3} [ 0-9][0-9] [0-9]{2}:[0-9]{2}:[0-9]{2})(?: ([0-9]{4})\])?")
"""dmesg -T, and syslog, which has no year."""
_NO_YEAR = 2024
"""A leap year, so that the 29th of February can be read."""


def stamp(row: str) -> float | None:
    """Seconds from some beginning, which is the same for all lines of a log of one style: the boot where the stamp
    counts from there. None where there is no stamp that can be read."""
    if match := _SINCE_BOOT.match(row):
        return float(match[1])
    if match := _RAW.match(row):
        return int(match[1]) / 1e6
    try:
        if match := _ISO.match(row):
            return datetime.fromisoformat(match[1]).timestamp()
        if match := _CLOCK.match(row):
            return datetime.strptime(f"{match[1]} {match[2] or _NO_YEAR}", "%b %d %H:%M:%S %Y").timestamp()
    except (ValueError, OverflowError, OSError):
        return None
    return None
