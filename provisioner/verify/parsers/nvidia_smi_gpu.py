"""One <gpu> element of `nvidia-smi -q -x` (nvidia_smi.py) as a Gpu."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TypeVar
from xml.etree import ElementTree

from provisioner.verify.parsers import number, pci, whole
from provisioner.verify.parsers.nvidia_smi_facts import Gpu, Process

THROTTLE = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")
"""Clock event reasons that no healthy idle GPU shows (sw_power_cap and gpu_idle are normal)."""

BLANK = {
    "n/a", "not supported", "not found", "function not found", "not available", "no data", "none found",
    "gpu is lost", "unknown error", "err!", "gpu requires reset", "insufficient permissions", "not active error",
    "requested functionality has been deprecated", "insufficient external power", "in use by another client",
    "redacted",
}  # fmt: skip
"""What stands in a value's place when there is none, in brackets or without."""

ERRORS = ("unknown error", "err!")
"""What stands in the place of a value that the driver could not get from the GPU."""
SLOWED = {
    "sw_therm_slowdown": "sw_thermal_slowdown",
    "hw_therm_slowdown": "hw_thermal_slowdown",
    "hw_power_brake": "hw_power_brake_slowdown",
}
"""Counters of clocks_event_reasons_counters, by the reasons of THROTTLE."""

FABRIC_FAULTS = (
    "route_recovery_in_progress",
    "route_unhealthy",
    "access_timeout_recovery",
    "incorrect_configuration",
)

Texts = Mapping[str, str | None]
"""Path below an element → the text of the first element there."""

_T = TypeVar("_T")


def read_gpu(index: int, element: ElementTree.Element, gpu: Texts) -> Gpu:
    states = _states(element)
    name = given(gpu, "product_name")
    volatile, aggregate = element.find("ecc_errors/volatile"), element.find("ecc_errors/aggregate")
    address = element.get("id") or given(gpu, "pci/pci_bus_id")
    link, heat, rows, pages = "pci/pci_gpu_link_info", "temperature", "remapped_rows", "retired_pages"
    # Branch 520 moved the limits from power_readings to gpu_power_readings and renamed them.
    old, power = "power_readings", "gpu_power_readings"
    return Gpu(
        index=index,
        pci=pci(address) if address else None,
        model=name,
        uuid=given(gpu, "uuid"),
        serial=given(gpu, "serial"),
        board_part=given(gpu, "board_part_number"),
        vbios=given(gpu, "vbios_version"),
        inforom=given(gpu, "inforom_version/img_version"),
        gsp_firmware=given(gpu, "gsp_firmware_version"),
        minor_number=whole(given(gpu, "minor_number")),
        memory_mib=whole(given(gpu, "fb_memory_usage/total")),
        memory_used_mib=whole(given(gpu, "fb_memory_usage/used")),
        bar1_mib=whole(given(gpu, "bar1_memory_usage/total")),
        lost="gpu is lost" in states or (name or "").lower() in ("err!", "unknown error", "gpu is lost"),
        reset_required=(
            True if "gpu requires reset" in states else _yes(given(gpu, "gpu_reset_status/reset_required"))
        ),
        drain_and_reset=_yes(given(gpu, "gpu_reset_status/drain_and_reset_recommended")),
        recovery_action=given(gpu, "gpu_recovery_action"),
        compute_mode=given(gpu, "compute_mode"),
        display_active=_yes(given(gpu, "display_active")),
        ecc_mode=given(gpu, "ecc_mode/current_ecc"),
        ecc_pending=given(gpu, "ecc_mode/pending_ecc"),
        ecc_volatile=_total(volatile, "uncorrectable", "double_bit"),
        ecc_sram=_total(aggregate, "sram_uncorrectable"),
        ecc_aggregate=_total(aggregate, "uncorrectable", "double_bit"),
        ecc_correctable=_total(aggregate, "_correctable", "single_bit"),
        ecc_sram_correctable=_total(aggregate, "sram_correctable"),
        ecc_dram_correctable=_total(aggregate, "dram_correctable"),
        sram_threshold=_yes(given(gpu, "ecc_errors/aggregate/sram_threshold_exceeded")),
        channel_repair=_yes(given(gpu, "ecc_errors/channel_repair_pending")),
        tpc_repair=_yes(given(gpu, "ecc_errors/tpc_repair_pending")),
        remap_correctable=whole(given(gpu, f"{rows}/remapped_row_corr")),
        remap_uncorrectable=whole(given(gpu, f"{rows}/remapped_row_unc")),
        remap_pending=_yes(given(gpu, f"{rows}/remapped_row_pending")),
        remap_failure=_yes(given(gpu, f"{rows}/remapped_row_failure")),
        banks_low=whole(given(gpu, f"{rows}/row_remapper_histogram/row_remapper_histogram_low")),
        banks_none=whole(given(gpu, f"{rows}/row_remapper_histogram/row_remapper_histogram_none")),
        retired_sbe=whole(given(gpu, f"{pages}/multiple_single_bit_retirement/retired_count")),
        retired_dbe=whole(given(gpu, f"{pages}/double_bit_retirement/retired_count")),
        retired_pending=_first(
            _yes(given(gpu, f"{pages}/pending_retirement")), _yes(given(gpu, f"{pages}/pending_blacklist"))
        ),
        mig_mode=given(gpu, "mig_mode/current_mig"),
        mig_pending=given(gpu, "mig_mode/pending_mig"),
        mig_devices=len(element.findall("mig_devices/mig_device")),
        persistence=_yes(given(gpu, "persistence_mode")),
        pcie_gen=whole(given(gpu, f"{link}/pcie_gen/current_link_gen")),
        pcie_gen_max=whole(given(gpu, f"{link}/pcie_gen/max_link_gen")),
        pcie_gen_device=whole(given(gpu, f"{link}/pcie_gen/max_device_link_gen")),
        pcie_gen_host=whole(given(gpu, f"{link}/pcie_gen/max_host_link_gen")),
        pcie_width=whole(given(gpu, f"{link}/link_widths/current_link_width")),
        pcie_width_max=whole(given(gpu, f"{link}/link_widths/max_link_width")),
        pcie_replays=whole(given(gpu, "pci/replay_counter")),
        pcie_rollovers=whole(given(gpu, "pci/replay_rollover_counter")),
        temperature=whole(given(gpu, f"{heat}/gpu_temp")),
        temperature_slowdown=whole(given(gpu, f"{heat}/gpu_temp_slow_threshold")),
        margin=whole(given(gpu, f"{heat}/gpu_temp_tlimit")),
        margin_slowdown=whole(given(gpu, f"{heat}/gpu_temp_slow_tlimit_threshold")),
        memory_temperature=whole(given(gpu, f"{heat}/memory_temp")),
        memory_temperature_max=whole(given(gpu, f"{heat}/gpu_temp_max_mem_threshold")),
        power_limit_w=_first(
            number(given(gpu, f"{power}/current_power_limit")),
            number(given(gpu, f"{power}/enforced_power_limit")),
            number(given(gpu, f"{old}/enforced_power_limit")),
        ),
        power_default_w=_first(
            number(given(gpu, f"{power}/default_power_limit")), number(given(gpu, f"{old}/default_power_limit"))
        ),
        clock_sm_mhz=whole(given(gpu, "clocks/sm_clock")),
        clock_application_mhz=whole(given(gpu, "applications_clocks/graphics_clock")),
        clock_default_mhz=whole(given(gpu, "default_applications_clocks/graphics_clock")),
        clock_max_mhz=whole(given(gpu, "max_clocks/graphics_clock")),
        fabric_state=given(gpu, "fabric/state"),
        fabric_status=given(gpu, "fabric/status"),
        fabric_clique=given(gpu, "fabric/cliqueId"),
        fabric_cluster=given(gpu, "fabric/clusterUuid"),
        fabric_health=given(gpu, "fabric/health/summary"),
        fabric_bandwidth=given(gpu, "fabric/health/bandwidth"),
        fabric_faults=tuple(_faults(gpu)),
        processes=tuple(_processes(element)),
        throttle=tuple(dict.fromkeys(_throttle(gpu))),
        slowed_us=tuple(_slowed(gpu)),
        errors=tuple(path for path, text in gpu.items() if text and text.strip().strip("[]").lower() in ERRORS),
    )


def _throttle(gpu: Texts) -> Iterator[str]:
    for family in ("clocks_event_reasons/clocks_event_reason_", "clocks_throttle_reasons/clocks_throttle_reason_"):
        for reason in THROTTLE:
            if (given(gpu, family + reason) or "").lower() == "active":
                yield reason


def _slowed(gpu: Texts) -> Iterator[tuple[str, int]]:
    for name, reason in SLOWED.items():
        counted = whole(given(gpu, f"clocks_event_reasons_counters/clocks_event_reasons_counters_{name}"))
        if counted is not None:
            yield reason, counted


def _faults(gpu: Texts) -> Iterator[str]:
    """Health words of the fabric that say other than False, No or None. Older branches call them "Degraded …"."""
    for word in FABRIC_FAULTS:
        said = given(gpu, f"fabric/health/{word}")
        if said is not None and said.lower() not in ("false", "no", "none", "not supported"):
            yield word if said.lower() in ("true", "yes") else f"{word}: {said}"


def _processes(gpu: ElementTree.Element) -> Iterator[Process]:
    for one in gpu.findall("processes/process_info"):
        info = {child.tag: child.text for child in reversed(one)}  # of several with one name the first
        yield Process(
            pid=whole(given(info, "pid")),
            kind=given(info, "type"),
            name=given(info, "process_name"),
            used_mib=whole(given(info, "used_memory")),
        )


def _states(gpu: ElementTree.Element) -> set[str]:
    """Of the states that stand in the values' place, those that say what is wrong with the whole GPU."""
    said = "\n".join(gpu.itertext()).lower()
    if "gpu is lost" not in said and "gpu requires reset" not in said:
        return set()
    return {(element.text or "").strip().strip("[]").lower() for element in gpu.iter()}


def given(texts: Texts, path: str) -> str | None:
    """The text at a path; None where the tool said that it does not know."""
    text = texts.get(path)
    return None if text is None else _value(text, path == "product_name")


@lru_cache(4096)
def _value(text: str, name: bool) -> str | None:
    """A value's text, the same object for the same text. A name may be a word that stands for nothing elsewhere."""
    text = text.strip()
    return None if not text or (not name and text.strip("[]").lower() in BLANK) else text[:200]


def _first(*values: _T | None) -> _T | None:
    return next((value for value in values if value is not None), None)


def _total(counters: ElementTree.Element | None, *keys: str) -> int | None:
    """Sum of the counters whose names hold a key; Pascal nests them one level deeper (double_bit/total).

    None when one of them holds no number but a lost GPU's text, or when none is a number at all.
    """
    if counters is None:
        return None
    total: int | None = None
    for element in counters:
        if not _named(element.tag, keys):
            continue
        text = element.findtext("total") if len(element) else element.text
        value = number(text)
        if value is not None:
            total = (total or 0) + int(value)
    return total


@lru_cache(1024)
def _named(tag: str, keys: tuple[str, ...]) -> bool:
    return any(key in tag for key in keys)


def _yes(text: str | None) -> bool | None:
    return {"yes": True, "enabled": True, "no": False, "disabled": False}.get((text or "").lower())
