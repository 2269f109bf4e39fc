"""Child processes end with gpuprov, whatever ends gpuprov."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from provisioner import process

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
from provisioner import process
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
    asked = threading.Event()
    monkeypatch.setattr(process, "_asked", asked)
    real, started = subprocess.Popen, []

    def forks(*arguments: Any, **options: Any) -> Any:
        started.append(real(*arguments, **options))
        process.interrupt()
        return started[0]

    monkeypatch.setattr(process.subprocess, "Popen", forks)
    with pytest.raises(KeyboardInterrupt):
        process.start(["sleep", "60"], cwd=tmp_path)
    assert started[0].poll() is not None
