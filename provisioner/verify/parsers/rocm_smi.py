"""`rocm-smi … --json` and its successor `amd-smi static --json`, or what they print without --json: AMD GPUs.

Traps: "system" is a key beside card0…; keys are "Card series" or "Card Series"; every value is a string; partitions
of one GPU are listed as cards (they share a PCI bus address); amd-smi gives a list, or puts it under "gpu_data";
without a database of names the name is a number.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import Any

from provisioner.verify.parsers import Unreadable, first_line, pci, rocm_smi_text, whole_number
from provisioner.verify.tool import Tool


@dataclass(frozen=True, slots=True)
class AmdGpu:
    """One GPU; memory in MiB, `partitions` is how many cards share it."""

    index: int
    pci: str | None
    model: str | None
    uuid: str | None
    memory_mib: int | None
    partitions: int = 1
    serial: str | None = None
    vbios: str | None = None
    memory_vendor: str | None = None
    pcie_replays: int | None = None
    ecc_uncorrectable: int | None = None
    """Of all its blocks, as amd-smi or `rocm-smi --showrasinfo` counts them; None where it was not asked."""
    xgmi_errors: int | None = None
    """0 none, 1 one, 2 several since it was last asked (rocm_smi.h, rsmi_xgmi_status_t)."""
    firmware: tuple[tuple[str, str], ...] = ()
    """Part of the GPU → version of its firmware."""


@dataclass(frozen=True, slots=True)
class Rocm:
    driver_version: str | None
    gpus: tuple[AmdGpu, ...]
    made_by: str = ""
    """What listed the GPUs, where that is less than the JSON tells."""


def parse(text: str) -> Rocm:
    document, made_by = rocm_smi_text.read(text)
    if document is not None:
        return replace(_amd_smi(document) if isinstance(document, list) else _rocm_smi(document), made_by=made_by)
    # Warnings come before the document, on standard output as well.
    starts = [at for at in (text.find("{"), text.find("[{")) if at >= 0]
    try:
        data, _ = json.JSONDecoder().raw_decode(text, min(starts, default=0))
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"not JSON: {first_line(text)}") from error
    if isinstance(data, dict) and isinstance(data.get("gpu_data"), list):
        data = data["gpu_data"]
    if isinstance(data, list):
        return _amd_smi(data)
    if not isinstance(data, dict):
        raise Unreadable("no JSON object")
    return _rocm_smi(data)


def _rocm_smi(data: dict[str, Any]) -> Rocm:
    matched_keys = [(re.fullmatch(r"card([0-9]{1,4})", key), value) for key, value in data.items()]
    cards = [(int(match[1]), value) for match, value in matched_keys if match and isinstance(value, dict)]
    if not cards and "system" not in data:
        raise Unreadable("no card and no system in it")
    gpus: list[AmdGpu] = []
    for _index, card in sorted(cards, key=lambda pair: pair[0]):
        fields = {str(k).lower(): v for k, v in card.items()}
        if whole_number(_text(fields, "partition id")) and not _text(fields, "pci bus") and gpus:
            gpus[-1] = replace(gpus[-1], partitions=gpus[-1].partitions + 1)  # a table's row, without an address
            continue
        bus, memory = _text(fields, "pci bus"), whole_number(_text(fields, "vram total memory (b)"))
        gpus.append(
            AmdGpu(
                index=0,
                pci=pci(bus) if bus else None,
                model=_name(fields, "card series") or _name(fields, "device name"),
                uuid=_text(fields, "unique id"),
                memory_mib=None if memory is None else memory // (1024 * 1024),
                serial=_text(fields, "serial number"),
                vbios=_text(fields, "vbios version"),
                memory_vendor=_text(fields, "gpu memory vendor"),
                pcie_replays=whole_number(_text(fields, "pcie replay count")),
                ecc_uncorrectable=whole_number(_text(fields, rocm_smi_text.RAS)),
                xgmi_errors=whole_number((_text(fields, "xgmi error count") or "").partition(" ")[0]),
                firmware=tuple(
                    sorted(
                        (key.removesuffix(" firmware version"), str(value).strip()[:40])
                        for key, value in fields.items()
                        if key.endswith(" firmware version")
                    )
                ),
            )
        )
    system = data.get("system")
    system = {str(k).lower(): v for k, v in system.items()} if isinstance(system, dict) else {}
    return Rocm(_text(system, "driver version"), _whole_gpus(gpus))


def _amd_smi(entries: list[Any]) -> Rocm:
    """`amd-smi static --json` (or list --json): one object for each GPU, its facts in sections."""
    gpus, drivers = [], []
    for entry in entries:
        if not isinstance(entry, dict) or "gpu" not in entry:
            continue
        asic, bus, vram, driver = (_section(entry, name) for name in ("asic", "bus", "vram", "driver"))
        size = vram.get("size", vram.get("vram_size_mb"))
        memory = size.get("value") if isinstance(size, dict) else size
        address = _text(bus, "bdf") or _text(entry, "bdf")
        gpus.append(
            AmdGpu(
                index=0,
                pci=pci(address) if address else None,
                model=_name(asic, "market_name"),
                uuid=_text(entry, "uuid") or _text(asic, "asic_serial"),
                memory_mib=whole_number(str(memory)) if memory is not None else None,
                serial=_text(_section(entry, "board"), "product_serial"),
                vbios=_text(_section(entry, "vbios"), "part_number") or _text(_section(entry, "ifwi"), "part_number"),
                memory_vendor=_text(vram, "vendor") or _text(vram, "vram_vendor"),
                ecc_uncorrectable=_uncorrectable(entry),
            )
        )
        drivers.append(_text(driver, "version") or _text(driver, "driver_version"))
    if not gpus:
        raise Unreadable("a list without a GPU in it")
    return Rocm(next((version for version in drivers if version), None), _whole_gpus(gpus))


def _uncorrectable(entry: dict[str, Any]) -> int | None:
    """The larger of the total and the sum of the blocks (`amd-smi metric --ecc`, `--ecc-blocks`)."""
    total = whole_number(str(_section(entry, "ecc").get("total_uncorrectable_count")))
    blocks = [value for value in _section(entry, "ecc_blocks").values() if isinstance(value, dict)]
    counts = [
        whole_number(str({k.lower(): v for k, v in block.items()}.get("uncorrectable_count"))) for block in blocks
    ]
    known = [count for count in (total, *counts) if count is not None]
    return max(total or 0, sum(count or 0 for count in counts)) if known else None


def _whole_gpus(cards: list[AmdGpu]) -> tuple[AmdGpu, ...]:
    """Cards that share a bus address are partitions of one GPU."""
    gpus: dict[str, AmdGpu] = {}
    for number, card in enumerate(cards):
        key = card.pci or f"card{number}"
        if key in gpus:
            gpus[key] = replace(gpus[key], partitions=gpus[key].partitions + 1)
        else:
            gpus[key] = replace(card, index=len(gpus))
    return tuple(gpus.values())


def _section(entry: dict[str, Any], name: str) -> dict[str, Any]:
    """A section with its keys in small letters, which some releases print in capitals."""
    value = entry.get(name)
    return {str(key).lower(): item for key, item in value.items()} if isinstance(value, dict) else {}


def _name(fields: dict[str, Any], key: str) -> str | None:
    """A product's name. A tool that has no name for a device prints its number, or its vendor's, as the name."""
    text = _text(fields, key)
    return None if text is None or re.fullmatch(r"(?:Device )?(?:0x)?[0-9a-fA-F]{1,8}", text) else text


def _text(fields: dict[str, Any], key: str) -> str | None:
    value = fields.get(key)
    return value.strip()[:200] if isinstance(value, str) and value.strip() not in ("", "N/A") else None


SHOWN = (
    "--showproductname --showmeminfo vram --showdriverversion --showbus --showserial --showuniqueid --showvbios "
    "--showreplaycount --showmemvendor --showfwinfo --showxgmierr"
)
TOOLS = (
    Tool(
        file="rocm-smi.json",
        field="rocm",
        parse=parse,
        command=("rocm-smi", *SHOWN.split(), "--json"),
        seconds=30,
        when=lambda expected: expected.vendor == "amd",
        label="rocm-smi --json",
        document={},
    ),
)
