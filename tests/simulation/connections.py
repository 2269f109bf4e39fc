"""The ssh connections that a command shares among its own processes, and the keeper that ends them with it.

Real are provisioner/transport/keeper.py's `main` and `remove_shared`; simulated are processes and sockets.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from provisioner.transport import keeper, ssh_sockets
from tests.simulation.processes import Process, Processes

Reach = Callable[[str, Sequence[str]], str]
"""Node and ssh's command → why the node could not be reached; empty where it was."""
SSH_FAILED = 255
"""ssh(1), EXIT STATUS: an error occurred."""


class Connections:
    """Of all commands of a world. A command's folder of sockets has the first digits of the command's name."""

    def __init__(self, processes: Processes) -> None:
        self.processes = processes
        processes.killed = self.end_killed

    def config(self, run: Path) -> Path:
        """ssh's configuration for the current command: it is beside the command's sockets."""
        return run / self.processes.current.name[:8] / "config"

    def use(self, config: Path) -> None:
        """The current command opens a connection, or uses one that it has."""
        self.processes.current.connections.add(config.parent.name)

    def is_open(self, config: Path) -> bool:
        return config.parent.name in self.processes.current.connections

    def close_shared(self, folder: str) -> None:
        """In place of keeper.close_shared: the connections of one command; those of all where it is not its folder."""
        name = Path(folder).name
        for process in self.processes.running:
            if ssh_sockets.RUN_NAME.fullmatch(name):
                process.connections.discard(name)
            else:
                process.connections.clear()

    def end_killed(self, process: Process) -> None:
        """The keeper of a command that was killed: it has been told of the command's sockets."""
        keeper_input = "".join(f"{keeper.SOCKETS}{process.folder / name}\n" for name in sorted(process.connections))
        handlers = SimpleNamespace(signal=lambda *_: None, SIGINT=0, SIGTERM=0, SIGHUP=0, SIG_IGN=0)
        with (
            mock.patch.object(sys, "stdin", io.StringIO(keeper_input)),
            mock.patch.object(sys, "argv", ["keeper", process.name]),
            mock.patch.object(keeper, "signal", handlers),
        ):
            keeper.main()


def sessions(reach: Reach) -> Any:
    """In place of the module subprocess in lifecycle/remote_exec.py: each command is one of ssh."""

    class Session:
        pid = 0

        def __class_getitem__(cls, _: Any) -> Any:
            return list[Any]

        def __init__(self, argv: Sequence[str], **_: Any) -> None:
            self.argv, self.returncode = argv, 0
            self._pipe: io.FileIO | None = None

        @property
        def stdout(self) -> io.FileIO:
            """A real pipe with what ssh prints, at its end. Not cached_property: another command may have its turn in
            it, and Python 3.11 has one lock for all instances of the class."""
            self._pipe = self._pipe or self._run()
            return self._pipe

        def _run(self) -> io.FileIO:
            error = reach(self.argv[self.argv.index("-F") + 2], self.argv)
            self.returncode = SSH_FAILED if error else 0
            reader, writer = os.pipe()
            with os.fdopen(writer, "wb") as stream:
                stream.write(error.encode())
            return io.FileIO(reader)

        def wait(self, timeout: float) -> int:
            del timeout
            return self.returncode

        def poll(self) -> int:
            return self.returncode

    return SimpleNamespace(
        Popen=Session, PIPE=subprocess.PIPE, STDOUT=subprocess.STDOUT, DEVNULL=subprocess.DEVNULL,
        TimeoutExpired=subprocess.TimeoutExpired,
    )  # fmt: skip
