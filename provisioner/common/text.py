"""Texts that a node, a cloud or a file wrote, made fit for a terminal and a page.

A kernel log, a program's error or a file in a bundle can hold whatever its writer likes: a terminal obeys escape
sequences, and a page turns round what stands behind a bidirectional control. What a person is to see goes through
`printable`; it is called where such texts become results, events, errors and pages, so that nothing that prints has to
think of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
"""What a tool's colours are made of (SGR, ECMA-48 8.3.117): no word of its text is lost without them."""
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e007f]"
)
"""Controls (C0 but tabulator and line end, DEL, C1), what shows nothing or turns the writing round (Unicode's category
Cf), separators that some readers take for a line's end, and halves of a character."""


def printable(value: Any) -> Any:
    """The same value (of JSON) with each control character of its texts written out: ESC as \\x1b. Colours are left
    out."""
    if isinstance(value, str):
        return value if value.isprintable() else _escape(value)
    if isinstance(value, Mapping):
        return {printable(key): printable(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [printable(inner) for inner in value]
    if isinstance(value, tuple):
        return tuple(printable(inner) for inner in value)
    return value


def bracketed(host: str) -> str:
    """A host as it stands before a port.

    >>> bracketed("10.0.0.4"), bracketed("fd00::4")
    ('10.0.0.4', '[fd00::4]')
    """
    return f"[{host}]" if ":" in host else host


def one_line(text: str, limit: int = 300) -> str:
    """A name or a sentence of somebody else's on one line: what ends a line is written out too, and what is longer than
    `limit` characters is cut in the middle.

    >>> one_line("smi.xml\\n[PASS] all"), one_line("a" * 9 + "z", 4)
    ('smi.xml\\\\n[PASS] all', 'aa…az')
    """
    printed = single_line(text)
    half = limit // 2
    return printed if len(printed) <= limit else f"{printed[:half]}…{printed[-half:]}"


def single_line(text: str) -> str:
    """As `one_line`, whole.

    >>> single_line("x\\nnode-1: healthy")
    'x\\\\nnode-1: healthy'
    """
    return str(printable(text)).replace("\n", "\\n").replace("\t", "\\t")


def counted(number: int, noun: str) -> str:
    """A number with its noun.

    >>> counted(1, "node"), counted(4, "node")
    ('1 node', '4 nodes')
    """
    return f"{number} {noun if number == 1 else plural(noun)}"


def plural(noun: str) -> str:
    """Several of a kind.

    >>> plural("node"), plural("repository"), plural("elastic IP address"), plural("key")
    ('nodes', 'repositories', 'elastic IP addresses', 'keys')
    """
    if noun.endswith("y") and noun[-2:-1] not in "aeiou":
        return f"{noun[:-1]}ies"
    return f"{noun}es" if noun.endswith("s") else f"{noun}s"


def few(texts: Sequence[str], maximum: int, mark: str = ";") -> str:
    """The first of them, and how many more there are.

    >>> few(["a", "b", "c"], 2), few(["a", "b", "c"], 2, ","), few(["a", "b"], 2)
    ('a; b; and 1 more', 'a, b and 1 more', 'a; b')
    """
    more = len(texts) - maximum
    tail = f"{mark if mark == ';' else ''} and {more} more" if more > 0 else ""
    return f"{mark} ".join(texts[:maximum]) + tail


def _escape(text: str) -> str:
    plain = _COLOUR.sub("", text).replace("\r\n", "\n")
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), plain)


def significant(number: float) -> str:
    """A measured number with three digits, or whole.

    >>> significant(0.6789), significant(21034.2)
    ('0.679', '21,034')
    """
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def money(amount: float, currency: str) -> str:
    """An amount as people read it.

    >>> money(0.526, "USD"), money(87.8304, "USD"), money(64116.192, "USD")
    ('0.5260 USD', '87.83 USD', '64,116 USD')
    """
    digits = 0 if amount >= 1000 else 2 if amount >= 1 or amount == 0 else 4
    return f"{amount:,.{digits}f} {currency}"
