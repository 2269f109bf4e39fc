"""`dmidecode -t 17`: the memory modules as the firmware has found them, one block for each slot.

Traps: sizes are MB before dmidecode 3.0 and GB after it; an empty slot is "No Module Installed", one whose size the
firmware does not know "Unknown"; firmware flash and NVDIMMs are slots too; "Memory Device Mapped Address" is none.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from provisioner.verify.document import plain
from provisioner.verify.parsers import Unreadable, first_line, lines
from provisioner.verify.tool import Tool

_SIZE = re.compile(r"([0-9]{1,9}) (MB|GB|TB)$")
GIB = {"MB": 1 / 1024, "GB": 1.0, "TB": 1024.0}
OTHER = ("Flash", "ROM", "EEPROM", "Logical non-volatile device")
"""Types of a slot that are no working memory (SMBIOS specification, DSP0134, 7.18.2)."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot for a module, as its label says; `gib` is 0 where it is empty, None where nobody knows."""

    locator: str
    bank: str | None
    gib: float | None
    kind: str | None


@dataclass(frozen=True, slots=True)
class Modules:
    slots: tuple[Slot, ...]

    @property
    def installed(self) -> tuple[Slot, ...]:
        return tuple(slot for slot in self.slots if slot.gib)

    @property
    def gib(self) -> float | None:
        """Of all modules together; None where the firmware does not know one of them."""
        sizes = [slot.gib for slot in self.slots]
        return None if None in sizes else sum(size for size in sizes if size)

    @property
    def empty(self) -> tuple[str, ...]:
        return tuple(slot.locator for slot in self.slots if slot.gib == 0)


def parse(text: str) -> Modules:
    blocks: list[dict[str, str]] = []
    within = False
    for line in lines(text):
        if not line[:1].isspace():
            within = line.strip() == "Memory Device"
            blocks += [{}] if within else []
        elif within and ": " in line:
            key, _, value = line.strip().partition(": ")
            blocks[-1].setdefault(key, value.strip()[:80])
    if not blocks:
        raise Unreadable(f"no memory device in it: {first_line(text)}")
    if "Size" not in blocks[-1]:
        raise Unreadable("it ends in the midst of a memory device")
    slots = [_slot(block) for block in blocks if block.get("Type") not in OTHER]
    return Modules(tuple(slots))


def _slot(block: dict[str, str]) -> Slot:
    bank, size = block.get("Bank Locator"), block.get("Size", "")
    match = _SIZE.match(size)
    gib = float(match[1]) * GIB[match[2]] if match else 0.0 if size == "No Module Installed" else None
    known = bank if bank not in (None, "", "Not Specified") else None
    return Slot(block.get("Locator", "?"), known, gib, block.get("Type"))


TOOLS = (
    Tool(
        file="dmidecode.txt",
        field="dimms",
        parse=parse,
        command=("dmidecode", "-t", "17"),
        when=lambda expected: expected.bare_metal and not expected.simulated,
        document={"memory_modules": lambda dimms: plain(dimms.slots)},
    ),
)
