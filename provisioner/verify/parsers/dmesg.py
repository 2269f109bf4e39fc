"""The kernel log: Xid, SXid, GPUs that fell off the bus, and every other message that something broke.

Traps: stamps in seconds, in words of any language, ISO, syslog's, raw /dev/kmsg or none; two messages in one line;
pid='<unknown>'; suffixes of NVLink 5 codes; SXid ids may carry ".0"; one SXid event spans several lines; a lost GPU can
show as three NVRM lines without any Xid; the buffer may have lost the boot.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from provisioner.verify.parsers import Unreadable, first_line, lines, pci
from provisioner.verify.parsers.kernel_events import FLAP, LIMITED, Event, events

_XID = re.compile(
    r"NVRM: (?:GPU at [^:]*: )?Xid \((?:PCI:)?([0-9a-fA-F:.]{4,20})\): ([0-9]{1,4})\b,?\s*((?:(?!NVRM: Xid \().)*)"
)
_SXID = re.compile(r"SXid \((?:PCI:)?([0-9a-fA-F:.]{4,20})\): ([0-9]{3,6})(?:\.[0-9]+)?,?\s*(.*)")
_OFF = re.compile(r"NVRM: GPU (?:at PCI:)?([0-9a-fA-F:.]{3,19}[0-9a-fA-F]):? GPU has fallen off the bus")
_OFF_START = re.compile(r"NVRM: The NVIDIA GPU ([0-9a-fA-F:.]{4,20})\b")
_AER = re.compile(r"AER: (?:Multiple )?(Correct|Uncorrect)(?:ed|able)")
_KERNEL = re.compile(
    r"NVRM:|\bkernel:|SXid|\[\s*\+?[0-9]+\.[0-9]+\]|^\d{1,3},\d+,\d+,|^\[?\w{3} \w{3}\s+\d|^\d{4}-\d\d-\d\dT"
    r"|^\w+\s*:\w+\s*:"
    # dmesg --reltime
    r"|^\[\w{3}\d{1,2} \d\d:\d\d\]"
    # dmesg -T in another language, dmesg -t of a boot, and a syslog that the kernel's lines are in
    r"|^\[\w{2,4}\.? (?:\d{1,2}\.? )?\w{3,5}\.?\s+\d|^(?:Linux version|Command line:|Kernel command line:|pci 0|ACPI: )"
    r"|^\w{3,4}\.?\s+\d{1,2} \d\d:\d\d:\d\d \S+ [\w.-]+(?:\[\d+\])?: "
)
_WEIGHT = re.compile(r"\b(Fatal|Nonfatal)\s+XC[0-9]")
"""Xids of NVLink 5 (144 to 150): unit, weight, whether it crosses containment, and so on."""
_CAUSE = re.compile(r"\bcaused by previous Xid ([0-9]{1,4})\b")
"""The end of an Xid 45 in branches 580 and later."""
_BOOT = re.compile(r"\bLinux version [0-9]+\.[0-9]+")


@dataclass(frozen=True, slots=True)
class Xid:
    """All lines of one code for one device. `text` is the end of the last of them; `pci` as the kernel prints it; the
    code is 0 where the log was cut in its midst."""

    code: int
    pci: str
    count: int
    text: str = ""
    fatal: bool | None = None
    """Whether the driver called it fatal, once at least; None for Xids of which it does not say so (all but those of
    NVLink 5)."""


@dataclass(frozen=True, slots=True)
class Limited:
    """A PCIe device behind a link that is narrower or slower than the device."""

    pci: str
    gbps: float
    width: int
    capable_width: int


@dataclass(frozen=True, slots=True)
class KernelLog:
    xids: tuple[Xid, ...]
    sxids: tuple[Xid, ...]
    fallen_off: tuple[str, ...]
    aer_correctable: int
    aer_uncorrectable: int
    events: tuple[Event, ...] = ()
    limited: tuple[Limited, ...] = ()
    flaps: tuple[tuple[str, int], ...] = ()
    """Network interfaces that lost their carrier, and how often."""
    from_boot: bool = False
    """Whether the log reaches back to the kernel's first line."""
    lines: int = 0

    def of(self, *kinds: str) -> tuple[Event, ...]:
        return tuple(event for event in self.events if event.kind in kinds)


def parse(text: str) -> KernelLog:
    rows = lines(text)
    if not any(_KERNEL.search(row) for row in rows):
        raise Unreadable(f"no line of a kernel log: {first_line(text)}")
    xids: Counter[tuple[int, str]] = Counter()
    sxids: Counter[tuple[int, str]] = Counter()
    said: dict[tuple[int, str], str] = {}
    fatal: set[tuple[int, str]] = set()
    weights: dict[tuple[int, str], set[str]] = {}
    causes: dict[tuple[int, str], str] = {}
    off: dict[str, None] = {}
    aer: Counter[str] = Counter()
    rest: list[str] = []
    for i, row in enumerate(rows):
        if "SXid" in row and (match := _SXID.search(row)):
            key = (int(match[2]), match[1])
            sxids[key] += 1
            if match[3].lower().startswith("fatal"):
                fatal.add(key)
            said.setdefault(key, match[3][:160])
        elif "Xid (" in row and (found := list(_XID.finditer(row))):
            for one in found:
                # The end of the text can be the midst of a number: then nobody knows which Xid it was.
                cut = row is rows[-1] and one.end(2) == len(row)
                key = (0 if cut else int(one[2]), one[1])
                xids[key] += 1
                said[key] = one[3].strip()[:160]
                weight = _WEIGHT.search(one[3])
                weights.setdefault(key, set()).add(weight[1] if weight else "")
                if cause := _CAUSE.search(one[3]):
                    causes.setdefault((int(cause[1]), one[1]), f"named as the cause of an Xid {one[2]}")
        elif (
            "NVRM: " in row
            and (
                (match := _OFF.search(row))
                # One message over three lines, without any code.
                or ((match := _OFF_START.search(row)) and "fallen off the bus" in " ".join(rows[i : i + 4]))
            )
        ):
            off[match[1]] = None
        else:
            if "AER" in row and (match := _AER.search(row)):
                aer[match[1]] += 1
            rest.append(row)
    # The line of the cause itself may have left the buffer.
    for key in causes.keys() - xids.keys():
        xids[key], said[key], weights[key] = 1, causes[key], {""}
    # A GPU named by an Xid 79 needs no second entry: the line without a code follows it.
    known = {pci(where) for code, where in xids if code == 79}
    return KernelLog(
        xids=tuple(
            Xid(code, where, n, said[code, where], _fatal(weights[code, where]))
            for (code, where), n in sorted(xids.items())
        ),
        sxids=tuple(Xid(c, where, n, said[c, where], (c, where) in fatal) for (c, where), n in sorted(sxids.items())),
        fallen_off=tuple(where for where in off if pci(where) not in known),
        aer_correctable=aer["Correct"],
        aer_uncorrectable=aer["Uncorrect"],
        events=events(rest),
        limited=_limited(rest),
        flaps=tuple(_flaps(rest).items()),
        lines=len(rows),
        from_boot=any("Linux version" in row and _BOOT.search(row) for row in rows),
    )


def _fatal(weights: set[str]) -> bool | None:
    """What the weights of all lines of one code together say; a line without one leaves it open."""
    return True if "Fatal" in weights else None if "" in weights else False


def _flaps(rows: list[str]) -> Counter[str]:
    words = ("lost carrier", "ink down", "ink Down", "Link is Down")
    found = (FLAP.search(row) for row in rows if any(word in row for word in words))
    return Counter(match[1] for match in found if match)


def _limited(rows: list[str]) -> tuple[Limited, ...]:
    found: dict[str, Limited] = {}
    for row in rows:
        match = LIMITED.search(row) if "limited by" in row else None
        if match:
            found[pci(match[1])] = Limited(pci(match[1]), float(match[2]), int(match[3]), int(match[5]))
    return tuple(found.values())
