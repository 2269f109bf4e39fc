"""Standard input, output and error as gpuprov finds them: closed, full, or with nobody at the other end.

A command does its work and exits with its own code whether or not anybody reads what it says: `verify | head` is still
a verdict. Only a full disk under standard output is told, because an answer is missing then that somebody wants.
"""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

STANDARD = (0, 1, 2)


class _Heard(io.FileIO):
    """A stream whose reader may go away: what is written after that goes nowhere."""

    def __init__(self, descriptor: int, *, title: str) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self._title = title

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            _to_nowhere(self.fileno())
        except OSError as error:
            _to_nowhere(self.fileno())  # told once: what is buffered is tried again at the end
            if self._title:
                raise OSError(error.errno, error.strerror, self._title) from None
        return memoryview(data).nbytes


def guard() -> None:
    """Make the three streams ones that can be written to; to be called once, before anything is said."""
    _open_missing()
    if os.environ.get("COLUMNS", "1").strip("0 ") == "":
        del os.environ["COLUMNS"]  # a terminal without columns: nothing would be shown in it
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: PTH123, SIM115 - lives as long as the process
    sys.stdout = _guarded(sys.stdout, sys.__stdout__, 1, title="standard output")
    sys.stderr = _guarded(sys.stderr, sys.__stderr__, 2, title="")  # nobody is left to tell


def _open_missing() -> None:
    """A descriptor that is closed (`gpuprov catalog >&-`) would be the first file's that is opened."""
    for descriptor in STANDARD:
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest that is free: this one


def _guarded(stream: TextIO | None, original: TextIO | None, descriptor: int, *, title: str) -> TextIO:
    """The stream with another bottom; one that somebody has put in its place (a test) stays as it is."""
    if stream is not None and stream is not original:
        return stream
    if stream is not None:
        stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(_Heard(descriptor, title=title)),
        encoding=stream.encoding if stream is not None else "utf-8",
        errors="backslashreplace",  # a file name may be no text at all
        line_buffering=descriptor == 2 or (stream is not None and stream.isatty()),
    )


def close(code: int) -> int:
    """What is still buffered is written. Returns the exit code: the command's own, but for an answer that was asked
    for and could not be written."""
    try:
        sys.stdout.flush()
    except OSError as error:
        print(f"gpuprov: {error.filename or 'standard output'}: {error.strerror}", file=sys.stderr)
        return code or 2
    return code


def _to_nowhere(descriptor: int) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
