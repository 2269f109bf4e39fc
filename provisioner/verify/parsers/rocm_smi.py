"""`rocm-smi … --json`: AMD GPUs.

Traps: "system" is a key beside card0…; keys are "Card series" or "Card Series"; every value is a string; partitions
of one GPU are listed as cards (they share a PCI bus address).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from provisioner.verify.parsers import Unreadable, first_line, pci, whole


@dataclass(frozen=True, slots=True)
class AmdGpu:
    """One GPU; memory in MiB, `partitions` is how many cards share it."""

    index: int
    pci: str | None
    model: str | None
    uuid: str | None
    memory_mib: int | None
    partitions: int = 1


@dataclass(frozen=True, slots=True)
class Rocm:
    driver_version: str | None
    gpus: tuple[AmdGpu, ...]


def parse(text: str) -> Rocm:
    start = text.find("{")
    try:
        data = json.loads(text[max(start, 0) :])
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"not JSON: {first_line(text)}") from error
    if not isinstance(data, dict):
        raise Unreadable("no JSON object")
    named = [(re.fullmatch(r"card([0-9]{1,4})", key), value) for key, value in data.items()]
    cards = [(int(match[1]), value) for match, value in named if match and isinstance(value, dict)]
    if not cards and "system" not in data:
        raise Unreadable("no card and no system in it")
    gpus: dict[str, AmdGpu] = {}
    for index, card in sorted(cards, key=lambda pair: pair[0]):
        fields = {str(k).lower(): v for k, v in card.items()}
        bus = _text(fields, "pci bus")
        key = pci(bus) if bus else f"card{index}"
        if key in gpus:
            old = gpus[key]
            gpus[key] = AmdGpu(old.index, old.pci, old.model, old.uuid, old.memory_mib, old.partitions + 1)
            continue
        memory = whole(_text(fields, "vram total memory (b)"))
        gpus[key] = AmdGpu(
            index=len(gpus),
            pci=pci(bus) if bus else None,
            model=_text(fields, "card series") or _text(fields, "device name"),
            uuid=_text(fields, "unique id"),
            memory_mib=None if memory is None else memory // (1024 * 1024),
        )
    system = data.get("system")
    system = {str(k).lower(): v for k, v in system.items()} if isinstance(system, dict) else {}
    return Rocm(_text(system, "driver version"), tuple(gpus.values()))


def _text(fields: dict[str, Any], key: str) -> str | None:
    value = fields.get(key)
    return value.strip()[:200] if isinstance(value, str) and value.strip() not in ("", "N/A") else None
