"""What counters have grown by since the last look, and in how many hours.

A total since a boot, or since a driver was loaded, says nothing about today. `looks` is what is kept of a node between
two looks: by the health timer on the node, by `gpuprov verify` in the run directory. Of the two looks that are kept one
is an hour old at least where looks are frequent, the other a day. Without an earlier look of the same boot, growth is
that since the boot. A counter that is lower than before was set back: all of it is new.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from provisioner.verify.facts import Facts
from provisioner.verify.parsers.last_look import Look

HOUR, DAY = 1.0, 24.0
"""Hours in which a limit allows its count."""


@dataclass(frozen=True, slots=True)
class Growth:
    """`hours`: None where nobody knows how long the counters have counted."""

    earlier: Look | None
    hours: float | None

    @classmethod
    def of(cls, node: Facts, within: float = DAY) -> Growth:
        """Since the last look of this boot, for limits that count within so many hours; else since the boot."""
        host, looks = node.host, node.last_look
        if host is None:
            return cls(None, None)
        earlier = None if looks is None else looks.hour if within <= HOUR else looks.day
        if host.uptime is None:
            return cls(None, None)
        if earlier is not None and host.boot_id == earlier.boot_id and host.uptime > earlier.uptime:
            return cls(earlier, (host.uptime - earlier.uptime) / 3600)
        return cls(None, host.uptime / 3600)

    def by(self, counter: str, current: int) -> int:
        """By how much a counter has grown. What the earlier look did not read has not grown since: nobody knows."""
        if self.earlier is None:
            return current
        if owner(counter) not in self.earlier.read:
            return 0
        base = self.earlier.counters.get(counter, 0)
        return current - base if current >= base else current

    def allowed(self, maximum: float, hours: float) -> float:
        """What a limit of `maximum` within these hours allows in the time that is looked at: never less than
        `maximum`."""
        return maximum * max(1.0, (self.hours or 0.0) / hours)

    @property
    def since(self) -> str:
        """For messages."""
        if self.hours is None:
            return "in all"
        return f"in {self.hours:.1f} h, since {'the last look' if self.earlier is not None else 'the boot'}"


def port_counter(device: str, number: int, counter: str) -> str:
    return f"rdma/{device}/{number}/{counter}"


def carrier(interface: str) -> str:
    return f"net/{interface}/carrier"


def link(name: str, counter: str) -> str:
    """`name`: as "GPU 0 link 3"."""
    return f"nvlink/{name}/{counter}"


def owner(counter: str) -> str:
    """The port, interface or link that counts it."""
    return counter.rpartition("/")[0]


def _counters(node: Facts) -> Iterator[tuple[str, int]]:
    for device in node.rdma or ():
        for port in device.ports:
            yield from (
                (port_counter(device.name, port.number, counter), count) for counter, count in port.counters.items()
            )
    for interface in (node.host.interfaces if node.host is not None else None) or ():
        if interface.carrier_losses is not None:
            yield carrier(interface.name), interface.carrier_losses
    for gpu, links in (node.nvlink_errors or {}).items():
        for number, counters in links.items():
            yield from ((link(f"GPU {gpu} link {number}", counter), count) for counter, count in counters.items())


def looks(node: Facts) -> dict[str, Any] | None:
    """The document that the next look is given, {"hour", "day"}: a look stays until it is old enough. None where the
    node does not tell its boot, or how long it is ago: nothing could be compared."""
    host = node.host
    if host is None or host.boot_id is None or host.uptime is None:
        return None
    counted = dict(_counters(node))
    read = frozenset(map(owner, counted))
    current = Look(host.uptime, host.boot_id, {name: count for name, count in counted.items() if count}, read)
    last_look = node.last_look
    return {
        "hour": _next(last_look.hour if last_look else None, current, HOUR).to_json(),
        "day": _next(last_look.day if last_look else None, current, DAY).to_json(),
    }


def _next(last_look: Look | None, current: Look, hours: float) -> Look:
    if (
        last_look is None
        or last_look.boot_id != current.boot_id
        or not 0 <= current.uptime - last_look.uptime < hours * 3600
    ):
        return current
    # What was not read then, and is now, begins with what it stands at.
    late = current.read - last_look.read
    first = {name: count for name, count in current.counters.items() if owner(name) in late}
    return replace(last_look, counters={**last_look.counters, **first}, read=last_look.read | late)
