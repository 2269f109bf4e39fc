"""`nvidia-smi nvlink -s`: which NVLinks of each GPU are up.

Traps: "NVLink" and "Nvlink"; "<inactive>", "inActive"; a GPU without a bridge and a dead NVSwitch fabric print the
same line ("all links are inActive"), so only the catalogue can tell which it is; MIG answers nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from provisioner.verify.parsers import Unreadable, first_line, lines

_GPU = re.compile(r"^\s*GPU ([0-9]{1,3}): (.*?)(?: \(UUID: ([^)]*)\))?$")
_LINK = re.compile(r"^\s*Link ([0-9]{1,3}): (.+)$")


@dataclass(frozen=True, slots=True)
class Links:
    """Links of one GPU; None where the tool did not say. `note` is its own reason ("MIG", "all inactive", …)."""

    active: int | None
    inactive: int | None
    note: str = ""


def parse(text: str) -> dict[int, Links]:
    """GPU index → links."""
    found: dict[int, Links] = {}
    gpu: int | None = None
    state: dict[int, bool] = {}

    def close() -> None:
        if gpu is not None and state:
            found[gpu] = Links(active=sum(state.values()), inactive=len(state) - sum(state.values()))

    for line in lines(text):
        if match := _GPU.match(line):
            close()
            gpu, state = int(match[1]), {}
            found.setdefault(gpu, Links(None, None))
        elif gpu is None:
            continue
        elif match := _LINK.match(line):
            value = match[2].strip().lower()
            # A link that was seen twice counts once, and as down if it was down once.
            state[int(match[1])] = state.get(int(match[1]), True) and bool(re.match(r"[0-9.]*[1-9][0-9.]* gb/s", value))
        elif "all links are inactive" in line.lower():
            found[gpu] = Links(active=0, inactive=None, note="all links are inactive")
        elif "in mig mode" in line.lower():
            found[gpu] = Links(None, None, note="MIG mode")
        elif "does not have or support nvlink" in line.lower():
            found[gpu] = Links(active=0, inactive=0, note="no NVLink")
    close()
    if not found:
        raise Unreadable(f"no GPU in it: {first_line(text)}")
    return found
