"""Where `nvidia-smi -q -x` has what `-q` and `--query-gpu` call otherwise: the fields of nvidia_smi_fields.py, and what
is not one value. Sources: outputs of branches 450 to 610 in tests/unit/verify/captures/nvidia_smi."""

from __future__ import annotations

from provisioner.verify.parsers.nvidia_smi_fields import FIELDS

_REASONS = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")


def _query() -> dict[str, str]:
    paths = {source.q: source.xml for field in FIELDS for source in field.sources if source.q}
    paths |= {
        "product name": "product_name",
        "pci/bus id": "pci/pci_bus_id",
        "gpu reset status/reset required": "gpu_reset_status/reset_required",
        "clocks/graphics": "clocks/graphics_clock",
        "processes": "processes",
    }
    for flag in ("route recovery in progress", "route unhealthy", "access timeout recovery", "incorrect configuration"):
        paths[f"fabric/health/{flag}"] = f"fabric/health/{flag.replace(' ', '_')}"
    for time in ("volatile", "aggregate"):
        for kind in ("sram correctable", "sram uncorrectable", "sram uncorrectable parity",
                     "sram uncorrectable sec-ded", "dram correctable", "dram uncorrectable"):  # fmt: skip
            name = kind.replace("sec-ded", "secded").replace(" ", "_")
            paths[f"ecc errors/{time}/{kind}"] = f"ecc_errors/{time}/{name}"
        for kind in ("single bit", "double bit"):
            paths[f"ecc errors/{time}/{kind}/total"] = f"ecc_errors/{time}/{kind.replace(' ', '_')}/total"
    for reason in _REASONS:
        spelled = reason.replace("_", " ")
        above = "hw slowdown/" if reason.startswith("hw_") and reason != "hw_slowdown" else ""
        paths[f"clocks event reasons/{above}{spelled}"] = f"clocks_event_reasons/clocks_event_reason_{reason}"
        paths[f"clocks throttle reasons/{above}{spelled}"] = f"clocks_throttle_reasons/clocks_throttle_reason_{reason}"
        paths[f"clocks event reasons/{spelled}"] = f"clocks_event_reasons/clocks_event_reason_{reason}"
        paths[f"clocks throttle reasons/{spelled}"] = f"clocks_throttle_reasons/clocks_throttle_reason_{reason}"
    return paths


QUERY = _query()
"""Keys of `-q`, in small letters, with those above them."""


def _csv() -> dict[str, str]:
    paths = {column: source.xml for field in FIELDS for source in field.sources for column in source.csv}
    paths |= {
        "name": "product_name", "gpu_name": "product_name", "pci.bus_id": "pci/pci_bus_id",
        "gpu_bus_id": "pci/pci_bus_id", "driver_version": "driver_version", "index": "else/index",
        "reset_status.reset_required": "gpu_reset_status/reset_required",
    }  # fmt: skip
    for time in ("volatile", "aggregate"):
        for column_kind, name in (("corrected", "correctable"), ("uncorrected", "uncorrectable")):
            paths[f"ecc.errors.{column_kind}.{time}.dram"] = f"ecc_errors/{time}/dram_{name}"
            paths[f"ecc.errors.{column_kind}.{time}.sram"] = f"ecc_errors/{time}/sram_{name}"
        paths[f"ecc.errors.uncorrected.{time}.total"] = f"totals/{time}"
    for reason in _REASONS:
        path = f"clocks_event_reasons/clocks_event_reason_{reason}"
        paths[f"clocks_event_reasons.{reason}"] = paths[f"clocks_throttle_reasons.{reason}"] = path
    return paths


CSV = _csv()
"""Columns of --query-gpu."""
