"""Outputs that something has wrapped: container logs, results of Ansible and of APIs in JSON."""

from __future__ import annotations

import json
import re
from typing import Any

from provisioner.verify.support_bundle.recognise import is_journal

LARGEST = 16 * 1024 * 1024
"""Characters of a text that are looked at."""
KEYS = ("stdout", "output", "log", "logs", "message", "msg", "content", "result", "data", "text", "stderr")
"""Where the output stands: Docker's json-file driver has `log` for each line, Ansible `stdout`, journals and loggers
`message` or `msg`."""
_CRI = re.compile(r"^\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:\d\d) (?:stdout|stderr) [FP] ?", re.M)
"""What a container runtime writes before each line (kubernetes CRI log format)."""


def unwrap(text: str) -> str:
    """The output without what it is wrapped in; any other text as it is."""
    if len(text) > LARGEST:
        return text
    head = text[:4096].lstrip()
    if head.startswith(("{", "[")):
        return _document(text) or ("" if is_journal(text) else _rows(text)) or text  # a journal is read as one
    if _CRI.match(head):
        return _CRI.sub("", text)
    return text


def _document(text: str) -> str:
    """The outputs in one document; "" where it has none of several lines."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return ""
    entries = document if isinstance(document, list) else [document]
    return "\n".join(output for entry in entries if "\n" in (output := _output(entry)))


def _rows(text: str) -> str:
    """The outputs of one document for each line; "" where a line is none."""
    outputs: list[str] = []
    for line in text.splitlines():
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            return ""
        output = _output(entry)
        outputs.append(output if output.endswith("\n") else output + "\n")
    return "".join(outputs) if any(row.strip() for row in outputs) else ""


def _output(entry: Any) -> str:
    if not isinstance(entry, dict):
        return ""
    return next((value for key in KEYS if isinstance(value := entry.get(key), str) and value.strip()), "")
