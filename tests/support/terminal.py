"""A command at a pseudo-terminal, and the screen as a person has it before their eyes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import signal
import struct
import sys
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType

import pexpect
import pyte
from pexpect.fdpexpect import fdspawn

from tests.support import warm
from tests.support.sandbox_cluster import DEADLINE_S, ROOT, SandboxCluster

PATIENCE_S = 60.0
"""Nothing that a test waits for takes so long; a sandbox test says its own."""
CTRL_C, CTRL_D = "\x03", "\x04"
HISTORY = 5_000
"""Lines that scrolled off the screen and are kept."""


def _hears_all() -> None:
    """As a shell at a terminal starts it; under nohup(1), or behind `&`, these would be ignored."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


class _Spawned(pexpect.spawn):  # type: ignore[misc]
    """A command that is started anew."""

    def __init__(self, command: Sequence[str], cwd: Path, env: Mapping[str, str], size: tuple[int, int]) -> None:
        super().__init__(
            command[0], [*command[1:]], cwd=str(cwd), dimensions=size, timeout=PATIENCE_S, env=env,
            preexec_fn=_hears_all,
        )  # fmt: skip

    def kill(self) -> None:  # type: ignore[override]
        if not self.closed:
            self.close(force=True)

    def exit_status(self) -> int:
        """How the command ended, of a signal as a shell tells it."""
        self.close()
        return int(self.exitstatus if self.exitstatus is not None else 128 + self.signalstatus)

    def hang_up(self) -> None:
        self.ptyproc.fileobj.close()
        self.ptyproc.closed = self.closed = True

    def has_ended(self) -> bool:
        with contextlib.suppress(ChildProcessError):
            return bool(os.waitpid(self.pid, os.WNOHANG)[0])
        return False


class _Imported(fdspawn):  # type: ignore[misc]
    """A command in a process that has gpuprov imported."""

    def __init__(self, command: Sequence[str], cwd: Path, env: Mapping[str, str], size: tuple[int, int]) -> None:
        ours, theirs = pty.openpty()
        fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
        python, option, module, *arguments = command
        assert (python, option) == (sys.executable, "-m")
        streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
        self.started = warm.Command(module, arguments, cwd=cwd, env=env, **streams)
        os.close(theirs)
        super().__init__(ours, timeout=PATIENCE_S)
        self.pid = self.started.pid

    def setwinsize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.child_fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def kill(self) -> None:
        if not self.started.has_ended():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self.started.wait(PATIENCE_S)
        if not self.closed:
            self.close()

    def exit_status(self) -> int:
        self.close()
        number = self.started.wait(PATIENCE_S)
        return number if number >= 0 else 128 - number

    def hang_up(self) -> None:
        self.close()

    def has_ended(self) -> bool:
        return self.started.has_ended()


class Terminal:
    """`with Terminal(argv, columns=80) as terminal:` runs a command; what it writes goes to a VT102 of that size.

    `env` adds variables, None takes one away. `imported`: the command is `python -m MODULE …`, in a process that has
    gpuprov imported already (tests/support/warm.py).
    """

    def __init__(
        self,
        argv: Sequence[object],
        *,
        cwd: Path = ROOT,
        columns: int = 100,
        lines: int = 30,
        env: Mapping[str, str | None] | None = None,
        imported: bool = False,
    ) -> None:
        changed = {"TERM": "xterm-256color", "PYTHONPATH": str(ROOT), "LC_ALL": "C.UTF-8", "NO_COLOR": None}
        changed |= dict(env or {})
        clean = {k: v for k, v in os.environ.items() if k not in (*changed, "COLUMNS", "LINES")}
        self.pyte_screen = pyte.HistoryScreen(columns, lines, history=HISTORY, ratio=1)
        self._stream = pyte.ByteStream(self.pyte_screen)
        command = [str(argument) for argument in argv]
        clean |= {k: v for k, v in changed.items() if v is not None}
        self._child = (_Imported if imported else _Spawned)(command, cwd, clean, (lines, columns))
        self._child.delaybeforesend = None
        self.raw = b""
        """Everything that was written, for an assertion about bytes."""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            print(self.text, file=sys.stderr)
        self._child.kill()

    @property
    def pid(self) -> int:
        return int(self._child.pid)

    def read(self, seconds: float = 0.05) -> bool:
        """Take in what has been written by now; False where the command has ended."""
        try:
            data = self._child.read_nonblocking(65_536, seconds)
        except pexpect.TIMEOUT:
            return True
        except pexpect.EOF:
            return False
        self.raw += data
        self._stream.feed(data)
        return True

    def wait_for(self, *texts: str, seconds: float = PATIENCE_S) -> str:
        """Read until all of these stand on the screen at once; gives the screen. AssertionError where they do not."""
        return self.wait_until(lambda screen: all(text in screen for text in texts), f"{texts}", seconds)

    def wait_until(self, holds: Callable[[str], bool], description: str, seconds: float = PATIENCE_S) -> str:
        """Read until the screen is as it has to be, which it is not while a frame is half drawn; gives the screen.
        AssertionError with `description` where it never is."""
        deadline = time.monotonic() + seconds
        running = True
        while not holds(self.screen):
            if not running or time.monotonic() > deadline:
                raise AssertionError(f"{description} not on the screen:\n{self.text}")
            running = self.read()
        return self.screen

    def end(self, seconds: float = PATIENCE_S) -> int:
        """Read to the end; the exit status, of a signal as a shell tells it."""
        deadline = time.monotonic() + seconds
        while self.read():
            if time.monotonic() > deadline:
                raise AssertionError(f"still running:\n{self.text}")
        return self._child.exit_status()

    def type(self, keys: str) -> None:
        self._child.send(keys)

    def resize(self, columns: int, lines: int) -> None:
        """The window is made larger or smaller: the kernel tells the command, and the screen is cut as xterm does."""
        self.pyte_screen.resize(lines, columns)
        self._child.setwinsize(lines, columns)

    def hang_up(self) -> None:
        """Close the window: the command's terminal is gone, and the kernel sends it SIGHUP."""
        self._child.hang_up()

    def gone(self, seconds: float = PATIENCE_S) -> bool:
        """Whether the command ends by itself, after `hang_up`."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self._child.has_ended():
                return True
            time.sleep(0.05)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        return False

    @property
    def screen(self) -> str:
        """What is on the screen now, without the empty lines at its end."""
        return "\n".join(line.rstrip() for line in self.pyte_screen.display).rstrip()

    @property
    def text(self) -> str:
        """What has scrolled off the screen, and the screen."""
        above = ["".join(line[x].data for x in range(self.pyte_screen.columns)).rstrip() for line in self._scrolled()]
        return "\n".join([*above, self.screen])

    def _scrolled(self) -> Iterator[dict[int, pyte.screens.Char]]:
        yield from self.pyte_screen.history.top


def answered(
    sandbox_cluster: SandboxCluster, *arguments: object, question: str, answer: str = "y", lines: int = 40
) -> tuple[int, str]:
    """A command that asks, typed by a person: its exit status, and all that was on the screen."""
    argv = [*sandbox_cluster.gpuprov, *arguments]
    with Terminal(argv, cwd=sandbox_cluster.file.parent, columns=240, lines=lines) as terminal:
        terminal.wait_for(question, "[y/N]:", seconds=DEADLINE_S)
        terminal.type(f"{answer}\r")
        status = terminal.end(DEADLINE_S)
        assert "internal error" not in terminal.text, terminal.text
        return status, terminal.text


def gpuprov(*arguments: object) -> list[object]:
    """The command line of this checkout."""
    return [sys.executable, "-m", "provisioner", *arguments]
