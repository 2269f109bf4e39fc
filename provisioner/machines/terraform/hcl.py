"""Any value of cluster.yaml as an HCL expression that means exactly that value."""

from __future__ import annotations

from typing import Any

_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
"""HCL's own escapes (HCL native syntax specification, "Quoted literals"); the rest goes as \\uNNNN or as it is."""


def hcl(value: Any) -> str:
    """A Python value (None, bool, number, string, list, dict with string keys) as an HCL literal.

    No string can end itself or be evaluated: quotes, line breaks and the openings of HCL's templates are escaped.

    >>> hcl({"a": '${file("/etc/passwd")}', "b": [1, None, True]})
    '{"a" = "$${file(\\\\"/etc/passwd\\\\")}", "b" = [1, null, true]}'
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(hcl(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_string(str(key))} = {hcl(item)}" for key, item in value.items()) + "}"
    raise TypeError(f"no HCL for {type(value).__name__}")


def _string(text: str) -> str:
    quoted = "".join(_ESCAPES.get(c) or (c if c.isprintable() else _unicode(c)) for c in text)
    return '"' + quoted.replace("${", "$${").replace("%{", "%%{") + '"'


def _unicode(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
