"""nccl-ras.txt: the status that NCCL's RAS prints of a running job (probe/nccl_ras.py).

Traps: the columns of the table differ between versions, the last two words of a row do not (Status, Errors); MISMATCH
alone is what a job shows that communicates while it is asked; without a job the text is empty.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from provisioner.verify.parsers import Unreadable, first_line, lines
from provisioner.verify.tool import Tool

_ROW = re.compile(r"\s*\d+(?:\s+[0-9-]+){3,6}\s+([A-Z]+(?:,[A-Z]+)*)\s+([A-Z]+(?:,[A-Z]+)*)\s*")
_PROCESS = re.compile(r"\s*Process (\d{1,9}) on node (\S{1,64})(?: managing GPUs? ([0-9,]{1,60}))?")
PROCESSES = 64


@dataclass(frozen=True, slots=True)
class Process:
    """A process of the job that NCCL cannot reach or has no data of."""

    pid: int
    node: str
    gpus: str = ""


@dataclass(frozen=True, slots=True)
class NcclRas:
    """`running` is False where no job answers. `errors` are the words of the communicators' column, but for OK."""

    running: bool = False
    version: str | None = None
    statuses: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    missing: tuple[Process, ...] = ()


def parse(text: str) -> NcclRas:
    if not text.strip():
        return NcclRas()
    rows = lines(text)
    if not any(row.strip().startswith(("Job summary", "Communicators")) for row in rows):
        raise Unreadable(f"not what NCCL's RAS prints: {first_line(text)}")
    table = [match for row in rows if (match := _ROW.fullmatch(row)) is not None]
    version = re.search(r"^NCCL version ([0-9][0-9.]{2,20})", text, re.M)
    warned = next((i for i, row in enumerate(rows) if row.strip() == "Warnings"), len(rows))
    processes = [match for row in rows[:warned] if (match := _PROCESS.match(row)) is not None]
    return NcclRas(
        True,
        version[1] if version else None,
        tuple(sorted({token for match in table for token in match[1].split(",")})),
        tuple(sorted({token for match in table for token in match[2].split(",")} - {"OK"})),
        tuple(Process(int(match[1]), match[2], match[3] or "") for match in processes[:PROCESSES]),
    )


TOOLS = (
    Tool(
        file="nccl-ras.txt",
        field="nccl_ras",
        parse=parse,
        seconds=12.0,
        when=lambda expected: expected.vendor == "nvidia",
        empty=True,
        label="ncclras -v",
    ),
)
