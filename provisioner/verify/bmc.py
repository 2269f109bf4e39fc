"""What a BMC's facts mean: pass, warn, fail or unknown, each with what to do. What a BMC does not say is unknown.

One judgement for both who ask: `gpuprov bmc FILE status` shows it as it is, the checks (checks/bmc.py) make a verdict
on the node of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from provisioner.verify.parsers.bmc import Bmc, Event, Part

Status = Literal["pass", "warn", "fail", "unknown"]
SHOWN = 4


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    status: Status
    message: str
    action: str = ""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is known of a machine by other ways. `gpus`: what its type has; `os_gpus`: what its operating system saw;
    `serial`: of cluster.yaml, "" where it has none; `firmware`: part → version that it is pinned to; `budget_w`: watts
    that all machines of its site may draw. None where that is not known, or nobody cares."""

    gpus: int | None = None
    os_gpus: int | None = None
    serial: str = ""
    firmware: Mapping[str, str] | None = None
    budget_w: float | None = None


def judge(found: Bmc, wanted: Wanted) -> list[Finding]:
    """Everything about one machine alone."""
    made = [
        identity(found, wanted.serial),
        power(found),
        health(found),
        supplies(found),
        fans(found),
        temperatures(found),
        leaks(found),
        gpus(found, wanted),
        gpu_health(found),
        conditions(found),
        events(found),
        pinned(found, wanted.firmware),
        settings(found),
        budget(found, wanted.budget_w),
        override(found),
        media(found),
        password(found),
    ]
    return [one for one in made if one is not None]


def identity(found: Bmc, serial: str) -> Finding | None:
    """Whether it is the BMC of the machine that cluster.yaml names."""
    if not serial:
        return None
    if serial.casefold() in {one.casefold() for one in found.serials}:
        return Finding("serial number", "pass", found.serial or serial)
    return Finding(
        "serial number", "fail", f"the BMC is that of the machine {found.serial or 'without one'}, not of {serial}",
        "check `bmc` and `serial` of this host in cluster.yaml, and the cabling of the BMC network",
    )  # fmt: skip


def power(found: Bmc) -> Finding:
    if found.power == "On":
        return Finding("power", "pass", "on")
    if found.power is None:
        return Finding("power", "unknown", "the BMC does not say whether the machine is on")
    return Finding("power", "fail", f"the machine is {found.power}", "`gpuprov bmc FILE power on NODE`")


_BY_HEALTH: Mapping[str | None, Status] = {"OK": "pass", "Warning": "warn", "Critical": "fail"}


def health(found: Bmc) -> Finding:
    status = _BY_HEALTH.get(found.health, "unknown")
    words = f"the BMC says {found.health}" if found.health else "the BMC gives no health"
    return Finding("health", status, words, "" if status == "pass" else "`gpuprov bmc FILE sel` shows why")


def supplies(found: Bmc) -> Finding | None:
    return _parts("power supplies", found.supplies, "reseat or replace it; check its feed")


def fans(found: Bmc) -> Finding | None:
    return _parts("fans", found.fans, "replace it")


def _parts(name: str, parts: tuple[Part, ...] | None, action: str) -> Finding | None:
    """None for a blade or a sled, whose enclosure has them."""
    if parts == ():
        return None
    if parts is None:
        return Finding(name, "unknown", "the BMC does not show them")
    bad = [one for one in parts if one.health in ("Warning", "Critical")]
    unsaid = [one for one in parts if one.health != "OK"]
    if bad:
        return Finding(name, _worst(one.health for one in bad), listed(f"{p.name} is {p.health}" for p in bad), action)
    if unsaid:
        return Finding(name, "unknown", f"no health is given of {listed(one.name for one in unsaid)}")
    return Finding(name, "pass", f"{len(parts)} OK")


def _worst(said: Iterable[str | None]) -> Status:
    return "fail" if "Critical" in set(said) else "warn"


def temperatures(found: Bmc) -> Finding:
    if found.temperatures is None:
        return Finding("temperatures", "unknown", "the BMC does not show them")
    hot = [one for one in found.temperatures if _hot(one)]
    if hot:
        said = listed(f"{p.name} {p.reading:.0f} C{_limit(p)}" if p.reading is not None else p.name for p in hot)
        return Finding("temperatures", "fail", said, "check inlet air, fans and the load of the rack")
    return Finding("temperatures", "pass", f"{len(found.temperatures)} within the BMC's own limits")


def _hot(one: Part) -> bool:
    over = one.reading is not None and one.limit is not None and one.limit > 0 and one.reading >= one.limit
    return over or one.health == "Critical"


def _limit(one: Part) -> str:
    return f", limit {one.limit:.0f} C" if one.limit else ""


def leaks(found: Bmc) -> Finding | None:
    """None for a machine that shows no detectors: most have no liquid cooling."""
    if not found.leaks:
        return None
    wet = [one for one in found.leaks if one.health in ("Warning", "Critical")]
    if wet:
        said = listed(f"{one.name} is {one.health}" for one in wet)
        return Finding("leaks", "fail", said, "switch the machine off and look at its liquid cooling")
    unsaid = [one.name for one in found.leaks if one.health != "OK"]
    if unsaid:
        return Finding("leaks", "unknown", f"no state is given of {listed(unsaid)}")
    return Finding("leaks", "pass", f"{len(found.leaks)} detectors are dry")


def gpus(found: Bmc, wanted: Wanted) -> Finding:
    """The BMC's count against the machine type's and the operating system's: a GPU that only the system lost is another
    repair than one that nobody sees."""
    seen, full, inside = len(found.gpus), wanted.gpus, wanted.os_gpus
    if full is not None and seen < full:
        if not found.gpus_complete:
            return Finding("gpus", "unknown", f"the BMC shows {seen} of {full}, and not everything could be read")
        lost = f"the BMC sees {seen} of {full} GPUs"
        if inside is not None and inside > seen:
            return Finding("gpus", "warn", f"{lost}, and the operating system {inside}", "update or reset the BMC")
        said = f", and the operating system {inside}" if inside is not None else ""
        return Finding("gpus", "fail", lost + said, "drain power; reseat or replace the GPU or its board")
    if inside is not None and inside < seen:
        return Finding(
            "gpus", "fail", f"the BMC sees {seen} GPUs and the operating system {inside}: lost to the system alone",
            "look for Xid 79 in its kernel log; reset the GPU or power-cycle the machine before anything is replaced",
        )  # fmt: skip
    if full is None and not seen:
        return Finding("gpus", "unknown", "the BMC shows none, and how many there should be is not known")
    return Finding("gpus", "pass", f"{seen} seen" + (f" of {full}" if full is not None else ""))


def gpu_health(found: Bmc) -> Finding | None:
    """None where the BMC lists no GPU: `gpus` says that."""
    if not found.gpus:
        return None
    bad = [one for one in found.gpus if one.health in ("Warning", "Critical")]
    if bad:
        said = listed(f"{one.id} ({one.serial or 'no serial'}) is {one.health}" for one in bad)
        return Finding(
            "gpu health", _worst(one.health for one in bad), said, "`gpuprov verify`; replace it if it stays"
        )
    unsaid = [one.id for one in found.gpus if one.health != "OK"]
    if unsaid:
        return Finding("gpu health", "unknown", f"no health is given of {listed(unsaid)}")
    return Finding("gpu health", "pass", f"{len(found.gpus)} OK")


def conditions(found: Bmc) -> Finding:
    """A machine says OK with GPUs that have errors; here it says so."""
    if found.conditions is None:
        return Finding("conditions", "unknown", "the BMC has no list of conditions; its event log counts")
    bad = list(troubling(found.conditions))
    if bad:
        said, action = listed(_told(one) for one in bad), "clear them in the BMC once they are mended"
        return Finding("conditions", _worst(one.severity for one in bad), said, action)
    return Finding("conditions", "pass", "none")


def events(found: Bmc) -> Finding:
    if found.events is None:
        return Finding("events", "unknown", "which entries of its event log are new is not known")
    bad = list(troubling(found.events))
    if bad:
        said = f"{len(bad)} since the last look: {listed(_told(one) for one in bad)}"
        return Finding("events", "warn", said, "`gpuprov bmc FILE sel`")
    return Finding("events", "pass", "no new warning since the last look")


def troubling(entries: Iterable[Event]) -> Iterator[Event]:
    """Those that are a warning or worse."""
    return (one for one in entries if one.severity in ("Warning", "Critical"))


def pinned(found: Bmc, wanted: Mapping[str, str] | None) -> Finding | None:
    """Against the versions that cluster.yaml pins."""
    if not wanted:
        return None
    others = [
        f"{part} {found.firmware[part]}, not {version}"
        for part, version in wanted.items()
        if found.firmware.get(part, version) != version
    ]
    unsaid = [part for part in wanted if part not in found.firmware]
    if others:
        return Finding("pinned firmware", "warn", listed(others), "bring it to the version of `firmware`")
    if unsaid:
        near = ", ".join(sorted(found.firmware)[:8]) or "none"
        return Finding("pinned firmware", "unknown", f"the BMC lists no version of {listed(unsaid)}; it lists {near}")
    return Finding("pinned firmware", "pass", f"{len(wanted)} as pinned")


def settings(found: Bmc) -> Finding:
    """BIOS settings that GPU work needs."""
    if found.bios_settings is None:
        return Finding("bios settings", "unknown", "the BMC shows no BIOS attributes")
    bad = [one for one in found.bios_settings if one.good is False]
    known = [one for one in found.bios_settings if one.good is not None]
    if bad:
        said = listed(f"{one.setting}: {one.attribute} is {one.value} ({one.why})" for one in bad)
        return Finding("bios settings", "warn", said, "change it in the BIOS setup, or by the BMC, and reboot")
    if not known:
        return Finding("bios settings", "unknown", "none of its attributes is known, or has a value that is")
    return Finding("bios settings", "pass", listed(f"{one.attribute} is {one.value}" for one in known))


def budget(found: Bmc, most: float | None) -> Finding | None:
    """What the site's machines draw together against what cluster.yaml allows them."""
    if most is None:
        return None
    if found.site is None:
        return Finding("power budget", "unknown", "what the other machines of the site draw is not known")
    drawn, silent = found.site.drawn_w, found.site.silent
    mine = f"; this machine draws {found.drawn_w:.0f} W" if found.drawn_w is not None else ""
    if drawn > most:
        said = f"the machines of the site draw {drawn:.0f} W, {drawn - most:.0f} W above the {most:.0f} W{mine}"
        return Finding("power budget", "warn", said, "cap their power in the BMCs, or move load to another rack")
    if silent:
        said = f"{silent} machines of the site do not say what they draw; the others draw {drawn:.0f} of {most:.0f} W"
        return Finding("power budget", "unknown", said)
    return Finding("power budget", "pass", f"{drawn:.0f} of {most:.0f} W{mine}")


def override(found: Bmc) -> Finding | None:
    """What an installation, or a person, has left behind."""
    if not found.override:
        return None
    said = f"the next boot is from {found.override}"
    return Finding("boot override", "warn", said, "clear it in the BMC, or the machine may start an installer")


def media(found: Bmc) -> Finding | None:
    if not found.attached:
        return None
    return Finding("virtual media", "warn", f"attached: {listed(found.attached)}", "eject it in the BMC")


def password(found: Bmc) -> Finding | None:
    """None where nobody has tried."""
    if not found.factory_password:
        return None if found.factory_password is None else Finding("password", "pass", "not one that makers deliver")
    said = "the BMC takes a user and password that its maker has published"
    return Finding("password", "warn", said, "give it another one, in the BMC and in the site's `credentials`")


def firmware_differs(group: Mapping[str, Bmc]) -> dict[str, Finding]:
    """Machine → where its BIOS, BMC or parts have another version than most of its group have. One that does not list
    its firmware is unknown."""
    found = _differs({name: one.firmware for name, one in group.items() if one.firmware}, "firmware", "versions",
                     "bring the group to one version")  # fmt: skip
    silent = Finding("firmware", "unknown", "the BMC lists no versions")
    return {name: found.get(name, silent) for name in group}


def settings_differ(group: Mapping[str, Bmc]) -> dict[str, Finding]:
    """Machine → where a BIOS setting is another than on most of its group; those alone that show such settings."""
    shown = {name: {row.attribute: row.value for row in one.bios_settings or ()} for name, one in group.items()}
    for name, one in group.items():  # its number alone says nothing: a DGX H100 that may draw 10 kW shows 500 W
        shown[name] |= {"power cap": f"{one.cap_w:.0f} W"} if one.cap_w is not None else {}
    return _differs({name: rows for name, rows in shown.items() if rows}, "group settings", "settings",
                    "set it alike in the BIOS setup, or by the BMC, and reboot")  # fmt: skip


def _differs(group: Mapping[str, Mapping[str, str]], check: str, what: str, action: str) -> dict[str, Finding]:
    """The same of anything that has a name and a value."""
    counts: dict[str, Counter[str]] = {}
    for rows in group.values():
        for name, value in rows.items():
            counts.setdefault(name, Counter())[value] += 1
    usual = {name: _common(counted) for name, counted in counts.items()}
    made = {}
    for machine, rows in group.items():
        others = [
            f"{name} {have}, not {usual[name]}" if usual[name] else f"{name} {have}, and the group has no common one"
            for name, have in rows.items()
            if have != usual[name]
        ]
        if others:
            made[machine] = Finding(check, "warn", listed(others), action)
        else:
            made[machine] = Finding(check, "pass", f"{len(rows)} {what}, as in its group")
    return made


def _common(counted: Counter[str]) -> str | None:
    """The value that more than half of the machines have; None where there is none: nobody can say who differs."""
    value, times = counted.most_common(1)[0]
    return value if times * 2 > counted.total() else None


def _told(one: Event) -> str:
    return f"{one.about + ': ' if one.about else ''}{one.message[:160]}"


def listed(texts: Iterable[str]) -> str:
    found = list(texts)
    more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return "; ".join(found[:SHOWN]) + more
