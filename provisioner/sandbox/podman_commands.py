"""podman and buildah at work on this machine: what stands here without an owner may be theirs, as long as they run and
are older than it."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Collection, Mapping, Sequence, Set
from pathlib import Path

PROGRAMS = ("podman", "buildah")
GROUPS = frozenset(["container", "image", "kube", "play", "pod", "system"])
SWITCHES = frozenset(["--debug", "--noout", "--remote", "-r", "--syslog", "--trace", "--transient-store"])
"""Options before the command that take no value (podman(1), buildah(1): GLOBAL OPTIONS)."""
MARGIN_S = 1.0
"""What the start of a process is known to."""
DEADLINE_S = 60
"""For one that stands in the way; a build takes longer."""


def older(created: float, verbs: Set[str], processes: Mapping[int, Sequence[str]]) -> dict[int, str]:
    """Those of these processes that run one of these commands and were there at that time (Unix): id → command."""
    return {
        pid: command
        for pid, arguments in processes.items()
        if (command := _command(arguments, verbs)) and _start_of(pid) <= created + MARGIN_S
    }


def wait_for_end(processes: Collection[int], deadline_s: float) -> None:
    """Wait until all of them have ended, at most so long."""
    end = time.monotonic() + deadline_s
    for pid in processes:
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            select.select([handle], [], [], max(0, end - time.monotonic()))
        finally:
            os.close(handle)


def _command(arguments: Sequence[str], verbs: Set[str]) -> str:
    """`podman start` and the like; empty for what is none of them. The command is the first word that is neither an
    option nor the value of one, the first two where it is of a group (`podman container start`)."""
    program, options = Path(arguments[0]).name, iter(arguments[1:])
    words = list[str]()
    for text in options:
        if not text.startswith("-"):
            words.append(text)
        elif not words and "=" not in text and text not in SWITCHES:
            next(options, "")
    command = words[: 2 if words and words[0] in GROUPS else 1]
    return f"{program} {' '.join(command)}" if program in PROGRAMS and not verbs.isdisjoint(command) else ""


def _start_of(pid: int) -> float:
    """Unix time (proc(5): /proc/PID/stat, field 22); 0 for a process that has ended meanwhile."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return 0.0
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return time.time() - age
