"""Child processes end with gpuprov, whatever ends gpuprov."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from provisioner.common.errors import LockedError
from provisioner.transport import keeper, process

CHILD = """
import pathlib, signal, sys, time
def told(number, frame):
    pathlib.Path(sys.argv[1]).write_text(signal.Signals(number).name)
    sys.exit(0)
signal.signal(signal.SIGINT, told)
signal.signal(signal.SIGTERM, told)
print("ready", flush=True)
time.sleep(120)
"""
PARENT = """
import pathlib, signal, sys, time
from provisioner.transport import process
child = process.start([sys.executable, "-c", sys.argv[1], sys.argv[2]], cwd=pathlib.Path.cwd(), sign=int(sys.argv[3]))
print(child.stdout.readline().strip(), child.pid, flush=True)
time.sleep(120)
"""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def until(true: object, seconds: float = 30) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if true():  # type: ignore[operator]
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_a_child_is_told_when_its_parent_is_killed(sign: signal.Signals, tmp_path: Path) -> None:
    note = tmp_path / "told"
    argv = [sys.executable, "-c", PARENT, CHILD, str(note), str(int(sign))]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        ready, pid = parent.stdout.readline().split()
        assert ready == "ready"
        parent.kill()
    assert until(lambda: not alive(int(pid)))
    assert note.read_text() == sign.name


def test_a_child_has_a_group_of_its_own_and_nothing_to_read(tmp_path: Path) -> None:
    text = "import os, sys; print(os.getpgid(0) == os.getpid(), sys.stdin.read() == '', os.getcwd())"
    child = process.start([sys.executable, "-c", text], cwd=tmp_path)
    assert child.communicate(timeout=30)[0].split() == ["True", "True", str(tmp_path)]


def test_output_that_is_no_text_is_read_all_the_same(tmp_path: Path) -> None:
    child = process.start([sys.executable, "-c", r"import os; os.write(1, b'\xff\n')"], cwd=tmp_path)
    assert child.communicate(timeout=30)[0] == "\ufffd\n"


def test_the_environment_is_the_given_one(tmp_path: Path) -> None:
    child = process.start(["/usr/bin/env"], cwd=tmp_path, env={"ONLY": "this"})
    assert child.communicate(timeout=30)[0] == "ONLY=this\n"


def test_stop_asks_first(tmp_path: Path) -> None:
    note = tmp_path / "told"
    child = process.start([sys.executable, "-c", CHILD, str(note)], cwd=tmp_path)
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    process.stop(child, grace_s=30)
    assert child.returncode == 0
    assert note.read_text() == "SIGINT"
    child.communicate()


def test_stop_ends_a_deaf_child_and_its_children(tmp_path: Path) -> None:
    deaf = "trap '' INT; sleep 120 & echo $!; wait; wait"
    child = process.start(["sh", "-c", deaf], cwd=tmp_path)
    assert child.stdout is not None
    grandchild = int(child.stdout.readline())
    process.stop(child, grace_s=0.2)
    assert child.returncode == -signal.SIGKILL
    assert until(lambda: not alive(grandchild))
    child.communicate()


@pytest.mark.parametrize("deaf", [1, 99], ids=["to the first", "to all"])
def test_a_second_ctrl_c_asks_once_more_and_then_ends_it(deaf: int, tmp_path: Path) -> None:
    """In a process of its own, so that real signals come to a main thread."""
    child = f"""
import os, signal, sys, time
heard = []
def hear(*_):
    heard.append(1)
    print("heard", len(heard), flush=True)
    if len(heard) > {deaf}: sys.exit(7)
signal.signal(signal.SIGINT, hear)
print("ready", os.getpid(), flush=True)
while True: time.sleep(0.05)
"""
    parent = f"""
import os, signal, sys, threading
from pathlib import Path
from provisioner.transport import process
process.AGAIN_S = 0.5
signal.signal(signal.SIGINT, process.interrupt)
def read(line):
    print(line, end="", flush=True)
    if "ready" in line: os.kill(os.getpid(), signal.SIGINT)
def stopping():
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    process.follow([sys.executable, "-c", {child!r}], read, cwd=Path({str(tmp_path)!r}), grace_s=60, stopping=stopping)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
    argv = [sys.executable, "-c", parent]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    assert done.stdout.splitlines()[-1] == "interrupted", (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    assert not alive(int(done.stdout.split()[1]))


def test_stopping_what_has_ended_is_nothing(tmp_path: Path) -> None:
    child = process.start(["true"], cwd=tmp_path)
    child.communicate(timeout=30)
    process.stop(child, grace_s=0.2)
    assert child.returncode == 0
    with pytest.raises(ProcessLookupError):
        os.kill(child.pid, 0)


def test_an_interrupt_that_python_dropped_while_it_forked_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it forks nothing is raised, because Python would drop it; right after, the request is obeyed."""
    requested = threading.Event()
    monkeypatch.setattr(process, "_end_requested", requested)
    real, started = subprocess.Popen, []

    def forks(*arguments: Any, **options: Any) -> Any:
        started.append(real(*arguments, **options))
        process.interrupt()
        return started[0]

    monkeypatch.setattr(process.subprocess, "Popen", forks)
    with pytest.raises(KeyboardInterrupt):
        process.start(["sleep", "60"], cwd=tmp_path)
    assert started[0].poll() is not None


ASKED = """
import pathlib, signal, sys
def asked(number, frame):
    with open(sys.argv[1], "a") as note:
        note.write(signal.Signals(number).name + "\\n")
    sys.exit(0)
signal.signal(signal.SIGINT, asked)
print("ready", flush=True)
while True: signal.pause()
"""


class Following(threading.Thread):
    """A thread that follows a child; `ready` once that has begun."""

    def __init__(self, folder: Path, *argv: str, stopping: Any = lambda: None, grace_s: float = 30) -> None:
        super().__init__(daemon=True)
        self.ready, self.raised = threading.Event(), list[BaseException]()
        self.follow = lambda: process.follow(
            argv, lambda _: self.ready.set(), cwd=folder, grace_s=grace_s, stopping=stopping
        )
        self.start()
        assert self.ready.wait(30)

    def run(self) -> None:
        try:
            self.follow()
        except BaseException as error:
            self.raised.append(error)


def full() -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_report_that_fails_keeps_no_child_from_being_stopped(tmp_path: Path) -> None:
    """The events file on a full disk: Terraform would go on alone."""
    pids = list[int]()

    def read(line: str) -> None:
        pids.append(int(line))
        raise ValueError("the log cannot be written")

    with pytest.raises(ValueError, match="cannot be written"):
        process.follow(["sh", "-c", "echo $$; exec sleep 120"], read, cwd=tmp_path, grace_s=30, stopping=full)
    assert not alive(pids[0])


def test_a_report_that_fails_keeps_ctrl_c_from_no_child_of_another_thread(tmp_path: Path) -> None:
    notes = [tmp_path / "a", tmp_path / "b"]
    ready = threading.Semaphore(0)

    def follow(note: Path) -> process.Ended:
        argv = [sys.executable, "-c", ASKED, str(note)]
        return process.follow(argv, lambda _: ready.release(), cwd=tmp_path, grace_s=30, stopping=full)

    def interrupt() -> None:
        for _ in notes:
            ready.acquire(timeout=30)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        process.side_by_side([lambda: follow(notes[0]), lambda: follow(notes[1])], grace_s=30)
    assert [note.read_text() for note in notes] == ["SIGINT\n", "SIGINT\n"]


def test_children_of_all_threads_are_asked_once_to_stop_and_their_followers_raise_the_error(tmp_path: Path) -> None:
    error, reported = LockedError("the lease is lost"), list[str]()
    notes = [tmp_path / "a", tmp_path / "b"]
    threads = [
        Following(tmp_path, sys.executable, "-c", ASKED, str(note), stopping=lambda: reported.append("stopping"))
        for note in notes
    ]
    process.stop_followed(error)
    try:
        for thread in threads:
            thread.join(30)
        assert [thread.raised for thread in threads] == [[error], [error]]
        assert [note.read_text() for note in notes] == ["SIGINT\n", "SIGINT\n"]
        assert reported == ["stopping", "stopping"]
        with pytest.raises(LockedError, match="the lease is lost"):
            process.follow(["touch", str(tmp_path / "begun")], print, cwd=tmp_path, grace_s=1, stopping=full)
        assert not (tmp_path / "begun").exists()
    finally:
        process.allow_followed(error)
    assert process.follow(["true"], print, cwd=tmp_path, grace_s=1, stopping=full).status == 0


def test_a_deaf_child_is_killed_after_its_grace_when_all_are_stopped(tmp_path: Path) -> None:
    error = LockedError("the lease is lost")
    thread = Following(tmp_path, "sh", "-c", "trap '' INT; echo ready; while :; do sleep 1; done", grace_s=0.2)
    process.stop_followed(error)
    try:
        thread.join(60)
        assert thread.raised == [error]
    finally:
        process.allow_followed(error)


def test_a_child_that_starts_while_all_are_stopped_is_stopped_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at the beginning of `follow` and the moment when the child is known."""
    error, real = LockedError("the lease is lost"), process.start

    def start(*arguments: Any, **options: Any) -> Any:
        child = real(*arguments, **options)
        process.stop_followed(error)
        return child

    monkeypatch.setattr(process, "start", start)
    try:
        with pytest.raises(LockedError, match="the lease is lost"):
            process.follow(["sleep", "120"], print, cwd=tmp_path, grace_s=30, stopping=full)
    finally:
        process.allow_followed(error)


DEEP = """
import os, pathlib, signal, sys, time
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        pathlib.Path(sys.argv[1] + str(os.getpid())).touch()
time.sleep(120)
"""
RUN = """
import os, pathlib, subprocess, sys, time
from provisioner.transport import process
folder, deep, writes, how = sys.argv[1:]
process.keep()
env = {**os.environ, "GPUPROV_MAY_FINISH": "60"}
process.shares(pathlib.Path(folder) / "sockets")
title = f"ssh: {folder}sockets/0123 [mux]"
subprocess.Popen([title, "120"], executable="/usr/bin/sleep", env={}, start_new_session=True, stdout=subprocess.DEVNULL)
gentle = process.start(["sh", "-c", writes, folder], cwd=pathlib.Path.cwd(), env=env)
child = subprocess.Popen([sys.executable, "-c", deep, folder], start_new_session=True, stdout=subprocess.DEVNULL)
print(child.pid, gentle.pid, flush=True)
if how == "killed":
    time.sleep(120)
"""
WRITES = """trap 'sleep 0.3; touch "$0told"; exit 0' INT; while :; do sleep 0.05; done"""


def members(folder: Path) -> list[int]:
    """Processes whose arguments name this folder."""
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
            pids += [int(entry.name)] if str(folder) in line else []
    return pids


def begun(folder: Path, how: str) -> tuple[subprocess.Popen[str], int, int]:
    """A run with a child that is deaf and has a daemon, and one that writes its state down when it is asked to stop."""
    argv = [sys.executable, "-c", RUN, f"{folder}/", DEEP, WRITES, how]
    parent = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child, gentle = map(int, parent.stdout.readline().split())
    assert until(lambda: len(list(folder.iterdir())) == 1)
    return parent, child, gentle


def test_a_killed_run_leaves_no_process_however_deep(tmp_path: Path) -> None:
    """Deaf children and daemons are killed; what may finish is asked, and waited for."""
    parent, child, gentle = begun(tmp_path, "killed")
    assert len(members(tmp_path)) >= 5
    parent.kill()
    parent.communicate()
    assert until(lambda: not alive(child))
    assert until(lambda: members(tmp_path) == []), members(tmp_path)
    assert (tmp_path / "told").exists()
    assert until(lambda: not alive(gentle))  # one that ends has no environment before it is gone


def test_what_a_run_left_that_ended_by_itself_lives_on(tmp_path: Path) -> None:
    parent, child, gentle = begun(tmp_path, "ends")
    parent.communicate(timeout=60)
    try:
        assert parent.returncode == 0
        time.sleep(0.2)
        assert alive(child)
    finally:
        for pid in (*members(tmp_path), gentle):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_the_next_run_ends_what_is_left_where_the_keeper_was_killed_too(tmp_path: Path) -> None:
    parent, _, gentle = begun(tmp_path, "killed")
    run = keeper._environment(gentle)[keeper.NAME]
    scratch = [Path(tempfile.mkdtemp(prefix=f"gpuprov-judge-{name}-")) for name in (run, "another")]
    for pid in members(Path(run)):
        os.kill(pid, signal.SIGKILL)
    parent.kill()
    parent.communicate()
    assert until((tmp_path / "told").exists)
    assert keeper.end(run) >= 3
    keeper.close_shared(f"{tmp_path}/sockets")
    assert until(lambda: members(tmp_path) == [])
    assert [folder.exists() for folder in scratch] == [False, True]
    scratch[1].rmdir()


def test_a_run_keeps_its_name_where_the_environment_lost_it() -> None:
    run = process.keep()
    del os.environ[keeper.NAME]
    assert process.keep() == run == os.environ[keeper.NAME]


def test_a_process_of_another_run_is_not_touched(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"], env={**os.environ, keeper.NAME: "b" * 32}) as other:
        assert keeper.end("a" * 32) == 0
        assert other.poll() is None
        assert keeper.end("b" * 32) == 1
        assert other.wait(10) == -signal.SIGKILL


HOOK = "trap '' INT; sleep 300 & echo ready; sleep 300"
"""Ignores Ctrl-C, and leaves a process in the background."""


def started(count: int) -> list[subprocess.Popen[str]]:
    children = [process.start(["sh", "-c", HOOK], cwd=Path("/")) for _ in range(count)]
    assert all(child.stdout is not None and child.stdout.readline() == "ready\n" for child in children)
    return children


def groups_alive(children: list[subprocess.Popen[str]]) -> list[int]:
    """Groups that still have a process which is no zombie. One that SIGKILL was sent to may have its turn first."""
    until = time.monotonic() + 60
    while (alive := _groups_alive({child.pid for child in children})) and time.monotonic() < until:
        time.sleep(0.05)
    return alive


def _groups_alive(groups: set[int]) -> list[int]:
    alive = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, group = stat.read_text().rpartition(")")[2].split()[:3]
            if state != "Z" and int(group) in groups:
                alive.append(int(group))
    return alive


def test_children_are_stopped_side_by_side_with_what_they_left_in_the_background() -> None:
    children = started(5)
    process.stop_all(children, grace_s=0.5)
    assert all(child.returncode == -signal.SIGKILL for child in children)
    assert groups_alive(children) == []


def test_ctrl_c_twice_leaves_no_child_of_several(monkeypatch: pytest.MonkeyPatch) -> None:
    children, interrupts = started(3), iter([True, True])
    real = subprocess.Popen.wait

    def wait(child: subprocess.Popen[str], timeout: float | None = None) -> int:
        if next(interrupts, False):
            raise KeyboardInterrupt
        return real(child, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", wait)
    with pytest.raises(KeyboardInterrupt):
        process.stop_all(children, grace_s=60.0)
    assert groups_alive(children) == []
