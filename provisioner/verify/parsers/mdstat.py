"""/proc/mdstat: the kernel's software RAID (docs.kernel.org/admin-guide/md.html)."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from provisioner.verify.parsers import Unreadable, first_line
from provisioner.verify.tool import Tool


@dataclass(frozen=True, slots=True)
class Array:
    """One md array; `missing` is how many members of it are not up, `lost` those of them that are named (with the
    mark of a failed disk), `rebuilt` how far the array has been mended, "7.1 %", "" where nobody mends it."""

    name: str
    active: bool
    level: str | None
    members: int
    failed: int
    missing: int
    state: str = "active"
    lost: tuple[str, ...] = ()
    rebuilt: str = ""


# "broken": md_seq_show of Linux 6.x, of a RAID0 that lost a member
_MD = re.compile(r"^(md\S*) : (active|inactive|broken)(?: \([a-z-]+\))*(?: (raid[0-9]+|linear|faulty))?(?: (.*))?$")
_BEGINS = re.compile(r"^md\S* : ")
_MENDED = re.compile(r"\b(?:recovery|reshape) *= *([0-9.]{1,5})%")


def parse(text: str) -> tuple[Array, ...]:
    """/proc/mdstat: a line for each array, below it "[8/7]" and "[UUUUUUU_]" where the level has redundancy. A
    container of firmware RAID ("super external:imsm") is no array: it is never active, and what it holds
    is listed beside it."""
    arrays: list[Array] = []
    if text.strip() and not re.search(r"^Personalities ?:|^md\S* : ", text, re.M):
        raise Unreadable(f"not what the kernel writes: {first_line(text)}")
    for line in text.splitlines():
        if match := _MD.match(line):
            members = (match[4] or "").split()
            lost = tuple(member.partition("[")[0] for member in members if "(F)" in member)
            active = match[2] == "active"
            arrays.append(Array(match[1], active, match[3], len(members), len(lost), 0, match[2], lost))
        elif _BEGINS.match(line):
            raise Unreadable(f"an array that is not understood: {line[:80]}")
        elif arrays and not arrays[-1].active and re.search(r"\bsuper external:[a-z]", line):
            arrays.pop()
        elif arrays and (counts := re.search(r"\[([0-9]{1,3})/([0-9]{1,3})\]", line)):
            last = arrays[-1]
            missing = max(0, int(counts[1]) - int(counts[2]))
            arrays[-1] = replace(last, missing=missing)
        elif arrays and (rebuilt_match := _MENDED.search(line)):
            arrays[-1] = replace(arrays[-1], rebuilt=f"{rebuilt_match[1]} %")
    return tuple(arrays)


TOOLS = (
    Tool(
        file="mdstat.txt",
        added_later=True,
        field="arrays",
        parse=parse,
        paths=("/proc/mdstat",),
        seconds=5,
        empty=True,
    ),
)
