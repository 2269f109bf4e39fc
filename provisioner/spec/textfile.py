"""The bytes of a file as text, or why not: what it is, how large, in which encoding, with which characters."""

from __future__ import annotations

import re
from pathlib import Path

from provisioner.common import regular_file
from provisioner.spec.source_map import Source

MAX_BYTES = 1 << 20
# What YAML forbids, and the line separators of YAML 1.1 that editors do not count as lines.
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
_TAB = re.compile(r"^[^\t#]*\t")
_ENCODINGS = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16", b"\x00\x00\xfe\xff": "UTF-32"}


def read_text(source: Source) -> str | None:
    """The file's text, or None with a problem. Opens without blocking: a FIFO without a writer must not hang."""
    try:
        with regular_file.opened(Path(source.file)) as stream:
            data = stream.read(MAX_BYTES + 1)
    except regular_file.UnfitFileError as error:
        source.stop((1, 1), f"this is {error.file_kind}, not a file")
        return None
    except OSError as error:
        source.stop((1, 1), f"cannot be read: {(error.strerror or str(error)).lower()}")
        return None
    except ValueError as error:  # a NUL in the name
        source.stop((1, 1), f"cannot be read: {error}")
        return None
    if len(data) > MAX_BYTES:
        source.stop((1, 1), "the file is larger than 1 MiB: this is hardly a cluster.yaml")
        return None
    for prefix, name in _ENCODINGS.items():
        if data.startswith(prefix):
            source.stop((1, 1), f"the file is {name}", "save it as UTF-8")
            return None
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        decoded = data[: error.start].decode("utf-8", "replace")
        source.stop(_position(decoded, len(decoded)), "this is not UTF-8 text", "save the file as UTF-8")
        return None
    return text if _clean(source, text) else None


def _position(text: str, index: int) -> tuple[int, int]:
    start = max(text.rfind("\n", 0, index), text.rfind("\r", 0, index)) + 1
    head = text[:start]
    return head.count("\n") + head.count("\r") - head.count("\r\n") + 1, index - start + 1


def _clean(source: Source, text: str) -> bool:
    if text.startswith("\ufeff"):
        source.stop((1, 1), "the file starts with a byte order mark", "save it as UTF-8 without BOM")
        return False
    if match := _FORBIDDEN.search(text):
        name = "a NUL byte" if match[0] == "\0" else f"the control character U+{ord(match[0]):04X}"
        source.stop(_position(text, match.start()), f"{name} does not belong into this file")
        return False
    if "\t" in text:
        for number, line in enumerate(text.splitlines(), 1):
            if match := _TAB.match(line):
                source.report((number, match.end()), (), "a tab", "use blanks: YAML does not indent with tabs")
                source.complete = False
    return source.complete
