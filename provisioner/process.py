"""Child processes that don't outlive gpuprov: their own process group, ended with us even when we are killed."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

PR_SET_PDEATHSIG = 1
"""prctl(2), linux/prctl.h: the signal that the kernel sends to a child when its parent dies."""

_asked = threading.Event()
_forking = threading.Event()


def interrupt(*_: object) -> None:
    """Handler of SIGINT and SIGTERM: as Python's own, but not while `start` forks.

    Python drops what is raised in a hook of fork (those of `logging`, for one) and prints a traceback; `start` looks
    for the request when it is through.
    """
    _asked.set()
    if not _forking.is_set():
        raise KeyboardInterrupt


def _end_with_parent(parent: int, sign: int) -> Callable[[], None]:
    libc = ctypes.CDLL(None, use_errno=True)

    def prepare() -> None:
        libc.prctl(PR_SET_PDEATHSIG, sign)
        if os.getppid() != parent:  # the parent died before the call above
            os._exit(1)

    return prepare


def start(
    argv: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    sign: int = signal.SIGINT,
    stdin: int = subprocess.DEVNULL,
) -> subprocess.Popen[str]:
    """Start a child in a process group of its own (Ctrl-C reaches us alone, and we pass it on), text pipes for
    stdout and stderr. It gets `sign` when this process dies, SIGKILL included.

    The kernel ties that to the thread that calls: call it from a thread that lives as long as the child is wanted.
    """
    _forking.set()
    try:
        child = subprocess.Popen(
            list(argv),
            cwd=cwd,
            env=dict(env) if env is not None else None,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
            preexec_fn=_end_with_parent(os.getpid(), sign),  # noqa: PLW1509 - two system calls, no lock
        )
    finally:
        _forking.clear()
    if _asked.is_set():
        stop(child, grace_s=10.0)
        raise KeyboardInterrupt
    return child


def stop(child: subprocess.Popen[str], *, grace_s: float) -> None:
    """Ask the child's group to stop, wait `grace_s` seconds, then end it."""
    for sign, wait in ((signal.SIGINT, grace_s), (signal.SIGKILL, 10.0)):
        try:
            os.killpg(child.pid, sign)
            child.wait(timeout=wait)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue
        return
