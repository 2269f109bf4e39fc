"""Run a command whose output somebody else writes: a node, or whatever answers at its address.

`subprocess.run` keeps all of it in memory, so that a node that prints without end takes the control machine's. Here
standard output has a limit, of standard error the end is kept, and there is always a deadline.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic

OUTPUT = 1 << 20
"""Bytes of standard output, at most: a hundred times the longest answer of those that gpuprov asks for by this."""
ERRORS = 4000
"""Bytes of standard error that are kept: its end."""
_PIECE = 1 << 16
_LAST_PIECES = 16
"""Pieces read of standard error once the command has ended: as much as the largest pipe holds (pipe(7))."""


_LOOK_S = 0.05
"""Between two looks at a command that has closed its standard output."""


class UnboundedOutputError(Exception):
    """A command printed more than its limit, and was ended."""


@dataclass(frozen=True, slots=True)
class Output:
    returncode: int
    stdout: str
    stderr: str
    """Its last bytes."""


class Tail:
    """The end of what is added to it.

    >>> tail = Tail(4)
    >>> tail.add(b"abc"), tail.add(b"def"), tail.text()
    (None, None, 'cdef')
    """

    def __init__(self, limit: int = ERRORS) -> None:
        self._limit, self._content = limit, bytearray()

    def add(self, piece: bytes) -> None:
        self._content += piece
        del self._content[: max(0, len(self._content) - self._limit)]

    def read(self, pipe: int) -> bool:
        """Add what lies in a pipe that does not block; False at its end. A pipe that is open still, with nothing in
        it, is no end: ssh's shared connection keeps it open."""
        try:
            piece = os.read(pipe, _PIECE)
        except BlockingIOError:
            return True
        self.add(piece)
        return bool(piece)

    def drain(self, pipe: int) -> None:
        """Add what a process that has ended left in its pipe, whoever else holds that open."""
        for _ in range(_LAST_PIECES):
            try:
                piece = os.read(pipe, _PIECE)
            except BlockingIOError:
                return
            if not piece:
                return
            self.add(piece)

    def text(self) -> str:
        return self._content.decode("utf-8", "replace")


def run(
    argv: Sequence[str],
    *,
    deadline_s: float,
    stdin: str = "",
    limit: int = OUTPUT,
    new_session: bool = False,
) -> Output:
    """Run a command to its end. Raises subprocess.TimeoutExpired after `deadline_s` seconds, UnboundedOutputError for
    more than `limit` bytes of standard output, OSError where it cannot start; in each case it is killed, with its
    session where it has one of its own (`new_session`)."""
    child = subprocess.Popen(
        list(argv), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
        start_new_session=new_session,
    )  # fmt: skip
    try:
        return _communicate(child, stdin.encode(), limit, deadline_s)
    finally:
        if child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                if new_session:
                    os.killpg(child.pid, signal.SIGKILL)
                else:
                    child.kill()
            child.wait()
        for stream in (child.stdin, child.stdout, child.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


def _communicate(child: subprocess.Popen[bytes], program: bytes, limit: int, deadline_s: float) -> Output:
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stderr is not None
    started, output, errors = monotonic(), bytearray(), Tail()
    unsent = memoryview(program)
    stdin, stdout, stderr = child.stdin.fileno(), child.stdout.fileno(), child.stderr.fileno()
    with selectors.DefaultSelector() as ready:
        for pipe in (stdin, stdout, stderr):
            os.set_blocking(pipe, False)
            ready.register(pipe, selectors.EVENT_WRITE if pipe == stdin else selectors.EVENT_READ)
        while stdout in ready.get_map():
            remaining_s = started + deadline_s - monotonic()
            if remaining_s <= 0:
                raise subprocess.TimeoutExpired(child.args, deadline_s)
            for key, _ in ready.select(remaining_s):
                if key.fd == stdin:
                    unsent = _write(stdin, unsent)
                    if not unsent:
                        ready.unregister(stdin)
                        child.stdin.close()
                elif key.fd == stderr:
                    if not errors.read(stderr):
                        ready.unregister(stderr)
                elif piece := os.read(stdout, _PIECE):
                    output += piece
                    if len(output) > limit:
                        raise UnboundedOutputError(f"sent more than {limit >> 10} KiB")
                else:
                    ready.unregister(stdout)
    child.stdin.close()
    status = _wait(child, errors, stderr, started + deadline_s, deadline_s)
    return Output(status, output.decode("utf-8", "replace"), errors.text())


def _write(pipe: int, unsent: memoryview) -> memoryview:
    """Write what the pipe takes; the rest, which is empty where the other end is gone: its status says why."""
    try:
        return unsent[os.write(pipe, unsent[:_PIECE]) :]
    except BlockingIOError:
        return unsent
    except BrokenPipeError:
        return unsent[:0]


def _wait(child: subprocess.Popen[bytes], errors: Tail, stderr: int, until: float, deadline_s: float) -> int:
    """The status of a command that has closed its standard output. It may still print errors."""
    while child.poll() is None:
        errors.drain(stderr)
        remaining_s = until - monotonic()
        if remaining_s <= 0:
            raise subprocess.TimeoutExpired(child.args, deadline_s)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(min(remaining_s, _LOOK_S))
    errors.drain(stderr)
    return child.returncode
