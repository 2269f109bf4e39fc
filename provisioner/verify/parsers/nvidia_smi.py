"""`nvidia-smi -q -x`: what the driver says of every GPU, DTD v10 to v13 or without a DOCTYPE.

Traps: `attached_gpus` can disagree with the number of <gpu> elements; "GPU is lost" sits inside values while the
ECC mode stays Enabled; ECC counters are single_bit/double_bit (Pascal), sram/dram (Ampere) or split parity/SEC-DED;
idle GPUs stand at PCIe generation 1; two GPUs can share a board serial; throttle reasons, power readings and the
remapper moved between branches; messages of the library stand among the elements.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Literal, TypeVar
from xml.etree import ElementTree  # the document comes from our own node; expat >= 2.4.1 bounds entities

from provisioner.verify.parsers import Unreadable, first_line, number, pci, whole
from provisioner.verify.parsers.nvidia_smi_facts import Gpu, Process, Smi
from provisioner.verify.tool import Tool, nvidia

__all__ = ["Failure", "Gpu", "Process", "Smi", "failure", "joined", "parse"]

THROTTLE = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")
"""Clock event reasons that no healthy idle GPU shows (sw_power_cap and gpu_idle are normal)."""
BLANK = {
    "n/a", "not supported", "not found", "function not found", "not available", "no data", "none found",
    "gpu is lost", "unknown error", "err!", "gpu requires reset", "insufficient permissions", "not active error",
    "requested functionality has been deprecated", "insufficient external power", "in use by another client",
    "redacted",
}  # fmt: skip
"""What stands in a value's place when there is none, in brackets or without."""
FABRIC_FAULTS = (
    "route_recovery_in_progress",
    "route_unhealthy",
    "access_timeout_recovery",
    "incorrect_configuration",
)
UNREACHABLE = re.compile(
    r"Unable to determine the device handle for (?:gpu|GPU)[ :]*(?:([0-9]{1,3}): *)?"
    r"((?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)\b"
)
"""A GPU's address, in newer branches behind its index; in some there is no space before either."""

Failure = Literal["mismatch", "no-driver"]
Texts = Mapping[str, str | None]
"""Path below an element → the text of the first element there."""
_T = TypeVar("_T")


def failure(text: str) -> Failure | None:
    """nvidia-smi answered, but could not speak with the driver."""
    low = text.lower()
    if "driver/library version mismatch" in low:
        return "mismatch"
    if "communicate with the nvidia driver" in low or "driver not loaded" in low:
        return "no-driver"
    return None


def joined(text: str, error: str) -> str:
    """The document with what nvidia-smi says of its GPUs on standard error; complaints of others are left out."""
    if not error or "<nvidia_smi_log" not in text:
        return text
    kept = [line for line in error.splitlines() if UNREACHABLE.search(line) or "inforom" in line.lower()]
    return text + "\n" + "\n".join(kept)


def parse(text: str) -> Smi:
    if "no devices were found" in text.lower() and "<gpu" not in text:
        return Smi(None, None, 0, (), unreachable=_unreachable(text))
    # The prologue is left out: nothing in it is needed, and an encoding or an entity in it could only do harm.
    start = max(text.find("<nvidia_smi_log"), 0)
    end = text.rfind("</nvidia_smi_log>")
    if "<nvidia_smi_log" not in text and (gone := _unreachable(text)):
        return Smi(None, None, None, (), unreachable=gone)
    if "<nvidia_smi_log" not in text:
        raise Unreadable(f"no complete XML document: {first_line(text)}")
    if end < 0:
        raise Unreadable(f"no complete XML document, it was cut after: {first_line(text.rstrip().splitlines()[-1])}")
    end += len("</nvidia_smi_log>")
    try:
        root = ElementTree.fromstring(text[start:end].encode("utf-8", "replace"))  # noqa: S314
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise Unreadable(f"not XML: {error}") from error
    around = [text[:start], text[end:]]
    try:
        top, gpus = _texts(root, around, apart="gpu"), []
        elements = root.findall("gpu")
        walked = [_texts(element, around) for element in elements]
        for index, element, texts in zip(_indexes(walked, elements, around), elements, walked, strict=True):
            gpus.append(_gpu(index, element, texts))
    except RecursionError as error:
        raise Unreadable("elements within elements without an end") from error
    blank = " \t\r\x00\ufeff"
    said = [line.strip(blank)[:200] for part in around for line in part.splitlines() if line.strip(blank)]
    said = [line for line in said if not line.startswith("<")]
    return Smi(
        driver_version=_given(top, "driver_version") or _given(top, "kmd_version"),
        cuda_version=_given(top, "cuda_version") or _given(top, "cuda_umd_version"),
        attached_gpus=whole(_given(top, "attached_gpus")),
        gpus=tuple(gpus),
        warnings=tuple(dict.fromkeys(line for line in said if not UNREACHABLE.search(line))),
        unreachable=_unreachable("\n".join(said)),
    )


def _texts(element: ElementTree.Element, stray: list[str], *, apart: str = "") -> dict[str, str | None]:
    """One walk over all below an element: path → text. What stands between elements goes to `stray`. Elements named
    `apart` that lie directly below are left out."""
    found: dict[str, str | None] = {}
    _walk(element, "", found, stray, apart)
    return found


def _walk(above: ElementTree.Element, path: str, found: dict[str, str | None], stray: list[str], apart: str) -> None:
    for child in above:
        tail, place = child.tail, path + child.tag
        if tail and tail.strip(" \t\r\n"):
            stray.append(tail)
        if place == apart:
            continue
        if place not in found:
            found[place] = child.text
        if len(child):
            _walk(child, place + "/", found, stray, apart)


def _unreachable(text: str) -> tuple[str, ...]:
    """Addresses of GPUs that the library names and cannot open."""
    return tuple(dict.fromkeys(pci(match[2]) for match in UNREACHABLE.finditer(text)))


def _indexes(walked: list[dict[str, str | None]], elements: list[ElementTree.Element], around: list[str]) -> list[int]:
    """nvidia-smi's own numbers of the listed GPUs. It counts all by their addresses, those that it cannot open too."""
    gone = set(_unreachable("\n".join(around)))
    addresses = [
        pci(element.get("id") or texts.get("pci/pci_bus_id") or "")
        for element, texts in zip(elements, walked, strict=True)
    ]
    if not gone or len(set(addresses)) != len(addresses) or gone & {*addresses}:
        return list(range(len(elements)))
    return [i + sum(lost < address for lost in gone) for i, address in enumerate(addresses)]


def _gpu(index: int, element: ElementTree.Element, gpu: Texts) -> Gpu:
    states = _states(element)
    name = _given(gpu, "product_name")
    volatile, aggregate = element.find("ecc_errors/volatile"), element.find("ecc_errors/aggregate")
    address = element.get("id") or _given(gpu, "pci/pci_bus_id")
    link, heat, rows, pages = "pci/pci_gpu_link_info", "temperature", "remapped_rows", "retired_pages"
    # Branch 520 moved the limits from power_readings to gpu_power_readings and renamed them.
    old, power = "power_readings", "gpu_power_readings"
    return Gpu(
        index=index,
        pci=pci(address) if address else None,
        model=name,
        uuid=_given(gpu, "uuid"),
        serial=_given(gpu, "serial"),
        board_part=_given(gpu, "board_part_number"),
        vbios=_given(gpu, "vbios_version"),
        inforom=_given(gpu, "inforom_version/img_version"),
        gsp_firmware=_given(gpu, "gsp_firmware_version"),
        minor_number=whole(_given(gpu, "minor_number")),
        memory_mib=whole(_given(gpu, "fb_memory_usage/total")),
        memory_used_mib=whole(_given(gpu, "fb_memory_usage/used")),
        bar1_mib=whole(_given(gpu, "bar1_memory_usage/total")),
        lost="gpu is lost" in states or (name or "").lower() in ("err!", "unknown error", "gpu is lost"),
        reset_required=(
            True if "gpu requires reset" in states else _yes(_given(gpu, "gpu_reset_status/reset_required"))
        ),
        drain_and_reset=_yes(_given(gpu, "gpu_reset_status/drain_and_reset_recommended")),
        recovery_action=_given(gpu, "gpu_recovery_action"),
        compute_mode=_given(gpu, "compute_mode"),
        display_active=_yes(_given(gpu, "display_active")),
        ecc_mode=_given(gpu, "ecc_mode/current_ecc"),
        ecc_pending=_given(gpu, "ecc_mode/pending_ecc"),
        ecc_volatile=_total(volatile, "uncorrectable", "double_bit"),
        ecc_sram=_total(aggregate, "sram_uncorrectable"),
        ecc_aggregate=_total(aggregate, "uncorrectable", "double_bit"),
        ecc_correctable=_total(aggregate, "_correctable", "single_bit"),
        ecc_sram_correctable=_total(aggregate, "sram_correctable"),
        ecc_dram_correctable=_total(aggregate, "dram_correctable"),
        sram_threshold=_yes(_given(gpu, "ecc_errors/aggregate/sram_threshold_exceeded")),
        channel_repair=_yes(_given(gpu, "ecc_errors/channel_repair_pending")),
        tpc_repair=_yes(_given(gpu, "ecc_errors/tpc_repair_pending")),
        remap_correctable=whole(_given(gpu, f"{rows}/remapped_row_corr")),
        remap_uncorrectable=whole(_given(gpu, f"{rows}/remapped_row_unc")),
        remap_pending=_yes(_given(gpu, f"{rows}/remapped_row_pending")),
        remap_failure=_yes(_given(gpu, f"{rows}/remapped_row_failure")),
        banks_low=whole(_given(gpu, f"{rows}/row_remapper_histogram/row_remapper_histogram_low")),
        banks_none=whole(_given(gpu, f"{rows}/row_remapper_histogram/row_remapper_histogram_none")),
        retired_sbe=whole(_given(gpu, f"{pages}/multiple_single_bit_retirement/retired_count")),
        retired_dbe=whole(_given(gpu, f"{pages}/double_bit_retirement/retired_count")),
        retired_pending=_first(
            _yes(_given(gpu, f"{pages}/pending_retirement")), _yes(_given(gpu, f"{pages}/pending_blacklist"))
        ),
        mig_mode=_given(gpu, "mig_mode/current_mig"),
        mig_pending=_given(gpu, "mig_mode/pending_mig"),
        mig_devices=len(element.findall("mig_devices/mig_device")),
        persistence=_yes(_given(gpu, "persistence_mode")),
        pcie_gen=whole(_given(gpu, f"{link}/pcie_gen/current_link_gen")),
        pcie_gen_max=whole(_given(gpu, f"{link}/pcie_gen/max_link_gen")),
        pcie_gen_device=whole(_given(gpu, f"{link}/pcie_gen/max_device_link_gen")),
        pcie_gen_host=whole(_given(gpu, f"{link}/pcie_gen/max_host_link_gen")),
        pcie_width=whole(_given(gpu, f"{link}/link_widths/current_link_width")),
        pcie_width_max=whole(_given(gpu, f"{link}/link_widths/max_link_width")),
        pcie_replays=whole(_given(gpu, "pci/replay_counter")),
        pcie_rollovers=whole(_given(gpu, "pci/replay_rollover_counter")),
        temperature=whole(_given(gpu, f"{heat}/gpu_temp")),
        temperature_slowdown=whole(_given(gpu, f"{heat}/gpu_temp_slow_threshold")),
        margin=whole(_given(gpu, f"{heat}/gpu_temp_tlimit")),
        margin_slowdown=whole(_given(gpu, f"{heat}/gpu_temp_slow_tlimit_threshold")),
        memory_temperature=whole(_given(gpu, f"{heat}/memory_temp")),
        memory_temperature_max=whole(_given(gpu, f"{heat}/gpu_temp_max_mem_threshold")),
        power_limit_w=_first(
            number(_given(gpu, f"{power}/current_power_limit")),
            number(_given(gpu, f"{power}/enforced_power_limit")),
            number(_given(gpu, f"{old}/enforced_power_limit")),
        ),
        power_default_w=_first(
            number(_given(gpu, f"{power}/default_power_limit")), number(_given(gpu, f"{old}/default_power_limit"))
        ),
        clock_sm_mhz=whole(_given(gpu, "clocks/sm_clock")),
        clock_application_mhz=whole(_given(gpu, "applications_clocks/graphics_clock")),
        clock_default_mhz=whole(_given(gpu, "default_applications_clocks/graphics_clock")),
        clock_max_mhz=whole(_given(gpu, "max_clocks/graphics_clock")),
        fabric_state=_given(gpu, "fabric/state"),
        fabric_status=_given(gpu, "fabric/status"),
        fabric_clique=_given(gpu, "fabric/cliqueId"),
        fabric_cluster=_given(gpu, "fabric/clusterUuid"),
        fabric_health=_given(gpu, "fabric/health/summary"),
        fabric_bandwidth=_given(gpu, "fabric/health/bandwidth"),
        fabric_faults=tuple(_faults(gpu)),
        processes=tuple(_processes(element)),
        throttle=tuple(dict.fromkeys(_throttle(gpu))),
    )


def _throttle(gpu: Texts) -> Iterator[str]:
    for family in ("clocks_event_reasons/clocks_event_reason_", "clocks_throttle_reasons/clocks_throttle_reason_"):
        for reason in THROTTLE:
            if (_given(gpu, family + reason) or "").lower() == "active":
                yield reason


def _faults(gpu: Texts) -> Iterator[str]:
    """Health words of the fabric that say other than False, No or None. Older branches call them "Degraded …"."""
    for word in FABRIC_FAULTS:
        said = _given(gpu, f"fabric/health/{word}")
        if said is not None and said.lower() not in ("false", "no", "none", "not supported"):
            yield word if said.lower() in ("true", "yes") else f"{word}: {said}"


def _processes(gpu: ElementTree.Element) -> Iterator[Process]:
    for one in gpu.findall("processes/process_info"):
        info = {child.tag: child.text for child in reversed(one)}  # of several with one name the first
        yield Process(
            pid=whole(_given(info, "pid")),
            kind=_given(info, "type"),
            name=_given(info, "process_name"),
            used_mib=whole(_given(info, "used_memory")),
        )


def _states(gpu: ElementTree.Element) -> set[str]:
    """Of the states that stand in the values' place, those that say what is wrong with the whole GPU."""
    said = "\n".join(gpu.itertext()).lower()
    if "gpu is lost" not in said and "gpu requires reset" not in said:
        return set()
    return {(element.text or "").strip().strip("[]").lower() for element in gpu.iter()}


def _given(texts: Texts, path: str) -> str | None:
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


COMMAND = ("nvidia-smi", "-q", "-x")
CLOCKS = r"<supported_clocks>.*?</supported_clocks>\s*"
"""The lists of clocks that a GPU could have: nine tenths of the document."""
LOOK = Tool(
    file="nvidia-smi.xml",
    field="smi",
    parse=parse,
    command=COMMAND,
    seconds=30,
    when=nvidia,
    omit=CLOCKS,
    complaint_answers=True,
    joined=joined,
    document={
        "cuda_version": lambda smi: smi.cuda_version,
        "attached_gpus": lambda smi: smi.attached_gpus,
        "warnings": lambda smi: list(smi.warnings),
    },
)
TOOLS = (
    LOOK,
    replace(LOOK, file="nvidia-smi-load.xml", field="under_load", asked="during", complaint_answers=False,
            label="nvidia-smi -q -x under load", document={}),
    replace(LOOK, file="nvidia-smi-after.xml", field="after.smi", asked="after", complaint_answers=False,
            label="nvidia-smi -q -x after the load", document={}),
)  # fmt: skip
