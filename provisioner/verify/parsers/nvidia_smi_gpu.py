"""One <gpu> element of `nvidia-smi -q -x` (nvidia_smi.py) as a Gpu."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TypeVar

from provisioner.verify.parsers import number, pci, whole
from provisioner.verify.parsers.nvidia_smi_facts import Gpu, Process
from provisioner.verify.parsers.nvidia_smi_xml import Walked

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
CAPPED = (
    "clocks_event_reasons/clocks_event_reason_sw_power_cap",
    "clocks_throttle_reasons/clocks_throttle_reason_sw_power_cap",
)
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


ALARMING = (*ERRORS, "gpu is lost", "gpu requires reset")
"""What else than a value can stand in any element."""


def read_gpu(index: int, walked: Walked, *, alarming: bool) -> Gpu:
    """`alarming`: whether a word of ALARMING is in the document."""
    gpu, states = walked.texts, _states(walked) if alarming else set()
    text = gpu.get
    name = given(gpu, "product_name")
    volatile, aggregate = walked.below("ecc_errors/volatile"), walked.below("ecc_errors/aggregate")
    address = walked.id or given(gpu, "pci/pci_bus_id")
    # Branch 520 moved the limits from power_readings to gpu_power_readings and renamed them.
    return Gpu(
        index=index,
        pci=pci(address) if address else None,
        model=name,
        architecture=_value_text(text("product_architecture")),
        uuid=_value_text(text("uuid")),
        serial=_value_text(text("serial")),
        board_part=_value_text(text("board_part_number")),
        vbios=_value_text(text("vbios_version")),
        inforom=_value_text(text("inforom_version/img_version")),
        gsp_firmware=_value_text(text("gsp_firmware_version")),
        minor_number=_whole_number(text("minor_number")),
        memory_mib=_whole_number(text("fb_memory_usage/total")),
        memory_used_mib=_whole_number(text("fb_memory_usage/used")),
        bar1_mib=_whole_number(text("bar1_memory_usage/total")),
        lost="gpu is lost" in states or (name or "").lower() in ("err!", "unknown error", "gpu is lost"),
        reset_required=True if "gpu requires reset" in states else _yes(text("gpu_reset_status/reset_required")),
        drain_and_reset=_yes(text("gpu_reset_status/drain_and_reset_recommended")),
        recovery_action=_value_text(text("gpu_recovery_action")),
        compute_mode=_value_text(text("compute_mode")),
        display_active=_yes(text("display_active")),
        ecc_mode=_value_text(text("ecc_mode/current_ecc")),
        ecc_pending=_value_text(text("ecc_mode/pending_ecc")),
        ecc_volatile=_total(volatile, "uncorrectable", "double_bit"),
        ecc_sram=_total(aggregate, "sram_uncorrectable"),
        ecc_aggregate=_total(aggregate, "uncorrectable", "double_bit"),
        ecc_correctable=_total(aggregate, "_correctable", "single_bit"),
        ecc_sram_correctable=_total(aggregate, "sram_correctable"),
        ecc_dram_correctable=_total(aggregate, "dram_correctable"),
        sram_threshold=_yes(text("ecc_errors/aggregate/sram_threshold_exceeded")),
        channel_repair=_yes(text("ecc_errors/channel_repair_pending")),
        tpc_repair=_yes(text("ecc_errors/tpc_repair_pending")),
        remap_correctable=_whole_number(text("remapped_rows/remapped_row_corr")),
        remap_uncorrectable=_whole_number(text("remapped_rows/remapped_row_unc")),
        remap_pending=_yes(text("remapped_rows/remapped_row_pending")),
        remap_failure=_yes(text("remapped_rows/remapped_row_failure")),
        banks_low=_whole_number(text("remapped_rows/row_remapper_histogram/row_remapper_histogram_low")),
        banks_none=_whole_number(text("remapped_rows/row_remapper_histogram/row_remapper_histogram_none")),
        retired_sbe=_whole_number(text("retired_pages/multiple_single_bit_retirement/retired_count")),
        retired_dbe=_whole_number(text("retired_pages/double_bit_retirement/retired_count")),
        retired_pending=_first(
            _yes(text("retired_pages/pending_retirement")), _yes(text("retired_pages/pending_blacklist"))
        ),
        mig_mode=_value_text(text("mig_mode/current_mig")),
        mig_pending=_value_text(text("mig_mode/pending_mig")),
        mig_devices=sum(path == "mig_device" for path, _ in walked.below("mig_devices")),
        persistence=_yes(text("persistence_mode")),
        pcie_gen=_whole_number(text("pci/pci_gpu_link_info/pcie_gen/current_link_gen")),
        pcie_gen_max=_whole_number(text("pci/pci_gpu_link_info/pcie_gen/max_link_gen")),
        pcie_gen_device=_whole_number(text("pci/pci_gpu_link_info/pcie_gen/max_device_link_gen")),
        pcie_gen_host=_whole_number(text("pci/pci_gpu_link_info/pcie_gen/max_host_link_gen")),
        pcie_width=_whole_number(text("pci/pci_gpu_link_info/link_widths/current_link_width")),
        pcie_width_max=_whole_number(text("pci/pci_gpu_link_info/link_widths/max_link_width")),
        pcie_replays=_whole_number(text("pci/replay_counter")),
        pcie_rollovers=_whole_number(text("pci/replay_rollover_counter")),
        temperature=_whole_number(text("temperature/gpu_temp")),
        temperature_slowdown=_whole_number(text("temperature/gpu_temp_slow_threshold")),
        margin=_whole_number(text("temperature/gpu_temp_tlimit")),
        margin_slowdown=_whole_number(text("temperature/gpu_temp_slow_tlimit_threshold")),
        memory_temperature=_whole_number(text("temperature/memory_temp")),
        memory_temperature_max=_whole_number(text("temperature/gpu_temp_max_mem_threshold")),
        power_limit_w=_first(
            _number(text("gpu_power_readings/current_power_limit")),
            _number(text("gpu_power_readings/enforced_power_limit")),
            _number(text("power_readings/enforced_power_limit")),
        ),
        power_default_w=_first(
            _number(text("gpu_power_readings/default_power_limit")),
            _number(text("power_readings/default_power_limit")),
        ),
        power_draw_w=_first(
            _number(text("gpu_power_readings/instant_power_draw")),
            _number(text("gpu_power_readings/average_power_draw")),
            _number(text("gpu_power_readings/power_draw")),
            _number(text("power_readings/power_draw")),
        ),
        power_capped=_active(_first(*(_value_text(text(path)) for path in CAPPED))),
        pstate=_value_text(text("performance_state")),
        utilization=_whole_number(text("utilization/gpu_util")),
        clock_sm_mhz=_whole_number(text("clocks/sm_clock")),
        clock_application_mhz=_whole_number(text("applications_clocks/graphics_clock")),
        clock_default_mhz=_whole_number(text("default_applications_clocks/graphics_clock")),
        clock_max_mhz=_whole_number(text("max_clocks/graphics_clock")),
        memory_clock_mhz=_whole_number(text("clocks/mem_clock")),
        memory_clock_application_mhz=_whole_number(text("applications_clocks/mem_clock")),
        memory_clock_default_mhz=_whole_number(text("default_applications_clocks/mem_clock")),
        memory_clock_max_mhz=_whole_number(text("max_clocks/mem_clock")),
        fabric_state=_value_text(text("fabric/state")),
        fabric_status=_value_text(text("fabric/status")),
        fabric_clique=_value_text(text("fabric/cliqueId")),
        fabric_cluster=_value_text(text("fabric/clusterUuid")),
        fabric_health=_value_text(text("fabric/health/summary")),
        fabric_bandwidth=_value_text(text("fabric/health/bandwidth")),
        fabric_faults=tuple(_faults(gpu)),
        processes=tuple(_processes(walked)),
        throttle=tuple(dict.fromkeys(_throttle(gpu))),
        slowed_us=tuple(_slowed(gpu)),
        errors=_errors(gpu) if alarming else (),
    )


def _errors(gpu: Texts) -> tuple[str, ...]:
    return tuple(path for path, text in gpu.items() if text and text.strip().strip("[]").lower() in ERRORS)


def _throttle(gpu: Texts) -> Iterator[str]:
    for family in ("clocks_event_reasons/clocks_event_reason_", "clocks_throttle_reasons/clocks_throttle_reason_"):
        for reason in THROTTLE:
            if (given(gpu, family + reason) or "").lower() == "active":
                yield reason


def _slowed(gpu: Texts) -> Iterator[tuple[str, int]]:
    for name, reason in SLOWED.items():
        counted = _whole_number(gpu.get(f"clocks_event_reasons_counters/clocks_event_reasons_counters_{name}"))
        if counted is not None:
            yield reason, counted


def _faults(gpu: Texts) -> Iterator[str]:
    """Health words of the fabric that say other than False, No or None. Older branches call them "Degraded …"."""
    for field in FABRIC_FAULTS:
        value = given(gpu, f"fabric/health/{field}")
        if value is not None and value.lower() not in ("false", "no", "none", "not supported"):
            yield field if value.lower() in ("true", "yes") else f"{field}: {value}"


PROCESS = "processes/process_info"


def _processes(gpu: Walked) -> Iterator[Process]:
    infos: list[dict[str, str | None]] = []
    if PROCESS not in gpu.texts:
        return
    for path, text in zip(gpu.paths, gpu.values, strict=True):
        if path == PROCESS:
            infos.append({})
        elif path.startswith(PROCESS + "/"):
            infos[-1].setdefault(path.removeprefix(PROCESS + "/"), text)  # of several with one name the first
    for info in infos:
        yield Process(
            pid=whole(given(info, "pid")),
            kind=given(info, "type"),
            name=given(info, "process_name"),
            used_mib=whole(given(info, "used_memory")),
        )


def _states(gpu: Walked) -> set[str]:
    """Of the states that stand in the values' place, those that say what is wrong with the whole GPU."""
    return {(text or "").strip().strip("[]").lower() for text in gpu.values}


def given(texts: Texts, path: str) -> str | None:
    """The text at a path; None where the tool said that it does not know."""
    text = texts.get(path)
    if path == "product_name":  # a name may be a word that stands for nothing elsewhere
        return (text or "").strip()[:200] or None
    return _value_text(text)


@lru_cache(4096)
def _value_text(text: str | None) -> str | None:
    """A value's text, the same object for the same text; None where it stands for nothing. This and the three below
    read a hundred values of each GPU, most of which all GPUs of a fleet have in common."""
    text = (text or "").strip()
    return None if not text or text.strip("[]").lower() in BLANK else text[:200]


@lru_cache(4096)
def _whole_number(text: str | None) -> int | None:
    return whole(_value_text(text))


@lru_cache(1024)
def _number(text: str | None) -> float | None:
    return number(_value_text(text))


@lru_cache(1024)
def _yes(text: str | None) -> bool | None:
    return {"yes": True, "enabled": True, "no": False, "disabled": False}.get((_value_text(text) or "").lower())


def _active(text: str | None) -> bool | None:
    return None if text is None else text.lower() == "active"


def _first(*values: _T | None) -> _T | None:
    return next((value for value in values if value is not None), None)


@lru_cache(4096)
def _total(counters: tuple[tuple[str, str | None], ...], *keys: str) -> int | None:
    """Sum of the counters whose names hold a key; Pascal nests them one level deeper (double_bit/total).

    None when none is a number: a lost GPU has texts in their place.
    """
    total: int | None = None
    for path, text in counters:
        name, _, inner = path.partition("/")
        if inner not in ("", "total") or not _matches_key(name, keys):
            continue
        value = number(text)
        if value is not None:
            total = (total or 0) + int(value)
    return total


@lru_cache(1024)
def _matches_key(tag: str, keys: tuple[str, ...]) -> bool:
    return any(key in tag for key in keys)
