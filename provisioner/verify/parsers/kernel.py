"""`uname -r` and /proc/modules."""

from __future__ import annotations

import re

from provisioner.verify.parsers import Unreadable, first_line, lines


def parse(text: str) -> str:
    """The release of the running kernel."""
    said = [line.strip() for line in lines(text) if line.strip()]
    if len(said) != 1 or not re.fullmatch(r"[0-9]+\.[0-9]+[A-Za-z0-9.+_~-]*", said[0]):
        raise Unreadable(f"not a kernel release: {first_line(text)}")
    return said[0]


def parse_modules(text: str) -> tuple[str, ...]:
    """Names of the loaded modules; lines of /proc/modules or of lsmod."""
    found = [m[1] for line in lines(text) if (m := re.match(r"^([A-Za-z0-9_]+)\s+[0-9]+\s", line))]
    if not found:
        raise Unreadable(f"no module in it: {first_line(text)}")
    return tuple(found)
