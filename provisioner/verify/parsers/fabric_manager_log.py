"""/var/log/fabricmanager.log: what fabric manager itself calls an error. In a bundle its lines of the journal are read
too (`journalctl -u nvidia-fabricmanager`).

Traps: a message goes on in lines without a stamp; INFO lines tell of partitions, multicast teams and connections by the
thousand; the file is kept over starts of the service; the journal's lines have no level.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from provisioner.verify.document import plain
from provisioner.verify.parsers import Unreadable, first_line, lines
from provisioner.verify.tool import Tool

_ENTRY = re.compile(r"^\[\w{3} [ \d]\d \d{4} [\d:]{8}\] \[([A-Z]{4,8})\] \[tid \d{1,10}\] (.*)$")
_STARTED = re.compile(r"Fabric Manager version .* is running|Fabric manager.* (?:starting|started)\b", re.I)
_JOURNAL = re.compile(r"\b(?:nv-fabricmanager|nvidia-fabricmanager-start\.sh|nvlsm)\[\d{1,10}\]: (.*)$")
_FAILURE = re.compile(r"\b(?:failed|failure|fatal|error|unable|lost|not match)\b", re.I)
BAD = ("ERROR", "FATAL", "CRITICAL", "ALERT", "EMERG")


@dataclass(frozen=True, slots=True)
class FabricLog:
    """Errors since the service was last started, the commonest first; `entries` counts all lines of the log."""

    errors: tuple[str, ...]
    count: int
    entries: int


def parse(text: str) -> FabricLog:
    """An empty text is a real answer: there is no such file."""
    failures: list[str] = []
    entries = 0
    for line in lines(text):
        if (match := _ENTRY.match(line)) is None:
            if journal := _JOURNAL.search(line):
                entries += 1
                failures += [journal[1].strip()[:200]] if _FAILURE.search(journal[1]) else []
            continue
        entries += 1
        if _STARTED.search(match[2]):
            failures = []
        elif match[1] in BAD:
            failures.append(match[2].strip()[:200])
    if not entries and text.strip():
        raise Unreadable(f"no line of fabric manager's log: {first_line(text)}")
    return FabricLog(tuple(failure for failure, _ in Counter(failures).most_common(8)), len(failures), entries)


PATH = "/var/log/fabricmanager.log"
TOOLS = (
    Tool(
        file="fabricmanager.log",
        field="fabric_log",
        parse=parse,
        # The end of it, and nothing where there is no such file: `tail` alone would call that a failure.
        command=("find", "/var/log", "-maxdepth", "1", "-name", "fabricmanager.log", "-exec", "tail", "-c", "262144",
                 "{}", ";"),
        seconds=10,
        when=lambda expected: expected.fabric_manager,
        empty=True,
        label=PATH,
        document={"fabric_log": plain},
    ),
)  # fmt: skip
