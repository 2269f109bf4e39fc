"""Child processes that don't outlive gpuprov: their own process group, ended with us even when we are killed.

`keep` makes all that this process starts from then on its own, at any depth (provisioner/transport/keeper.py).
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import resource
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TypeVar

from provisioner.transport import keeper

T = TypeVar("T")

PR_SET_PDEATHSIG = 1
"""prctl(2), linux/prctl.h: the signal that the kernel sends to a child when its parent dies."""

AGAIN_S = 5.0
"""For a child that was asked twice to stop."""

AGAIN = "press Ctrl-C again to kill it now"
"""For whoever sits at the run's own terminal."""

LINE = 32 << 20
"""Characters of a line that `follow` keeps in memory; the rest of a longer one is left out."""
COMPLAINTS = 1 << 20
"""Characters of standard error that `follow` keeps, about: its last lines."""

_keeper_process: subprocess.Popen[bytes] | None = None
_run = ""
"""The name under which the keeper finds what this process started."""


def keep() -> str:
    """Have everything that this process starts end when it dies, SIGKILL included; gives the run's name, by which
    keeper.end finds what is left of it. For the process of a command, not for a library: what it has started lives on
    when it ends by itself, but ssh's shared connections, which no other run uses."""
    global _keeper_process, _run  # noqa: PLW0603 - there is one process
    if _keeper_process is None:
        os.environ.pop(keeper.NAME, None)
        _run = secrets.token_hex(16)
        _keeper_process = subprocess.Popen(
            [sys.executable, "-I", "-S", keeper.__file__, _run],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/",
            start_new_session=True,
        )  # fmt: skip
        atexit.register(release)
    os.environ[keeper.NAME] = _run
    return _run


def release() -> None:
    """Let what this process has started live on: to be called before it ends, or becomes another program."""
    global _keeper_process  # noqa: PLW0603
    if _keeper_process is not None and _keeper_process.stdin is not None:
        os.environ.pop(keeper.NAME, None)
        with contextlib.suppress(OSError), _keeper_process.stdin:
            _keeper_process.stdin.write(f"{keeper.ENDED}\n".encode())
        _keeper_process = None


OTHER_OPEN_FILES = 256
"""Open files that a run has besides those of the commands that it runs at once."""


def allow_open_files(number: int) -> None:
    """Let this process, and what it starts from now on, have that many files open beside OTHER_OPEN_FILES, as far as
    the system's own limit allows: the usual soft limit of 1,024 is only there for programs that use select(2)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    desired = number + OTHER_OPEN_FILES
    if soft != resource.RLIM_INFINITY and soft < desired:
        granted = desired if hard == resource.RLIM_INFINITY else min(desired, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (granted, hard))


def shares(sockets: Path) -> bool:
    """Have the keeper end ssh's shared connections behind the sockets in this folder, and remove the folder, when this
    process ends; False where there is no keeper."""
    if _keeper_process is None or _keeper_process.stdin is None:
        return False
    with contextlib.suppress(OSError):
        _keeper_process.stdin.write(f"{keeper.SOCKETS}{sockets}\n".encode())
        _keeper_process.stdin.flush()
    return True


_end_requested = threading.Event()
_forking: set[int] = set()
"""Threads that fork at this moment."""


@dataclass(eq=False, slots=True)
class _Followed:
    """A child that `follow` follows. `stopper`: the thread that stops it for `stop_followed`."""

    child: subprocess.Popen[str]
    stopping: Callable[[], None]
    grace_s: float
    stopper: threading.Thread | None = None
    over: threading.Event = field(default_factory=threading.Event)
    """Set when `follow` ends."""

    def stop(self) -> None:
        """Report that the child is to stop, and stop it, whatever the report raises: a full disk is no reason to let
        Terraform go on alone."""
        try:
            with contextlib.suppress(Exception):
                self.stopping()
        finally:
            stop(self.child, grace_s=self.grace_s)

    def end(self, error: BaseException) -> None:
        """Stop the child because of an error; where it is being stopped already, wait for that. It is asked a second
        time for Ctrl-C alone, by a person who waits no longer."""
        if self.stopper is None or isinstance(error, KeyboardInterrupt):
            self.stop()
            return
        try:
            self.stopper.join()
        except KeyboardInterrupt:
            self.stop()
            raise

    def stop_aside(self) -> None:
        """As `stop`, in a thread of its own, once. A grandchild that keeps the child's output open for AGAIN_S more
        seconds is killed."""

        def end() -> None:
            self.stop()
            if not self.over.wait(AGAIN_S):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.child.pid, signal.SIGKILL)

        if self.stopper is None:
            self.stopper = threading.Thread(target=end, name="stopper", daemon=True)
            self.stopper.start()


_follow_guard = threading.Lock()
"""Held while `_followed` or `_stops` changes, so that no child starts unseen while all are stopped."""
_followed: list[_Followed] = []
_stops: list[Exception] = []
"""Why nothing may be followed now; see `stop_followed`."""


def interrupt(*_: object) -> None:
    """Handler of SIGINT and SIGTERM: as Python's own, but not while `start` forks.

    Python drops what is raised in a hook of fork (those of `logging`, for one) and prints a traceback; `start` looks
    for the request when it is through.
    """
    _end_requested.set()
    if threading.get_ident() not in _forking:  # handlers run in the main thread
        raise KeyboardInterrupt


def interrupted() -> bool:
    """Whether this process was asked to end. A library may turn the KeyboardInterrupt into an error of its own."""
    return _end_requested.is_set()


def _end_with_parent(parent: int, sign: int) -> Callable[[], None]:
    prctl = ctypes.CDLL(None, use_errno=True).prctl  # looked up here: between fork and exec another thread's lock stays

    def prepare() -> None:
        prctl(PR_SET_PDEATHSIG, sign)
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
    _forking.add(threading.get_ident())
    try:
        child = subprocess.Popen(
            list(argv),
            cwd=cwd,
            env=dict(env) if env is not None else None,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
            preexec_fn=_end_with_parent(os.getpid(), sign),  # noqa: PLW1509 - two system calls, no lock
        )
    finally:
        _forking.discard(threading.get_ident())
    if _end_requested.is_set():
        stop(child, grace_s=10.0)
        raise KeyboardInterrupt
    return child


@dataclass(frozen=True, slots=True)
class Ended:
    """How a child ended: its exit status and the last lines of its standard error."""

    status: int
    complaints: tuple[str, ...]


def follow(
    argv: Sequence[str],
    read: Callable[[str], None],
    *,
    cwd: Path,
    grace_s: float,
    stopping: Callable[[], None],
    env: Mapping[str, str] | None = None,
    stdin_text: str | None = None,
) -> Ended:
    """Run a child to its end; every line of its standard output goes to `read` as it comes, `stdin_text` to its
    standard input. Where anything is raised meanwhile (Ctrl-C, or by `read`) `stopping` is called, the child gets
    `grace_s` seconds to end, and the exception goes on. Raises the error of `stop_followed` where that was called."""
    refuse_stopped()
    child = start(argv, cwd=cwd, env=env, stdin=subprocess.DEVNULL if stdin_text is None else subprocess.PIPE)
    assert child.stdout is not None
    assert child.stderr is not None
    complaints: deque[str] = deque()
    # A thread of its own: a child that fills the pipe of its standard error would wait for us for ever.
    reader = threading.Thread(target=_keep_last, args=(child.stderr, complaints), daemon=True)
    followed = _Followed(child, stopping, grace_s)
    try:
        reader.start()
        _register(followed)
        if child.stdin is not None:
            with contextlib.suppress(BrokenPipeError), child.stdin:  # it ended at once: its status says why
                child.stdin.write(stdin_text or "")
        for line in _lines(child.stdout, LINE):
            read(line)
        status = child.wait()
        reader.join(timeout=5)
    except BaseException as error:
        followed.end(error)
        raise
    finally:
        followed.over.set()
        with _follow_guard:
            _followed[:] = [other for other in _followed if other is not followed]
    refuse_stopped()
    return Ended(status, tuple(complaints))


def _lines(stream: IO[str], limit: int) -> Iterator[str]:
    """The lines of a stream as they come, each at most `limit` characters long: the rest is read and left out."""
    while line := stream.readline(limit):
        yield line
        while len(line) == limit and not line.endswith("\n"):
            line = stream.readline(limit)


def _keep_last(stream: IO[str], complaints: deque[str]) -> None:
    size = 0
    for line in _lines(stream, COMPLAINTS):
        complaints.append(line)
        size += len(line)
        while size > COMPLAINTS and len(complaints) > 1:
            size -= len(complaints.popleft())


def _register(followed: _Followed) -> None:
    """Let others stop this child; one who has asked for that since `start` has looked did not see it."""
    with _follow_guard:
        _followed.append(followed)
        if _stops:
            followed.stop_aside()
    if _end_requested.is_set() and threading.current_thread() is not threading.main_thread():
        with contextlib.suppress(ProcessLookupError):
            os.killpg(followed.child.pid, signal.SIGINT)


def stop_followed(error: Exception) -> None:
    """Stop every child that a `follow` of this process follows, in whatever thread: it is asked as by Ctrl-C, has its
    grace, and then its `follow` raises `error`. A new `follow` raises it before it starts anything, until
    `allow_followed` is called with the same error. Returns at once; any thread may call."""
    with _follow_guard:
        _stops.append(error)
        for followed in _followed:
            followed.stop_aside()


def allow_followed(error: Exception) -> None:
    """Take back `stop_followed(error)`; nothing happens where it was not called."""
    with _follow_guard:
        _stops[:] = [other for other in _stops if other is not error]


def refuse_stopped() -> None:
    """Raise the error of `stop_followed` where that was called: for a change that no child of `follow` makes."""
    with _follow_guard:
        if _stops:
            raise _stops[0]


def side_by_side(calls: Sequence[Callable[[], T]], *, grace_s: float) -> list[T]:
    """What each call gives, all made at once in threads; a single one in this thread. Ctrl-C, which reaches the main
    thread alone, is passed on to the children that they follow: each has `grace_s` seconds to end, then the
    KeyboardInterrupt goes on. Of calls that raise something else the first counts, when all have ended."""
    if len(calls) == 1:
        return [calls[0]()]
    with ThreadPoolExecutor(max_workers=max(1, len(calls))) as pool:
        running = [pool.submit(call) for call in calls]
        try:
            wait(running)
        except KeyboardInterrupt:
            for followed in tuple(_followed):
                with contextlib.suppress(Exception):
                    followed.stopping()
            _end_followed(running, grace_s)
            raise
    return [future.result() for future in running]


def _end_followed(running: Sequence[Future[T]], grace_s: float) -> None:
    """Ask all children to stop, once more for each Ctrl-C (see `stop`), then end them."""
    for sign, seconds in ((signal.SIGINT, grace_s), (signal.SIGINT, AGAIN_S), (signal.SIGKILL, 10.0)):
        for followed in tuple(_followed):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(followed.child.pid, sign)
        with contextlib.suppress(KeyboardInterrupt):
            if not wait(running, timeout=seconds).not_done:
                return


def stop(child: subprocess.Popen[str], *, grace_s: float) -> None:
    """Ask the child's group to stop, wait `grace_s` seconds, then end it. Ctrl-C meanwhile is a person who waits no
    longer: the child is asked once more (Terraform then writes down what it can) and has AGAIN_S seconds."""
    try:
        _stop(child, grace_s)
    except KeyboardInterrupt:
        try:
            _stop(child, AGAIN_S)
        except KeyboardInterrupt:
            _stop(child, 0.0)
        raise


def stop_all(children: Collection[subprocess.Popen[str]], *, grace_s: float) -> None:
    """Ask the groups of these children to stop, all at once, wait `grace_s` seconds in all, then end what is left of
    each group, processes in the background too. Ctrl-C meanwhile shortens the wait, as of `stop`, and is raised once
    none is left."""
    interrupted = False
    try:
        _signal_all(children, signal.SIGINT, grace_s)
    except KeyboardInterrupt:
        interrupted = True
        with contextlib.suppress(KeyboardInterrupt):
            _signal_all(children, signal.SIGINT, AGAIN_S)
    try:
        _signal_all(children, signal.SIGKILL, 10.0)
    except KeyboardInterrupt:
        interrupted = True
    if interrupted:
        raise KeyboardInterrupt


def _signal_all(children: Collection[subprocess.Popen[str]], sign: int, seconds: float) -> None:
    """Send a signal to the groups of these children, and wait that long for the children."""
    deadline = time.monotonic() + seconds
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, sign)
    for child in children:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(max(0.0, deadline - time.monotonic()))


def _stop(child: subprocess.Popen[str], grace_s: float) -> None:
    for sign, seconds in ((signal.SIGINT, grace_s), (signal.SIGKILL, 10.0)):
        try:
            os.killpg(child.pid, sign)
            child.wait(timeout=seconds)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue
        return
