"""What a BMC has written down about the hardware: event logs, and conditions that it still sees."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from provisioner.machines.redfish import vendors
from provisioner.machines.redfish.tree import HEALTH, Health, Resource, Tree, inner, link, rows, text


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry. `time`: as the BMC has it, which may be 1970 where its clock was not set; `severity`: OK, Warning,
    Critical, None where it has none."""

    log: str
    id: str
    time: str
    severity: Health | None
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
    services = [service for owner in (host, *systems, *managers) for service in tree.members(owner.get("LogServices"))]
    known = {link(service): service for service in services if link(service.get("Entries"))}
    sel = [
        service
        for service in known.values()
        if text(service.get("LogEntryType")) == "SEL" or (text(service.get("Id")) or "").upper() == "SEL"
    ]
    host_prefix = link(host) + "/"
    aside = vendors.pattern("other_logs")
    host_logs = [
        service
        for uri, service in known.items()
        if service not in sel and uri.startswith(host_prefix) and not aside.match(text(service.get("Id")) or "")
    ]
    return tuple(_log(tree, service) for service in [*sel, *host_logs])


def _log(tree: Tree, service: Resource) -> Log:
    name = text(service.get("Id")) or link(service).rpartition("/")[2]
    members = tree.members(service.get("Entries"))
    return Log(link(service), name, tuple(entry(name, member) for member in members), members.complete)


def entry(log: str, resource: Resource) -> Entry:
    message_text = text(resource.get("Message")) or " ".join(
        [
            text(resource.get("MessageId")) or "",
            *(argument for argument in resource.get("MessageArgs") or () if isinstance(argument, str)),
        ]
    )
    return Entry(
        log=log,
        id=text(resource.get("Id")) or link(resource).rpartition("/")[2],
        time=text(resource.get("EventTimestamp")) or text(resource.get("Created")) or "",
        severity=_severity(resource),
        message=" ".join(message_text.split()) or "no text",
        about=link(inner(resource, "Links").get("OriginOfCondition")).rpartition("/")[2],
    )


def _severity(resource: Resource) -> Health | None:
    severity = text(resource.get("Severity")) or text(resource.get("MessageSeverity"))
    return next((step for step in HEALTH if step == severity), None)


@dataclass(frozen=True, slots=True)
class Conditions:
    """What the BMC still calls wrong, whatever its Health says; `known`: it has a place for that, which could be
    read."""

    read: tuple[Entry, ...] = ()
    known: bool = False


def conditions(tree: Tree, systems: Iterable[Resource], chassis: Iterable[Resource]) -> Conditions:
    """ServiceConditions of the root, and the conditions that systems and chassis show in their Status."""
    service = tree.get(tree.root.get("ServiceConditions"))
    entries = [_condition(row) for row in rows(service.get("Conditions"))]
    for resource in (*systems, *chassis):
        entries += [_condition(row) for row in rows(inner(resource, "Status").get("Conditions"))]
    return Conditions(tuple(dict.fromkeys(entries)), bool(service))


def _condition(row: Resource) -> Entry:
    origin = link(row.get("OriginOfCondition")).rpartition("/")[2]
    base_entry = entry("conditions", row)
    return Entry(
        "conditions",
        link(row.get("LogEntry")).rpartition("/")[2],
        text(row.get("Timestamp")) or "",
        base_entry.severity,
        base_entry.message,
        origin,
    )


def troubling(entries: Iterable[Entry]) -> Iterator[Entry]:
    """Those that are a warning or worse."""
    return (log_entry for log_entry in entries if log_entry.severity in ("Warning", "Critical"))
