"""Runs on a node as root, by standard input: gets the archive where the node lacks it, starts ansible-runner's worker
from it, and ends that with the connection.

Standard input: the number of bytes of this text, a line, and this text; the request, a line of JSON; where the answer
asks for it, the archive's bytes; the bytes of the worker's stream, with their number before them, a line; then a line
now and again while somebody waits. Standard output: lines of JSON, {"gpuprov": answer}, then the worker's own lines.
Standard library only, Python 3.9 or newer: an old one has to say that it is too old.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib
import io
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from typing import Any, BinaryIO, TextIO

LOCK_S = 120
"""For the worker of an earlier run to end: longer than it lives without a sign."""
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
"""prctl(2)."""
PACKAGE_TOOLS = (b"apt-get", b"apt", b"dpkg", b"dpkg-deb", b"update-initramfs", b"dkms")
"""What is not cut off in the middle: the next run waits for apt's lock."""
END_S = 10.0
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
CHUNK = 1 << 16
MANIFEST, OWN = "MANIFEST", "__pycache__"


class FailedError(Exception):
    """Why the roles do not run here."""


def answer(**fields: object) -> None:
    sys.stdout.write(json.dumps({"gpuprov": fields}) + "\n")
    sys.stdout.flush()


def unable(request: dict[str, Any]) -> str:
    """Why this Python can't run Ansible; empty where it can."""
    needed = tuple(request["python"])
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] < needed:
        return "Python {} is older than {}, which ansible-core needs".format(version, ".".join(map(str, needed)))
    for name in request["modules"]:
        try:
            importlib.import_module(name)
        except ImportError:
            return f"Python {version} has no module {name}"
    return ""


def locked(path: str) -> TextIO:
    """The open file of the lock. Raises FailedError where another run keeps it."""
    handle = open(path, "a", encoding="utf-8")  # noqa: SIM115 - held to the end
    until = time.monotonic() + LOCK_S
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return handle
        except BlockingIOError:
            if time.monotonic() > until:
                raise FailedError(
                    f"another run of gpuprov configures this node, and does not end within {LOCK_S} s"
                ) from None
            time.sleep(0.2)


def problem(root: str, manifest: str) -> str:
    """What of the unpacked archive is not as it was built; empty where all of it is."""
    try:
        status = os.lstat(root)
        with open(os.path.join(root, MANIFEST), "rb") as stream:
            text = stream.read()
    except OSError:
        return "it is not there"
    if not stat.S_ISDIR(status.st_mode) or status.st_uid or status.st_mode & 0o077:
        return "the folder is not root's alone"
    if hashlib.sha256(text).hexdigest() != manifest:
        return "its MANIFEST is another one"
    expected = {line[66:]: line[:64] for line in text.decode().splitlines()}
    visited = {MANIFEST}
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name != OWN]
        for name in files + [name for name in folders if os.path.islink(os.path.join(folder, name))]:
            path = os.path.relpath(os.path.join(folder, name), root)
            if path == MANIFEST:
                continue
            if path not in expected or os.path.islink(os.path.join(root, path)):
                return f"{path} does not belong to it"
            with open(os.path.join(root, path), "rb") as stream:
                if hashlib.sha256(stream.read()).hexdigest() != expected[path]:
                    return f"{path} was changed"
            visited.add(path)
    missing = sorted(set(expected) - visited)
    return f"{missing[0]} is missing" if missing else ""


def unpack(content: bytes, request: dict[str, Any], root: str) -> None:
    """Put the archive's files below the folder, whole or not at all. Raises FailedError where it is another archive."""
    import tarfile

    digest = hashlib.sha256(content).hexdigest()
    if digest != request["digest"]:
        raise FailedError(
            "the archive that came has sha256 {}, not {}: refused".format(digest[:16], request["digest"][:16])
        )
    above = os.path.dirname(root)
    os.makedirs(above, mode=0o700, exist_ok=True)
    os.chmod(above, 0o700)
    for name in os.listdir(above):
        shutil.rmtree(os.path.join(above, name), ignore_errors=True)
    new = root + ".new"
    os.mkdir(new, 0o700)
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:xz") as source:
            for member in source:
                path = os.path.join(new, member.name)
                os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
                with open(path, "wb") as target:
                    content_of = source.extractfile(member)
                    target.write(content_of.read() if content_of else b"")
                os.chmod(path, member.mode)
        wrong = problem(new, request["manifest"])
        if wrong:
            raise FailedError(f"the archive is refused: {wrong}")
        os.rename(new, root)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise


def sized(stdin: BinaryIO) -> bytes:
    """Bytes with their number before them. Raises EOFError where the connection ends first."""
    size = int(stdin.readline() or b"-1")
    content = stdin.read(size) if size >= 0 else b""
    if size < 0 or len(content) < size:
        raise EOFError
    return content


def processes() -> dict[int, tuple[int, bytes, bytes]]:
    """pid -> (parent, command line, name) of all processes."""
    table = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                with open(f"/proc/{entry}/stat", "rb") as stream:
                    text = stream.read()
                with open(f"/proc/{entry}/cmdline", "rb") as stream:
                    command = stream.read()
                name, fields = text.partition(b"(")[2].rpartition(b")")[::2]
                table[int(entry)] = (int(fields.split()[1]), command, name)
    return table


def end_all(root: str) -> None:
    """Kill what this process has started, at any depth, but for package tools and the module that waits for one: a
    module alone is no Ansible, and a package stays whole."""
    until = time.monotonic() + END_S
    while time.monotonic() < until:
        table = processes()
        descendants, queue = set[int](), [os.getpid()]
        while queue:
            parent = queue.pop()
            children = [pid for pid, (above, _, _) in table.items() if above == parent and pid not in descendants]
            descendants.update(children)
            queue += children
        spared = set[int]()
        for pid in descendants:
            if table[pid][2] in PACKAGE_TOOLS:
                above = pid
                while above in descendants and root.encode() not in table[above][1]:
                    spared.add(above)
                    above = table[above][0]
        for pid in descendants:  # what a package tool has started
            above = pid
            while above in descendants and table[above][2] not in PACKAGE_TOOLS:
                above = table[above][0]
            if above in descendants:
                spared.add(pid)
        victims = descendants - spared
        for pid in victims:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not victims:
            return
        time.sleep(0.02)


def supervise(request: dict[str, Any], stream: bytes, root: str, stdin: BinaryIO) -> str:
    """Run the worker to its end; end it where the connection ends, nobody gives a sign, or its time is over. Gives why
    it was ended, or an empty text."""
    import ctypes

    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    folder = request["private"]
    shutil.rmtree(folder, ignore_errors=True)
    os.mkdir(folder, 0o700)
    over, last, ended = threading.Event(), [time.monotonic()], list[str]()

    def listen() -> None:
        while stdin.readline():
            last[0] = time.monotonic()
        ended.append("the connection ended")
        over.set()

    environment = {
        "PATH": os.path.join(root, "bin") + ":" + PATH, "HOME": "/root", "LC_ALL": "C.UTF-8", "USER": "root",
        "ANSIBLE_LOCAL_TEMP": os.path.join(folder, "tmp"),
    }  # fmt: skip
    worker = subprocess.Popen(
        [sys.executable, "-I", os.path.join(root, "node_worker.py"), folder, request["events"]],
        stdin=subprocess.PIPE, env=environment, cwd="/",
        preexec_fn=lambda: prctl(PR_SET_PDEATHSIG, signal.SIGKILL),  # noqa: PLW1509 - one system call
    )  # fmt: skip
    assert worker.stdin is not None
    with contextlib.suppress(BrokenPipeError), worker.stdin:
        worker.stdin.write(stream)
    threading.Thread(target=listen, daemon=True).start()

    def wait() -> None:
        worker.wait()
        over.set()

    threading.Thread(target=wait, daemon=True).start()
    until = time.monotonic() + request["deadline_s"]
    while not over.wait(1.0):
        if time.monotonic() > last[0] + request["silence_s"]:
            ended.append("nobody has given a sign for {} s".format(request["silence_s"]))
            break
        if time.monotonic() > until:
            ended.append("no end within {} s".format(request["deadline_s"]))
            break
    status = worker.poll()
    if status is None or status < 0:  # what a role has left running otherwise is meant to run
        end_all(root)
    shutil.rmtree(folder, ignore_errors=True)
    if status is None:
        return ended[0] if ended else "it did not end"
    return "" if status >= 0 else f"ansible-runner's worker was killed by signal {-status}"


def run(request: dict[str, Any], stdin: BinaryIO) -> None:
    reason = unable(request)
    if reason:
        answer(unable=reason)
        return
    if os.geteuid():
        raise FailedError("this account is not root, and sudo has not made it root")
    lock = locked(request["private"] + ".lock")
    root = os.path.join(request["folder"], request["manifest"][:32])
    wrong = problem(root, request["manifest"])
    if wrong:
        changed = os.path.isdir(root)
        answer(need=True, **({"refused": "the archive that was kept is refused: " + wrong} if changed else {}))
        unpack(sized(stdin), request, root)
    answer(ready=".".join(map(str, sys.version_info[:3])))
    reason = supervise(request, sized(stdin), root, stdin)
    lock.close()
    if reason:
        raise FailedError(reason)


def main() -> None:
    os.umask(0o022)
    stdin = sys.stdin.buffer
    request = json.loads(stdin.readline().decode())
    try:
        run(request, stdin)
    except FailedError as error:
        answer(error=str(error))
    except OSError as error:
        answer(error="{}: {}".format(error.filename or request["folder"], error.strerror or error))
    except EOFError:
        answer(error="the connection ended")


if __name__ == "__main__":
    main()
