"""JSON that came from a node: a document that is none is Unreadable, each value in it is what it is asked for, or None.

`read_*` take a number's text for the number; `strict_*`, for what gpuprov's own programs wrote, do not.
"""

from __future__ import annotations

import json
import re
from typing import Any

from provisioner.verify.parsers import Unreadable, first_line


def read_object(text: str, quoted: str | None = None) -> dict[str, Any]:
    """A document that has to be an object. Raises Unreadable with the first line of `quoted`, by default of
    the text."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"not JSON: {first_line(text if quoted is None else quoted)}") from error
    if not isinstance(document, dict):
        raise Unreadable(f"no object: {first_line(text if quoted is None else quoted)}")
    return document


def read_map(value: Any) -> dict[str, Any]:
    return {str(k): v for k, v in value.items()} if isinstance(value, dict) else {}


def read_strings(value: Any) -> tuple[str, ...] | None:
    return tuple(str(entry) for entry in value) if isinstance(value, list) else None


def read_text(value: Any) -> str | None:
    return value.strip()[:255] or None if isinstance(value, str) else None


GREATEST = 2**63
"""Above every counter and every size in bytes: greater numbers become infinite, or an error, where they are computed
with."""


def read_float(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if abs(number) < 1e15 else None


_WHOLE = re.compile(r"-?[0-9]{1,19}", re.ASCII)


def read_whole(value: Any) -> int | None:
    text = str(value).strip()
    return int(text) if _WHOLE.fullmatch(text) else None


def read_answer(value: Any) -> str | None:
    """What a program said, where it ended well."""
    answer = read_map(value)
    return answer["text"] if answer.get("rc") == 0 and isinstance(answer.get("text"), str) else None


def strict_text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def strict_float(value: Any) -> float | None:
    """A number that can be computed with; NaN and Infinity are valid for Python's JSON, and 10**400."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < GREATEST:
        return None
    return float(value)


def strict_whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= GREATEST * 2 else None


def holders(value: Any) -> tuple[str, ...]:
    """The processes that had the GPUs, for people."""
    rows = [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []
    return tuple(
        f"{strict_text(row.get('name'))[:80] or 'a process'} (pid {strict_whole(row.get('pid'))})" for row in rows
    )


_JOB = re.compile(
    r"slurm|\bjob_?[0-9]|kubepods|docker|containerd|libpod|podman|crio|\blxc\b|machine\.slice|\bpbs|htcondor|"
    r"[^/]\.service\b",
    re.I,
)
"""Control groups of a scheduler's jobs (Slurm's cgroup plugin: slurm/uid_N/job_N, system.slice/slurmstepd.scope/job_N;
Kubernetes: kubepods), of containers, and of systemd's services: somebody has asked for what runs there."""
_MANAGER = re.compile(r"user@[0-9]+\.service")
"""systemd's own process of somebody who is, or was, logged in."""
_SESSION = re.compile(r"user\.slice|session-[0-9]+\.scope")


def strays(value: Any) -> tuple[str, ...]:
    """Those processes that belong to no job: neither to a scheduler, a container or a service, nor to somebody's login
    in which their parent still lives. Of one without a control group (an older probe) nobody can tell."""
    rows = [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []
    return holders([row for row in rows if isinstance(row.get("cgroup"), str) and not _of_a_job(row)])


def _of_a_job(row: dict[str, Any]) -> bool:
    group = strict_text(row.get("cgroup"))
    if _JOB.search(_MANAGER.sub("", group)):
        return True
    return bool(_SESSION.search(group)) and row.get("parent") != 1
