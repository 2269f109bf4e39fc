"""What a BMC's facts mean: pass, warn, fail or unknown, each with what to do. What a BMC does not say is unknown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from provisioner.redfish.inventory import Inventory
from provisioner.redfish.logs import Entry, troubling
from provisioner.redfish.sensors import Part, Parts

Status = Literal["pass", "warn", "fail", "unknown"]
SHOWN = 4


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    status: Status
    message: str
    action: str = ""


@dataclass(frozen=True, slots=True)
class Expected:
    """What is known of a machine by other ways. `gpus`: what its type has; `os_gpus`: what its operating system saw
    last; None where that is not known."""

    gpus: int | None = None
    os_gpus: int | None = None


def judge(found: Inventory, expected: Expected, new: Iterable[Entry] = ()) -> list[Finding]:
    """Everything about one machine. `new`: entries of its event logs that were not there at the last look."""
    return [
        _power(found),
        _health(found),
        *_parts("power supplies", found.supplies, "reseat or replace it; check its feed"),
        *_parts("fans", found.fans, "replace it"),
        *_temperatures(found),
        *_leaks(found),
        _gpus(found, expected),
        *_gpu_health(found),
        _conditions(found),
        _events(new),
        *_left(found),
    ]


def _power(found: Inventory) -> Finding:
    if found.power == "On":
        return Finding("power", "pass", "on")
    if found.power is None:
        return Finding("power", "unknown", "the BMC does not say whether the machine is on")
    return Finding("power", "fail", f"the machine is {found.power}", "`gpuprov bmc FILE power on NODE`")


_BY_HEALTH: Mapping[str | None, Status] = {"OK": "pass", "Warning": "warn", "Critical": "fail"}


def _health(found: Inventory) -> Finding:
    status = _BY_HEALTH.get(found.health, "unknown")
    words = f"the BMC says {found.health}" if found.health else "the BMC gives no health"
    return Finding("health", status, words, "" if status == "pass" else "`gpuprov bmc FILE sel` shows why")


def _parts(name: str, parts: Parts, action: str) -> Iterator[Finding]:
    if not parts.known:
        yield Finding(name, "unknown", "the BMC does not show them")
        return
    bad = [one for one in parts.present if one.health in ("Warning", "Critical")]
    unsaid = [one for one in parts.present if one.health is None]
    if bad:
        status: Status = "fail" if any(one.health == "Critical" for one in bad) else "warn"
        yield Finding(name, status, _listed(f"{one.name} is {one.health}" for one in bad), action)
    elif unsaid:
        yield Finding(name, "unknown", f"no health is given of {_listed(one.name for one in unsaid)}")
    else:
        yield Finding(name, "pass", f"{len(parts.present)} OK" if parts.present else "none is listed")


def _temperatures(found: Inventory) -> Iterator[Finding]:
    if not found.temperatures.known:
        yield Finding("temperatures", "unknown", "the BMC does not show them")
        return
    hot = [one for one in found.temperatures.present if _hot(one)]
    if hot:
        said = _listed(
            f"{one.name} {one.reading:.0f} C{_limit(one)}" if one.reading is not None else one.name for one in hot
        )
        yield Finding("temperatures", "fail", said, "check inlet air, fans and the load of the rack")
    else:
        yield Finding("temperatures", "pass", f"{len(found.temperatures.present)} within the BMC's own limits")


def _hot(one: Part) -> bool:
    over = one.reading is not None and one.limit is not None and one.limit > 0 and one.reading >= one.limit
    return over or one.health == "Critical"


def _limit(one: Part) -> str:
    return f", limit {one.limit:.0f} C" if one.limit else ""


def _leaks(found: Inventory) -> Iterator[Finding]:
    """Only of machines that have detectors."""
    if found.leaks.known:
        wet = [one for one in found.leaks.present if one.health in ("Warning", "Critical")]
        if wet:
            said = _listed(f"{one.name} is {one.health}" for one in wet)
            yield Finding("leaks", "fail", said, "switch the machine off and look at its liquid cooling")
        else:
            yield Finding("leaks", "pass", f"{len(found.leaks.present)} detectors are dry")


def _gpus(found: Inventory, expected: Expected) -> Finding:
    """The BMC's count against the machine type's and the operating system's: a GPU that only the system lost is another
    repair than one that nobody sees."""
    seen, wanted, inside = len(found.gpus.read), expected.gpus, expected.os_gpus
    if wanted is not None and seen < wanted:
        if not found.gpus.complete:
            return Finding("gpus", "unknown", f"the BMC shows {seen} of {wanted}, and not everything could be read")
        lost = f"the BMC sees {seen} of {wanted} GPUs"
        if inside is not None and inside > seen:
            return Finding("gpus", "warn", f"{lost}, and the operating system {inside}", "update or reset the BMC")
        said = f", and the operating system {inside}" if inside is not None else ""
        return Finding("gpus", "fail", lost + said, "drain power; reseat or replace the GPU or its board")
    if inside is not None and inside < seen:
        return Finding(
            "gpus", "fail", f"the BMC sees {seen} GPUs and the operating system {inside}: lost to the system alone",
            "look for Xid 79 in its kernel log; reset the GPU or power-cycle the machine before anything is replaced",
        )  # fmt: skip
    if wanted is None and not seen:
        return Finding("gpus", "unknown", "the BMC shows none, and how many there should be is not known")
    return Finding("gpus", "pass", f"{seen} seen" + (f" of {wanted}" if wanted is not None else ""))


def _gpu_health(found: Inventory) -> Iterator[Finding]:
    bad = [one for one in found.gpus.read if one.health in ("Warning", "Critical")]
    if bad:
        status: Status = "fail" if any(one.health == "Critical" for one in bad) else "warn"
        said = _listed(f"{one.id} ({one.serial or 'no serial'}) is {one.health}" for one in bad)
        yield Finding("gpu health", status, said, "`gpuprov verify`; replace it if it stays")


def _conditions(found: Inventory) -> Finding:
    """A machine says OK with GPUs that have errors; here it says so."""
    bad = list(troubling(found.conditions.read))
    if bad:
        status: Status = "fail" if any(one.severity == "Critical" for one in bad) else "warn"
        return Finding(
            "conditions", status, _listed(_event(one) for one in bad), "clear them in the BMC once they are mended"
        )
    if not found.conditions.known:
        return Finding("conditions", "unknown", "the BMC has no list of conditions; its event log counts")
    return Finding("conditions", "pass", "none")


def _events(new: Iterable[Entry]) -> Finding:
    bad = list(troubling(new))
    if bad:
        return Finding(
            "events",
            "warn",
            f"{len(bad)} since the last look: {_listed(_event(one) for one in bad)}",
            "`gpuprov bmc FILE sel`",
        )
    return Finding("events", "pass", "no new warning since the last look")


def _left(found: Inventory) -> Iterator[Finding]:
    """What an installation, or a person, has left behind."""
    if found.boot.overridden:
        said = f"the next boot is from {found.boot.target} ({found.boot.enabled})"
        yield Finding("boot override", "warn", said, "clear it in the BMC, or the machine may start an installer")
    attached = [one.image or one.id for one in found.media.slots if one.free is False]
    if attached:
        yield Finding("virtual media", "warn", f"attached: {_listed(attached)}", "eject it in the BMC")


def firmware_differs(group: Mapping[str, Inventory]) -> dict[str, Finding]:
    """Machine → where its BIOS, BMC or parts have another version than most of its group have. One that does not list
    its firmware is unknown."""
    versions: dict[str, Counter[str]] = {}
    mine = {name: _versions(one) for name, one in group.items()}
    for named in mine.values():
        for part, version in named.items():
            versions.setdefault(part, Counter())[version] += 1
    usual = {part: counted.most_common(1)[0][0] for part, counted in versions.items()}
    made = {}
    for name, named in mine.items():
        if not named:
            made[name] = Finding("firmware", "unknown", "the BMC lists no versions")
            continue
        others = [f"{part} {version}, not {usual[part]}" for part, version in named.items() if version != usual[part]]
        if others:
            made[name] = Finding("firmware", "warn", _listed(others), "bring the group to one version")
        else:
            made[name] = Finding("firmware", "pass", f"{len(named)} versions, as in its group")
    return made


def _versions(one: Inventory) -> dict[str, str]:
    """Part → version; parts that several firmwares share by name are left out, for nobody could tell them apart."""
    named = [(row.name, row.version) for row in one.firmware or () if row.version]
    once = Counter(name for name, _ in named)
    found = {name: version for name, version in named if once[name] == 1}
    return found | {name: version for name, version in (("BIOS", one.bios), ("BMC", one.bmc)) if version}


def _event(one: Entry) -> str:
    return f"{one.about + ': ' if one.about else ''}{one.message[:160]}"


def _listed(texts: Iterable[str]) -> str:
    found = list(texts)
    more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return "; ".join(found[:SHOWN]) + more
