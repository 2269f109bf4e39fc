"""`nvidia-smi --query-gpu=… --format=csv[,noheader][,nounits]`."""

from __future__ import annotations

from .smi_facts import Driver
from .smi_xml import matches

TYPE_CHECKING = False  # typing would be a tenth of what a tool takes to start
if TYPE_CHECKING:
    from typing import Any

    Gpu = dict[str, Any]

UNITS = {
    "memory.total": "MiB",
    "memory.reserved": "MiB",
    "memory.used": "MiB",
    "memory.free": "MiB",
    "utilization.gpu": "%",
    "utilization.memory": "%",
    "power.draw": "W",
    "power.limit": "W",
    "clocks.current.graphics": "MHz",
    "clocks.current.sm": "MHz",
    "clocks.current.memory": "MHz",
    "clocks.max.graphics": "MHz",
    "clocks.max.sm": "MHz",
    "clocks.max.memory": "MHz",
}
"""Units of those fields that have one; the others are plain text and numbers."""

SHORT = {
    "gpu_name": "name",
    "gpu_uuid": "uuid",
    "gpu_serial": "serial",
    "gpu_bus_id": "pci.bus_id",
    "clocks.gr": "clocks.current.graphics",
    "clocks.sm": "clocks.current.sm",
    "clocks.mem": "clocks.current.memory",
    "power.draw.instant": "power.draw",
}


def values(driver: Driver, gpu: Gpu) -> dict[str, Any]:
    """Every field that can be asked for, by its name in `nvidia-smi --help-query-gpu`."""
    product, ecc, remap = gpu["product"], gpu["ecc"], gpu["remap"]
    awake = "awake" in gpu
    counts = ecc["mode"] == "Enabled"
    return {
        "index": gpu["index"],
        "name": gpu["name"],
        "uuid": gpu["uuid"],
        "serial": "[N/A]" if product.get("serial", "") is None else gpu["serial"],
        "count": len(driver.gpus),
        "driver_version": driver.version,
        "pci.bus_id": gpu["pci"],
        "pci.domain": "0x" + gpu["pci"][4:8],
        "pci.bus": "0x" + gpu["pci"][9:11],
        "pci.device": "0x" + gpu["pci"][12:14],
        "pci.device_id": "0x" + gpu["pci_device_id"],
        "pcie.link.gen.current": gpu["pcie"]["gen"],
        "pcie.link.gen.max": gpu["pcie"]["gen"],
        "pcie.link.width.current": gpu["pcie"]["width"],
        "pcie.link.width.max": 16,
        "persistence_mode": gpu["persistence"],
        "compute_mode": "Default",
        "compute_cap": gpu["compute_capability"],
        "vbios_version": product["vbios"],
        "pstate": ("P2" if awake else "P8") if product["brand"] == "GeForce" else "P0",
        "memory.total": gpu["memory_mib"],
        "memory.reserved": product["reserved"],
        "memory.used": 0,
        "memory.free": gpu["memory_mib"] - product["reserved"],
        "utilization.gpu": 100 if awake else 0,
        "utilization.memory": 0,
        "temperature.gpu": product["temperature"][0],
        "temperature.memory": product["temperature"][1] or "N/A",
        "power.draw": f"{(product['power'][0] * 0.9 if awake else product['power'][3]) + gpu['index'] * 0.37:.2f}",
        "power.limit": f"{gpu['product']['power'][0]:.2f}",
        "clocks.current.graphics": product["max" if awake else "idle"][0],
        "clocks.current.sm": product["max" if awake else "idle"][0],
        "clocks.current.memory": product["max" if awake else "idle"][1],
        "clocks.max.graphics": product["max"][0],
        "clocks.max.sm": product["max"][0],
        "clocks.max.memory": product["max"][1],
        "ecc.mode.current": ecc["mode"] if ecc["supported"] else "[N/A]",
        "ecc.mode.pending": gpu["ecc_pending"] if ecc["supported"] else "[N/A]",
        "ecc.errors.uncorrected.volatile.total": _ecc(gpu, "volatile"),
        "ecc.errors.uncorrected.aggregate.total": _ecc(gpu, "aggregate"),
        "ecc.errors.corrected.volatile.total": 0 if counts else "[N/A]",
        "ecc.errors.corrected.aggregate.total": 0 if counts else "[N/A]",
        "remapped_rows.correctable": _remap(gpu, remap["correctable"]),
        "remapped_rows.uncorrectable": _remap(gpu, remap["uncorrectable"]),
        "remapped_rows.pending": _remap(gpu, "Yes" if remap["pending"] else "No"),
        "remapped_rows.failure": _remap(gpu, "Yes" if remap["failure"] else "No"),
        "mig.mode.current": gpu["mig_current"] if gpu["mig"]["supported"] else "[N/A]",
        "mig.mode.pending": gpu["mig_pending"] if gpu["mig"]["supported"] else "[N/A]",
        "fabric.state": gpu["fabric"]["state"],
        "fabric.status": gpu["fabric"]["status"],
    }


def _ecc(gpu: Gpu, period: str) -> Any:
    return sum(gpu["ecc"][period].values()) if gpu["ecc"]["mode"] == "Enabled" else "[N/A]"


def _remap(gpu: Gpu, value: Any) -> Any:
    return "[N/A]" if gpu["product"]["banks"] is None else value


def query(driver: Driver, fields: str, form: str, id_list: str | None) -> str:
    names = [name.strip() for name in fields.split(",")]
    known = values(driver, driver.gpus[0])
    options = [option.strip() for option in form.split(",")]
    for name in names:
        if SHORT.get(name, name) not in known:
            return f'Field "{name}" is not a valid field to query.\n\n'
    if "csv" not in options:
        return "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n"
    units = "nounits" not in options
    lines = []
    if "noheader" not in options:
        titled = ((name, UNITS.get(SHORT.get(name, name))) for name in names)
        lines.append(", ".join(f"{name} [{unit}]" if unit else name for name, unit in titled))
    for gpu in driver.gpus:
        if id_list is not None and not any(matches(gpu, gpu_id) for gpu_id in id_list.split(",")):
            continue
        lines.append(", ".join(_cell(driver, gpu, SHORT.get(name, name), units) for name in names))
    return "".join(f"{line}\n" for line in lines)


def _cell(driver: Driver, gpu: Gpu, name: str, units: bool) -> str:
    if gpu["lost"] and name not in ("index", "name", "uuid", "serial", "count", "driver_version", "pci.bus_id"):
        return "[GPU is lost]"
    value = values(driver, gpu)[name]
    return f"{value} {UNITS[name]}" if units and name in UNITS else str(value)
