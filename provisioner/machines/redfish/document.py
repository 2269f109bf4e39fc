"""What a BMC showed of its machine as one JSON object, bmc.json: what is judged, beside the machine's own bundle or
alone (verify/parsers/bmc.py reads it)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from provisioner.machines.redfish import bios, inventory, logs
from provisioner.machines.redfish.inventory import Inventory
from provisioner.machines.redfish.logs import Entry, Log
from provisioner.machines.redfish.sensors import Parts
from provisioner.machines.redfish.tree import Tree

MOST = 500
"""Entries of logs and conditions, each: the newest. Thousands of entries say no more."""


def document(
    machine: Inventory,
    settings: tuple[bios.Setting, ...] | None,
    new: Iterable[Entry] | None = None,
    site: Mapping[str, Any] | None = None,
    *,
    factory_password: bool | None = None,
) -> dict[str, Any]:
    """`new`: entries of its event logs since the last look, None where that is not known; `site`: what all machines of
    its site draw, {"drawn_w": watts, "silent": how many do not say}; `factory_password`: whether it still takes one
    that its maker has published, None where nobody has tried."""
    return {
        "schema": 1,
        "vendor": machine.vendor,
        "model": machine.model,
        "serial": machine.identity.best,
        "serials": [
            serial for serial in (machine.identity.serial, machine.identity.chassis, machine.identity.uuid) if serial
        ],
        "power": machine.power,
        "health": machine.health,
        "supplies": _parts(machine.supplies),
        "fans": _parts(machine.fans),
        "temperatures": _parts(machine.temperatures),
        "leaks": _parts(machine.leaks),
        "gpus": [
            {"id": gpu.id or "?", "model": gpu.model, "serial": gpu.serial, "health": gpu.health}
            for gpu in machine.gpus.read
        ],
        "gpus_complete": machine.gpus.complete,
        "conditions": [_event(entry) for entry in machine.conditions.read[:MOST]]
        if _known(machine.conditions)
        else None,
        "events": None if new is None else [_event(entry) for entry in list(new)[-MOST:]],
        "firmware": versions(machine),
        "bios_settings": None
        if settings is None
        else [
            {
                "setting": setting.setting,
                "attribute": setting.attribute,
                "value": setting.value,
                "good": setting.good,
                "why": setting.why,
            }
            for setting in settings
        ],
        "drawn_w": machine.drawn.drawn_w,
        "cap_w": machine.drawn.cap_w,
        "capacity_w": machine.drawn.capacity_w,
        "site": dict(site) if site is not None else None,
        "override": f"{machine.boot.target} ({machine.boot.enabled})" if machine.boot.overridden else "",
        "factory_password": factory_password,
        "attached": [slot.image or slot.id for slot in machine.media.slots if slot.free is False],
    }


def of_tree(tree: Tree) -> dict[str, Any]:
    """Of a tree alone, such as one that was saved. Raises BmcError where it has no machine."""
    machine = inventory.read(tree)
    return document(machine, bios.settings(tree, inventory.find_host(tree).system))


def entries(logs: Iterable[Log]) -> list[Entry]:
    return [entry for log in logs for entry in log.entries]


def _known(conditions: logs.Conditions) -> bool:
    return conditions.known or bool(conditions.read)


def _parts(parts: Parts) -> list[dict[str, Any]] | None:
    """Those that are there; None where the BMC does not show them, or not all of them."""
    if not parts.known:
        return None
    return [
        {"name": part.name, "health": part.health, "reading": part.reading, "unit": part.unit, "limit": part.limit}
        for part in parts.present
    ]


def _event(entry: Entry) -> dict[str, Any]:
    return {"time": entry.time, "severity": entry.severity, "message": entry.message, "about": entry.about}


def versions(machine: Inventory) -> dict[str, str]:
    """Part → version; parts that several firmwares share by name are left out, for nobody could tell them apart."""
    name_versions = [(row.name, row.version) for row in machine.firmware or () if row.version]
    once = Counter(name for name, _ in name_versions)
    unique_versions = {name: version for name, version in name_versions if once[name] == 1}
    return unique_versions | {
        name: version for name, version in (("BIOS", machine.bios), ("BMC", machine.bmc)) if version
    }
