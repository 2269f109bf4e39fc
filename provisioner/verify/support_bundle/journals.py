"""Kernel logs out of what holds more: journals as text, as JSON or in the export format, syslog and kern.log. The last
boot in them is this one, the one before it dmesg-before.txt."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator

_BOOT = re.compile(r"\bLinux version [0-9]+\.[0-9]+")
_BREAK = re.compile(r"^-- (?:Boot [0-9a-f]{32}|Reboot) --$|^={3,} Boot ")
_KERNEL = re.compile(r"\bkernel: ?|: lost carrier$")
"""The kernel's own lines, and networkd's of a cable."""
_DMESG = re.compile(
    r"(?:<\d+>)?\[ *\d+\.\d{6}\] (?!\S+ [\w./@-]+(?:\[\d+\])?: )|\[\w{3} \w{3} +\d+ [\d:]{8} \d{4}\] |NVRM: "
    r"|(?:Unc|C)orrected error\s*$"  # mcelog
)
"""A line of dmesg's beside a syslog; with a host and a program it is one of a journal in monotonic time. Programs can
write NVRM behind a stamp and their name alone."""
_STAMP = re.compile(
    r"^(?:<\d+>)?(?:\[[^\]]{1,40}\]|\d{1,3},\d+,\d+,[^;]*;|\S+T\S+|\w{3} +\d{1,2} [0-9:.]{8,15})?\s*(?:\S+ kernel: )?"
    r"(?:\[\s*[0-9.]+\])?\s*"
)
ENTRY = "__CURSOR="


def text_of(text: str) -> str:
    """A journal in JSON or the export format as lines; any other text as it is."""
    head = text[:4096].lstrip()
    if head.startswith("{") and '"MESSAGE"' in head and '"__' in head:
        return "\n".join(_json(text))
    if head.startswith(ENTRY) and "\nMESSAGE" in head:
        return "\n".join(_export(text))
    return text


def _json(text: str) -> Iterator[str]:
    boot = ""
    for line in text.splitlines():
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(entry, dict):
            said = entry.get("MESSAGE")
            if isinstance(said, list):  # bytes that are no UTF-8
                said = bytes(b for b in said if isinstance(b, int) and 0 <= b < 256).decode("utf-8", "replace")
            yield from _line({k: v for k, v in entry.items() if isinstance(v, str)} | {"MESSAGE": str(said)}, boot)
            boot = str(entry.get("_BOOT_ID") or boot)


def _export(text: str) -> Iterator[str]:
    boot = ""
    for block in text.split("\n\n"):
        entry = dict(line.split("=", 1) for line in block.split("\n") if "=" in line)
        if "MESSAGE" in entry:
            yield from _line(entry, boot)
            boot = entry.get("_BOOT_ID", boot)


def _line(entry: dict[str, str], boot: str) -> Iterator[str]:
    if boot and entry.get("_BOOT_ID", boot) != boot:
        yield "-- Reboot --"
    who = "kernel" if entry.get("_TRANSPORT") == "kernel" else entry.get("SYSLOG_IDENTIFIER") or entry.get("_COMM", "?")
    stamp = entry.get("_SOURCE_MONOTONIC_TIMESTAMP") or entry.get("__MONOTONIC_TIMESTAMP") or "0"
    seconds = int(stamp) / 1e6 if stamp.isdigit() and len(stamp) < 18 else 0.0
    yield f"[{seconds:12.6f}] {entry.get('_HOSTNAME', 'node')} {who}: {entry['MESSAGE']}"


def boots(text: str) -> list[str]:
    """The log of each boot, the oldest first, with the kernel's lines alone where it has others too."""
    rows = text.splitlines()
    if sum(" kernel: " in row for row in rows) * 50 > len(rows) or any(" systemd[" in row for row in rows):
        rows = [row for row in rows if _KERNEL.search(row) or _BREAK.match(row) or _DMESG.match(row)]
    found: list[list[str]] = [[]]
    for row in rows:
        if _BREAK.match(row):
            found.append([])
        elif _BOOT.search(row) and any("Linux version" not in r for r in found[-1][-200:]) and len(found[-1]) > 20:
            found.append([row])
        else:
            found[-1].append(row)
    return ["\n".join(one) + "\n" for one in found if any(row.strip() for row in one)]


def joined(logs: Iterable[str]) -> str:
    """One log of several of the same boot: the longest, and what only others have: a fault in any counts."""
    ordered = sorted(logs, key=len, reverse=True)
    if len(ordered) < 2:
        return ordered[0] if ordered else ""
    known = {_said(row) for row in ordered[0].splitlines()}
    more: list[str] = []
    for log in ordered[1:]:
        for row in log.splitlines():
            said = _said(row)
            if said and said not in known:
                known.add(said)
                more.append(row)
    return ordered[0] + ("\n".join(more) + "\n" if more else "")


def _said(row: str) -> str:
    """A line's message, without its stamp."""
    return _STAMP.sub("", row, count=1).strip()
