"""A job's log with NCCL's own lines (NCCL_DEBUG=WARN or INFO): what NCCL warned of.

Traps: each line stands behind host, process and thread, and behind whatever the launcher prints before it; one broken
connection is told by every channel and by both ends; plugins write "NET/OFI" and "NET/IB" lines of their own; the
status of a completion is "error 12" until 2.19 and "status=12" later, in newer releases with its name.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from provisioner.verify.document import plain
from provisioner.verify.parsers import Unreadable, first_line, lines
from provisioner.verify.tool import Tool

_LINE = re.compile(r"(?:(\S+?):\d+:\d+ )?(?:\[\d+\] )?(?:\S+:\d+ )?NCCL (WARN|INFO|ERROR) (.*)$")
_FRAMEWORK = re.compile(
    r"\b(?:NCCL error in: \S+|nccl(?:UnhandledCuda|System|Internal|Remote)Error).*"
    r"|\bunhandled (?:system|cuda) error\b.*"
)
"""What PyTorch says of NCCL's error (torch/csrc/distributed/c10d/NCCLUtils.cpp)."""
_COMPLETION = re.compile(r"Got completion .*?(?:with (?:error|status)[ =]|status=)\(?(\d{1,3})")
_VARYING = re.compile(r"0x[0-9a-fA-F]+|(?<![\w.])\d+(?![\w.])|<\d+>")
COMPLETIONS = {
    4: "the memory that was handed over is not registered: peer memory or DMA-BUF, IOMMU, ACS",
    5: "follows another error",
    9: "the other end refused the request",
    10: "the other end refused access to its memory",
    11: "the other end had an error of its own",
    12: "the other end did not answer: its process, its port, the path between, or the RoCE configuration",
    13: "the other end was not ready to receive",
}
"""Status of a work completion (ibv_wc_status in rdma-core, libibverbs/verbs.h) → what it means."""
NOISE = (
    'Missing "iommu=pt"',
    "No plugin found",
    "Could not find",
    "NUMA auto balancing",
    "NCCL_CUMEM",
    "is deprecated",
)
"""Warnings about how a machine is set up, of which none ends a job (init.cc, misc/utils.cc)."""


@dataclass(frozen=True, slots=True)
class NcclLog:
    """`warnings`: what NCCL warned of, each once with the number of its lines, the commonest first; numbers and
    addresses in it are those of the first line."""

    warnings: tuple[tuple[str, int], ...]


def parse(text: str) -> NcclLog:
    first: dict[str, str] = {}
    counts: Counter[str] = Counter()
    is_nccl = False
    for line in lines(text):
        match = _LINE.search(line)
        if match is not None:
            is_nccl = True
            if match[2] == "INFO" or any(phrase in match[3] for phrase in NOISE):
                continue
            message = _meaning(match[3])
            message = f"{match[1]}: {message}" if match[1] else message
        elif framework := _FRAMEWORK.search(line):
            is_nccl, message = True, framework[0]
        else:
            continue
        key = _VARYING.sub("#", message)
        first.setdefault(key, message[:240])
        counts[key] += 1
    if not is_nccl:
        raise Unreadable(f"no line of NCCL: {first_line(text)}")
    return NcclLog(tuple((first[key], count) for key, count in counts.most_common(16)))


def _meaning(message: str) -> str:
    """The message, with what the status of its completion means."""
    completion = _COMPLETION.search(message)
    meaning = COMPLETIONS.get(int(completion[1])) if completion else None
    return f"{message.strip()} ({meaning})" if meaning else message.strip()


TOOLS = (
    Tool(
        file="nccl.log",
        field="nccl_log",
        parse=parse,
        asked="elsewhere",
        label="a job's log with NCCL_DEBUG=WARN",
        document={"nccl_log": plain},
    ),
)
