"""Fans, power supplies, temperatures, leak detectors and the power that a machine draws, each as the BMC judges it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from provisioner.machines.redfish.devices import health, state
from provisioner.machines.redfish.tree import Resource, Tree, inner, number, rows, text

_NO_CAP = 32767
"""Watts that an iDRAC shows where no cap is set (a signed 16 bit number's most)."""


@dataclass(frozen=True, slots=True)
class Part:
    """One sensor or supply. `state`: Enabled, Absent …; `health`: OK, Warning, Critical, None where it is not said.
    `reading` in `unit`: rpm, percent, C, W. `limit`: upper limit that the BMC itself calls critical."""

    name: str
    state: str | None
    health: str | None
    reading: float | None = None
    unit: str = ""
    limit: float | None = None

    @property
    def there(self) -> bool:
        return self.state not in ("Absent", "Disabled", "UnavailableOffline")


@dataclass(frozen=True, slots=True)
class Parts:
    """`known`: whether the BMC has a place for them at all, and it could be read whole."""

    read: tuple[Part, ...] = ()
    known: bool = False

    @property
    def present(self) -> tuple[Part, ...]:
        return tuple(part for part in self.read if part.there)


@dataclass(frozen=True, slots=True)
class Power:
    """Watts of the whole machine; None where they are not shown. `cap`: limit that is set."""

    drawn_w: float | None = None
    cap_w: float | None = None
    capacity_w: float | None = None


def fans(tree: Tree, chassis: Iterable[Resource]) -> Parts:
    parts, known = list[Part](), False
    for resource in chassis:
        collection = inner(tree.get(resource.get("ThermalSubsystem")), "Fans")
        members = tree.members(collection) if collection else None
        if members and members.read:
            parts += [_fan(fan) for fan in members]
            known = known or members.complete
            continue
        old = tree.get(resource.get("Thermal"))
        if isinstance(old.get("Fans"), list):
            parts += [_fan(fan) for fan in rows(old["Fans"])]
            known = True
        elif members:
            known = known or members.complete
    return Parts(tuple(parts), known)


def _fan(fan: Resource) -> Part:
    reading, unit = number(fan.get("Reading")), (text(fan.get("ReadingUnits")) or "").lower()
    if reading is None:
        speed = inner(fan, "SpeedPercent")
        reading, unit = number(speed.get("SpeedRPM")), "rpm"
        if reading is None:
            reading, unit = number(speed.get("Reading")), "percent"
    return Part(_name(fan, "FanName"), state(fan), health(fan), reading, unit if reading is not None else "")


def supplies(tree: Tree, chassis: Iterable[Resource]) -> Parts:
    parts, known = list[Part](), False
    for resource in chassis:
        members = tree.members(inner(tree.get(resource.get("PowerSubsystem")), "PowerSupplies"))
        if members.read:
            parts += [Part(_name(bay), state(bay), health(bay)) for bay in members]
            known = known or members.complete
            continue
        old = tree.get(resource.get("Power")).get("PowerSupplies")
        if isinstance(old, list):
            parts += [
                Part(_name(bay), state(bay), health(bay), number(bay.get("LastPowerOutputWatts")), "W")
                for bay in rows(old)
            ]
            known = True
        else:
            known = known or members.complete
    return Parts(tuple(parts), known)


def temperatures(tree: Tree, chassis: Iterable[Resource]) -> Parts:
    parts, known = list[Part](), False
    for resource in chassis:
        old = tree.get(resource.get("Thermal")).get("Temperatures")
        if isinstance(old, list):
            known = True
            parts += [
                Part(
                    _name(probe), state(probe), health(probe), number(probe.get("ReadingCelsius")), "C",
                    number(probe.get("UpperThresholdCritical")),
                )
                for probe in rows(old)
            ]  # fmt: skip
            continue
        for sensor in tree.members(resource.get("Sensors")):
            if text(sensor.get("ReadingType")) == "Temperature":
                limit = number(inner(sensor, "Thresholds", "UpperCritical").get("Reading"))
                parts.append(
                    Part(_name(sensor), state(sensor), health(sensor), number(sensor.get("Reading")), "C", limit)
                )
                known = True
    return Parts(tuple(parts), known)


def leaks(tree: Tree, chassis: Iterable[Resource]) -> Parts:
    """Detectors of liquid cooling; `known` is False for a machine that has none, or does not show them."""
    parts, known = list[Part](), False
    for resource in chassis:
        detection = tree.get(tree.get(resource.get("ThermalSubsystem")).get("LeakDetection"))
        members = tree.members(detection.get("LeakDetectors"))
        known = known or members.complete
        for detector in members:
            detector_state = text(detector.get("DetectorState"))
            judged = detector_state.capitalize() if detector_state and detector_state != "OK" else detector_state
            parts.append(
                Part(
                    _name(detector),
                    state(detector),
                    judged if judged in ("OK", "Warning", "Critical") else health(detector),
                )
            )
    return Parts(tuple(parts), known and bool(parts))


def power(tree: Tree, chassis: Iterable[Resource]) -> Power:
    """Of the first chassis that shows it: a machine's own comes before its parts'."""
    for resource in chassis:
        control = next(iter(rows(tree.get(resource.get("Power")).get("PowerControl"))), {})
        metrics = tree.get(resource.get("EnvironmentMetrics"))
        drawn = number(control.get("PowerConsumedWatts"))
        drawn = drawn if drawn else number(inner(metrics, "PowerWatts").get("Reading"))
        cap = number(inner(control, "PowerLimit").get("LimitInWatts")) or number(
            inner(metrics, "PowerLimitWatts").get("SetPoint")
        )
        cap = None if cap and cap >= _NO_CAP else cap
        capacity = number(control.get("PowerCapacityWatts"))
        if drawn or cap or capacity:
            return Power(drawn or None, cap or None, capacity or None)  # 0 W is no reading of a machine that answers
    return Power()


def _name(part: Resource, other: str = "MemberId") -> str:
    name = text(part.get("Name"))
    generic = name is None or name.lower() in (
        "powersupply",
        "power supply",
        "fan",
        "leakdetector",
        "hpeserverpowersupply",
    )
    label = text(part.get("Id")) or text(part.get(other)) or text(part.get("MemberId")) if generic else name
    return label or name or "?"
