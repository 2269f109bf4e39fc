"""What a BMC's facts mean: a healthy machine passes, and each fault alone makes its own check red."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from provisioner.redfish import inventory, logs
from provisioner.redfish.judge import Expected, Finding, firmware_differs, judge
from provisioner.redfish.tree import Tree
from tests.support.bmc import TREES

R750 = "dell-poweredge-r750-h100pcie"
DGX = "nvidia-dgx-h100"
GB200 = "nvidia-gb200-nvl"
SYSTEM = "/redfish/v1/Systems/System.Embedded.1"
CHASSIS = "/redfish/v1/Chassis/System.Embedded.1"
Edit = Callable[[dict[str, Any]], object]


def findings(name: str, expected: Expected, *edits: tuple[str, Edit]) -> dict[str, Finding]:
    known = json.loads(gzip.decompress((TREES / f"{name}.redfish.json.gz").read_bytes()))
    for uri, edit in edits:
        edit(known[uri])
    return {one.check: one for one in judge(inventory.read(Tree(known.get)), expected)}


def test_a_healthy_machine_passes() -> None:
    found = findings(R750, Expected(gpus=1, os_gpus=1))
    assert {name: one.status for name, one in found.items() if one.status != "pass"} == {"conditions": "unknown"}


def health(value: str | None) -> Edit:
    return lambda one: one.update(Status={"State": "Enabled", "Health": value})


FAULTS: dict[str, tuple[str, Expected, tuple[str, Edit], str, str]] = {
    "off": (R750, Expected(1, 1), (SYSTEM, lambda s: s.update(PowerState="Off")), "power", "fail"),
    "power is not said": (R750, Expected(1, 1), (SYSTEM, lambda s: s.pop("PowerState")), "power", "unknown"),
    "critical": (R750, Expected(1, 1), (SYSTEM, health("Critical")), "health", "fail"),
    "warning": (R750, Expected(1, 1), (SYSTEM, health("Warning")), "health", "warn"),
    "no health": (R750, Expected(1, 1), (SYSTEM, health(None)), "health", "unknown"),
    "a supply fails": (
        R750,
        Expected(1, 1),
        (f"{CHASSIS}/PowerSubsystem/PowerSupplies/PSU.Slot.1", health("Critical")),
        "power supplies",
        "fail",
    ),
    "a supply says nothing": (
        R750,
        Expected(1, 1),
        (f"{CHASSIS}/PowerSubsystem/PowerSupplies/PSU.Slot.1", health(None)),
        "power supplies",
        "unknown",
    ),
    "an empty bay": (
        R750,
        Expected(1, 1),
        (
            f"{CHASSIS}/PowerSubsystem/PowerSupplies/PSU.Slot.1",
            lambda p: p.update(Status={"State": "Absent", "Health": "Warning"}),
        ),
        "power supplies",
        "pass",
    ),
    "a fan fails": (
        R750,
        Expected(1, 1),
        (f"{CHASSIS}/ThermalSubsystem/Fans/Fan.Embedded.3A", health("Warning")),
        "fans",
        "warn",
    ),
    "too hot": (
        R750,
        Expected(1, 1),
        (f"{CHASSIS}/Thermal", lambda t: t["Temperatures"][0].update(ReadingCelsius=999)),
        "temperatures",
        "fail",
    ),
    "a GPU is gone": (R750, Expected(2, None), (SYSTEM, lambda s: None), "gpus", "fail"),
    "a GPU is lost to the system": (R750, Expected(1, 0), (SYSTEM, lambda s: None), "gpus", "fail"),
    "a GPU is sick": (
        R750,
        Expected(1, 1),
        (f"{SYSTEM}/Processors/Video.Slot.2-1", health("Critical")),
        "gpu health",
        "fail",
    ),
    "an override is left": (
        R750,
        Expected(1, 1),
        (SYSTEM, lambda s: s["Boot"].update(BootSourceOverrideEnabled="Once", BootSourceOverrideTarget="Cd")),
        "boot override",
        "warn",
    ),
    "an image is left": (
        R750,
        Expected(1, 1),
        (f"{SYSTEM}/VirtualMedia/1", lambda m: m.update(Inserted=True, ConnectedVia="URI", Image="http://x/y.iso")),
        "virtual media",
        "warn",
    ),
    "a leak": (
        GB200,
        Expected(4, 4),
        ("/redfish/v1/Chassis/Chassis_0", lambda c: None),
        "leaks",
        "fail",
    ),
    "conditions behind an OK": (DGX, Expected(8, 8), ("/redfish/v1/Systems/DGX", lambda s: None), "conditions", "fail"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_makes_its_check_red(name: str) -> None:
    tree, expected, edit, check, status = FAULTS[name]
    before = {key: one.status for key, one in findings(tree, Expected(expected.gpus and 1, None)).items()}
    found = findings(tree, expected, edit)
    assert found[check].status == status, found[check]
    if tree == R750:
        changed = {key for key, one in found.items() if one.status != before.get(key, "pass")}
        assert changed <= {check, "health"}
    if status == "fail":
        assert found[check].action


def test_seen_by_neither_is_another_repair_than_lost_to_the_system() -> None:
    neither = findings(R750, Expected(gpus=2, os_gpus=1))["gpus"]
    system = findings(R750, Expected(gpus=1, os_gpus=0))["gpus"]
    bmc = findings(R750, Expected(gpus=2, os_gpus=2))["gpus"]
    assert "sees 1 of 2 GPUs, and the operating system 1" in neither.message and "reseat" in neither.action
    assert "lost to the system alone" in system.message and "Xid 79" in system.action
    assert bmc.status == "warn" and "reset the BMC" in bmc.action


def test_what_could_not_be_read_is_no_missing_gpu() -> None:
    found = findings("supermicro-sys-a21ge-nbrt-b200-partial", Expected(gpus=8))
    assert found["gpus"].status == "unknown"


def test_new_events_are_told() -> None:
    one = inventory.read(Tree(json.loads(gzip.decompress((TREES / f"{R750}.redfish.json.gz").read_bytes())).get))
    new = [
        logs.Entry("SEL", "7", "2026-11-22", "Critical", "a PSU was lost", "PSU.1"),
        logs.Entry("SEL", "8", "", "OK", "fine"),
    ]
    found = next(f for f in judge(one, Expected(1), new) if f.check == "events")
    assert (found.status, "1 since the last look: PSU.1: a PSU was lost" in found.message) == ("warn", True)


def test_firmware_that_differs_within_a_group() -> None:
    one = inventory.read(Tree(json.loads(gzip.decompress((TREES / f"{R750}.redfish.json.gz").read_bytes())).get))
    found = firmware_differs(
        {"a": one, "b": one, "c": replace(one, bios="1.9.0"), "d": replace(one, firmware=None, bios=None, bmc=None)}
    )
    assert {name: f.status for name, f in found.items()} == {"a": "pass", "b": "pass", "c": "warn", "d": "unknown"}
    assert "BIOS 1.9.0, not 1.8.2" in found["c"].message
