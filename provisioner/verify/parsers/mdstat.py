"""/proc/mdstat: the kernel's software RAID (docs.kernel.org/admin-guide/md.html)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from provisioner.verify.parsers import Unreadable, first_line
from provisioner.verify.tool import Tool


@dataclass(frozen=True, slots=True)
class Array:
    """One md array; `missing` is how many members of it are not up."""

    name: str
    active: bool
    level: str | None
    members: int
    failed: int
    missing: int


_MD = re.compile(r"^(md\S*) : (active|inactive)(?: \([a-z-]+\))?(?: (raid[0-9]+|linear|faulty))? (.*)$")


def parse(text: str) -> tuple[Array, ...]:
    """/proc/mdstat: a line for each array, below it "[8/7]" and "[UUUUUUU_]" where the level has redundancy. A
    container of firmware RAID ("super external:imsm") is no array: it is never active, and what it holds
    is listed beside it."""
    found: list[Array] = []
    if text.strip() and not re.search(r"^Personalities ?:|^md\S* : ", text, re.M):
        raise Unreadable(f"not what the kernel writes: {first_line(text)}")
    for line in text.splitlines():
        if match := _MD.match(line):
            members = match[4].split()
            failed = sum("(F)" in one for one in members)
            found.append(Array(match[1], match[2] == "active", match[3], len(members), failed, 0))
        elif found and not found[-1].active and re.search(r"\bsuper external:[a-z]", line):
            found.pop()
        elif found and (counts := re.search(r"\[([0-9]{1,3})/([0-9]{1,3})\]", line)):
            last = found[-1]
            gone = max(0, int(counts[1]) - int(counts[2]))
            found[-1] = Array(last.name, last.active, last.level, last.members, last.failed, gone)
    return tuple(found)


TOOLS = (
    Tool(
        file="mdstat.txt",
        field="arrays",
        parse=parse,
        paths=("/proc/mdstat",),
        seconds=5,
        empty=True,
    ),
)
