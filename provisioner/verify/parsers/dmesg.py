"""The kernel log: Xid, SXid, GPUs that fell off the bus, and every other message that something broke.

Traps: stamps in seconds, in words of any language, ISO, syslog's, raw /dev/kmsg or none; two messages in one line;
pid='<unknown>'; suffixes of NVLink 5 codes; SXid ids may carry ".0"; one SXid event spans several lines; a lost GPU can
show as three NVRM lines without any Xid; the buffer may have lost the boot.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

from provisioner.verify.parsers import Unreadable, first_line, kernel_line, lines, pci
from provisioner.verify.parsers.kernel_events import FLAP, LIMITED, Event, events
from provisioner.verify.parsers.stamps import stamp
from provisioner.verify.tool import Tool, listed

_XID = re.compile(
    r"NVRM: (?:GPU at [^:]*: )?Xid \((?:PCI:)?([0-9a-fA-FxX*:.]{3,20})\): ([0-9]{1,4})\b,?\s*((?:(?!NVRM: Xid \().)*)"
)
"""An address that somebody has made unreadable ("PCI:...", "PCI:xxxx:xx:00") is one all the same."""
_SXID = re.compile(r"SXid \((?:PCI:)?([0-9a-fA-F:.]{4,20})\): ([0-9]{3,6})(?:\.[0-9]+)?,?\s*(.*)")
_SEVERITY = re.compile(r"(fatal|non-fatal)\b", re.I)
_OFF = re.compile(r"(?:has )?fallen off the bus|(?:GPU|is) lost from the bus", re.I)
"""In any of the driver's wordings, of which some have no Xid: "NVRM: GPU 0000:91:00.0: GPU has fallen off the bus.",
"NVRM: GPU at PCI:0000:91:00: GPU has …", "GPU at 0000:01:00.0 has …", "NVRM: The NVIDIA GPU 0000:02:00.0" with the
rest in one of the next lines, and one that may name no GPU, "NVRM: … GPU lost from the bus [NV_ERR_GPU_IS_LOST]"."""
_OFF_OF = re.compile(r"NVRM|\bGPU (?:at )?(?:PCI:)?[0-9a-fA-F]{4}")
_GPU = re.compile(
    r"(?:GPU |at |PCI:|\()((?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)(?![0-9a-zA-Z])"
)
_INACCESSIBLE = re.compile(r"\bnvidia ([0-9a-fA-F:]{7,13}\.[0-7]): Unable to change power state .*device inaccessible")
"""The PCI core of a GPU that does not answer there any more (drivers/pci/pci.c)."""
_CUT = re.compile(r"NVRM: (?:GPU at [^:]*: )?Xid(?: \((?:PCI:)?([0-9a-fA-F:.]{0,20}))?")
_AER = re.compile(r"AER: (?:Multiple )?(Correct|Uncorrect)(?:ed|able)")
_KERNEL = re.compile(
    r"NVRM:|\bkernel:|SXid|\[\s*\+?[0-9]+\.[0-9]+\]|^\d{1,3},\d+,\d+,|^\[?\w{3} \w{3}\s+\d|^\d{4}-\d\d-\d\dT"
    r"|^\w+\s*:\w+\s*:"
    # dmesg --reltime
    r"|^\[\w{3}\d{1,2} \d\d:\d\d\]"
    # dmesg -T in another language, dmesg -t of a boot, and a syslog that the kernel's lines are in
    r"|^\[\w{2,4}\.? (?:\d{1,2}\.? )?\w{3,5}\.?\s+\d|^(?:Linux version|Command line:|Kernel command line:|pci 0|ACPI: )"
    r"|^\w{3,4}\.?\s+\d{1,2} \d\d:\d\d:\d\d \S+ [\w.-]+(?:\[\d+\])?: "
    r"|^Hardware event\. This is not a software error\."
)
_WEIGHT = re.compile(r"\b(Fatal|Nonfatal)\s+XC[0-9]")
"""Xids of NVLink 5 (144 to 150): unit, weight, whether it crosses containment, and so on."""
_CAUSE = re.compile(r"\bcaused by previous Xid ([0-9]{1,4})\b")
"""The end of an Xid 45 in branches 580 and later."""
LOADED = "NVRM: loading NVIDIA UNIX"
"""The driver's first line each time that it is loaded, which starts its GPUs anew."""
_BOOT = re.compile(r"\bLinux version [0-9]+\.[0-9]+")
NEXT_BOOT = "-- Boot "
"""What journalctl writes between two boots, and before each earlier one in dmesg-before.txt."""


@dataclass(frozen=True, slots=True)
class Xid:
    """All lines of one code for one device. `text` is the end of the last of them; `pci` as the kernel prints it; the
    code is 0 where the log was cut in its midst."""

    code: int
    pci: str
    count: int
    text: str = ""
    fatal: bool | None = None
    """Whether the driver called it fatal, once at least; None where no line of it says (all Xids but those of NVLink 5,
    SXids of which the line with the severity is missing)."""
    minutes: int = 1
    """In how many minutes there is such a line: one fault of a program writes many at once."""

    @property
    def summary(self) -> dict[str, object]:
        """What a check's result says of it."""
        return {"code": self.code, "pci": self.pci, "count": self.count}


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
    """Network interfaces that lost their carrier, and how often within a day at most."""
    from_boot: bool = False
    """Whether the log reaches back to the kernel's first line."""
    lines: int = 0
    earlier: tuple[tuple[int, str], ...] = ()
    """(code, device) of Xids from before the driver's last load, or from earlier boots; 79 for a GPU that fell off the
    bus. `xids` and `fallen_off` are of what came since."""

    def of(self, *kinds: str) -> tuple[Event, ...]:
        return tuple(event for event in self.events if event.kind in kinds)


def parse(text: str) -> KernelLog:
    rows = kernel_line.without_names(_completed(lines(text), text))
    xids: Counter[tuple[int, str]] = Counter()
    sxids: Counter[tuple[int, str]] = Counter()
    texts: dict[tuple[int, str], str] = {}
    severities: dict[tuple[int, str], set[str]] = {}
    weights: dict[tuple[int, str], set[str]] = {}
    causes: dict[tuple[int, str], str] = {}
    minutes: dict[tuple[int, str], set[int]] = {}
    off: dict[str, None] = {}
    aer: Counter[str] = Counter()
    other_rows: list[str] = []
    earlier: dict[tuple[int, str], None] = {}
    loaded = max((i for i, row in enumerate(rows) if _is_loaded(row) or row.startswith(NEXT_BOOT)), default=0)
    for i, row in enumerate(rows):
        if _is_quoted(row):
            other_rows.append(row)
        elif "SXid" in row and (match := _SXID.search(row)):
            key = (int(match[2]), match[1])
            sxids[key] += 1
            if severity := _SEVERITY.match(match[3]):
                severities.setdefault(key, set()).add(severity[1].lower())
                texts[key] = match[3][:160]
            texts.setdefault(key, match[3][:160])
        elif "Xid (" in row and (xid_matches := list(_XID.finditer(row))):
            for xid_match in xid_matches:
                if i < loaded:
                    earlier[int(xid_match[2]), xid_match[1]] = None
                    continue
                # The end of the text can be the midst of a number: then nobody knows which Xid it was.
                cut = row is rows[-1] and xid_match.end(2) == len(row)
                key = (0 if cut else int(xid_match[2]), xid_match[1])
                xids[key] += 1
                texts[key] = xid_match[3].strip()[:160]
                minutes.setdefault(key, set()).add(int((stamp(row) or 0.0) // 60))
                weight = _WEIGHT.search(xid_match[3])
                weights.setdefault(key, set()).add(weight[1] if weight else "")
                if cause := _CAUSE.search(xid_match[3]):
                    causes.setdefault((int(cause[1]), xid_match[1]), f"named as the cause of an Xid {xid_match[2]}")
        elif ("the bus" in row or "inaccessible" in row) and (address := _fallen(rows, i)) is not None:
            if i < loaded:
                earlier[79, address] = None
            else:
                off[address] = None
        else:
            if "AER" in row and (match := _AER.search(row)):
                aer[match[1]] += 1
            other_rows.append(row)
    # The line of the cause itself may have left the buffer.
    for key in causes.keys() - xids.keys():
        xids[key], texts[key], weights[key] = 1, causes[key], {""}
    # A GPU named by an Xid 79 needs no second entry: the line without a code follows it.
    known = {pci(address) for code, address in xids if code == 79}
    found_events = (*events(other_rows), *_unplugged(other_rows))
    # A log without stamps is known by what is in it.
    if not (xids or sxids or off or earlier or found_events or any(_KERNEL.search(row) for row in rows)):
        raise Unreadable(f"no line of a kernel log: {first_line(text)}")
    return KernelLog(
        xids=tuple(
            Xid(
                *(code, address, n, texts[code, address], _fatal(weights[code, address])),
                minutes=len(minutes.get((code, address), (0,))),
            )
            for (code, address), n in sorted(xids.items())
        ),
        sxids=tuple(
            Xid(c, address, n, texts[c, address], _sxid_fatal(severities.get((c, address))))
            for (c, address), n in sorted(sxids.items())
        ),
        fallen_off=tuple(address for address in off if pci(address) not in known),
        aer_correctable=aer["Correct"],
        aer_uncorrectable=aer["Uncorrect"],
        events=found_events,
        limited=_limited(other_rows),
        flaps=tuple(_flaps(rows).items()),
        lines=len(rows),
        from_boot=any("Linux version" in row and _BOOT.search(row) for row in rows),
        earlier=tuple(earlier),
    )


_DRIVERS = re.compile(r"NVRM|SXid \(|the bus\b|inaccessible\b")


def _is_quoted(row: str) -> bool:
    """Whether the driver's words in a line stand in somebody else's message."""
    match = _DRIVERS.search(row)
    return match is not None and not kernel_line.is_drivers(row, match.start())


def _is_loaded(row: str) -> bool:
    at = row.find(LOADED)
    return at >= 0 and kernel_line.is_drivers(row, at)


def _completed(rows: list[str], text: str) -> list[str]:
    """The lines; an Xid that the end of the text cut before its code is one of code 0."""
    if rows and not text.endswith("\n") and (match := _CUT.search(rows[-1])) and not _XID.search(rows[-1]):
        return [*rows[:-1], f"{rows[-1][: match.start()]}NVRM: Xid ({(match[1] or '').ljust(4, '0')}): 0"]
    return rows


def _fatal(weights: set[str]) -> bool | None:
    """What the weights of all lines of one code together say; a line without one leaves it open."""
    return True if "Fatal" in weights else None if "" in weights else False


def _sxid_fatal(severities: set[str] | None) -> bool | None:
    """The same of an SXid, whose severity stands in one of its lines."""
    return None if severities is None else "fatal" in severities


def _fallen(rows: list[str], index: int) -> str | None:
    """The address of the GPU of which a line says that it is gone, "" where none is named; None where nobody says so
    of a GPU. The driver's message may have begun some lines before."""
    if match := _INACCESSIBLE.search(rows[index]):
        return match[1]
    if not _OFF.search(rows[index]):
        return None
    for back in range(4):
        row = rows[index - back] if index >= back else ""
        if back and _OFF.search(row):
            break
        if match := _GPU.search(row) if _OFF_OF.search(row) else None:
            return match[1]
    return "" if "NVRM" in rows[index] else None


BRING_UP_S = 300.0
"""Seconds after a boot in which links come and go while drivers, bonds and switches find each other (unverified)."""
WINDOW_S = 86_400.0
"""Losses of carrier are counted in a day (Azure/azurehpc-health-checks: 5 in 24 hours)."""


def _flaps(rows: list[str]) -> dict[str, int]:
    """Interface → the most losses of its carrier within a day, those of the boot left out. Lines without a stamp that
    can be read count together."""
    times: dict[str, list[float]] = {}
    boot = next((stamp(row) for row in rows if "Linux version" in row), None)
    for row in rows:
        # "lost carrier", "link down", "Link Down", "Link is Down"
        match = FLAP.search(row) if "lost carrier" in row or "ink down" in row or "Down" in row else None
        if match is None:
            continue
        at = stamp(row)
        since = at - boot if at is not None and boot is not None else at
        if since is None or since > BRING_UP_S:
            times.setdefault(match[1], []).append(at if at is not None else 0.0)
    return {name: _most_within(sorted(stamps)) for name, stamps in times.items()}


def _most_within(times: list[float]) -> int:
    maximum = first = 0
    for last, at in enumerate(times):
        while at - times[first] > WINDOW_S:
            first += 1
        maximum = max(maximum, last - first + 1)
    return maximum


_PLUG = re.compile(r"mlx[45]_\w+ ([0-9a-fA-F:.]{7,16}).* [Mm]odule (\d{1,3}), Cable (plugged|unplugged)")
"""Port module event of drivers/net/ethernet/mellanox/mlx5/core/events.c."""


def _unplugged(rows: list[str]) -> tuple[Event, ...]:
    """Cables that were there and went. At its start the driver calls each cage without a cable unplugged."""
    plugged: set[tuple[str, str]] = set()
    unplugged: Counter[str] = Counter()
    for row in rows:
        if "Cable " not in row or (match := _PLUG.search(row)) is None:
            continue
        cage = match[1], match[2]
        if match[3] == "plugged":
            plugged.add(cage)
        elif cage in plugged or (stamp(row) or 0.0) > BRING_UP_S:
            unplugged[match[1]] += 1
            plugged.discard(cage)
    return tuple(Event("nic_warning", card, count, "Cable unplugged") for card, count in unplugged.items())


def _limited(rows: list[str]) -> tuple[Limited, ...]:
    links: dict[str, Limited] = {}
    for row in rows:
        match = LIMITED.search(row) if "limited by" in row else None
        if match:
            links[pci(match[1])] = Limited(pci(match[1]), float(match[2]), int(match[3]), int(match[5]))
    return tuple(links.values())


OFF_THE_BUS = 79
"""The Xid of a GPU that has fallen off the bus."""


def _xid(xid: Xid) -> dict[str, Any]:
    return {"code": xid.code, "pci": xid.pci, "count": xid.count, "text": xid.text}


TOOLS = (
    Tool(
        file="dmesg.txt",
        field="log",
        parse=parse,
        seconds=10,
        label="dmesg",
        document={
            "xids": lambda log: [_xid(xid) for xid in log.xids],
            "sxids": lambda log: [_xid(xid) | {"fatal": xid.fatal} for xid in log.sxids],
            "fallen_off": lambda log: [*(xid.pci for xid in log.xids if xid.code == OFF_THE_BUS), *log.fallen_off],
            "aer": lambda log: {"correctable": log.aer_correctable, "uncorrectable": log.aer_uncorrectable},
            "kernel_events": lambda log: listed(log.events),
            "kernel_log_from_boot": lambda log: log.from_boot,
        },
    ),
    Tool(
        file="dmesg-before.txt",
        field="before",
        parse=parse,
        label="journalctl -k -b -1",
        document={"xids_before": lambda log: [_xid(xid) for xid in log.xids]},
    ),
    Tool(
        file="dmesg-after.txt",
        field="after.log",
        parse=parse,
        asked="after",
        label="dmesg after the load",
        document={},
    ),
)
