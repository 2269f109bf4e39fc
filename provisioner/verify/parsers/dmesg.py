"""The kernel log: Xid, SXid, GPUs that fell off the bus, PCIe AER.

Traps: four styles of time stamp and raw /dev/kmsg; pid='<unknown>'; suffixes of NVLink 5 codes; SXid ids may carry
".0"; one SXid event spans several lines; a lost GPU can show as three NVRM lines without any Xid.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from provisioner.verify.parsers import Unreadable, first_line, lines, pci

_XID = re.compile(r"NVRM: (?:GPU at [^:]*: )?Xid \((?:PCI:)?([0-9a-fA-F:.]{4,20})\): ([0-9]{1,4})\b,?\s*(.*)")
_SXID = re.compile(r"SXid \((?:PCI:)?([0-9a-fA-F:.]{4,20})\): ([0-9]{3,6})(?:\.[0-9]+)?,?\s*(.*)")
_OFF = re.compile(r"NVRM: GPU (?:at PCI:)?([0-9a-fA-F:.]{4,20}):? GPU has fallen off the bus")
_OFF_START = re.compile(r"NVRM: The NVIDIA GPU ([0-9a-fA-F:.]{4,20})\b")
_AER = re.compile(r"AER: (?:Multiple )?(Correct|Uncorrect)(?:ed|able)")
_KERNEL = re.compile(
    r"NVRM:|kernel:|SXid|\[\s*[0-9]+\.[0-9]+\]|^\d{1,3},\d+,\d+,|^\[?\w{3} \w{3}\s+\d|^\d{4}-\d\d-\d\dT|^\w+\s*:\w+\s*:"
)


@dataclass(frozen=True, slots=True)
class Xid:
    """All lines of one code for one device. `text` is the end of the last of them; `pci` as the kernel prints it."""

    code: int
    pci: str
    count: int
    text: str = ""
    fatal: bool | None = None
    """SXid only: whether the driver called it Fatal."""


@dataclass(frozen=True, slots=True)
class KernelLog:
    xids: tuple[Xid, ...]
    sxids: tuple[Xid, ...]
    fallen_off: tuple[str, ...]
    aer_correctable: int
    aer_uncorrectable: int


def parse(text: str) -> KernelLog:
    rows = lines(text)
    if not any(_KERNEL.search(row) for row in rows):
        raise Unreadable(f"no line of a kernel log: {first_line(text)}")
    xids: Counter[tuple[int, str]] = Counter()
    sxids: Counter[tuple[int, str]] = Counter()
    said: dict[tuple[int, str], str] = {}
    fatal: set[tuple[int, str]] = set()
    off: dict[str, None] = {}
    aer: Counter[str] = Counter()
    for i, row in enumerate(rows):
        if match := _SXID.search(row):
            key = (int(match[2]), match[1])
            sxids[key] += 1
            if match[3].lower().startswith("fatal"):
                fatal.add(key)
            said.setdefault(key, match[3][:160])
        elif match := _XID.search(row):
            key = (int(match[2]), match[1])
            xids[key] += 1
            said[key] = match[3][:160]
        elif (match := _OFF.search(row)) or (
            # One message over three lines, without any code.
            (match := _OFF_START.search(row)) and "fallen off the bus" in " ".join(rows[i : i + 4])
        ):
            off[match[1]] = None
        elif match := _AER.search(row):
            aer[match[1]] += 1
    # A GPU named by an Xid 79 needs no second entry: the line without a code follows it.
    known = {pci(where) for code, where in xids if code == 79}
    return KernelLog(
        xids=tuple(Xid(code, where, n, said[code, where]) for (code, where), n in sorted(xids.items())),
        sxids=tuple(Xid(c, where, n, said[c, where], (c, where) in fatal) for (c, where), n in sorted(sxids.items())),
        fallen_off=tuple(where for where in off if pci(where) not in known),
        aer_correctable=aer["Correct"],
        aer_uncorrectable=aer["Uncorrect"],
    )
