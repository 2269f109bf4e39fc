"""What a BMC has written down about the hardware: event logs, and conditions that it still sees."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from provisioner.redfish import vendors
from provisioner.redfish.tree import Resource, Tree, inner, link, rows, text


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry. `time`: as the BMC has it, which may be 1970 where its clock was not set; `severity`: OK, Warning,
    Critical, None where it has none."""

    log: str
    id: str
    time: str
    severity: str | None
    message: str
    about: str = ""


@dataclass(frozen=True, slots=True)
class Log:
    """`entries` in the order of the BMC; `complete`: all that it has could be read."""

    uri: str
    name: str
    entries: tuple[Entry, ...]
    complete: bool


def event_logs(
    tree: Tree, host: Resource, systems: Iterable[Resource], managers: Iterable[Resource]
) -> tuple[Log, ...]:
    """The logs of the hardware: those of entry type SEL, else those of the host that tell neither of people nor of the
    BMC itself."""
    services = [one for place in (host, *systems, *managers) for one in tree.members(place.get("LogServices"))]
    known = {link(one): one for one in services if link(one.get("Entries"))}
    sel = [
        one
        for one in known.values()
        if text(one.get("LogEntryType")) == "SEL" or (text(one.get("Id")) or "").upper() == "SEL"
    ]
    mine = link(host) + "/"
    aside = vendors.pattern("other_logs")
    others = [
        one
        for uri, one in known.items()
        if one not in sel and uri.startswith(mine) and not aside.match(text(one.get("Id")) or "")
    ]
    return tuple(_log(tree, one) for one in [*sel, *others])


def _log(tree: Tree, service: Resource) -> Log:
    name = text(service.get("Id")) or link(service).rpartition("/")[2]
    found = tree.members(service.get("Entries"))
    return Log(link(service), name, tuple(entry(name, one) for one in found), found.complete)


def entry(log: str, one: Resource) -> Entry:
    said = text(one.get("Message")) or " ".join(
        [text(one.get("MessageId")) or "", *(word for word in one.get("MessageArgs") or () if isinstance(word, str))]
    )
    return Entry(
        log=log,
        id=text(one.get("Id")) or link(one).rpartition("/")[2],
        time=text(one.get("EventTimestamp")) or text(one.get("Created")) or "",
        severity=_severity(one),
        message=" ".join(said.split()) or "no text",
        about=link(inner(one, "Links").get("OriginOfCondition")).rpartition("/")[2],
    )


def _severity(one: Resource) -> str | None:
    said = text(one.get("Severity")) or text(one.get("MessageSeverity"))
    return said if said in ("OK", "Warning", "Critical") else None


@dataclass(frozen=True, slots=True)
class Conditions:
    """What the BMC still calls wrong, whatever its Health says; `known`: it has a place for that, which could be
    read."""

    read: tuple[Entry, ...] = ()
    known: bool = False


def conditions(tree: Tree, systems: Iterable[Resource], chassis: Iterable[Resource]) -> Conditions:
    """ServiceConditions of the root, and the conditions that systems and chassis show in their Status."""
    place = tree.get(tree.root.get("ServiceConditions"))
    found = [_condition(one) for one in rows(place.get("Conditions"))]
    for resource in (*systems, *chassis):
        found += [_condition(one) for one in rows(inner(resource, "Status").get("Conditions"))]
    return Conditions(tuple(dict.fromkeys(found)), bool(place))


def _condition(one: Resource) -> Entry:
    origin = link(one.get("OriginOfCondition")).rpartition("/")[2]
    made = entry("conditions", one)
    return Entry(
        "conditions",
        link(one.get("LogEntry")).rpartition("/")[2],
        text(one.get("Timestamp")) or "",
        made.severity,
        made.message,
        origin,
    )


def troubling(entries: Iterable[Entry]) -> Iterator[Entry]:
    """Those that are a warning or worse."""
    return (one for one in entries if one.severity in ("Warning", "Critical"))
