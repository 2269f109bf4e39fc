"""Commands as threads of which one runs at a time, and the faults that strike them.

Everything that a command does to the world goes through `Processes.effect`. That is where another command may get its
turn, where a fault strikes, and where a killed command stops having any effect. Which one gets its turn, and which
effect is struck, is decided by the history alone: the same history gives the same run.
"""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from provisioner.transport import keeper

T = TypeVar("T")

KINDS = (
    "kill", "power", "power after", "interrupt", "interrupt after", "terminate", "terminate after", "full",
    "stays full", "refused", "lost", "late", "delayed", "heartbeat hangs", "heartbeat dies",
)  # fmt: skip
"""kill: SIGKILL; a Terraform that is at work ends the resource in hand and writes its state. power: the computer goes
off, before the effect or after it, Terraform with it. interrupt: Ctrl-C; Terraform ends the resource in hand.
terminate: SIGTERM for all processes of the command, as of a service that is stopped; Terraform, which gpuprov asks a
second time, exits at once and writes nothing. full: the disk has no room for this write, or for none from then on.
refused: the other side says no. lost: it did it, and the answer never came. late: it did it, and the answer comes
minutes later (world.LATE_S). delayed: it does it only then. heartbeat hangs: the requests of the thread that renews
the lease take minutes. heartbeat dies: that thread ends."""
ANYWHERE = KINDS[:7]
ASK_TO_END = ("interrupt", "terminate")
HEARTBEAT = ("heartbeat hangs", "heartbeat dies")
REMOTE = ("cloud", "hook", "store", "node")
APPLIES = {
    "full": ("write",), "stays full": ("write",), "refused": (*REMOTE, "tree", "thread"),
    "lost": ("cloud", "hook", "store"), "late": REMOTE, "delayed": REMOTE,
    **dict.fromkeys(HEARTBEAT, (*REMOTE, "process", "write")),
}  # fmt: skip
"""Fault → the effects that it can strike; those of ANYWHERE strike all."""
PATIENCE = 4
"""While one waits for a late answer, the others have that many turns to each look of its."""
DEADLINE_S = 120.0
"""For a simulated command that hangs: no test waits longer."""


class Killed(BaseException):
    """The process is gone. It unwinds like any exception, so that threads end, but nothing that it does counts."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Strikes the first effect it applies to from number `at` on; with `name` ("cloud create train-0") the `at`-th one
    of that name."""

    at: int
    kind: str
    name: str = ""

    def strikes(self, process: Process, effect: str, name: str) -> bool:
        if self.name:
            return self.name == name and process.named[name] == self.at
        return process.effects >= self.at and (self.kind in ANYWHERE or effect in APPLIES[self.kind])


@dataclass
class Process:
    """One command of one operator. `folder`: its project folder, on a disk of its own; `questions`: what it was asked;
    `output`, `errors`: what it
    printed."""

    command: str
    folder: Path
    faults: list[Fault] = field(default_factory=list)
    account: str = "111111111111"
    name: str = "0" * 32
    """As keeper.NAME has it: 32 hex digits."""
    doing: str = ""
    """The one of `command` that it does now: "one && the next"."""
    effects: int = 0
    dead: bool = False
    full: bool = False
    asked_to_end: bool = False
    """Whether SIGINT or SIGTERM came: it starts no further child."""
    stopping: str = ""
    """"kill" or "interrupt" while its Terraform ends what it has in hand."""
    questions: list[str] = field(default_factory=list)
    output: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    struck: list[str] = field(default_factory=list)
    """The faults that did strike, and where, in words."""
    met: list[Fault] = field(default_factory=list)
    """The same, by name."""
    named: Counter[str] = field(default_factory=Counter)
    """Name of an effect → how often it had it."""
    condemned: set[str] = field(default_factory=set)
    """Ids of machines that its verdicts found bad."""
    connections: set[str] = field(default_factory=set)
    """Names of the folders of ssh sockets that it uses now."""
    code: int | None = None
    locks: list[Any] = field(default_factory=list)
    """Files that it has locked: the kernel releases them when it ends."""
    leases: list[Any] = field(default_factory=list)
    """The hearts of leases whose threads it has started (heartbeat.py)."""
    silent_until: float = 0.0
    """Until when its heartbeat hangs, by the world's clock."""
    lost_lease: Exception | None = None
    lost_at: float = 0.0
    """When it lost its lease, by the world's clock."""
    refused: bool = False
    """Whether it ended with an error message."""
    changes: int = 0
    """How often it changed the world."""
    applied: bool = False
    """Whether it had Terraform change anything."""
    waiting: bool = False
    """Whether an answer is late that it waits for."""
    held: bool = False
    """Whether it begins only when another one waits for a late answer, or has ended."""
    turn: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    ended: bool = False
    error: BaseException | None = None

    def is_stopped(self, time: float) -> bool:
        """Whether its lease was lost by that time."""
        return self.lost_lease is not None and self.lost_at <= time


class Processes:
    """Who runs. `pick` says which of several goes on, by a number below their count."""

    def __init__(
        self, pick: Callable[[int], int] = lambda _: 0, beat: Callable[[Process], None] = lambda _: None
    ) -> None:
        self.pick, self.beat = pick, beat
        self.strike_heartbeat: Callable[[Process, str], None] = lambda _, __: None
        self.wait_for_answer: Callable[[Process], None] = lambda _: None
        self.killed: Callable[[Process], None] = lambda _: None
        """Called when one was killed alone: its computer runs on."""
        self.running: list[Process] = []
        self._local = threading.local()
        self.outside = Process("outside", Path("/"))
        """Who acts where no command runs: the test itself."""

    @property
    def current(self) -> Process:
        return getattr(self._local, "process", self.outside)

    def run(self, commands: Sequence[tuple[Process, Callable[[], int]]]) -> None:
        """Run these commands side by side, to their ends."""
        done, threads = threading.Semaphore(0), []
        self.running = [process for process, _ in commands]

        def body(process: Process, call: Callable[[], int]) -> None:
            self._local.process = process
            self._wait(process)
            try:
                process.code = call()
            except Killed:
                process.code = -9
            except BaseException as error:
                process.error = error
            self._local.process = self.outside
            for lock in process.locks:
                lock.release(force=True)
            try:
                if process.dead:
                    self._restore(process)
            except OSError as error:
                process.error = error
            process.ended = True
            unfinished = [process for process in self.running if not process.ended]
            for other in unfinished:
                other.held = False
            (
                unfinished[self.pick(len(unfinished)) if len(unfinished) > 1 else 0].turn if unfinished else done
            ).release()

        for process, call in commands:
            threads.append(threading.Thread(target=body, args=(process, call), daemon=True))
            threads[-1].start()
        first = [process for process in self.running if not process.held]
        first[self.pick(len(first)) if len(first) > 1 else 0].turn.release()
        if not done.acquire(timeout=DEADLINE_S):
            raise AssertionError(f"a command hangs: {[p.command for p in self.running if not p.ended]}")
        for thread in threads:
            thread.join()
        self.running = []
        os.environ.pop(keeper.NAME, None)
        for process, _ in commands:
            if process.error is not None:
                raise process.error

    def others(self) -> list[Process]:
        return [
            process
            for process in self.running
            if process is not self.current and not process.ended and not process.held
        ]

    def switch(self, *, away: bool = False) -> None:
        """Perhaps another command goes on; with `away` one does, if there is any."""
        own_process, other_processes = self.current, self.others()
        if own_process.dead or not other_processes:
            return
        turns = PATIENCE if any(other.waiting for other in other_processes) else 1
        number = self.pick(len(other_processes) + turns * (not away))
        if number < len(other_processes):
            other_processes[number].turn.release()
            self._wait(own_process)

    @staticmethod
    def _wait(process: Process) -> None:
        """Wait for this one's turn. The environment is its own then."""
        process.turn.acquire()
        os.environ[keeper.NAME] = process.name

    def effect(
        self, kind: str, name: str, action: Callable[[], T], *, refusal: Callable[[], BaseException] | None = None,
        lost: Callable[[], BaseException] | None = None, finishes: bool = False,
    ) -> T:  # fmt: skip
        """Do it, unless a fault strikes. `refusal`, `lost`: what the command sees of those. `finishes`: a child that
        may end what it has in hand does it, and looks at `stopping` afterwards."""
        process = self.current
        if process.dead:
            raise Killed
        if process is self.outside:
            return action()
        self.beat(process)
        self.switch()
        process.effects += 1
        process.named[f"{kind} {name}"] += 1
        fault = next(
            (candidate for candidate in process.faults if candidate.strikes(process, kind, f"{kind} {name}")), None
        )
        if fault is None and process.full and kind == "write":
            raise OSError(errno.ENOSPC, "No space left on device")
        if fault is None or process.stopping:
            return action()
        can = {"refused": refusal is not None, "lost": lost is not None}
        if not can.get(fault.kind, True):
            return action()
        process.faults.remove(fault)
        process.struck.append(f"{fault.kind} at {kind} {name}")
        process.met.append(Fault(process.named[f"{kind} {name}"], fault.kind, f"{kind} {name}"))
        if fault.kind in ("full", "stays full"):
            process.full = fault.kind == "stays full"
            raise OSError(errno.ENOSPC, "No space left on device")
        if fault.kind in HEARTBEAT:
            self.strike_heartbeat(process, fault.kind)
            return action()
        if fault.kind == "delayed":
            self.wait_for_answer(process)
            return action()
        if fault.kind == "refused":
            assert refusal is not None
            raise refusal()
        if finishes and fault.kind in ("kill", "interrupt", "interrupt after"):
            process.stopping = fault.kind.partition(" ")[0]
            return action()
        if fault.kind in ("kill", "power", *ASK_TO_END):
            self._strike(process, fault.kind)
        result = action()
        if fault.kind == "late":
            self.wait_for_answer(process)
            return result
        if fault.kind == "lost":
            assert lost is not None
            raise lost()
        self._strike(process, fault.kind)
        return result

    def _strike(self, process: Process, kind: str) -> None:
        if kind.startswith(ASK_TO_END):
            process.asked_to_end = True
            raise KeyboardInterrupt
        self.kill(process)
        if kind == "kill":
            self.killed(process)
        raise Killed

    def stopped(self, process: Process) -> None:
        """To be called when a child that may finish has ended: what struck its command meanwhile strikes now."""
        if kind := process.stopping:
            process.stopping = ""
            self._strike(process, kind)
        if process.lost_lease is not None:
            raise process.lost_lease

    def kill(self, process: Process) -> None:
        """SIGKILL: from here on nothing counts that it does, on disk neither."""
        self._local.process = self.outside
        backup = process.folder.parent / f".{process.folder.name}.kept"
        shutil.rmtree(backup, ignore_errors=True)
        shutil.copytree(process.folder, backup, symlinks=True)
        self._local.process, process.dead = process, True

    @staticmethod
    def _restore(process: Process) -> None:
        """Put the disk back as it was at the moment of the kill. Files that are as they were keep their inodes: others
        may hold locks on them."""
        backup = process.folder.parent / f".{process.folder.name}.kept"
        for path in sorted(process.folder.rglob("*"), reverse=True):
            if not (backup / path.relative_to(process.folder)).exists():
                path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        for path in sorted(backup.rglob("*")):
            target = process.folder / path.relative_to(backup)
            if path.is_symlink():
                continue
            if path.is_dir():
                target.mkdir(mode=0o700, exist_ok=True)
            elif not target.exists() or target.read_bytes() != path.read_bytes():
                target.write_bytes(path.read_bytes())
                target.chmod(path.stat().st_mode)
        shutil.rmtree(backup)


class Inline:
    """In place of ThreadPoolExecutor: what is submitted is done at once, in the order in which it comes."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __enter__(self) -> Inline:
        return self

    def __exit__(self, *_: object) -> None: ...

    def submit(self, call: Callable[..., T], *arguments: Any, **keywords: Any) -> Any:
        from concurrent.futures import Future

        future: Future[T] = Future()
        try:
            future.set_result(call(*arguments, **keywords))
        except Exception as error:
            future.set_exception(error)
        return future

    def map(self, call: Callable[..., T], *rows: Sequence[Any]) -> list[T]:
        return [call(*row) for row in zip(*rows, strict=False)]

    def shutdown(self, **_: Any) -> None: ...
