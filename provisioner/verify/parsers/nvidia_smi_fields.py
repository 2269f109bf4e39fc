"""The fields of one GPU that nvidia-smi prints, a row each: a new field is a row here, and an attribute of Gpu
(nvidia_smi_facts.py)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from provisioner.verify.parsers import number, whole_number

BLANK = {
    "n/a", "not supported", "not found", "function not found", "not available", "no data", "none found",
    "gpu is lost", "unknown error", "err!", "gpu requires reset", "insufficient permissions", "not active error",
    "requested functionality has been deprecated", "insufficient external power", "in use by another client",
    "redacted",
}  # fmt: skip
"""What stands in a value's place when there is none, in brackets or without."""


@lru_cache(4096)
def text(value: str | None) -> str | None:
    """A value's text, the same object for the same text; None where it stands for nothing. This and the three below
    read a hundred values of each GPU, most of which all GPUs of a fleet have in common."""
    value = (value or "").strip()
    return None if not value or value.strip("[]").lower() in BLANK else value[:200]


@lru_cache(4096)
def integer(value: str | None) -> int | None:
    """A whole number with or without its unit."""
    return whole_number(text(value))


@lru_cache(1024)
def decimal(value: str | None) -> float | None:
    """A number with or without its unit."""
    return number(text(value))


@lru_cache(1024)
def yes(value: str | None) -> bool | None:
    """Yes, No, Enabled or Disabled."""
    return {"yes": True, "enabled": True, "no": False, "disabled": False}.get((text(value) or "").lower())


@dataclass(frozen=True, slots=True)
class Source:
    """Where nvidia-smi prints a field. `xml`: path below <gpu> in `-q -x`; `q`: key of `-q` in small letters, with
    those above it; `csv`: columns of --query-gpu. Empty: it does not print it there, or not in branches 450 to 610, of
    which captures are kept (tests/unit/verify/captures/nvidia_smi)."""

    xml: str
    q: str = ""
    csv: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Field:
    """`name`: the attribute of Gpu. Of several sources the first one that has a value counts: branches differ."""

    name: str
    read: Callable[[str | None], Any]
    sources: tuple[Source, ...]


def _field(name: str, read: Callable[[str | None], Any], xml: str, q: str = "", csv: str = "") -> Field:
    return Field(name, read, (Source(xml, q, tuple(csv.split())),))


LINK, LINK_Q = "pci/pci_gpu_link_info", "pci/gpu link info"
CEILING, CEILING_Q = "gpu_power_readings/gpu_ceiling_power_limit", "gpu power readings/gpu ceiling power limit"
HISTOGRAM = "remapped_rows/row_remapper_histogram/row_remapper_histogram"
HISTOGRAM_Q = "remapped rows/bank remap availability histogram"

# fmt: off
FIELDS: tuple[Field, ...] = (
    _field("architecture", text, "product_architecture", "product architecture"),
    _field("uuid", text, "uuid", "gpu uuid", "uuid gpu_uuid"),
    _field("serial", text, "serial", "serial number", "serial gpu_serial"),
    _field("board_part", text, "board_part_number", "board part number"),
    _field("vbios", text, "vbios_version", "vbios version", "vbios_version"),
    _field("inforom", text, "inforom_version/img_version", "inforom version/image version", "inforom.img"),
    _field("gsp_firmware", text, "gsp_firmware_version", "gsp firmware version"),
    _field("minor_number", integer, "minor_number", "minor number"),
    _field("memory_mib", integer, "fb_memory_usage/total", "fb memory usage/total", "memory.total"),
    _field("memory_used_mib", integer, "fb_memory_usage/used", "fb memory usage/used", "memory.used"),
    _field("bar1_mib", integer, "bar1_memory_usage/total", "bar1 memory usage/total"),
    _field("drain_and_reset", yes, "gpu_reset_status/drain_and_reset_recommended",
           "gpu reset status/drain and reset recommended", "reset_status.drain_and_reset_recommended"),
    _field("recovery_action", text, "gpu_recovery_action", "gpu recovery action", "gpu_recovery_action"),
    _field("compute_mode", text, "compute_mode", "compute mode", "compute_mode"),
    _field("display_active", yes, "display_active", "display active"),
    _field("ecc_mode", text, "ecc_mode/current_ecc", "ecc mode/current", "ecc.mode.current"),
    _field("ecc_pending", text, "ecc_mode/pending_ecc", "ecc mode/pending", "ecc.mode.pending"),
    _field("sram_threshold", yes, "ecc_errors/aggregate/sram_threshold_exceeded",
           "ecc errors/aggregate/sram threshold exceeded"),
    _field("channel_repair", yes, "ecc_errors/channel_repair_pending", "ecc errors/channel repair pending"),
    _field("tpc_repair", yes, "ecc_errors/tpc_repair_pending", "ecc errors/tpc repair pending"),
    _field("unrepairable", yes, "ecc_errors/unrepairable_memory", "ecc errors/unrepairable memory"),
    _field("remap_correctable", integer, "remapped_rows/remapped_row_corr",
           "remapped rows/correctable error", "remapped_rows.correctable"),
    _field("remap_uncorrectable", integer, "remapped_rows/remapped_row_unc",
           "remapped rows/uncorrectable error", "remapped_rows.uncorrectable"),
    _field("remap_pending", yes, "remapped_rows/remapped_row_pending",
           "remapped rows/pending", "remapped_rows.pending"),
    _field("remap_failure", yes, "remapped_rows/remapped_row_failure",
           "remapped rows/remapping failure occurred", "remapped_rows.failure"),
    _field("banks_low", integer, f"{HISTOGRAM}_low", f"{HISTOGRAM_Q}/low"),
    _field("banks_none", integer, f"{HISTOGRAM}_none", f"{HISTOGRAM_Q}/none"),
    _field("retired_sbe", integer, "retired_pages/multiple_single_bit_retirement/retired_count",
           "retired pages/single bit ecc", "retired_pages.single_bit_ecc.count retired_pages.sbe"),
    _field("retired_dbe", integer, "retired_pages/double_bit_retirement/retired_count",
           "retired pages/double bit ecc", "retired_pages.double_bit.count retired_pages.dbe"),
    Field(
        "retired_pending", yes,
        (
            Source("retired_pages/pending_retirement",
                   "retired pages/pending page retirement", ("retired_pages.pending",)),
            Source("retired_pages/pending_blacklist", "retired pages/pending page blacklist"),
        ),
    ),
    _field("mig_mode", text, "mig_mode/current_mig", "mig mode/current", "mig.mode.current"),
    _field("mig_pending", text, "mig_mode/pending_mig", "mig mode/pending", "mig.mode.pending"),
    _field("persistence", yes, "persistence_mode", "persistence mode", "persistence_mode"),
    _field("pcie_gen", integer, f"{LINK}/pcie_gen/current_link_gen",
           f"{LINK_Q}/pcie generation/current", "pcie.link.gen.current"),
    _field("pcie_gen_max", integer, f"{LINK}/pcie_gen/max_link_gen",
           f"{LINK_Q}/pcie generation/max", "pcie.link.gen.max"),
    _field("pcie_gen_device", integer, f"{LINK}/pcie_gen/max_device_link_gen", f"{LINK_Q}/pcie generation/device max"),
    _field("pcie_gen_host", integer, f"{LINK}/pcie_gen/max_host_link_gen", f"{LINK_Q}/pcie generation/host max"),
    _field("pcie_width", integer, f"{LINK}/link_widths/current_link_width",
           f"{LINK_Q}/link width/current", "pcie.link.width.current"),
    _field("pcie_width_max", integer, f"{LINK}/link_widths/max_link_width",
           f"{LINK_Q}/link width/max", "pcie.link.width.max"),
    _field("pcie_replays", integer, "pci/replay_counter", "pci/replays since reset"),
    _field("pcie_rollovers", integer, "pci/replay_rollover_counter", "pci/replay number rollovers"),
    _field("temperature", integer, "temperature/gpu_temp", "temperature/gpu current temp", "temperature.gpu"),
    _field("temperature_slowdown", integer, "temperature/gpu_temp_slow_threshold", "temperature/gpu slowdown temp"),
    _field("margin", integer, "temperature/gpu_temp_tlimit", "temperature/gpu t.limit temp"),
    _field("margin_slowdown", integer, "temperature/gpu_temp_slow_tlimit_threshold",
           "temperature/gpu slowdown t.limit temp"),
    _field("memory_temperature", integer, "temperature/memory_temp",
           "temperature/memory current temp", "temperature.memory"),
    _field("memory_temperature_max", integer, "temperature/gpu_temp_max_mem_threshold",
           "temperature/memory max operating temp"),
    Field(
        "power_limit_w", decimal,
        (
            Source("gpu_power_readings/current_power_limit",
                   "gpu power readings/current power limit", ("power.limit",)),
            Source(f"{CEILING}/current_power_limit", f"{CEILING_Q}/current power limit"),
            Source("gpu_power_readings/enforced_power_limit", "gpu power readings/enforced power limit"),
            Source("power_readings/enforced_power_limit", "power readings/enforced power limit"),
        ),
    ),
    Field(
        "power_default_w", decimal,
        (
            Source("gpu_power_readings/default_power_limit",
                   "gpu power readings/default power limit", ("power.default_limit",)),
            Source(f"{CEILING}/default_power_limit", f"{CEILING_Q}/default power limit"),
            Source("power_readings/default_power_limit", "power readings/default power limit"),
        ),
    ),
    Field(
        "power_draw_w", decimal,
        (
            Source("gpu_power_readings/instant_power_draw"),
            Source("gpu_power_readings/average_power_draw"),
            Source("gpu_power_readings/power_draw"),
            Source("power_readings/power_draw"),
        ),
    ),
    _field("pstate", text, "performance_state"),
    _field("utilization", integer, "utilization/gpu_util"),
    _field("clock_sm_mhz", integer, "clocks/sm_clock", "clocks/sm", "clocks.sm clocks.current.sm"),
    _field("clock_application_mhz", integer, "applications_clocks/graphics_clock", "applications clocks/graphics"),
    _field("clock_default_mhz", integer, "default_applications_clocks/graphics_clock",
           "default applications clocks/graphics"),
    _field("clock_max_mhz", integer, "max_clocks/graphics_clock",
           "max clocks/graphics", "clocks.max.graphics clocks.max.gr"),
    _field("memory_clock_mhz", integer, "clocks/mem_clock"),
    _field("memory_clock_application_mhz", integer, "applications_clocks/mem_clock"),
    _field("memory_clock_default_mhz", integer, "default_applications_clocks/mem_clock"),
    _field("memory_clock_max_mhz", integer, "max_clocks/mem_clock"),
    _field("fabric_state", text, "fabric/state", "fabric/state", "fabric.state"),
    _field("fabric_status", text, "fabric/status", "fabric/status", "fabric.status"),
    _field("fabric_clique", text, "fabric/cliqueId", "fabric/cliqueid"),
    _field("fabric_cluster", text, "fabric/clusterUuid", "fabric/clusteruuid"),
    _field("fabric_health", text, "fabric/health/summary", "fabric/health/summary", "fabric.health.summary"),
    _field("fabric_bandwidth", text, "fabric/health/bandwidth", "fabric/health/bandwidth", "fabric.health.bandwidth"),
)
# fmt: on
