"""What the newest run of a cluster is doing or did last, from the files that it leaves: events.jsonl and holder.json.

The files may have come with somebody's checkout: nothing but values of the right kind comes out of them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from provisioner.common import stored
from provisioner.common.events import Event, Kind, Stage
from provisioner.common.paths import HOLDER
from provisioner.common.text import printable
from provisioner.output.status import StatusRun

MOST_BYTES = 8 << 20
"""Of one look at a run's events."""
MOST, MOST_PID = 1e12, 1 << 22


class EventsFile:
    """The events of the newest run, from where they were read last; a new run begins a new file."""

    def __init__(self, runs: Path) -> None:
        self._runs, self._run, self._offset = runs, "", 0

    def new(self) -> tuple[bool, list[Event]]:
        """Whether another run has begun since, and the events since the last call. A line that is not whole yet is
        read by a later call, one that is no event is passed over."""
        newest = max((path.name for path in self._folders()), default="")
        begun = newest != self._run
        if begun:
            self._run, self._offset = newest, 0
        try:
            file = self._runs / self._run / "events.jsonl"
            if not file.is_file():  # a pipe would hold us
                return begun, []
            with file.open("rb") as stream:
                stream.seek(self._offset)
                complete_lines = stream.read(MOST_BYTES).rpartition(b"\n")[0]
        except OSError:
            return begun, []
        self._offset += len(complete_lines) + (1 if complete_lines else 0)
        return begun, [event for line in complete_lines.splitlines() for event in _event(line)]

    def _folders(self) -> Iterator[Path]:
        with contextlib.suppress(FileNotFoundError):
            yield from (path for path in self._runs.iterdir() if (path / "events.jsonl").exists())


def _event(line: bytes) -> Iterator[Event]:
    """The event of a line; nothing where it is none. Whoever wrote the file, nothing but an event's own kinds of values
    comes out of it."""
    with contextlib.suppress(ValueError):
        document = stored.loads(line)
        if isinstance(document, dict) and all(
            key in document and test(document[key])
            for key, test in _SHAPES.items()
            if key in document or key in _REQUIRED
        ):
            nodes = document.get("data", {}).get("nodes", [])
            if isinstance(nodes, list) and all(isinstance(name, str) for name in nodes):
                yield Event(**{key: value for key, value in document.items() if key in _SHAPES})


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < MOST


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MOST


_REQUIRED = ("stage", "kind", "time")
_SHAPES: dict[str, Callable[[Any], bool]] = {
    "stage": lambda value: isinstance(value, str) and value in get_args(Stage),
    "kind": lambda value: isinstance(value, str) and value in get_args(Kind),
    "message": lambda value: isinstance(value, str),
    "node": lambda value: isinstance(value, str),
    "unit": lambda value: value in ("node", "task"),
    "done": _count,
    "total": _count,
    "until": _number,
    "time": _number,
    "data": lambda value: isinstance(value, dict),
}


@dataclass(frozen=True, slots=True)
class Holder:
    """The command that wrote holder.json, which a run removes at its end; `since`: seconds since 1970. `user`: the name
    of the person, empty where it is not known."""

    command: str
    process: int
    since: float
    user: str = ""

    @property
    def is_alive(self) -> bool:
        """Whether there is such a process; one that was killed has left its file."""
        try:
            os.kill(self.process, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass  # another user's
        return True


def holder(root: Path) -> Holder | None:
    """What holder.json says; None where there is none, or it is damaged."""
    try:
        record = stored.load(root / HOLDER)
        process, command, since = record["pid"], printable(str(record["command"])[:80]), record.get("since", 0.0)
        user = printable(str(record.get("user") or "")[:80])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    if not _count(process) or not 0 < process < MOST_PID or not _number(since):
        return None
    return Holder(command, process, float(since), user)


Ending = Literal["at work", "done", "interrupted", "failed", "killed"]


@dataclass(frozen=True, slots=True)
class LastRun:
    """The newest run that held the cluster's lock. `stage`: the one that it has begun last; empty before the first.
    `process` and `user` are those of a run at work alone; `since`: seconds since 1970."""

    command: str
    ending: Ending
    stage: str
    since: float
    process: int | None = None
    user: str = ""


def last_run(root: Path, runs: Path, *, at_work: bool) -> LastRun | None:
    """The newest run; None where there was none. `at_work`: whether the lock is held now."""
    events, stage, ending, command = EventsFile(runs), "", "", ""
    begun = 0.0
    while new := events.new()[1]:
        for event in new:
            begun = begun or event.time
            if event.kind == "started" and event.stage != "run":
                stage = event.stage
            outcome = event.data.get("ended")
            if event.stage == "run" and outcome in ("done", "interrupted", "failed"):
                ending, command = str(outcome), event.message.removeprefix("gpuprov ").partition(":")[0]
    record = holder(root)
    if record is not None and at_work:
        return LastRun(
            record.command, "at work", stage if not ending else "", record.since, record.process, record.user
        )
    if ending in ("done", "interrupted", "failed"):
        return LastRun(command, ending, stage, begun)  # type: ignore[arg-type]
    if record is not None and begun:  # it was killed, and left its file
        return LastRun(record.command, "killed", stage, record.since)
    return None


def run_document(run: LastRun | None) -> StatusRun | None:
    """As `status --json` prints it."""
    if run is None:
        return None
    return StatusRun(
        command=run.command, state=run.ending, stage=run.stage, since=run.since, process=run.process, user=run.user
    )
