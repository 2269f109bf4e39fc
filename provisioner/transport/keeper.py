"""Ends what a dead run of gpuprov has left: a process beside the run, and a function for the next run.

Whatever a run starts, however deep, and whoever adopts it (Ansible's forks, ssh's shared connections, the processes
that judge), has the run's name in its environment. When the run is gone without a word, all of them are killed at once;
what may finish (Terraform, which writes down what it has just made) was asked to stop by the kernel and is waited for.

Run as a program it knows nothing but the standard library, so that it is there in milliseconds.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import time

NAME = "GPUPROV_PROCESS_OF"
"""Environment variable: the run that a process belongs to."""
MAY_FINISH = "GPUPROV_MAY_FINISH"
"""Environment variable: seconds that the leader of this process's session may take to end, once the run is gone."""
ENDED = "ended"
"""What a run says on the keeper's standard input before it ends by itself, a line of its own."""
SOCKETS = "sockets "
"""What it says before: the folder of its own shared connections' sockets. ssh writes their names over the environment
of the processes that hold them open, so that these are not found by it. No other run uses the folder."""
NAMED = re.compile(r"[0-9a-f]{32}")
"""A run's name. It is read from a file, and directories are removed by it."""
FINISH_S = 60.0
"""What a process may be given to finish, at most, whatever its environment says."""
DEADLINE_S = 5.0
"""For processes that were killed to be gone: one that is stuck in the kernel stays."""


def scratch(purpose: str) -> str:
    """The prefix of a temporary directory that goes with its run, however that ends."""
    return f"gpuprov-{purpose}-{os.environ.get(NAME, 'none')}-"


def end(run: str) -> int:
    """End every process of a run that is dead, and remove its temporary directories; gives how many processes there
    were. Those of other users are not seen."""
    import shutil
    import tempfile

    if not NAMED.fullmatch(run):
        return 0
    count = _end(run)
    with os.scandir(tempfile.gettempdir()) as entries:
        temporary_dirs = [e.path for e in entries if e.name.startswith("gpuprov-") and f"-{run}-" in e.name]
    for path in temporary_dirs:
        shutil.rmtree(path, ignore_errors=True)
    return count


def _end(run: str) -> int:
    sessions_seen: set[int] = set()
    begun, killed = time.monotonic(), 0.0
    while True:
        at, members = time.monotonic(), _members(run)
        sessions_seen |= set(members)
        if not members or (killed and at > killed + DEADLINE_S):
            return len(sessions_seen)
        finishing = {session for session, seconds in members.values() if at < begun + seconds} & set(members)
        for pid, (session, _) in members.items():
            if session not in finishing:
                _kill(pid, run)
        if not finishing:
            killed = killed or at
        time.sleep(0.05 if finishing else 0.01)


def close_shared(folder: str) -> None:
    """End the processes that hold ssh's shared connections with sockets in this folder open; ssh clears a socket away
    that nobody listens at."""
    title = f"ssh: {folder}/".encode()
    for entry in os.listdir("/proc"):  # noqa: PTH208
        with contextlib.suppress(OSError, ValueError):
            handle = os.pidfd_open(int(entry))
            try:
                with open(f"/proc/{entry}/cmdline", "rb") as stream:  # noqa: PTH123
                    if stream.read().startswith(title):
                        signal.pidfd_send_signal(handle, signal.SIGKILL)
            finally:
                os.close(handle)


def remove_shared(folder: str) -> None:
    """As `close_shared`, and remove the folder with what is in it; a folder inside it stays."""
    close_shared(folder)
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):  # noqa: PTH208
            with contextlib.suppress(OSError):
                os.unlink(f"{folder}/{name}")  # noqa: PTH108
        os.rmdir(folder)  # noqa: PTH106


def _members(run: str) -> dict[int, tuple[int, float]]:
    """pid → its session and the seconds that this may take to finish, of every living process of a run."""
    members = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208 - pathlib would cost more than the rest
        if entry.isdigit() and int(entry) != os.getpid():
            environment = _environment(int(entry))
            if environment.get(NAME) == run:
                with contextlib.suppress(ProcessLookupError):
                    members[int(entry)] = os.getsid(int(entry)), _seconds(environment.get(MAY_FINISH, ""))
    return members


def _seconds(text: str) -> float:
    return min(float(text), FINISH_S) if re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6})?", text) else 0.0


def _environment(pid: int) -> dict[str, str]:
    """Of a process of this user; another one may write into its own whatever it likes."""
    try:
        if os.stat(f"/proc/{pid}").st_uid != os.geteuid():  # noqa: PTH116
            return {}
        with open(f"/proc/{pid}/environ", "rb") as stream:  # noqa: PTH123
            text = stream.read().decode("utf-8", "replace")
    except OSError:
        return {}
    return dict(pair for line in text.split("\0") if len(pair := line.split("=", 1)) == 2)


def _kill(pid: int, run: str) -> None:
    """SIGKILL to this process and no other that has its number by now."""
    with contextlib.suppress(OSError):
        handle = os.pidfd_open(pid)
        try:
            if _environment(pid).get(NAME) == run:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        finally:
            os.close(handle)


def main() -> None:
    """Wait until the run is gone, and end its shared connections; where it did not say that it ends, end all that is
    left of it."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    lines = sys.stdin.read().splitlines()
    folders = {line.removeprefix(SOCKETS) for line in lines if line.startswith(SOCKETS)}
    if ENDED not in lines:
        for folder in folders:
            close_shared(folder)
        end(sys.argv[1])
    for folder in folders:  # with a process that has just become such a connection
        remove_shared(folder)


if __name__ == "__main__":
    main()
