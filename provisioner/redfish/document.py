"""What a BMC showed of its machine as one JSON object, bmc.json: what is judged, beside the machine's own bundle or
alone (verify/parsers/bmc.py reads it)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from provisioner.redfish import bios, inventory, logs
from provisioner.redfish.inventory import Inventory
from provisioner.redfish.logs import Entry, Log
from provisioner.redfish.sensors import Parts
from provisioner.redfish.tree import Tree

MOST = 500
"""Entries of logs and conditions, each: the newest. Thousands of entries say no more."""


def document(
    found: Inventory,
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
        "vendor": found.vendor,
        "model": found.model,
        "serial": found.identity.best,
        "serials": [one for one in (found.identity.serial, found.identity.chassis, found.identity.uuid) if one],
        "power": found.power,
        "health": found.health,
        "supplies": _parts(found.supplies),
        "fans": _parts(found.fans),
        "temperatures": _parts(found.temperatures),
        "leaks": _parts(found.leaks),
        "gpus": [
            {"id": one.id or "?", "model": one.model, "serial": one.serial, "health": one.health}
            for one in found.gpus.read
        ],
        "gpus_complete": found.gpus.complete,
        "conditions": [_event(one) for one in found.conditions.read[:MOST]] if _known(found.conditions) else None,
        "events": None if new is None else [_event(one) for one in list(new)[-MOST:]],
        "firmware": versions(found),
        "bios_settings": None
        if settings is None
        else [
            {"setting": one.setting, "attribute": one.attribute, "value": one.value, "good": one.good, "why": one.why}
            for one in settings
        ],
        "drawn_w": found.drawn.drawn_w,
        "cap_w": found.drawn.cap_w,
        "capacity_w": found.drawn.capacity_w,
        "site": dict(site) if site is not None else None,
        "override": f"{found.boot.target} ({found.boot.enabled})" if found.boot.overridden else "",
        "factory_password": factory_password,
        "attached": [one.image or one.id for one in found.media.slots if one.free is False],
    }


def of_tree(tree: Tree) -> dict[str, Any]:
    """Of a tree alone, such as one that was saved. Raises BmcError where it has no machine."""
    found = inventory.read(tree)
    return document(found, bios.settings(tree, inventory.find_host(tree).system))


def entries(found: Iterable[Log]) -> list[Entry]:
    return [entry for log in found for entry in log.entries]


def _known(conditions: logs.Conditions) -> bool:
    return conditions.known or bool(conditions.read)


def _parts(parts: Parts) -> list[dict[str, Any]] | None:
    """Those that are there; None where the BMC does not show them, or not all of them."""
    if not parts.known:
        return None
    return [
        {"name": one.name, "health": one.health, "reading": one.reading, "unit": one.unit, "limit": one.limit}
        for one in parts.present
    ]


def _event(one: Entry) -> dict[str, Any]:
    return {"time": one.time, "severity": one.severity, "message": one.message, "about": one.about}


def versions(one: Inventory) -> dict[str, str]:
    """Part → version; parts that several firmwares share by name are left out, for nobody could tell them apart."""
    named = [(row.name, row.version) for row in one.firmware or () if row.version]
    once = Counter(name for name, _ in named)
    found = {name: version for name, version in named if once[name] == 1}
    return found | {name: version for name, version in (("BIOS", one.bios), ("BMC", one.bmc)) if version}
