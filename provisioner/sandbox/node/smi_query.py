"""`nvidia-smi --query-gpu=… --format=csv[,noheader][,nounits]`: values of `-q -x` by other names (smi_query.shape)."""

from __future__ import annotations

import os
import re
import time
from collections import namedtuple

from . import smi_xml
from .smi_facts import DEPRECATED, Driver

TYPE_CHECKING = False  # typing would be a tenth of what a tool takes to start
if TYPE_CHECKING:
    from typing import Any

    Gpu = dict[str, Any]

LINE = re.compile(r"(?:\[([0-9.,+-]+)\] )?(\S+) (\S+) (\S.*)")
UNITLESS = ("-", "number", "plain")
SILENT = ("N/A", DEPRECATED, "Insufficient Permissions")
"""Words that stand in brackets where they take a value's place."""
KNOWN_OF_LOST = ("index", "name", "uuid", "serial", "count", "driver_version", "pci.bus_id")
"""Fields that the driver has of a GPU that fell off the bus."""
REASONS = (
    *("gpu_idle", "applications_clocks_setting", "sw_power_cap", "hw_slowdown", "sync_boost", "sw_thermal_slowdown"),
    *("hw_thermal_slowdown", "hw_power_brake_slowdown", "display_clocks_setting"),
)
"""Clock event reasons by their bits, the lowest first (nvml.h, nvmlClocksEventReasons)."""


class Field(namedtuple("Field", ("name", "unit", "path"))):
    """One line of smi_query.shape."""

    name: str
    unit: str
    path: str

    __slots__ = ()


def fields(driver: Driver) -> dict[str, Field]:
    """Each name that a driver of that version takes, and its field."""
    by_name: dict[str, Field] = {}
    with open(os.path.join(os.path.dirname(__file__), "smi_query.shape"), encoding="utf-8") as stream:
        for line in stream:
            match = LINE.fullmatch(line.rstrip("\n"))
            if match is None or line.startswith("#") or (match[1] and not driver.is_in(match[1])):
                continue
            names = match[2].split(",")
            by_name.update(dict.fromkeys(names, Field(names[0], match[3], match[4])))
    return by_name


def query(driver: Driver, field_list: str, form: str, id_list: str | None) -> tuple[int, str]:
    """Exit status and output."""
    known = fields(driver)
    names = [name.strip() for name in field_list.split(",")]
    options = [option.strip() for option in form.split(",")]
    for name in names:
        if name not in known:
            return 2, f'Field "{name}" is not a valid field to query.\n\n'
    if "csv" not in options:
        return 2, "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n"
    columns = [known[name] for name in names]
    lines = []
    if "noheader" not in options:
        titles = (
            f"{column.name} [{column.unit}]" if column.unit not in UNITLESS else column.name for column in columns
        )
        lines.append(", ".join(titles))
    for gpu in driver.gpus:
        if id_list is None or any(smi_xml.matches(gpu, gpu_id) for gpu_id in id_list.split(",")):
            values = _Values(driver, gpu)
            lines.append(", ".join(values.cell(column, units="nounits" not in options) for column in columns))
    return 0, "".join(f"{line}\n" for line in lines)


class _Values:
    """What one GPU shows."""

    def __init__(self, driver: Driver, gpu: Gpu) -> None:
        from xml.etree import ElementTree  # only here

        self.driver, self.gpu = driver, gpu
        document = smi_xml.document(driver._replace(gpus=(gpu,)))
        element = ElementTree.fromstring(document).find("gpu")  # noqa: S314 - our own text
        assert element is not None
        self.element = element

    def cell(self, field: Field, *, units: bool) -> str:
        if self.gpu["lost"] and field.name not in KNOWN_OF_LOST:
            return "[GPU is lost]"
        value = self._value(field)
        if value in SILENT:
            return value if field.unit == "plain" else f"[{value}]"
        is_bare = field.unit in ("number", "plain") or (field.unit != "-" and not units)
        return value.rstrip("x").split(" ")[0] if is_bare else value

    def _value(self, field: Field) -> str:
        if field.path.startswith("'"):
            return field.path[1:]
        if field.path.startswith("="):
            return str(self._computed(field))
        return self.element.findtext(field.path) or "N/A"

    def _computed(self, field: Field) -> Any:
        driver, gpu = self.driver, self.gpu
        if field.path == "=ecc_errors":
            return self._ecc_errors(field.name)
        supported = gpu["ecc"]["supported"]
        edpp = self.element.findtext("edpp_multiplier") or "N/A"
        values = {
            "=": "N/A",
            "=timestamp": time.strftime("%Y/%m/%d %H:%M:%S.000"),
            "=driver_version": driver.version,
            "=count": len(driver.gpus),
            "=index": gpu["index"],
            "=domain": "0x" + gpu["pci"][4:8],
            "=bus": "0x" + gpu["pci"][9:11],
            "=device": "0x" + gpu["pci"][12:14],
            "=device_id": "0x" + gpu["pci_device_id"],
            "=sub_device_id": "0x" + gpu["product"]["subsystem"],
            "=base_class": "0x3",
            "=sub_class": "0x0" if gpu["product"].get("class") else "0x2",
            "=compute_cap": gpu["compute_capability"],
            "=reasons": "0x00000000000001FF",
            "=active_reasons": f"0x{self._active_reasons():016X}",
            "=ecc_mode": gpu["ecc"]["mode"] if supported else "N/A",
            "=ecc_pending": gpu["ecc_pending"] if supported else "N/A",
            "=power_management": DEPRECATED,
            "=power_draw": self._power_draw("average_power_draw", "instant_power_draw", "power_draw"),
            "=power_instant": self._power_draw("instant_power_draw", "power_draw"),
            "=edpp": edpp.replace("%", " %"),
            "=gsp": "Disabled" if gpu["arch"] == "volta" else "Enabled",
        }
        return values[field.path]

    def _active_reasons(self) -> int:
        path = "clocks_event_reasons/clocks_event_reason_"
        return sum(1 << bit for bit, name in enumerate(REASONS) if self.element.findtext(path + name) == "Active")

    def _power_draw(self, *names: str) -> str:
        readings = (self.element.findtext(f"gpu_power_readings/{name}") or "N/A" for name in names)
        return next((reading for reading in readings if reading != "N/A"), "N/A")

    def _ecc_errors(self, name: str) -> Any:
        """ecc.errors.corrected.volatile.dram: of SRAM, of DRAM (or device_memory), or both."""
        kind, period, location = name.split(".")[2:]
        if self.gpu["ecc"]["mode"] != "Enabled":
            return "N/A"
        if kind == "corrected":
            return 0
        counts = self.gpu["ecc"][period]
        return sum(counts.values()) if location == "total" else counts["sram" if location == "sram" else "dram"]
