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


def judge(bmc: Bmc, expected: Wanted) -> list[Finding]:
    """Everything about one machine alone."""
    findings = [
        identity(bmc, expected.serial),
        power(bmc),
        health(bmc),
        supplies(bmc),
        fans(bmc),
        temperatures(bmc),
        leaks(bmc),
        gpus(bmc, expected),
        gpu_health(bmc),
        conditions(bmc),
        events(bmc),
        pinned(bmc, expected.firmware),
        settings(bmc),
        budget(bmc, expected.budget_w),
        override(bmc),
        media(bmc),
        password(bmc),
    ]
    return [finding for finding in findings if finding is not None]


def identity(bmc: Bmc, serial: str) -> Finding | None:
    """Whether it is the BMC of the machine that cluster.yaml names."""
    if not serial:
        return None
    if serial.casefold() in {bmc_serial.casefold() for bmc_serial in bmc.serials}:
        return Finding("serial number", "pass", bmc.serial or serial)
    return Finding(
        "serial number", "fail", f"the BMC is that of the machine {bmc.serial or 'without one'}, not of {serial}",
        "check `bmc` and `serial` of this host in cluster.yaml, and the cabling of the BMC network",
    )  # fmt: skip


def power(bmc: Bmc) -> Finding:
    if bmc.power == "On":
        return Finding("power", "pass", "on")
    if bmc.power is None:
        return Finding("power", "unknown", "the BMC does not say whether the machine is on")
    return Finding("power", "fail", f"the machine is {bmc.power}", "`gpuprov bmc FILE power on NODE`")


_BY_HEALTH: Mapping[str | None, Status] = {"OK": "pass", "Warning": "warn", "Critical": "fail"}


def health(bmc: Bmc) -> Finding:
    status = _BY_HEALTH.get(bmc.health, "unknown")
    message = f"the BMC says {bmc.health}" if bmc.health else "the BMC gives no health"
    return Finding("health", status, message, "" if status == "pass" else "`gpuprov bmc FILE sel` shows why")


def supplies(bmc: Bmc) -> Finding | None:
    return _parts("power supplies", bmc.supplies, "reseat or replace it; check its feed")


def fans(bmc: Bmc) -> Finding | None:
    return _parts("fans", bmc.fans, "replace it")


def _parts(name: str, parts: tuple[Part, ...] | None, action: str) -> Finding | None:
    """None for a blade or a sled, whose enclosure has them."""
    if parts == ():
        return None
    if parts is None:
        return Finding(name, "unknown", "the BMC does not show them")
    bad = [part for part in parts if part.health in ("Warning", "Critical")]
    unsaid = [part for part in parts if part.health != "OK"]
    if bad:
        return Finding(
            name, _worst(part.health for part in bad), listed(f"{p.name} is {p.health}" for p in bad), action
        )
    if unsaid:
        return Finding(name, "unknown", f"no health is given of {listed(part.name for part in unsaid)}")
    return Finding(name, "pass", f"{len(parts)} OK")


def _worst(severities: Iterable[str | None]) -> Status:
    return "fail" if "Critical" in set(severities) else "warn"


def temperatures(bmc: Bmc) -> Finding:
    if bmc.temperatures is None:
        return Finding("temperatures", "unknown", "the BMC does not show them")
    hot = [sensor for sensor in bmc.temperatures if _hot(sensor)]
    if hot:
        readings = listed(f"{p.name} {p.reading:.0f} C{_limit(p)}" if p.reading is not None else p.name for p in hot)
        return Finding("temperatures", "fail", readings, "check inlet air, fans and the load of the rack")
    return Finding("temperatures", "pass", f"{len(bmc.temperatures)} within the BMC's own limits")


def _hot(sensor: Part) -> bool:
    over = (
        sensor.reading is not None and sensor.limit is not None and sensor.limit > 0 and sensor.reading >= sensor.limit
    )
    return over or sensor.health == "Critical"


def _limit(sensor: Part) -> str:
    return f", limit {sensor.limit:.0f} C" if sensor.limit else ""


def leaks(bmc: Bmc) -> Finding | None:
    """None for a machine that shows no detectors: most have no liquid cooling."""
    if not bmc.leaks:
        return None
    wet = [detector for detector in bmc.leaks if detector.health in ("Warning", "Critical")]
    if wet:
        states = listed(f"{detector.name} is {detector.health}" for detector in wet)
        return Finding("leaks", "fail", states, "switch the machine off and look at its liquid cooling")
    unsaid = [detector.name for detector in bmc.leaks if detector.health != "OK"]
    if unsaid:
        return Finding("leaks", "unknown", f"no state is given of {listed(unsaid)}")
    return Finding("leaks", "pass", f"{len(bmc.leaks)} detectors are dry")


def gpus(bmc: Bmc, expected: Wanted) -> Finding:
    """The BMC's count against the machine type's and the operating system's: a GPU that only the system lost is another
    repair than one that nobody sees."""
    bmc_gpus, full, inside = len(bmc.gpus), expected.gpus, expected.os_gpus
    if full is not None and bmc_gpus < full:
        if not bmc.gpus_complete:
            return Finding("gpus", "unknown", f"the BMC shows {bmc_gpus} of {full}, and not everything could be read")
        lost = f"the BMC sees {bmc_gpus} of {full} GPUs"
        if inside is not None and inside > bmc_gpus:
            return Finding("gpus", "warn", f"{lost}, and the operating system {inside}", "update or reset the BMC")
        os_count = f", and the operating system {inside}" if inside is not None else ""
        return Finding("gpus", "fail", lost + os_count, "drain power; reseat or replace the GPU or its board")
    if inside is not None and inside < bmc_gpus:
        return Finding(
            "gpus", "fail", f"the BMC sees {bmc_gpus} GPUs and the operating system {inside}: lost to the system alone",
            "look for Xid 79 in its kernel log; reset the GPU or power-cycle the machine before anything is replaced",
        )  # fmt: skip
    if full is None and not bmc_gpus:
        return Finding("gpus", "unknown", "the BMC shows none, and how many there should be is not known")
    return Finding("gpus", "pass", f"{bmc_gpus} seen" + (f" of {full}" if full is not None else ""))


def gpu_health(bmc: Bmc) -> Finding | None:
    """None where the BMC lists no GPU: `gpus` says that."""
    if not bmc.gpus:
        return None
    bad = [gpu for gpu in bmc.gpus if gpu.health in ("Warning", "Critical")]
    if bad:
        states = listed(f"{gpu.id} ({gpu.serial or 'no serial'}) is {gpu.health}" for gpu in bad)
        return Finding(
            "gpu health", _worst(gpu.health for gpu in bad), states, "`gpuprov verify`; replace it if it stays"
        )
    unsaid = [gpu.id for gpu in bmc.gpus if gpu.health != "OK"]
    if unsaid:
        return Finding("gpu health", "unknown", f"no health is given of {listed(unsaid)}")
    return Finding("gpu health", "pass", f"{len(bmc.gpus)} OK")


def conditions(bmc: Bmc) -> Finding:
    """A machine says OK with GPUs that have errors; here it says so."""
    if bmc.conditions is None:
        return Finding("conditions", "unknown", "the BMC has no list of conditions; its event log counts")
    bad = list(troubling(bmc.conditions))
    if bad:
        messages, action = (
            listed(_event_text(condition) for condition in bad),
            "clear them in the BMC once they are mended",
        )
        return Finding("conditions", _worst(condition.severity for condition in bad), messages, action)
    return Finding("conditions", "pass", "none")


def events(bmc: Bmc) -> Finding:
    if bmc.events is None:
        return Finding("events", "unknown", "which entries of its event log are new is not known")
    bad = list(troubling(bmc.events))
    if bad:
        message = f"{len(bad)} since the last look: {listed(_event_text(event) for event in bad)}"
        return Finding("events", "warn", message, "`gpuprov bmc FILE sel`")
    return Finding("events", "pass", "no new warning since the last look")


def troubling(entries: Iterable[Event]) -> Iterator[Event]:
    """Those that are a warning or worse."""
    return (entry for entry in entries if entry.severity in ("Warning", "Critical"))


def pinned(bmc: Bmc, pins: Mapping[str, str] | None) -> Finding | None:
    """Against the versions that cluster.yaml pins."""
    if not pins:
        return None
    deviations = [
        f"{part} {bmc.firmware[part]}, not {version}"
        for part, version in pins.items()
        if bmc.firmware.get(part, version) != version
    ]
    unsaid = [part for part in pins if part not in bmc.firmware]
    if deviations:
        return Finding("pinned firmware", "warn", listed(deviations), "bring it to the version of `firmware`")
    if unsaid:
        listed_parts = ", ".join(sorted(bmc.firmware)[:8]) or "none"
        return Finding(
            "pinned firmware", "unknown", f"the BMC lists no version of {listed(unsaid)}; it lists {listed_parts}"
        )
    return Finding("pinned firmware", "pass", f"{len(pins)} as pinned")


def settings(bmc: Bmc) -> Finding:
    """BIOS settings that GPU work needs."""
    if bmc.bios_settings is None:
        return Finding("bios settings", "unknown", "the BMC shows no BIOS attributes")
    bad = [setting for setting in bmc.bios_settings if setting.good is False]
    known = [setting for setting in bmc.bios_settings if setting.good is not None]
    if bad:
        deviations = listed(
            f"{setting.setting}: {setting.attribute} is {setting.value} ({setting.why})" for setting in bad
        )
        return Finding("bios settings", "warn", deviations, "change it in the BIOS setup, or by the BMC, and reboot")
    if not known:
        return Finding("bios settings", "unknown", "none of its attributes is known, or has a value that is")
    return Finding("bios settings", "pass", listed(f"{setting.attribute} is {setting.value}" for setting in known))


def budget(bmc: Bmc, limit_w: float | None) -> Finding | None:
    """What the site's machines draw together against what cluster.yaml allows them."""
    if limit_w is None:
        return None
    if bmc.site is None:
        return Finding("power budget", "unknown", "what the other machines of the site draw is not known")
    drawn, silent = bmc.site.drawn_w, bmc.site.silent
    draw = f"; this machine draws {bmc.drawn_w:.0f} W" if bmc.drawn_w is not None else ""
    if drawn > limit_w:
        message = (
            f"the machines of the site draw {drawn:.0f} W, {drawn - limit_w:.0f} W above the {limit_w:.0f} W{draw}"
        )
        return Finding("power budget", "warn", message, "cap their power in the BMCs, or move load to another rack")
    if silent:
        message = (
            f"{silent} machines of the site do not say what they draw; the others draw {drawn:.0f} of {limit_w:.0f} W"
        )
        return Finding("power budget", "unknown", message)
    return Finding("power budget", "pass", f"{drawn:.0f} of {limit_w:.0f} W{draw}")


def override(bmc: Bmc) -> Finding | None:
    """What an installation, or a person, has left behind."""
    if not bmc.override:
        return None
    message = f"the next boot is from {bmc.override}"
    return Finding("boot override", "warn", message, "clear it in the BMC, or the machine may start an installer")


def media(bmc: Bmc) -> Finding | None:
    if not bmc.attached:
        return None
    return Finding("virtual media", "warn", f"attached: {listed(bmc.attached)}", "eject it in the BMC")


def password(bmc: Bmc) -> Finding | None:
    """None where nobody has tried."""
    if not bmc.factory_password:
        return None if bmc.factory_password is None else Finding("password", "pass", "not one that makers deliver")
    message = "the BMC takes a user and password that its maker has published"
    return Finding("password", "warn", message, "give it another one, in the BMC and in the site's `credentials`")


def firmware_differs(group: Mapping[str, Bmc]) -> dict[str, Finding]:
    """Machine → where its BIOS, BMC or parts have another version than most of its group have. One that does not list
    its firmware is unknown."""
    findings = _differs({name: bmc.firmware for name, bmc in group.items() if bmc.firmware}, "firmware", "versions",
                     "bring the group to one version")  # fmt: skip
    silent = Finding("firmware", "unknown", "the BMC lists no versions")
    return {name: findings.get(name, silent) for name in group}


def settings_differ(group: Mapping[str, Bmc]) -> dict[str, Finding]:
    """Machine → where a BIOS setting is another than on most of its group; those alone that show such settings."""
    settings_by_machine = {
        name: {row.attribute: row.value for row in bmc.bios_settings or ()} for name, bmc in group.items()
    }
    for name, bmc in group.items():  # its number alone says nothing: a DGX H100 that may draw 10 kW shows 500 W
        settings_by_machine[name] |= {"power cap": f"{bmc.cap_w:.0f} W"} if bmc.cap_w is not None else {}
    return _differs({name: rows for name, rows in settings_by_machine.items() if rows}, "group settings", "settings",
                    "set it alike in the BIOS setup, or by the BMC, and reboot")  # fmt: skip


def _differs(group: Mapping[str, Mapping[str, str]], check: str, noun: str, action: str) -> dict[str, Finding]:
    """The same of anything that has a name and a value."""
    counts: dict[str, Counter[str]] = {}
    for rows in group.values():
        for name, value in rows.items():
            counts.setdefault(name, Counter())[value] += 1
    common = {name: _common(counted) for name, counted in counts.items()}
    findings = {}
    for machine, rows in group.items():
        deviations = [
            f"{name} {have}, not {common[name]}" if common[name] else f"{name} {have}, and the group has no common one"
            for name, have in rows.items()
            if have != common[name]
        ]
        if deviations:
            findings[machine] = Finding(check, "warn", listed(deviations), action)
        else:
            findings[machine] = Finding(check, "pass", f"{len(rows)} {noun}, as in its group")
    return findings


def _common(counted: Counter[str]) -> str | None:
    """The value that more than half of the machines have; None where there is none: nobody can say who differs."""
    value, times = counted.most_common(1)[0]
    return value if times * 2 > counted.total() else None


def _event_text(event: Event) -> str:
    return f"{event.about + ': ' if event.about else ''}{event.message[:160]}"


def listed(texts: Iterable[str]) -> str:
    items = list(texts)
    more = f" and {len(items) - SHOWN} more" if len(items) > SHOWN else ""
    return "; ".join(items[:SHOWN]) + more
