"""`nvidia-smi --query-gpu=… --format=csv[,noheader][,nounits]`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .smi_facts import Driver
from .smi_xml import matches

Gpu = dict[str, Any]
FIELDS: dict[str, tuple[str, Callable[[Driver, Gpu], Any]]] = {
    "index": ("", lambda d, g: g["index"]),
    "name": ("", lambda d, g: g["name"]),
    "uuid": ("", lambda d, g: g["uuid"]),
    "serial": ("", lambda d, g: "[N/A]" if g["product"].get("serial", "") is None else g["serial"]),
    "count": ("", lambda d, g: len(d.gpus)),
    "driver_version": ("", lambda d, g: d.version),
    "pci.bus_id": ("", lambda d, g: g["pci"]),
    "pci.domain": ("", lambda d, g: "0x" + g["pci"][4:8]),
    "pci.bus": ("", lambda d, g: "0x" + g["pci"][9:11]),
    "pci.device": ("", lambda d, g: "0x" + g["pci"][12:14]),
    "pci.device_id": ("", lambda d, g: "0x" + g["pci_device_id"]),
    "pcie.link.gen.current": ("", lambda d, g: g["pcie"]["gen"]),
    "pcie.link.gen.max": ("", lambda d, g: g["pcie"]["gen"]),
    "pcie.link.width.current": ("", lambda d, g: g["pcie"]["width"]),
    "pcie.link.width.max": ("", lambda d, g: 16),
    "persistence_mode": ("", lambda d, g: g["persistence"]),
    "compute_mode": ("", lambda d, g: "Default"),
    "compute_cap": ("", lambda d, g: g["compute_capability"]),
    "vbios_version": ("", lambda d, g: g["product"]["vbios"]),
    "pstate": ("", lambda d, g: "P8" if g["product"]["brand"] == "GeForce" else "P0"),
    "memory.total": ("MiB", lambda d, g: g["memory_mib"]),
    "memory.reserved": ("MiB", lambda d, g: g["product"]["reserved"]),
    "memory.used": ("MiB", lambda d, g: 0),
    "memory.free": ("MiB", lambda d, g: g["memory_mib"] - g["product"]["reserved"]),
    "utilization.gpu": ("%", lambda d, g: 0),
    "utilization.memory": ("%", lambda d, g: 0),
    "temperature.gpu": ("", lambda d, g: g["product"]["temperature"][0]),
    "temperature.memory": ("", lambda d, g: g["product"]["temperature"][1] or "N/A"),
    "power.draw": ("W", lambda d, g: f"{g['product']['power'][3] + g['index'] * 0.37:.2f}"),
    "power.limit": ("W", lambda d, g: f"{g['product']['power'][0]:.2f}"),
    "clocks.current.graphics": ("MHz", lambda d, g: g["product"]["idle"][0]),
    "clocks.current.sm": ("MHz", lambda d, g: g["product"]["idle"][0]),
    "clocks.current.memory": ("MHz", lambda d, g: g["product"]["idle"][1]),
    "clocks.max.graphics": ("MHz", lambda d, g: g["product"]["max"][0]),
    "clocks.max.sm": ("MHz", lambda d, g: g["product"]["max"][0]),
    "clocks.max.memory": ("MHz", lambda d, g: g["product"]["max"][1]),
    "ecc.mode.current": ("", lambda d, g: g["ecc"]["mode"] if g["ecc"]["supported"] else "[N/A]"),
    "ecc.mode.pending": ("", lambda d, g: g["ecc_pending"] if g["ecc"]["supported"] else "[N/A]"),
    "ecc.errors.uncorrected.volatile.total": ("", lambda d, g: _ecc(g, "volatile")),
    "ecc.errors.uncorrected.aggregate.total": ("", lambda d, g: _ecc(g, "aggregate")),
    "ecc.errors.corrected.volatile.total": ("", lambda d, g: 0 if g["ecc"]["mode"] == "Enabled" else "[N/A]"),
    "ecc.errors.corrected.aggregate.total": ("", lambda d, g: 0 if g["ecc"]["mode"] == "Enabled" else "[N/A]"),
    "remapped_rows.correctable": ("", lambda d, g: _remap(g, g["remap"]["correctable"])),
    "remapped_rows.uncorrectable": ("", lambda d, g: _remap(g, g["remap"]["uncorrectable"])),
    "remapped_rows.pending": ("", lambda d, g: _remap(g, "Yes" if g["remap"]["pending"] else "No")),
    "remapped_rows.failure": ("", lambda d, g: _remap(g, "Yes" if g["remap"]["failure"] else "No")),
    "mig.mode.current": ("", lambda d, g: g["mig_current"] if g["mig"]["supported"] else "[N/A]"),
    "mig.mode.pending": ("", lambda d, g: g["mig_current"] if g["mig"]["supported"] else "[N/A]"),
    "fabric.state": ("", lambda d, g: g["fabric"]["state"]),
    "fabric.status": ("", lambda d, g: g["fabric"]["status"]),
}
"""Fields by name with their unit; names as `nvidia-smi --help-query-gpu` lists them."""

SHORT = {"gpu_name": "name", "gpu_uuid": "uuid", "gpu_serial": "serial", "gpu_bus_id": "pci.bus_id", "clocks.gr": "clocks.current.graphics",
         "clocks.sm": "clocks.current.sm", "clocks.mem": "clocks.current.memory", "power.draw.instant": "power.draw"}  # fmt: skip


def _ecc(gpu: Gpu, period: str) -> Any:
    return sum(gpu["ecc"][period].values()) if gpu["ecc"]["mode"] == "Enabled" else "[N/A]"


def _remap(gpu: Gpu, value: Any) -> Any:
    return "[N/A]" if gpu["product"]["banks"] is None else value


def query(driver: Driver, fields: str, form: str, wanted: str | None) -> str:
    names = [name.strip() for name in fields.split(",")]
    options = [option.strip() for option in form.split(",")]
    for name in names:
        if SHORT.get(name, name) not in FIELDS:
            return f'Field "{name}" is not a valid field to query.\n\n'
    if "csv" not in options:
        return "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n"
    units = "nounits" not in options
    lines = []
    if "noheader" not in options:
        lines.append(", ".join(name + (f" [{FIELDS[SHORT.get(name, name)][0]}]" if FIELDS[SHORT.get(name, name)][0] else "") for name in names))
    for gpu in driver.gpus:
        if wanted is not None and not any(matches(gpu, one) for one in wanted.split(",")):
            continue
        lines.append(", ".join(_cell(driver, gpu, SHORT.get(name, name), units) for name in names))
    return "".join(f"{line}\n" for line in lines)


def _cell(driver: Driver, gpu: Gpu, name: str, units: bool) -> str:
    if gpu["lost"] and name not in ("index", "name", "uuid", "serial", "count", "driver_version", "pci.bus_id"):
        return "[GPU is lost]"
    unit, value = FIELDS[name]
    return f"{value(driver, gpu)}{' ' + unit if unit and units else ''}"
