"""Monitors of podman's containers (conmon): a process counts as one by its owner and its program, never by what its
command line says, which any local user can choose."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from provisioner.sandbox import podman_commands, podman_state
from provisioner.sandbox.backends import CONTAINER_ID
from provisioner.sandbox.runtime import Podman


@dataclass(frozen=True, slots=True)
class Monitor:
    """A monitor and what it says of its container. `program`: podman's conmon."""

    pid: int
    name: str
    container: str
    program: str


def find(processes: Mapping[int, Sequence[str]], podman: Podman) -> Iterator[Monitor]:
    """Those of these processes (id → arguments) that are monitors of this podman's."""
    conmons = {pid: arguments for pid, arguments in processes.items() if Path(arguments[0]).name == "conmon"}
    program = podman.run("info", "--format", "{{.Host.Conmon.Path}}").strip() if conmons else ""
    for pid, arguments in conmons.items():
        if monitor := _monitor(pid, arguments, program):
            yield monitor


def kill(monitor: Monitor) -> None:
    """End it, and no other process that has its number since."""
    try:
        handle = os.pidfd_open(monitor.pid)
    except ProcessLookupError:
        return
    try:
        if _monitor(monitor.pid, podman_state.arguments(monitor.pid), monitor.program) == monitor:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        os.close(handle)


def _monitor(pid: int, arguments: Sequence[str], program: str) -> Monitor | None:
    options = dict(reversed([*itertools.pairwise(arguments)]))  # the first of each counts
    container = options.get("-c", "")
    if not CONTAINER_ID.fullmatch(container) or not podman_commands.is_root(pid) or not _runs(pid, program):
        return None
    return Monitor(pid, options.get("-n", ""), container, program)


def _runs(pid: int, program: str) -> bool:
    try:
        return Path(f"/proc/{pid}/exe").samefile(program)
    except OSError:  # it has ended meanwhile, or is a thread of the kernel
        return False
