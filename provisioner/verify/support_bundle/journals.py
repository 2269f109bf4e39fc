"""Kernel logs out of what holds more: journals as text, as JSON or in the export format, syslog and kern.log. The last
boot in them is this one, the one before it dmesg-before.txt."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence

from provisioner.verify.parsers import kernel_line
from provisioner.verify.parsers.dmesg import LOADED

_FROM_NODE = re.compile(r"(?P<host>[A-Za-z][\w.-]{0,200}): (?=\[ *\d|NVRM: )")
"""What pdsh and clush write before each line."""
_CARRIER = re.compile(r"systemd-networkd\[\d+\]: \S+: lost carrier$")
_BOOT = re.compile(r"Linux version [0-9]+\.[0-9]+")
_BREAK = re.compile(r"^-- (?:Boot [0-9a-f]{32}|Reboot) --$|^={3,} Boot ")
_LINE_STAMP = re.compile(
    r"^(?:<\d+>)?(?:\[[^\]]{1,40}\]|\d{1,3},\d+,\d+,[^;]{0,40};|\d{4}-\d\d-\d\dT\S{1,40}|\w{3} +\d{1,2} [0-9:.]{8,15})?"
    r"\s*(?:\S{1,255} kernel: )?(?:\[\s*[0-9.]+\])?\s*"
)
BOOTS = 50
"""That are told apart; of more the oldest are left out."""
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
            message = entry.get("MESSAGE")
            if isinstance(message, list):  # bytes that are no UTF-8
                message = bytes(b for b in message if isinstance(b, int) and 0 <= b < 256).decode("utf-8", "replace")
            yield from _line({k: v for k, v in entry.items() if isinstance(v, str)} | {"MESSAGE": str(message)}, boot)
            boot = str(entry.get("_BOOT_ID") or boot)


def _export(text: str) -> Iterator[str]:
    boot = ""
    for block in text.split("\n\n"):
        entry = dict(line.split("=", 1) for line in block.split("\n") if "=" in line)
        if "MESSAGE" in entry:
            yield from _line(entry, boot)
            boot = entry.get("_BOOT_ID", boot)


def _line(entry: dict[str, str], boot: str) -> Iterator[str]:
    """An entry as a line. journald says by _TRANSPORT what the kernel wrote; SYSLOG_IDENTIFIER is the program's own."""
    if boot and entry.get("_BOOT_ID", boot) != boot:
        yield "-- Reboot --"
    program = entry.get("SYSLOG_IDENTIFIER") or entry.get("_COMM", "?")
    transport = entry.get("_TRANSPORT", "kernel" if program == "kernel" else "")
    program = "kernel" if transport == "kernel" else f"{program}[{entry.get('_PID', '0')}]"
    stamp = entry.get("_SOURCE_MONOTONIC_TIMESTAMP") or entry.get("__MONOTONIC_TIMESTAMP") or "0"
    seconds = int(stamp) / 1e6 if stamp.isdigit() and len(stamp) < 18 else 0.0
    message = " ".join(entry["MESSAGE"].splitlines())
    yield f"[{seconds:12.6f}] {entry.get('_HOSTNAME', 'node')} {program}: {message}"


def boots(rows: Sequence[str]) -> list[str]:
    """The log of each boot, the oldest first, of lines that `kernel_rows` gives. Of several hosts each has its own
    boots: the last of all is one log, and so is what was before."""
    by_host: dict[str, list[list[str]]] = {}
    for row in rows:
        host = _host(row)
        logs = by_host.setdefault(host if host or not by_host else next(iter(by_host)), [[]])
        if _BREAK.match(row):
            for other in by_host.values():
                other.append([])
        elif (
            _BOOT.match(_message(row)) and any("Linux version" not in r for r in logs[-1][-200:]) and len(logs[-1]) > 20
        ):
            logs.append([row])
        else:
            logs[-1].append(row)
    if len(by_host) > 1:  # a driver that one of them has loaded makes no other's Xid an earlier one
        for logs in by_host.values():
            logs[:] = [[row for row in rows if LOADED not in row] for rows in logs]
    texts = [
        ["\n".join(rows) + "\n" for rows in logs if any(row.strip() for row in rows)][-BOOTS:]
        for logs in by_host.values()
    ]
    deepest = max(map(len, texts), default=0)
    return [joined(logs[-n] for logs in texts if len(logs) >= n) for n in range(deepest, 0, -1)]


def hosts(rows: Sequence[str]) -> list[str]:
    """Hosts of whose kernel there are lines, by short name; a machine is "localhost" until it knows its name."""
    names = {_host(row).partition(".")[0] for row in rows}
    return sorted(names - {"", "localhost", "(none)"})


def kernel_rows(text: str) -> list[str]:
    """The kernel's lines, and networkd's of a cable; lines of which nothing says whose they are stay."""
    rows = text.splitlines()
    tags = [kernel_line.TAGGED.match(row) for row in rows]
    is_journal = any(match is not None and kernel_line.is_kernel(match) for match in tags)
    own_rows, is_others = list[str](), False
    for row, match in zip(rows, tags, strict=True):
        if match is None:
            is_others = is_others and row[:1] in (" ", "\t")  # a journal indents what continues a message
        elif kernel_line.is_kernel(match) or _CARRIER.search(row):
            is_others = False
        else:
            is_others = match["pid"] is not None or (is_journal and kernel_line.is_program(match))
        if not is_others:
            own_rows.append(row)
    return own_rows


def _host(row: str) -> str:
    match = kernel_line.TAGGED.match(row)
    if match is not None and kernel_line.is_kernel(match):
        return match["host"] or ""
    from_node = _FROM_NODE.match(row)
    return from_node["host"] if from_node is not None and from_node["host"] not in ("NVRM", "kernel") else ""


def _message(row: str) -> str:
    """What stands behind stamp, host and program."""
    match = _FROM_NODE.match(row)
    row = row[match.end() :] if match else row
    text = kernel_line.message(row)
    return row if text is None else text


def joined(logs: Iterable[str]) -> str:
    """One log of several of the same boot: the longest, and what only others have: a fault in any counts."""
    ordered = sorted(logs, key=len, reverse=True)
    if len(ordered) < 2:
        return ordered[0] if ordered else ""
    known = {_without_stamp(row) for row in ordered[0].splitlines()}
    more: list[str] = []
    for log in ordered[1:]:
        for row in log.splitlines():
            message = _without_stamp(row)
            if message and message not in known:
                known.add(message)
                more.append(row)
    return ordered[0] + ("\n".join(more) + "\n" if more else "")


def _without_stamp(row: str) -> str:
    return _LINE_STAMP.sub("", row, count=1).strip()
