"""What an Xid 74 says of its NVLink: seven registers in hexadecimal, whose bits NVIDIA explains for Hopper.

Source: NVIDIA Xid catalogue, WORKFLOW_NVLINK_ERR (quoted whole by NVIDIA/NVSentinel, docs/designs/019). The line:
"NVLink: fatal error detected on link 14(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)".
"""

from __future__ import annotations

import re
from typing import NamedTuple

_LINE = re.compile(r"\blink (\d{1,2})\s?\(((?:0x[0-9a-fA-F]{1,8}(?:, ?|\))){7})")


class Meaning(NamedTuple):
    """Bits of a register (0 is the first) and what they stand for; `vendor`: the link itself is to be looked at."""

    register: int
    bits: tuple[int, ...]
    words: str
    vendor: bool = False


MEANINGS = (
    Meaning(0, (4, 5), "ECC or parity of the link's hardware"),
    Meaning(2, (0, 1, 2, 6), "ECC or parity of the link's hardware"),
    Meaning(4, (18, 19, 21, 22, 24, 25, 27, 28), "ECC or parity of the link's hardware"),
    Meaning(0, (8, 9, 12, 16, 17, 24, 28), "perhaps the link's contacts: reseat the board", vendor=True),
    Meaning(0, (21, 22), "a marginal signal: look at the link's contacts", vendor=True),
    Meaning(2, (13,), "a fault that is not to be seen in production", vendor=True),
    Meaning(0, (27, 29), "support wants to know where it comes again"),
    Meaning(2, (16, 17, 18, 19), "support wants to know where it comes again"),
    Meaning(0, (1, 20), "most often the consequence of another error"),
    Meaning(3, (16, 17, 18), "most often the consequence of another error"),
    Meaning(4, (20, 23, 26, 29), "many corrected ECC errors"),
)


class Registers(NamedTuple):
    link: int
    words: tuple[str, ...]
    vendor: bool


def read(text: str) -> Registers | None:
    """The registers in the text of an Xid 74; None where it has none."""
    match = _LINE.search(text)
    if match is None:
        return None
    values = [int(number, 16) for number in re.findall(r"0x[0-9a-fA-F]+", match[2])]
    meanings = [m for m in MEANINGS if any(values[m.register] >> bit & 1 for bit in m.bits)]
    return Registers(int(match[1]), tuple(dict.fromkeys(m.words for m in meanings)), any(m.vendor for m in meanings))
