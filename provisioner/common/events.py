"""The one stream of events: what every stage has to tell a person or a machine.

A stage calls `emit(Event(...))` on the stream that it was given and prints nothing. The progress display,
`events.jsonl` and the summaries are subscribers.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import IO, Any, Literal

from provisioner.common.paths import naming
from provisioner.common.text import printable, single_line

Kind = Literal["started", "progress", "log", "warning", "done", "failed"]
Unit = Literal["node", "task", "resource"]
Stage = Literal[
    "spec",
    "stack",
    "plan",
    "preflight",
    "sandbox",
    "workspace",
    "terraform",
    "fleet",
    "configure",
    "verify",
    "quarantine",
    "replace",
    "upgrade",
    "maintain",
    "image",
    "down",
    "run",
]


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened. `done` of `total` where there is something to count: of the stage, or, with `unit`
    "task", of the node's own roles; an event with `unit` "node" or "resource" says that one more of them is through.
    `until`: when a wait gives up, in seconds since 1970. `data["nodes"]` of a "started" event names whom the stage
    waits for. The message is printable, whatever program it comes from."""

    stage: Stage
    kind: Kind
    message: str = ""
    node: str | None = None
    done: int | None = None
    total: int | None = None
    unit: Unit | None = None
    until: float | None = None
    data: dict[str, Any] = field(default_factory=dict)
    time: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", printable(self.message))
        object.__setattr__(self, "node", None if self.node is None else single_line(self.node))


Subscriber = Callable[[Event], None]


class Events:
    """Fan-out of events to subscribers, safe to call from any thread.

    What a subscriber raises breaks off no work: it costs that subscriber the event, and the others get one warning
    about it. KeyboardInterrupt goes on to the caller.
    """

    def __init__(self, *subscribers: Subscriber) -> None:
        self._subscribers = list(subscribers)
        self._failed: list[Subscriber] = []
        """Subscribers whose failure was reported."""
        self._lock = threading.Lock()

    def subscribe(self, subscriber: Subscriber) -> None:
        with self._lock:
            self._subscribers.append(subscriber)

    def unsubscribe(self, subscriber: Subscriber) -> None:
        with self._lock:
            self._subscribers.remove(subscriber)
            self._failed = [other for other in self._failed if other is not subscriber]

    def emit(self, event: Event) -> None:
        with self._lock:
            waiting = [event]
            while waiting:
                waiting += self._deliver(waiting.pop(0))

    def _deliver(self, event: Event) -> list[Event]:
        """Give an event to every subscriber; the warnings about those that fail for the first time."""
        warnings = []
        for subscriber in self._subscribers:
            try:
                subscriber(event)
            except Exception as error:
                if not any(subscriber is failed for failed in self._failed):
                    self._failed.append(subscriber)
                    warnings.append(Event("run", "warning", f"the log is incomplete: {_reason(error)}"))
        return warnings

    def __call__(self, stage: Stage, kind: Kind, message: str = "", **fields: Any) -> None:
        """Shorthand: `events("configure", "progress", "TASK …", node="train-0")`."""
        self.emit(Event(stage, kind, message, **fields))


def _reason(error: Exception) -> str:
    """Why a subscriber failed, with its file where the error has one."""
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    return f"{type(error).__name__}: {error}"


def jsonl_writer(stream: IO[str]) -> Subscriber:
    """A subscriber that writes one JSON object a line, flushed, so that a killed run leaves what it knew. Raises
    OSError with the file's name."""

    def write(event: Event) -> None:
        record = {k: v for k, v in asdict(event).items() if v not in (None, "", {})}
        with naming(getattr(stream, "name", "events")):
            stream.write(json.dumps(record, default=str) + "\n")
            stream.flush()

    return write
