"""`nvidia-smi -q -x`: what the driver says of every GPU, DTD v10 to v13 or without a DOCTYPE.

Traps: `attached_gpus` can disagree with the number of <gpu> elements; "GPU is lost" sits inside values while the
ECC mode stays Enabled; ECC counters are single_bit/double_bit (Pascal), sram/dram (Ampere) or split parity/SEC-DED;
idle GPUs stand at PCIe generation 1; two GPUs can share a board serial.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal
from xml.etree import ElementTree  # the document comes from our own node; expat >= 2.4.1 bounds entities

from provisioner.verify.parsers import Unreadable, first_line, number, pci, whole

THROTTLE = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")
"""Clock event reasons that no healthy idle GPU shows (sw_power_cap and gpu_idle are normal)."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as nvidia-smi lists it; `index` is its place in the list, memory in MiB."""

    index: int
    pci: str | None = None
    model: str | None = None
    uuid: str | None = None
    serial: str | None = None
    memory_mib: int | None = None
    lost: bool = False
    ecc_mode: str | None = None
    ecc_volatile: int | None = None
    """Uncorrectable errors since the driver was loaded."""
    ecc_sram: int | None = None
    """Uncorrectable SRAM errors over the GPU's life."""
    ecc_aggregate: int | None = None
    """All uncorrectable errors over the GPU's life."""
    ecc_correctable: int | None = None
    remap_uncorrectable: int | None = None
    remap_pending: bool | None = None
    remap_failure: bool | None = None
    retired_pending: bool | None = None
    mig_mode: str | None = None
    persistence: bool | None = None
    pcie_gen: int | None = None
    pcie_gen_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    fabric_state: str | None = None
    fabric_status: str | None = None
    fabric_health: str | None = None
    throttle: tuple[str, ...] = ()

    @property
    def ecc_uncorrectable(self) -> int | None:
        """The larger of the two counters: the aggregate holds the volatile one, but is not always there."""
        known = [n for n in (self.ecc_volatile, self.ecc_aggregate) if n is not None]
        return max(known) if known else None


@dataclass(frozen=True, slots=True)
class Smi:
    driver_version: str | None
    cuda_version: str | None
    attached_gpus: int | None
    gpus: tuple[Gpu, ...]
    warnings: tuple[str, ...] = ()
    """Lines that nvidia-smi printed around the document, such as "WARNING: infoROM is corrupted at gpu …"."""


Failure = Literal["mismatch", "no-driver"]


def failure(text: str) -> Failure | None:
    """nvidia-smi answered, but could not speak with the driver."""
    low = text.lower()
    if "driver/library version mismatch" in low:
        return "mismatch"
    if "communicate with the nvidia driver" in low or "driver not loaded" in low:
        return "no-driver"
    return None


def parse(text: str) -> Smi:
    if "no devices were found" in text.lower() and "<gpu" not in text:
        return Smi(None, None, 0, ())
    # The prologue is left out: nothing in it is needed, and an encoding or an entity in it could only do harm.
    start = max(text.find("<nvidia_smi_log"), 0)
    end = text.rfind("</nvidia_smi_log>")
    if "<nvidia_smi_log" not in text or end < 0:
        raise Unreadable(f"no complete XML document: {first_line(text)}")
    end += len("</nvidia_smi_log>")
    try:
        root = ElementTree.fromstring(text[start:end].encode("utf-8", "replace"))  # noqa: S314
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise Unreadable(f"not XML: {error}") from error
    around = (text[:start] + "\n" + text[end:]).splitlines()
    return Smi(
        driver_version=_given(root, "driver_version") or _given(root, "kmd_version"),
        cuda_version=_given(root, "cuda_version") or _given(root, "cuda_umd_version"),
        attached_gpus=whole(_given(root, "attached_gpus")),
        gpus=tuple(_gpu(i, element) for i, element in enumerate(root.findall("gpu"))),
        warnings=tuple(line.strip()[:200] for line in around if line.strip() and not line.lstrip().startswith("<")),
    )


def _gpu(index: int, gpu: ElementTree.Element) -> Gpu:
    values = [(element.text or "").strip().lower() for element in gpu.iter()]
    name = _given(gpu, "product_name")
    volatile, aggregate = gpu.find("ecc_errors/volatile"), gpu.find("ecc_errors/aggregate")
    address = gpu.get("id") or _given(gpu, "pci/pci_bus_id")
    link = "pci/pci_gpu_link_info"
    return Gpu(
        index=index,
        pci=pci(address) if address else None,
        model=name,
        uuid=_given(gpu, "uuid"),
        serial=_given(gpu, "serial"),
        memory_mib=whole(_given(gpu, "fb_memory_usage/total")),
        lost="gpu is lost" in values or (name or "").lower() in ("err!", "unknown error"),
        ecc_mode=_given(gpu, "ecc_mode/current_ecc"),
        ecc_volatile=_total(volatile, "uncorrectable", "double_bit"),
        ecc_sram=_total(aggregate, "sram_uncorrectable"),
        ecc_aggregate=_total(aggregate, "uncorrectable", "double_bit"),
        ecc_correctable=_total(aggregate, "_correctable", "single_bit"),
        remap_uncorrectable=whole(_given(gpu, "remapped_rows/remapped_row_unc")),
        remap_pending=_yes(_given(gpu, "remapped_rows/remapped_row_pending")),
        remap_failure=_yes(_given(gpu, "remapped_rows/remapped_row_failure")),
        retired_pending=_yes(_given(gpu, "retired_pages/pending_retirement")),
        mig_mode=_given(gpu, "mig_mode/current_mig"),
        persistence=_yes(_given(gpu, "persistence_mode")),
        pcie_gen=whole(_given(gpu, f"{link}/pcie_gen/current_link_gen")),
        pcie_gen_max=whole(_given(gpu, f"{link}/pcie_gen/max_link_gen")),
        pcie_width=whole(_given(gpu, f"{link}/link_widths/current_link_width")),
        pcie_width_max=whole(_given(gpu, f"{link}/link_widths/max_link_width")),
        fabric_state=_given(gpu, "fabric/state"),
        fabric_status=_given(gpu, "fabric/status"),
        fabric_health=_given(gpu, "fabric/health/summary"),
        throttle=tuple(_throttle(gpu)),
    )


def _throttle(gpu: ElementTree.Element) -> Iterator[str]:
    for family in ("clocks_event_reasons/clocks_event_reason_", "clocks_throttle_reasons/clocks_throttle_reason_"):
        for reason in THROTTLE:
            if (_given(gpu, family + reason) or "").lower() == "active":
                yield reason


def _given(element: ElementTree.Element, path: str) -> str | None:
    """The text at a path; None where the tool said that it does not know."""
    text = (element.findtext(path) or "").strip()
    blank = ("n/a", "[n/a]", "gpu is lost", "unknown error", "err!", "requested functionality has been deprecated")
    return None if not text or (text.lower() in blank and path != "product_name") else text[:200]


def _total(counters: ElementTree.Element | None, *keys: str) -> int | None:
    """Sum of the counters whose names hold a key; Pascal nests them one level deeper (double_bit/total).

    None when one of them holds no number but a lost GPU's text, or when none is a number at all.
    """
    if counters is None:
        return None
    total: int | None = None
    for element in counters:
        if not any(key in element.tag for key in keys):
            continue
        text = element.findtext("total") if len(element) else element.text
        value = number(text)
        if value is not None:
            total = (total or 0) + int(value)
    return total


def _yes(text: str | None) -> bool | None:
    return {"yes": True, "enabled": True, "no": False, "disabled": False}.get((text or "").lower())
