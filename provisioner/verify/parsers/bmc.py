"""bmc.json: what a machine's management controller shows of it by Redfish (redfish/document.py writes it).

Traps: null is not an empty list: the BMC does not show such parts, or not all of them. A part that gives no health is
neither good nor bad. NaN is valid for Python's JSON.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from provisioner.verify.parsers import Unreadable
from provisioner.verify.parsers.untrusted import read_float, read_map, read_object, read_text, read_whole, strict_text
from provisioner.verify.tool import Tool

T = TypeVar("T")
MOST = 2000
"""Rows of one list that are read."""


@dataclass(frozen=True, slots=True)
class Part:
    """A supply, fan, temperature or leak detector that is there. `health`: OK, Warning, Critical, None where it is not
    said; `reading` in `unit` (rpm, percent, W, C); `limit`: what the BMC itself calls critical."""

    name: str
    health: str | None = None
    reading: float | None = None
    unit: str = ""
    limit: float | None = None


@dataclass(frozen=True, slots=True)
class Gpu:
    id: str
    model: str | None = None
    serial: str | None = None
    health: str | None = None


@dataclass(frozen=True, slots=True)
class Event:
    """An entry of an event log, or a condition that still is. `about`: the part, "" where it names none."""

    time: str
    severity: str | None
    message: str
    about: str = ""


@dataclass(frozen=True, slots=True)
class Setting:
    """A BIOS setting; `good` is None for a value that nobody has judged."""

    setting: str
    attribute: str
    value: str
    good: bool | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Site:
    """Watts of all machines of the site that say what they draw; how many do not."""

    drawn_w: float
    silent: int


@dataclass(frozen=True, slots=True)
class Bmc:
    """None wherever the BMC does not say. `serials`: every name of the machine, `serial` for people; `gpus_complete`:
    there are no more than `gpus`; `firmware`: part → version; `site` is None where there is no budget."""

    vendor: str | None
    model: str | None
    serial: str | None
    serials: tuple[str, ...]
    power: str | None
    health: str | None
    supplies: tuple[Part, ...] | None
    fans: tuple[Part, ...] | None
    temperatures: tuple[Part, ...] | None
    leaks: tuple[Part, ...] | None
    gpus: tuple[Gpu, ...]
    gpus_complete: bool
    conditions: tuple[Event, ...] | None
    events: tuple[Event, ...] | None
    firmware: dict[str, str]
    bios_settings: tuple[Setting, ...] | None
    drawn_w: float | None
    cap_w: float | None
    capacity_w: float | None
    site: Site | None
    override: str
    attached: tuple[str, ...]
    factory_password: bool | None = None
    """Whether it takes a user and password that its maker has published."""


def parse(text: str) -> Bmc:
    document = read_object(text)
    if read_whole(document.get("schema")) != 1 or not isinstance(document.get("gpus"), list):
        raise Unreadable("no schema 1, or no list of GPUs")
    site = document.get("site")
    return Bmc(
        vendor=read_text(document.get("vendor")),
        model=read_text(document.get("model")),
        serial=read_text(document.get("serial")),
        power=read_text(document.get("power")),
        health=read_text(document.get("health")),
        serials=_rows(document.get("serials"), lambda serial: serial if isinstance(serial, str) else None) or (),
        supplies=_rows(document.get("supplies"), _part),
        fans=_rows(document.get("fans"), _part),
        temperatures=_rows(document.get("temperatures"), _part),
        leaks=_rows(document.get("leaks"), _part),
        gpus=_rows(document["gpus"], _gpu) or (),
        gpus_complete=document.get("gpus_complete") is True,
        conditions=_rows(document.get("conditions"), _event),
        events=_rows(document.get("events"), _event),
        firmware={k[:200]: v[:200] for k, v in read_map(document.get("firmware")).items() if isinstance(v, str)},
        bios_settings=_rows(document.get("bios_settings"), _setting),
        drawn_w=read_float(document.get("drawn_w")),
        cap_w=read_float(document.get("cap_w")),
        capacity_w=read_float(document.get("capacity_w")),
        site=_site(read_map(site)) if isinstance(site, dict) else None,
        override=strict_text(document.get("override"))[:200],
        attached=_rows(document.get("attached"), lambda device: device[:500] if isinstance(device, str) else None)
        or (),
        factory_password=is_factory if isinstance(is_factory := document.get("factory_password"), bool) else None,
    )


def _rows(value: Any, read: Callable[[Any], T | None]) -> tuple[T, ...] | None:
    """None where there is no list; Unreadable where one of its rows is not what it should be: it could be the bad
    one."""
    if not isinstance(value, list):
        return None
    rows = [read(entry) for entry in value[:MOST]]
    if len(value) > MOST or any(row is None for row in rows):
        raise Unreadable("a row that is not understood, or too many of them")
    return tuple(row for row in rows if row is not None)


def _part(entry: Any) -> Part | None:
    row = read_map(entry)
    name = read_text(row.get("name"))
    if name is None:
        return None
    unit, health = strict_text(row.get("unit"))[:20], read_text(row.get("health"))
    return Part(name, health, read_float(row.get("reading")), unit, read_float(row.get("limit")))


def _gpu(entry: Any) -> Gpu | None:
    row = read_map(entry)
    name = read_text(row.get("id"))
    return name and Gpu(name, *(read_text(row.get(key)) for key in ("model", "serial", "health")))  # type: ignore[return-value]


def _event(entry: Any) -> Event | None:
    row = read_map(entry)
    message = read_text(row.get("message"))
    if message is None:
        return None
    return Event(
        strict_text(row.get("time"))[:100], read_text(row.get("severity")), message, strict_text(row.get("about"))[:200]
    )


def _setting(entry: Any) -> Setting | None:
    row = read_map(entry)
    texts = [read_text(row.get(key)) for key in ("setting", "attribute", "value")]
    if None in texts:
        return None
    is_good = row.get("good")
    setting, attribute, value = (text or "" for text in texts)
    return Setting(
        setting, attribute, value, is_good if isinstance(is_good, bool) else None, strict_text(row.get("why"))
    )


def _site(row: dict[str, Any]) -> Site | None:
    drawn, silent = read_float(row.get("drawn_w")), read_whole(row.get("silent"))
    return None if drawn is None or silent is None else Site(drawn, silent)


TOOLS = (Tool(file="bmc.json", field="bmc", parse=parse, asked="elsewhere", label="Redfish", by_hand=False),)
