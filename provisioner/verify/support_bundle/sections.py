"""Reports that hold many outputs, cut into these: nvidia-bug-report.log (a rule of underscores before each, then the
file or command), and sessions that somebody has copied from a terminal (a prompt before each).

Sources: nvidia-bug-report.sh of branches 390 to 590, as in NVIDIA's driver packages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from provisioner.verify.support_bundle.pieces import Piece

RULE = "____________________________________________"
BUG_REPORT = "Start of NVIDIA bug report log file"
_FILE = re.compile(r"^\*\*\* (\S+)(?: does not exist)?$")
_LS = re.compile(r"^\*\*\* ls: ")
COMMANDS = (
    "nvidia-smi", "dmesg", "journalctl", "lspci", "lsmod", "ibstat", "ibstatus", "ibv_devinfo", "rdma", "dcgmi",
    "rocm-smi", "amd-smi", "systemctl", "lsblk", "nvme", "df", "cat", "uname", "fi_info", "free", "ls", "grep",
    "dmidecode", "nvidia-container-cli", "nvidia-bug-report.sh", "modinfo", "tail", "ip", "dkms", "apt", "dpkg", "sudo",
)  # fmt: skip
_PROMPT = re.compile(
    r"^(?!# dmidecode \d)(?:\([\w.-]+\) ?)?"
    # by whom and where, a shell without a profile, busybox, one of the signs that shells are given
    r"(?:\[?[\w.-]+@[\w.-]+[^#$%>\n]{0,80}[#$%]|(?:ba)?sh-[\d.]+[#$]|/ #|[#$\u276f\u279c\u27ad]) *"
    r"((?:sudo (?:-\w+ )?)?(?:" + "|".join(re.escape(name) for name in COMMANDS) + r")\b.*)$"
)

_ANY = re.compile(r"^(?:\([\w.-]+\) ?)?\[?[\w.-]+@[\w.-]+[:~ ][^#$%>\n]{0,80}[#$%] +(\S.*)$")
"""A prompt that names user and machine stands before any command: what it printed belongs to none before."""
FIRST = "before the first command"


def cut(piece: Piece) -> Iterator[Piece]:
    """The outputs of a report; a text that is no report is one itself."""
    if BUG_REPORT in piece.text[:4096]:
        yield from _bug_report(piece)
    elif _session(piece.text):
        yield from _commands(piece)
    else:
        yield piece


def _bug_report(piece: Piece) -> Iterator[Piece]:
    title, rows = "its head", list[str]()
    fresh = False
    for line in piece.text.splitlines():
        if line.strip() == RULE:
            if rows:
                yield Piece(f"{piece.name}: {title}", "\n".join(rows) + "\n")
            title, rows, fresh = "", [], True
        elif fresh and not line.strip():
            continue
        elif fresh:
            match = _FILE.match(line.strip())
            title = match[1] if match else "its head" if line.startswith("Start of NVIDIA") else line.strip()[:100]
            # The head and Xorg's errors have no title: their first line belongs to them.
            rows, fresh = [] if match or line.startswith(("/", "journalctl")) else [line], False
        elif not _LS.match(line):
            rows.append(line)
    if rows:
        yield Piece(f"{piece.name}: {title}", "\n".join(rows) + "\n")


def _session(text: str) -> bool:
    head = text[:262_144]
    return any(_PROMPT.match(line) for line in head.splitlines()[:4000])


def _commands(piece: Piece) -> Iterator[Piece]:
    title, rows = FIRST, list[str]()
    for line in piece.text.splitlines():
        if line.startswith("```"):
            continue
        if match := _PROMPT.match(line) or _ANY.match(line):
            if any(row.strip() for row in rows):
                yield Piece(f"{piece.name}: {title}", "\n".join(rows) + "\n")
            title, rows = match[1].strip()[:100], _columns(match[1])
        else:
            rows.append(line)
    if any(row.strip() for row in rows):
        yield Piece(f"{piece.name}: {title}", "\n".join(rows) + "\n")


_COLUMNS = re.compile(r"--query-gpu=(\S+)")


def _columns(command: str) -> list[str]:
    """The columns that the command asked nvidia-smi for, where it asked for no header."""
    match = _COLUMNS.search(command)
    return [match[1].replace(",", ", ")] if match and "noheader" in command else []
