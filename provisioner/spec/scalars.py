"""One YAML scalar: which value it is, or why nobody can say.

Plain words follow YAML 1.2's core schema. What YAML 1.1 (and with it most tools) reads otherwise is refused: yes and no
as truth values, 017, 0x1F, 1_000 and 1:30 as numbers, 2025-01-02 as a date.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_DIGITS = 18
"""More digits than any number here needs; keeps int() and JSON out of trouble."""

_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_TRUTH = {"yes": "true", "on": "true", "no": "false", "off": "false"}
_OTHER_BASE = re.compile(r"[-+]?(0[0-9_]+|0o[0-7]+|0x[0-9a-fA-F_]+|0b[01_]+)")
_UNDERSCORE = re.compile(r"[-+]?[0-9][0-9_]*_[0-9_]*(\.[0-9_]*)?")
_SEXAGESIMAL = re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?")
_DATE = re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt \t].*)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


IF_TEXT = "quote it if it is text"
OCTAL = f"{IF_TEXT}, drop the zero if it is a number"


@dataclass(frozen=True, slots=True)
class Scalar:
    """The value, or the text with the problem of it and the remedy."""

    value: str | int | float | bool | None
    problem: str = ""
    hint: str = ""


def read_scalar(text: str, *, plain: bool) -> Scalar:
    """The value of a scalar; quoted ones are text always.

    >>> read_scalar("580", plain=True).value, read_scalar("580", plain=False).value
    (580, '580')
    >>> read_scalar("on", plain=True).hint
    'write true, or quote it if it is text'
    """
    if not plain:
        return Scalar(text)
    if text in ("", "~", "null", "Null", "NULL"):
        return Scalar(None)
    if text.lower() in ("true", "false") and (text.islower() or text.istitle() or text.isupper()):
        return Scalar(text.lower() == "true")
    if text.lower() in _TRUTH:
        return Scalar(
            text,
            f'"{text}" is a truth value for some YAML readers and text for others',
            f"write {_TRUTH[text.lower()]}, or {IF_TEXT}",
        )
    return _number(text) or Scalar(text)


def read_truth(text: str) -> str:
    """true or false for what YAML 1.1 reads so; "" for anything else.

    >>> read_truth("Off"), read_truth("1")
    ('false', '')
    """
    return _TRUTH.get(text.lower(), "")


def _number(text: str) -> Scalar | None:
    if not (text[0].isdigit() or text[0] in "+-."):
        return None
    if _INT.fullmatch(text) or _FLOAT.fullmatch(text):
        if sum(c.isdigit() for c in text) > MAX_DIGITS:
            return Scalar(text, "a number with more digits than anything here needs", IF_TEXT)
        if _OTHER_BASE.fullmatch(text):
            return Scalar(
                text,
                f"{text} is another number for YAML 1.1 (octal)",
                OCTAL,
            )
        value = int(text) if _INT.fullmatch(text) else float(text)
        if isinstance(value, float) and value in (float("inf"), float("-inf")):
            return Scalar(text, f"{text} is too large a number")
        return Scalar(value)
    for pattern, description in (
        (_OTHER_BASE, "a number in another base"),
        (_UNDERSCORE, "a number"),
        (_SEXAGESIMAL, "a number in base 60"),
        (_DATE, "a date"),
        (_NOT_FINITE, "an endless number"),
    ):
        if pattern.fullmatch(text):
            return Scalar(text, f"{text[:40]} is {description} for some YAML readers", IF_TEXT)
    return None
