"""File systems of the network (shared.json), each asked by programs that can be given up.

A server that has gone holds whoever touches its file system. So the mounts are read from the kernel's table, and only
programs of their own, with a deadline, go there. Runs where such a file system is expected. shared.json:
{path: {"mounted": the kernel's line for what is on top there, "answers": {"rc", "timed_out", "seconds", "error"},
"written": the same of a file that is written, read back and removed, where the request has "writes" and it is mounted
for writing; "serves": of a bucket (type fuse) what mount-s3's process for that path was told to mount, null where there
is none}}.
Standard library only, Python 3.8 or newer.
"""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path
from typing import Any

from provisioner.verify.probe.runner import COLLECTORS, at_once, lines_of, outcome, result, run

ANSWER_S = 10.0
"""Seconds for statfs and for the first name of the directory: a healthy server takes milliseconds."""
PROC = "/proc"


def shared(_seconds: float, request: dict[str, Any]) -> dict[str, Any]:
    """All paths of the request at once."""
    tops: dict[str, str] = {}
    for line in lines_of("/proc/self/mounts"):
        fields = line.split(" ")
        if len(fields) > 3:
            tops[fields[1]] = " ".join([*fields[:3], fields[3][:200]])  # the last one on a path is on top
    rows: dict[str, Any] = {}

    def ask(path: str) -> None:
        top = tops.get(path)
        rows[path] = {"mounted": top, "answers": answers(path) if top is not None else None}
        if top is not None and top.split(" ")[2] == "fuse":
            rows[path]["serves"] = serves(path)
        elif top is not None and request.get("writes") and writable(top) and rows[path]["answers"]["rc"] == 0:
            rows[path]["written"] = written(path)

    at_once(ask, [(path,) for path in request.get("shared", [])], 3 * ANSWER_S + 5)
    return result(json.dumps(dict(rows)), 0)


def answers(path: str) -> dict[str, Any]:
    """Whether the server tells of its space, which the kernel never answers by itself, and lists the directory."""
    for command in (["stat", "--file-system", "--", path], ["find", path, "-mindepth", "1", "-maxdepth", "1",
                                                            "-print", "-quit"]):  # fmt: skip
        out = run(command, ANSWER_S)
        if out["rc"] != 0:
            break
    return outcome(out)


def writable(mount: str) -> bool:
    return "rw" in mount.split(" ")[3].split(",")


WRITE = """set -e
file="$1/.gpuprov-$2"
trap 'rm -f -- "$file"' EXIT
printf %s "$3" >"$file"
test "$(cat -- "$file")" = "$3" || { echo "another text is read than was written" >&2; exit 9; }"""


def written(path: str) -> dict[str, Any]:
    """A small file of this node's own name, written, read back and removed. A bucket is left alone: it may not be
    allowed to remove anything."""
    return outcome(run(["sh", "-c", WRITE, "sh", path, socket.gethostname()[:60], str(time.time())], ANSWER_S))


def serves(path: str) -> str | None:
    """The kernel knows every bucket as "mountpoint-s3": which one it is stands in the command line of its process."""
    for process in Path(PROC).iterdir():
        if process.name.isdigit():
            try:
                arguments = (process / "cmdline").read_bytes()[:8192].decode(errors="replace").split("\0")
            except OSError:  # it has ended meanwhile
                continue
            if Path(arguments[0]).name in ("mount-s3", "mount.mount-s3") and path in arguments[2:]:
                return arguments[1]
    return None


COLLECTORS["shared.json"] = shared
