"""rocm-smi and amd-smi as text, in the shape of their JSON.

Traps: `GPU[0] : Card Series: …` with tabs or spaces; keys differ in their capitals between releases; --showhw is a
table with a bus address and no name; the concise table, which rocm-smi prints without an option, has neither before
ROCm 6.0 and after 6.1, and a row for each partition; amd-smi's keys are in capitals, its levels indented; its table,
which it prints without an option since ROCm 7, has two rows for a GPU, cuts long names at their left ("...Instinct
MI300X OAM"), and the kernel's version where that has the driver.
"""

from __future__ import annotations

import re
from typing import Any

from provisioner.verify.parsers import lines

_PAIR = re.compile(r"^GPU\[([0-9]{1,3})\]\s*: +([^:]{2,60}):\s+(\S.*?)\s*$")
_RAS = re.compile(r"^GPU\[([0-9]{1,3})\]\s*:\s+RAS INFO\s*$")
_RAS_BLOCK = re.compile(r"^\s+[A-Z][A-Z0-9_]{1,20}\s+ENABLED\s+[0-9]{1,18}\s+([0-9]{1,18})\s*$")
"""A block that counts has two numbers, errors that were corrected and that were not; others have none."""
RAS = "ras uncorrectable errors"
_DRIVER = re.compile(r"^Driver version:\s*(\S+)")
_ROW = re.compile(r"^([0-9]{1,3}) .*\s((?:[0-9a-fA-F]{4}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])\b")
_CONCISE = re.compile(r"^([0-9]{1,3})\s+\[0x[0-9a-fA-F]+ : 0x[0-9a-fA-F]+\]")
_BY_NODE = re.compile(r"^([0-9]{1,3})\s+[0-9]{1,4}\s+0x[0-9a-fA-F]{4},\s+[0-9]{1,6}\s")
_OLDEST = re.compile(r"^([0-9]{1,3})\s+(?:[0-9.]{1,6}c|N/A)\s")
_SILENT = re.compile(r"^[0-9]{1,3}\s.*\bN/A\s+N/A\b.*\bunknown\b")
"""A GPU without heat, power and level of performance answers nothing (github ROCm/rocm_smi_lib#85); a partition but the
first has none of its own."""
_PARTITION = re.compile(r",\s*(?:[A-Z]PX|N/A),\s*([0-9]{1,2})\s")
_NAME = re.compile(r"^\s+(AMD \S.*?)\s*$")
_HEAD = re.compile(r"^\| AMD-SMI \S+ +amdgpu version: *(?:([0-9.]+) )?")
_BUS = re.compile(r"^\| ([0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]) +(\S.*?) *\| ")
_USED = re.compile(r"^\| +([0-9]{1,3}) .*\| .* (?:[0-9]+|N/A)/([0-9]+) MB \|")
_AMD = re.compile(r"^(\s*)([A-Z][A-Z0-9_ ]*?)(?::\s*(.*?))?\s*$")


def read(text: str) -> tuple[dict[str, Any] | list[Any] | None, str]:
    """The JSON document that a text stands for, and what printed it; None for any other text."""
    if "ROCm System Management Interface" in text or re.search(r"^GPU\[\d+\]\s*:", text, re.M):
        return _rocm(text)
    if re.search(r"^GPU: \d+\s*$", text, re.M) and re.search(r"^\s+[A-Z_]{3,}: ", text, re.M):
        return _amd(text), "amd-smi's text"
    if "| AMD-SMI " in text:
        return _amd_table(text) or None, "amd-smi's table"
    return None, ""


def _amd_table(text: str) -> list[Any]:
    gpus: list[dict[str, Any]] = []
    driver: dict[str, str] = {}
    for line in lines(text):
        if match := _HEAD.match(line):
            driver = {"version": match[1]} if match[1] else {}
        elif match := _BUS.match(line):
            gpus.append({"gpu": "", "bus": {"bdf": match[1]}, "asic": {"market_name": match[2]}, "driver": driver})
        elif gpus and "vram" not in gpus[-1] and (match := _USED.match(line)):
            gpus[-1] |= {"gpu": match[1], "vram": {"size": match[2]}}
    return gpus


def _rocm(text: str) -> tuple[dict[str, Any] | None, str]:
    cards: dict[str, dict[str, str]] = {}
    system: dict[str, str] = {}
    open_ras = ""
    made_by, open_card, headed, asleep = "rocm-smi's text", "", False, "low-power state" in text

    def silent(line: str) -> bool:
        return not asleep and _SILENT.match(line) is not None

    for line in lines(text):
        if match := _RAS.match(line):
            open_ras, made_by = f"card{match[1]}", "`rocm-smi --showrasinfo`"
            cards.setdefault(open_ras, {}).setdefault(RAS, "")
        elif open_ras and (match := _RAS_BLOCK.match(line)):
            cards[open_ras][RAS] = str(int(cards[open_ras][RAS] or 0) + int(match[1]))
        elif match := _PAIR.match(line):
            cards.setdefault(f"card{match[1]}", {}).setdefault(match[2].strip(), match[3])
        elif match := _DRIVER.match(line):
            system["Driver version"] = match[1]
        elif match := _CONCISE.match(line):
            if silent(line):
                open_card, made_by = "", "rocm-smi's table"
                continue
            open_card, made_by = f"card{match[1]}", "rocm-smi's table"
            cards.setdefault(open_card, {})
        elif open_card and (match := _NAME.match(line)):
            cards[open_card]["Card Series"] = match[1]
            open_card = ""
        elif match := _BY_NODE.match(line):
            part, made_by = _PARTITION.search(line), "rocm-smi's table"
            if silent(line) and (part is None or part[1] == "0"):
                continue
            cards[f"card{match[1]}"] = {"Partition ID": part[1] if part else "0"}
        elif headed and (match := _OLDEST.match(line)):
            made_by = "rocm-smi's table"
            if not silent(line):
                cards[f"card{match[1]}"] = {"Partition ID": "0"}
        elif line.startswith("GPU  Temp"):
            headed = True
        elif "GUID" in text and (match := _ROW.match(line)):
            cards.setdefault(f"card{match[1]}", {})["PCI Bus"] = match[2]
            made_by = "`rocm-smi --showhw`"
    keys = {key.lower() for card in cards.values() for key in card}
    # What is printed of each GPU, one thing at a time (`--showtopo`), lists none of them.
    listed = any(list_term in key for list_term in LISTS for key in keys)
    is_complete = all(any(term in key for key in keys) for term in ("unique", "pci bus", "series"))
    return ({**cards, "system": system}, "" if is_complete else made_by) if listed else (None, "")


LISTS = ("card", "bus", "unique", "vbios", "partition id", "device id", "device name", "gpu id", RAS)
"""Words in the keys of what rocm-smi prints of every GPU."""


def _amd(text: str) -> list[Any]:
    gpus: list[Any] = []
    stack: list[tuple[int, dict[str, Any]]] = []
    for line in lines(text):
        if (match := _AMD.match(line)) is None:
            continue
        depth, key, value = len(match[1]), match[2].strip().lower(), match[3] or ""
        if depth == 0 and key == "gpu":
            entry: dict[str, Any] = {"gpu": value}
            gpus.append(entry)
            stack = [(0, entry)]
            continue
        while len(stack) > 1 and stack[-1][0] >= depth:
            stack.pop()
        if not stack:
            continue
        if value:
            stack[-1][1][key] = value
        else:
            below: dict[str, Any] = {}
            stack[-1][1][key] = below
            stack.append((depth, below))
    return gpus
