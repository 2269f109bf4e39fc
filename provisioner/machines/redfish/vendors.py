"""What differs between vendors, as rows of data/vendors.yaml."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from provisioner.common import yaml_text
from provisioner.machines.redfish.tree import Resource, inner, text

_FILE = Path(__file__).parent / "data" / "vendors.yaml"


@dataclass(frozen=True, slots=True)
class Vendor:
    """A kind of BMC; see the head of the file for the fields."""

    name: str = ""
    root: tuple[str, ...] = ()
    oem: tuple[str, ...] = ()
    manufacturer: tuple[str, ...] = ()
    media_slot: str = ""
    cd: tuple[str, ...] = ("Cd", "UsbCd", "UefiUsbCd", "UefiCd", "CD/DVD")
    once: Mapping[str, str] = field(default_factory=dict)
    as_ever: Mapping[str, str] = field(default_factory=dict)
    attached: Mapping[str, str] = field(default_factory=dict)
    cd_since: Mapping[str, str] = field(default_factory=dict)
    licence: str = ""
    licence_name: str = ""
    source: str = ""


UNKNOWN = Vendor()
"""A BMC of no vendor that has a row: by the standard alone."""


@cache
def _data() -> Mapping[str, Any]:
    document: Mapping[str, Any] = yaml_text.load(_FILE.read_text(encoding="utf-8"))
    return document


@cache
def all_vendors() -> tuple[Vendor, ...]:
    def row(entry: Mapping[str, Any]) -> Vendor:
        fields: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()
        }
        return Vendor(**fields)

    return tuple(row(entry) for entry in _data()["vendors"])


@cache
def pattern(name: str) -> re.Pattern[str]:
    """`gpu`, `not_a_gpu` or `other_logs`."""
    return re.compile(_data()[name])


def gpu_vendor_ids() -> frozenset[str]:
    return frozenset(_data()["gpu_vendor_ids"])


def detect(root: Resource, system: Resource) -> Vendor:
    """Whose BMC it is, by the service root and the host system."""
    vendor_name, oem = text(root.get("Vendor")) or "", inner(root, "Oem")
    made_by = text(system.get("Manufacturer")) or ""
    for vendor in all_vendors():
        if any(vendor_name.casefold() == name.casefold() for name in vendor.root):
            return vendor
    for vendor in all_vendors():
        if any(name in oem for name in vendor.oem):
            return vendor
    for vendor in all_vendors():
        if any(made_by.casefold().startswith(name.casefold()) for name in vendor.manufacturer):
            return vendor
    return UNKNOWN
