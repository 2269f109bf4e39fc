"""Commands in processes that have gpuprov imported already: most of a second of the processor less for each of them.

For tests of what a command shows, asks, calls and does. How it starts, with which streams, encoding and signals, is
held by tests that start `python -m provisioner` (test_exit.py, test_main.py). One process imports gpuprov, does nothing
else, and forks for each command; it ends with the process of the tests.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
IMPORTED = (
    "provisioner.cli.main", "provisioner.cli.gc", "provisioner.cli.lifecycle", "provisioner.cli.quarantine",
    "provisioner.cli.replace", "provisioner.cli.ssh", "provisioner.cli.status", "provisioner.cli.verify",
    "provisioner.lifecycle.down", "provisioner.lifecycle.gc", "provisioner.lifecycle.planning",
    "provisioner.lifecycle.replace.command", "provisioner.lifecycle.status", "provisioner.lifecycle.upgrade.command",
    "provisioner.machines.terraform.binary", "provisioner.sandbox.backends", "provisioner.sandbox.faults",
    "provisioner.transport.process",
)  # fmt: skip
REQUEST = 1 << 20
"""Bytes that a request has at most."""


class Command:
    """`python -m MODULE ARGUMENTS` in a session of its own; a terminal on `stdin` is its own too."""

    def __init__(
        self, module: str, arguments: Sequence[str], *, cwd: Path, env: Mapping[str, str],
        stdin: int, stdout: int, stderr: int,
    ) -> None:  # fmt: skip
        status, theirs = os.pipe()
        request = {"module": module, "arguments": [*arguments], "cwd": str(cwd), "env": {**env}}
        socket.send_fds(_server(), [json.dumps(request).encode()], [stdin, stdout, stderr, theirs])
        os.close(theirs)
        self._status = os.fdopen(status, encoding="ascii")
        self.pid = int(self._status.readline())
        self.returncode: int | None = None
        self._waiting = threading.Thread(target=self._wait, daemon=True)
        self._waiting.start()

    def _wait(self) -> None:
        with self._status:
            self.returncode = os.waitstatus_to_exitcode(int(self._status.readline()))

    def has_ended(self) -> bool:
        self._waiting.join(0)
        return self.returncode is not None

    def wait(self, seconds: float) -> int:
        """The exit status, as subprocess has it. Raises subprocess.TimeoutExpired; the command is killed then."""
        self._waiting.join(seconds)
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            raise subprocess.TimeoutExpired(str(self.pid), seconds)
        return self.returncode


def run(
    module: str, *arguments: object, cwd: Path = ROOT, env: Mapping[str, str] | None = None, timeout: float = 60
) -> subprocess.CompletedProcess[str]:
    """As subprocess.run([sys.executable, "-m", module, …], text=True, capture_output=True), with an empty stdin."""
    argv = [str(argument) for argument in arguments]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, Path(os.devnull).open() as nothing:
        streams = {"stdin": nothing.fileno(), "stdout": out.fileno(), "stderr": err.fileno()}
        status = Command(module, argv, cwd=cwd, env=os.environ if env is None else env, **streams).wait(timeout)
        for stream in (out, err):
            stream.seek(0)
        return subprocess.CompletedProcess([module, *argv], status, out.read().decode(), err.read().decode())


@cache
def _server() -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        subprocess.Popen(
            [sys.executable, "-m", "tests.support.warm", str(theirs.fileno())], cwd=ROOT, pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
    return ours


def serve(requests: socket.socket) -> None:
    """Fork for each request, until nobody can ask any more."""
    for name in IMPORTED:
        importlib.import_module(name)
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel buries those that wait for a command
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, REQUEST, 4)
        if not message:
            return
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            requests.close()
            _attend(json.loads(message), descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _attend(request: dict[str, object], descriptors: Sequence[int]) -> None:
    """Tell the command's process id, and how it ended."""
    *streams, status = descriptors
    os.set_inheritable(status, False)
    child = os.fork()
    if child == 0:
        os.close(status)
        _become(request, streams)
    for descriptor in streams:
        os.close(descriptor)
    os.write(status, f"{child}\n".encode())
    _, ended = os.waitpid(child, 0)
    os.write(status, f"{ended}\n".encode())
    os._exit(0)


def _become(request: dict[str, object], streams: Sequence[int]) -> None:
    """Run the module as a new interpreter would, and end."""
    code: object = 1
    try:
        os.setsid()
        for number, descriptor in enumerate(streams):
            os.dup2(descriptor, number)
        for descriptor in streams:
            os.close(descriptor)
        if os.isatty(0):
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        os.chdir(str(request["cwd"]))
        os.environ.clear()
        os.environ.update(request["env"])  # type: ignore[call-overload]
        time.tzset()
        for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
        sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr  # type: ignore[misc]
        sys.argv = ["", *request["arguments"]]  # type: ignore[misc]
        runpy.run_module(str(request["module"]), run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            atexit._run_exitfuncs()
            sys.stdout.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
