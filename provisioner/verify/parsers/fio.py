"""fio.json: what fio reached on the scratch filesystem; probe/fio.py writes it around fio's own JSON (fio 3).

Traps: fio prints notes before its document; a part that did no I/O has rates of 0; `error` of a job is an errno while
the exit status is 1; times are nanoseconds since fio 3; with group_reporting there is one job.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from provisioner.verify.parsers import Unreadable, first_line
from provisioner.verify.parsers.untrusted import (
    holders,
    read_float,
    read_object,
    strict_float,
    strict_text,
    strict_whole,
)
from provisioner.verify.tool import Tool

State = Literal["ran", "busy", "absent"]
PHASES = {"write": "write", "read": "read", "random": "read"}
"""Part → the direction that fio counts it under."""
TAIL = "99.900000"


@dataclass(frozen=True, slots=True)
class Phase:
    """One part: GB/s, operations per second, and the time that 999 of 1,000 operations stay below, ms. Rates are None
    where fio gave no result; `done` is in bytes; `error` fio's errno or its own words."""

    name: str
    rc: int | None
    timed_out: bool = False
    seconds: float | None = None
    error: str = ""
    done: int | None = None
    gbps: float | None = None
    iops: float | None = None
    tail_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Disk:
    """Errors that an NVMe disk has counted over its life, before fio and after it."""

    name: str
    media_before: int
    media_after: int


@dataclass(frozen=True, slots=True)
class Fio:
    """`state`: fio ran (whatever came of it), a job had the GPUs, or there was nothing to run it with or on (`why`).
    `size` is that of the file, bytes."""

    state: State
    why: str = ""
    busy: tuple[str, ...] = ()
    place: str = ""
    size: int | None = None
    free: int | None = None
    version: str | None = None
    phases: tuple[Phase, ...] = ()
    disks: tuple[Disk, ...] = ()

    def phase(self, name: str) -> Phase | None:
        return next((phase for phase in self.phases if phase.name == name), None)


def parse(text: str) -> Fio:
    document = read_object(text)
    state = document.get("state")
    if state not in ("ran", "busy", "absent"):
        raise Unreadable(f"no state in it: {first_line(text)}")
    parts = document.get("phases")
    if state == "ran" and (not isinstance(parts, dict) or "write" not in parts):
        raise Unreadable(f"fio ran, and nothing of it is here: {first_line(text)}")
    by_name = parts if isinstance(parts, dict) else {}
    known = [(name, row) for name in PHASES if isinstance(row := by_name.get(name), dict)]
    versions = [version for _, row in known if (version := _version(row)) is not None]
    return Fio(
        state=state,
        why=strict_text(document.get("why"))[:300],
        busy=holders(document.get("busy")),
        place=strict_text(document.get("place"))[:200],
        size=_count(document.get("bytes")),
        free=_count(document.get("free")),
        version=versions[0] if versions else None,
        phases=tuple(_phase(name, row) for name, row in known),
        disks=tuple(_disks(document.get("smart"))),
    )


def _phase(name: str, row: dict[str, Any]) -> Phase:
    rc, timed_out, seconds = _count(row.get("rc")), row.get("timed_out") is True, _number(row.get("seconds"))
    error_text = first_line(strict_text(row.get("error"))) if strict_text(row.get("error")).strip() else ""
    output = strict_text(row.get("output"))
    start = output.find("{")
    if start < 0:
        return Phase(name, rc, timed_out, seconds, error_text or ("" if timed_out else "fio gave no result"))
    jobs = read_object(output[start:], output).get("jobs")
    if not isinstance(jobs, list) or len(jobs) != 1 or not isinstance(jobs[0], dict):
        raise Unreadable(f"not one job in fio's result of its part {name!r}")
    job, direction = jobs[0], jobs[0].get(PHASES[name])
    errno = _count(job.get("error"))
    if not isinstance(direction, dict) or errno is None or _number(direction.get("bw_bytes")) is None:
        raise Unreadable(f"no rate or no error number in fio's result of its part {name!r}")
    times = direction.get("clat_ns") if isinstance(direction.get("clat_ns"), dict) else {}
    tails = times.get("percentile") if isinstance(times, dict) else None
    tail = _number(tails.get(TAIL)) if isinstance(tails, dict) else None
    rate, iops = _number(direction.get("bw_bytes")), _number(direction.get("iops"))
    return Phase(
        name, rc, timed_out, seconds,
        error=f"error {errno}" + (f", {error_text}" if error_text else "") if errno else error_text if rc != 0 else "",
        done=_count(direction.get("io_bytes")),
        gbps=rate / 1e9 if rate else None,
        iops=iops or None,
        tail_ms=tail / 1e6 if tail else None,
    )  # fmt: skip


def _version(row: dict[str, Any]) -> str | None:
    output = strict_text(row.get("output"))
    try:
        return strict_text(read_object(output[output.find("{") :], output).get("fio version"))[:40] or None
    except Unreadable:
        return None


def _disks(smart: Any) -> list[Disk]:
    """Of those disks that answered both times."""
    earlier, after = (smart.get(when) if isinstance(smart, dict) else None for when in ("before", "after"))
    if not isinstance(earlier, dict) or not isinstance(after, dict):
        return []
    counts = {name: (_media(earlier[name]), _media(after.get(name))) for name in earlier}
    return [Disk(str(name)[:40], a, b) for name, (a, b) in sorted(counts.items()) if a is not None and b is not None]


def _media(text: Any) -> int | None:
    """nvme-cli prints counters of 128 bits as numbers, as floats or as texts, by its release."""
    try:
        count = read_float(read_object(strict_text(text), "").get("media_errors"))
    except Unreadable:
        return None
    return int(count) if count is not None and count >= 0 else None


def _number(value: Any) -> float | None:
    number = strict_float(value)
    return number if number is not None and number >= 0 else None


def _count(value: Any) -> int | None:
    number = strict_whole(value)
    return number if number is not None and number >= 0 else None


TOOLS = (
    Tool(
        file="fio.json",
        field="fio",
        parse=parse,
        asked="load",
        label="fio (write, read, randread) on scratch",
        by_hand=False,
    ),
)
