"""maintenance.json: what the cloud's metadata service lists as scheduled events of the machine.

Formats: a list of {"Code", "State", "NotBefore", …}, or {"Events": [{"EventType", "EventStatus", "Resources",
"NotBefore", …}]} (sources in catalog/data/providers.yaml). Traps: a list may have others' events, whose "Resources"
name them; an event that has begun has no time; status 404 stands for no events.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from provisioner.verify.parsers import Unreadable, first_line
from provisioner.verify.parsers.untrusted import read_object, read_strings, read_text, read_whole
from provisioner.verify.tool import Tool, listed

OVER = ("completed", "canceled", "cancelled")


@dataclass(frozen=True, slots=True)
class Event:
    """`kind` in the cloud's own word; `time` as it writes it, empty where the event has begun."""

    kind: str
    time: str


def parse(text: str) -> tuple[Event, ...]:
    document = read_object(text)
    status, name = read_whole(document.get("status")), str(document.get("name") or "").lower()
    if status == 404:
        return ()
    body = str(document.get("text") or "")
    if status != 200:
        raise Unreadable(f"the metadata service answers with status {status}: {first_line(body)}")
    try:
        data = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"no list of events: {first_line(body)}") from error
    rows = data.get("Events") if isinstance(data, dict) else data
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise Unreadable(f"no list of events: {first_line(body)}")
    return tuple(event for row in rows if (event := _event(row, name)) is not None)


def without_token(text: str) -> int | None:
    """Status of the same question without a token; None where the service wants none, or an older probe asked."""
    return read_whole(read_object(text).get("without_token"))


def _event(row: dict[str, Any], name: str) -> Event | None:
    state = str(row.get("State") or row.get("EventStatus") or "").lower()
    resources = [resource.lower() for resource in read_strings(row.get("Resources")) or ()]
    if state in OVER or (resources and name and name not in resources):
        return None
    kind = read_text(row.get("Code")) or read_text(row.get("EventType"))
    if kind is None:
        raise Unreadable("an event that does not say what it is")
    return Event(kind[:60], (read_text(row.get("NotBefore")) or "")[:60])


TOOLS = (
    Tool(
        file="maintenance.json",
        field="maintenance",
        parse=parse,
        seconds=8,
        when=lambda expected: expected.maintenance is not None,
        label="the metadata service's scheduled events",
        by_hand=False,
        document={"maintenance": listed},
    ),
    Tool(file="maintenance.json", field="metadata_openly", parse=without_token, document={}),
)
