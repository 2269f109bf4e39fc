"""Where `nvidia-smi -q -x` has what `-q` and `--query-gpu` call otherwise. A word that several branches have used
stands once for each; sources: outputs of branches 450 to 610 in tests/unit/verify/captures/nvidia_smi."""

from __future__ import annotations

_REASONS = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")


def _query() -> dict[str, str]:
    link, rows, pages = "pci/gpu link info", "remapped rows", "retired pages"
    paths = {
        "product name": "product_name",
        "product architecture": "product_architecture",
        "serial number": "serial",
        "gpu uuid": "uuid",
        "minor number": "minor_number",
        "vbios version": "vbios_version",
        "board part number": "board_part_number",
        "inforom version/image version": "inforom_version/img_version",
        "gsp firmware version": "gsp_firmware_version",
        "display active": "display_active",
        "persistence mode": "persistence_mode",
        "compute mode": "compute_mode",
        "gpu reset status/reset required": "gpu_reset_status/reset_required",
        "gpu reset status/drain and reset recommended": "gpu_reset_status/drain_and_reset_recommended",
        "gpu recovery action": "gpu_recovery_action",
        "mig mode/current": "mig_mode/current_mig",
        "mig mode/pending": "mig_mode/pending_mig",
        "ecc mode/current": "ecc_mode/current_ecc",
        "ecc mode/pending": "ecc_mode/pending_ecc",
        "ecc errors/channel repair pending": "ecc_errors/channel_repair_pending",
        "ecc errors/tpc repair pending": "ecc_errors/tpc_repair_pending",
        "ecc errors/aggregate/sram threshold exceeded": "ecc_errors/aggregate/sram_threshold_exceeded",
        "pci/bus id": "pci/pci_bus_id",
        f"{link}/pcie generation/max": "pci/pci_gpu_link_info/pcie_gen/max_link_gen",
        f"{link}/pcie generation/current": "pci/pci_gpu_link_info/pcie_gen/current_link_gen",
        f"{link}/pcie generation/device max": "pci/pci_gpu_link_info/pcie_gen/max_device_link_gen",
        f"{link}/pcie generation/host max": "pci/pci_gpu_link_info/pcie_gen/max_host_link_gen",
        f"{link}/link width/max": "pci/pci_gpu_link_info/link_widths/max_link_width",
        f"{link}/link width/current": "pci/pci_gpu_link_info/link_widths/current_link_width",
        "pci/replays since reset": "pci/replay_counter",
        "pci/replay number rollovers": "pci/replay_rollover_counter",
        "fb memory usage/total": "fb_memory_usage/total",
        "fb memory usage/used": "fb_memory_usage/used",
        "bar1 memory usage/total": "bar1_memory_usage/total",
        f"{pages}/single bit ecc": "retired_pages/multiple_single_bit_retirement/retired_count",
        f"{pages}/double bit ecc": "retired_pages/double_bit_retirement/retired_count",
        f"{pages}/pending page blacklist": "retired_pages/pending_blacklist",
        f"{pages}/pending page retirement": "retired_pages/pending_retirement",
        f"{rows}/correctable error": "remapped_rows/remapped_row_corr",
        f"{rows}/uncorrectable error": "remapped_rows/remapped_row_unc",
        f"{rows}/pending": "remapped_rows/remapped_row_pending",
        f"{rows}/remapping failure occurred": "remapped_rows/remapped_row_failure",
        "temperature/gpu current temp": "temperature/gpu_temp",
        "temperature/gpu slowdown temp": "temperature/gpu_temp_slow_threshold",
        "temperature/gpu t.limit temp": "temperature/gpu_temp_tlimit",
        "temperature/gpu slowdown t.limit temp": "temperature/gpu_temp_slow_tlimit_threshold",
        "temperature/memory current temp": "temperature/memory_temp",
        "temperature/memory max operating temp": "temperature/gpu_temp_max_mem_threshold",
        "gpu power readings/current power limit": "gpu_power_readings/current_power_limit",
        "gpu power readings/enforced power limit": "gpu_power_readings/enforced_power_limit",
        "gpu power readings/default power limit": "gpu_power_readings/default_power_limit",
        "power readings/enforced power limit": "power_readings/enforced_power_limit",
        "power readings/default power limit": "power_readings/default_power_limit",
        "clocks/sm": "clocks/sm_clock",
        "clocks/graphics": "clocks/graphics_clock",
        "applications clocks/graphics": "applications_clocks/graphics_clock",
        "default applications clocks/graphics": "default_applications_clocks/graphics_clock",
        "max clocks/graphics": "max_clocks/graphics_clock",
        "fabric/state": "fabric/state",
        "fabric/status": "fabric/status",
        "fabric/cliqueid": "fabric/cliqueId",
        "fabric/clusteruuid": "fabric/clusterUuid",
        "fabric/health/summary": "fabric/health/summary",
        "fabric/health/bandwidth": "fabric/health/bandwidth",
        "processes": "processes",
    }
    for bank in ("low", "none"):
        path = f"remapped_rows/row_remapper_histogram/row_remapper_histogram_{bank}"
        paths[f"{rows}/bank remap availability histogram/{bank}"] = path
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
    paths = {
        "name": "product_name", "gpu_name": "product_name", "uuid": "uuid", "gpu_uuid": "uuid", "serial": "serial",
        "gpu_serial": "serial", "pci.bus_id": "pci/pci_bus_id", "gpu_bus_id": "pci/pci_bus_id",
        "driver_version": "driver_version", "vbios_version": "vbios_version", "index": "else/index",
        "inforom.img": "inforom_version/img_version", "persistence_mode": "persistence_mode",
        "compute_mode": "compute_mode", "gpu_recovery_action": "gpu_recovery_action",
        "reset_status.reset_required": "gpu_reset_status/reset_required",
        "reset_status.drain_and_reset_recommended": "gpu_reset_status/drain_and_reset_recommended",
        "memory.total": "fb_memory_usage/total", "memory.used": "fb_memory_usage/used",
        "mig.mode.current": "mig_mode/current_mig", "mig.mode.pending": "mig_mode/pending_mig",
        "ecc.mode.current": "ecc_mode/current_ecc", "ecc.mode.pending": "ecc_mode/pending_ecc",
        "pcie.link.gen.current": "pci/pci_gpu_link_info/pcie_gen/current_link_gen",
        "pcie.link.gen.max": "pci/pci_gpu_link_info/pcie_gen/max_link_gen",
        "pcie.link.width.current": "pci/pci_gpu_link_info/link_widths/current_link_width",
        "pcie.link.width.max": "pci/pci_gpu_link_info/link_widths/max_link_width",
        "retired_pages.single_bit_ecc.count": "retired_pages/multiple_single_bit_retirement/retired_count",
        "retired_pages.sbe": "retired_pages/multiple_single_bit_retirement/retired_count",
        "retired_pages.double_bit.count": "retired_pages/double_bit_retirement/retired_count",
        "retired_pages.dbe": "retired_pages/double_bit_retirement/retired_count",
        "retired_pages.pending": "retired_pages/pending_retirement",
        "remapped_rows.correctable": "remapped_rows/remapped_row_corr",
        "remapped_rows.uncorrectable": "remapped_rows/remapped_row_unc",
        "remapped_rows.pending": "remapped_rows/remapped_row_pending",
        "remapped_rows.failure": "remapped_rows/remapped_row_failure",
        "temperature.gpu": "temperature/gpu_temp", "temperature.memory": "temperature/memory_temp",
        "power.limit": "gpu_power_readings/current_power_limit",
        "power.default_limit": "gpu_power_readings/default_power_limit",
        "clocks.sm": "clocks/sm_clock", "clocks.current.sm": "clocks/sm_clock",
        "clocks.max.graphics": "max_clocks/graphics_clock", "clocks.max.gr": "max_clocks/graphics_clock",
        "fabric.state": "fabric/state", "fabric.status": "fabric/status",
        "fabric.health.summary": "fabric/health/summary", "fabric.health.bandwidth": "fabric/health/bandwidth",
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
