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
WAIT_S = 60
"""For those that stand in the way, all waits of a process of ours together."""
SHORT_S = 120
"""node.sh gives each of its commands as much. One that is at work for longer (a build, a container in the foreground, a
service) is not waited for."""
LONGEST_S = 3600
"""What any command takes at most between a thing that it makes and the use of it: what is older is not about to be
used, whoever is at work."""
_waits = [0.0]
"""Seconds that were waited."""


def users(created: float, verbs: Set[str], processes: Mapping[int, Sequence[str]]) -> frozenset[int]:
    """Those of these processes that may be about to use what was made at that time (Unix): root's that run one of these
    commands and are older."""
    if time.time() - created > LONGEST_S:
        return frozenset()
    return frozenset(
        pid
        for pid, arguments in processes.items()
        if _is_command(arguments, verbs) and is_root(pid) and _start_of(pid) <= created + MARGIN_S
    )


def wait_for_end(processes: Collection[int]) -> None:
    """Wait until those of them that are young have ended, as long as there is time left of WAIT_S."""
    begin = time.monotonic()
    end = begin + WAIT_S - _waits[0]
    for pid in processes:
        if time.time() - _start_of(pid) > SHORT_S:
            continue
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            select.select([handle], [], [], max(0, end - time.monotonic()))
        finally:
            os.close(handle)
    _waits[0] += time.monotonic() - begin


def is_root(pid: int) -> bool:
    """Whether all user ids of a process are root's: /proc/PID itself is root's too for one that cannot be dumped."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:  # it has ended meanwhile
        return False
    return "\nUid:\t0\t0\t0\t0\n" in status


def _is_command(arguments: Sequence[str], verbs: Set[str]) -> bool:
    """The command is the first word that is neither an option nor the value of one, the first two where it is of a
    group (`podman container start`)."""
    program, options = Path(arguments[0]).name, iter(arguments[1:])
    positionals = list[str]()
    for text in options:
        if not text.startswith("-"):
            positionals.append(text)
        elif not positionals and "=" not in text and text not in SWITCHES:
            next(options, "")
    command = positionals[: 2 if positionals and positionals[0] in GROUPS else 1]
    return program in PROGRAMS and not verbs.isdisjoint(command)


def _start_of(pid: int) -> float:
    """Unix time (proc(5): /proc/PID/stat, field 22); 0 for a process that has ended meanwhile."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return 0.0
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return time.time() - age
