"""One <gpu> element of `nvidia-smi -q -x` (nvidia_smi.py) as a Gpu."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TypeVar

from provisioner.verify.parsers import number, pci, whole_number
from provisioner.verify.parsers.nvidia_smi_facts import Gpu, Process
from provisioner.verify.parsers.nvidia_smi_fields import FIELDS, integer, yes
from provisioner.verify.parsers.nvidia_smi_fields import text as value_text
from provisioner.verify.parsers.nvidia_smi_xml import Walked

THROTTLE = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")
"""Clock event reasons that no healthy idle GPU shows (sw_power_cap and gpu_idle are normal)."""

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
    name = reported_text(gpu, "product_name")
    volatile, aggregate = walked.below("ecc_errors/volatile"), walked.below("ecc_errors/aggregate")
    address = walked.id or reported_text(gpu, "pci/pci_bus_id")
    return Gpu(
        index=index,
        pci=pci(address) if address else None,
        model=name,
        lost="gpu is lost" in states or (name or "").lower() in ("err!", "unknown error", "gpu is lost"),
        reset_required=True if "gpu requires reset" in states else yes(text("gpu_reset_status/reset_required")),
        ecc_volatile=_total(volatile, "uncorrectable", "double_bit"),
        ecc_sram=_total(aggregate, "sram_uncorrectable"),
        ecc_aggregate=_total(aggregate, "uncorrectable", "double_bit"),
        ecc_correctable=_total(aggregate, "_correctable", "single_bit"),
        ecc_sram_correctable=_total(aggregate, "sram_correctable"),
        ecc_dram_correctable=_total(aggregate, "dram_correctable"),
        mig_devices=sum(path == "mig_device" for path, _ in walked.below("mig_devices")),
        power_capped=_active(_first(*(value_text(text(path)) for path in CAPPED))),
        fabric_faults=tuple(_faults(gpu)),
        processes=tuple(_processes(walked)),
        throttle=tuple(dict.fromkeys(_throttle(gpu))),
        slowed_us=tuple(_slowed(gpu)),
        errors=_errors(gpu) if alarming else (),
        **{field.name: _first(*(field.read(text(source.xml)) for source in field.sources)) for field in FIELDS},
    )


def _errors(gpu: Texts) -> tuple[str, ...]:
    return tuple(path for path, text in gpu.items() if text and text.strip().strip("[]").lower() in ERRORS)


def _throttle(gpu: Texts) -> Iterator[str]:
    for family in ("clocks_event_reasons/clocks_event_reason_", "clocks_throttle_reasons/clocks_throttle_reason_"):
        for reason in THROTTLE:
            if (reported_text(gpu, family + reason) or "").lower() == "active":
                yield reason


def _slowed(gpu: Texts) -> Iterator[tuple[str, int]]:
    for name, reason in SLOWED.items():
        counted = integer(gpu.get(f"clocks_event_reasons_counters/clocks_event_reasons_counters_{name}"))
        if counted is not None:
            yield reason, counted


def _faults(gpu: Texts) -> Iterator[str]:
    """Health words of the fabric that say other than False, No or None. Older branches call them "Degraded …"."""
    for field in FABRIC_FAULTS:
        value = reported_text(gpu, f"fabric/health/{field}")
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
            pid=whole_number(reported_text(info, "pid")),
            kind=reported_text(info, "type"),
            name=reported_text(info, "process_name"),
            used_mib=whole_number(reported_text(info, "used_memory")),
        )


def _states(gpu: Walked) -> set[str]:
    """Of the states that stand in the values' place, those that say what is wrong with the whole GPU."""
    return {(text or "").strip().strip("[]").lower() for text in gpu.values}


def reported_text(texts: Texts, path: str) -> str | None:
    """The text at a path; None where the tool said that it does not know."""
    text = texts.get(path)
    if path == "product_name":  # a name may be a word that stands for nothing elsewhere
        return (text or "").strip()[:200] or None
    return value_text(text)


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
