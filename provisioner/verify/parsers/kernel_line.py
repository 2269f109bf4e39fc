"""One line of a log: whose it is, and where the kernel's message begins in it.

Users of a node choose the names of programs, files and control groups that the kernel repeats in its messages, and
programs write into the same journal: a name or a line of theirs is not the driver's word.
"""

from __future__ import annotations

import re

STAMP = (
    r"(?:<\d+>)?(?:\w{3} +\d{1,2} \d\d:\d\d:\d\d(?:\.\d{1,9})?|\d{4}-\d\d-\d\d[T ][0-9:.,+Z-]{5,40}"
    r"|\w{3} \d{4}-\d\d-\d\d [0-9:.]{5,20} \S{1,8}|\[ *\d{1,9}\.\d{6}\])"
)
"""Of a line of syslog's or a journal's: short, short-iso and ISO, short-full, short-monotonic."""
TAGGED = re.compile(
    rf"{STAMP} +(?:(?P<host>[^\s:\[\]]{{1,255}}) +)?(?P<program>[^\s:\[\]]{{1,64}})(?P<pid>\[\d+\])?: ?"
)
"""A line that says which program wrote it, and mostly on which host. Whatever follows is that program's."""
_DMESG = re.compile(
    r"(?:<\d+>|\d{1,3},\d+,\d+,[^;]{0,40};|\w{2,8} *:\w{2,8} *: *|\d{4}-\d\d-\d\dT[0-9:.,+Z-]{5,40} +|kernel: ?"
    r"|\[ *\d{1,9}\.\d{1,9}\](?:\[ *[TC]\d+\])? ?|\[\w{3} \w{3} +\d+ [\d:]{8} \d{4}\] ?|\[\w{3}\d+ [\d:]{5}\] ?"
    r"|\[ *\+?\d+\.\d+\] ?)+"
)
"""What dmesg writes before a message, in any of its forms."""
_AGAIN = re.compile(r"\[ *\d{1,9}\.\d{6}\] $")
"""The stamp of a second message, glued to the one before."""
_DRIVER = re.compile(r"\s|NVRM\b|nvidia[-_ ]|GPU (?:at |\d|[0-9a-fA-F]{4})|SXid\b")
_NAMED = re.compile(
    # arch/x86/mm/fault.c, arch/x86/kernel/traps.c, mm/memory.c: print_vma_addr
    r"((?:segfault at|trap \S+ ip|general protection\b).{0,200}? error[ :]\S+ in ).*"
    r"|(\bprocess ').*(?=' started with executable stack)"  # fs/exec.c
    # mm/oom_kill.c, mm/memcontrol.c
    r"|(\boom-kill:constraint=\w+).*|(\bMemory cgroup stats for ).*|(\bTasks in ).*(?= killed as a result)"
    r"|(\bfork rejected by pids controller in ).*|(\baudit(?:: type=\d+ audit)?\().*"
    r"|(\bBUG: Bad page map in process ).*"
    r"|^(.{0,200}\b(?:overlayfs|tmpfs|fuse|9p|cgroup2?): ).*"  # mounts of a user's own namespace
)
_WORDS = ("segfault", "trap ", "protection", "executable stack", "oom-kill", "Memory cgroup", "Tasks in", "rejected",
          "audit", "Bad page", "overlayfs", "tmpfs", "fuse", "9p", "cgroup")  # fmt: skip
"""One of them is in each of these messages."""


def without_names(rows: list[str]) -> list[str]:
    """Lines without the names that a user has chosen: of the kernel's messages that repeat them, in its own words."""
    log_text = "\n".join(rows)
    keywords = [keyword for keyword in _WORDS if keyword in log_text]
    return (
        [_without_names(row) if any(keyword in row for keyword in keywords) else row for row in rows]
        if keywords
        else rows
    )


def _without_names(row: str) -> str:
    return _NAMED.sub(lambda match: next(group for group in match.groups() if group is not None), row, count=1)


def message(row: str) -> str | None:
    """The message of a line that shows where it begins: behind stamp, host and program. None for any other line, and
    for one of another program's."""
    match = TAGGED.match(row)
    if match is not None and (is_kernel(match) or is_program(match)):
        if not is_kernel(match):
            return None
        remaining = row[match.end() :]
        stamped = _DMESG.match(remaining)
        return remaining[stamped.end() :] if stamped else remaining
    stamped = _DMESG.match(row)
    return row[stamped.end() :] if stamped else None


def is_kernel(match: re.Match[str]) -> bool:
    """Whether a line that TAGGED matches is the kernel's, which is no process: `logger -t kernel` is one."""
    return match["program"] == "kernel" and match["pid"] is None


def is_program(match: re.Match[str]) -> bool:
    """Whether what TAGGED takes for a program is one: behind a stamp of the kernel's alone it is a part of the kernel
    ("[ 1.0] usb 1-1: …"), with its process in brackets it is one."""
    return match["pid"] is not None or not match[0].startswith(("[", "<"))


def is_drivers(row: str, at: int) -> bool:
    """Whether what stands at this place of a line is the driver's own word: where the line shows where its message
    begins, the message is the driver's, or another one is glued to it."""
    text = message(row)
    return text is None or _DRIVER.match(text) is not None or _AGAIN.search(row[:at]) is not None
