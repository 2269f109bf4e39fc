"""interruption.json: what the node's watcher has heard of the cloud taking the machine away (role interruption)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from provisioner.verify.expectations import INTERRUPTION
from provisioner.verify.parsers import Unreadable, first_line
from provisioner.verify.parsers.untrusted import read_float, read_map, read_object, read_strings, read_text, read_whole
from provisioner.verify.tool import Tool


@dataclass(frozen=True, slots=True)
class Notice:
    """`action` is terminate, stop or hibernate; `time` when, as AWS writes it; `seen` when it was heard, by the
    node's clock, seconds since 1970."""

    action: str
    time: str
    seen: float | None = None

    @property
    def at(self) -> float | None:
        """`time` as seconds since 1970."""
        try:
            return datetime.strptime(self.time[:19], "%Y-%m-%dT%H:%M:%S").replace(tzinfo=UTC).timestamp()
        except ValueError:
            return None


@dataclass(frozen=True, slots=True)
class Hook:
    """How hooks.interrupted did. `result` is systemd's word (success, exit-code, timeout, …), None while it runs;
    `status` its exit status where it ended by itself; `output` its last lines."""

    notice: str
    state: str
    result: str | None = None
    status: int | None = None
    output: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Interruption:
    """`told` is False where there is no record: the watcher has not run since boot. `silent_since` is when the metadata
    service stopped answering (seconds since 1970, the node's clock), None where it answers. `digest` is the sha256 of
    the hook on the node, empty where there is none."""

    told: bool
    digest: str = ""
    notice: Notice | None = None
    withdrawn: Notice | None = None
    rebalance: str | None = None
    silent_since: float | None = None
    silent: str | None = None
    hook: Hook | None = None


def parse(text: str) -> Interruption:
    document = read_object(text)
    record, digest = document.get("record"), document.get("hook")
    if not isinstance(digest, str) or not (record is None or isinstance(record, str)):
        raise Unreadable(f"no record in it: {first_line(text)}")
    if record is None:
        return Interruption(False, digest)
    fields = read_object(record, text)
    if "notice" not in fields:
        raise Unreadable(f"not the watcher's record: {first_line(record)}")
    return Interruption(
        told=True,
        digest=digest,
        notice=_notice(fields["notice"]),
        withdrawn=_notice(fields.get("withdrawn")),
        rebalance=read_text(read_map(fields.get("rebalance")).get("time")),
        silent_since=read_float(fields.get("silent_since")),
        silent=read_text(fields.get("silent")),
        hook=_hook(fields.get("hook")),
    )


def _notice(value: Any) -> Notice | None:
    if value is None:
        return None
    known = read_map(value)
    action, time = read_text(known.get("action")), read_text(known.get("time"))
    if action is None or time is None:  # there is a notice, and nobody can say which: never "none"
        raise Unreadable("a notice without its action and time")
    return Notice(action, time, read_float(known.get("seen")))


def _hook(value: Any) -> Hook | None:
    known = read_map(value)
    notice, state = read_text(known.get("notice")), read_text(known.get("state"))
    if notice is None or state is None:
        return None
    output = read_strings(known.get("output")) or ()
    return Hook(notice, state, read_text(known.get("result")), read_whole(known.get("status")), output)


TOOLS = (
    Tool(
        file="interruption.json",
        field="interruption",
        parse=parse,
        seconds=5,
        when=lambda expected: INTERRUPTION in (expected.units or ()),
        configured=True,
        label="/run/gpuprov/interruption.json",
        by_hand=False,
    ),
)
