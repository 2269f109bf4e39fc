"""shared.json: whether the file systems of the network are mounted, and answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from provisioner.verify.parsers import Unreadable, first_line
from provisioner.verify.parsers.host_hardware import Mount, read_mounts
from provisioner.verify.parsers.untrusted import read_float, read_map, read_object, read_text, read_whole
from provisioner.verify.tool import Tool


@dataclass(frozen=True, slots=True)
class Shared:
    """What is at one path. `mount` is None where nothing is mounted. `hung`: it did not answer within `seconds`.
    `status` is the exit status of what read it, None where it hung or could not be asked. `serves`: of a bucket what
    its process mounts (s3://bucket/prefix), empty where there is none."""

    path: str
    mount: Mount | None = None
    hung: bool = False
    seconds: float | None = None
    status: int | None = None
    error: str = ""
    serves: str = ""
    unwritten: str = ""
    """Why a file could not be written and read back; empty where it could, or nobody tried."""


DENIED = ("Permission denied", "Operation not permitted", "Read-only file system")
"""root may not write there (exports(5), root_squash): that says nothing of those who may."""


def _unwritten(answer: dict[str, Any]) -> str:
    if answer.get("timed_out") is True:
        return f"a write did not end within {read_float(answer.get('seconds')) or 0:.0f} s"
    error = read_text(answer.get("error")) or ""
    if answer.get("rc") in (0, None) or any(phrase in error for phrase in DENIED):
        return ""
    return f"a write failed: {error[-160:] or answer.get('rc')}"


def parse(text: str) -> tuple[Shared, ...]:
    document = read_object(text)
    return tuple(_read_shared(str(path), row, text) for path, row in document.items())


def _read_shared(path: str, row: object, text: str) -> Shared:
    if not isinstance(row, dict) or "mounted" not in row:
        raise Unreadable(f"nothing is said of {path[:80]}: {first_line(text)}")
    if row["mounted"] is None:
        return Shared(path)
    mounts = read_mounts([row["mounted"]])
    if not mounts:
        raise Unreadable(f"no line of the kernel's mounts: {first_line(str(row['mounted']))}")
    reply = read_map(row.get("answers"))
    error = read_text(reply.get("error")) or ""
    return Shared(
        path, mounts[0], reply.get("timed_out") is True, read_float(reply.get("seconds")), read_whole(reply.get("rc")),
        error[-200:], (read_text(row.get("serves")) or "")[:1024], _unwritten(read_map(row.get("written"))),
    )  # fmt: skip


TOOLS = (
    Tool(
        file="shared.json",
        field="shared",
        parse=parse,
        seconds=37,  # three programs for each file system, all at once (probe/shared.py)
        when=lambda expected: expected.shared,
        configured=True,
        label="stat and find on the file systems of the network",
        by_hand=False,
    ),
)
