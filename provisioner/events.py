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

from provisioner.paths import naming
from provisioner.text import printable

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
        object.__setattr__(self, "node", printable(self.node))


Subscriber = Callable[[Event], None]


class Events:
    """Fan-out of events to subscribers, safe to call from any thread. A subscriber must not raise."""

    def __init__(self, *subscribers: Subscriber) -> None:
        self._subscribers = list(subscribers)
        self._lock = threading.Lock()

    def subscribe(self, subscriber: Subscriber) -> None:
        with self._lock:
            self._subscribers.append(subscriber)

    def unsubscribe(self, subscriber: Subscriber) -> None:
        with self._lock:
            self._subscribers.remove(subscriber)

    def emit(self, event: Event) -> None:
        with self._lock:
            for subscriber in self._subscribers:
                subscriber(event)

    def __call__(self, stage: Stage, kind: Kind, message: str = "", **rest: Any) -> None:
        """Shorthand: `events("configure", "progress", "TASK …", node="train-0")`."""
        self.emit(Event(stage, kind, message, **rest))


def jsonl_writer(stream: IO[str]) -> Subscriber:
    """A subscriber that writes one JSON object a line, flushed, so that a killed run leaves what it knew."""

    def write(event: Event) -> None:
        record = {k: v for k, v in asdict(event).items() if v not in (None, "", {})}
        with naming(getattr(stream, "name", "events")):
            stream.write(json.dumps(record, default=str) + "\n")
            stream.flush()

    return write
