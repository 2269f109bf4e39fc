"""`nvidia-smi topo -p2p r`: whether each GPU can read the others' memory, as the driver says.

Traps: the heading is underlined by escape sequences; cells are words (OK, NS, CNS, GNS, TNS, U), explained below the
matrix; one's own cell is X; a GPU that is gone has no row.
"""

from __future__ import annotations

import re

from provisioner.verify.parsers import Unreadable, first_line, lines
from provisioner.verify.tool import Tool

_ROW = re.compile(r"^\s*GPU([0-9]{1,3})\s+((?:(?:X|OK|NS|CNS|GNS|TNS|DR|U)(?:\s+|$))+)$")
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def parse(text: str) -> dict[int, tuple[str, ...]]:
    """GPU → its cells, in the order of the GPUs."""
    matrix = {}
    for line in lines(text):
        if match := _ROW.match(_ESCAPE.sub("", line)):
            matrix[int(match[1])] = tuple(match[2].split())
    if not matrix or any(len(cells) != len(matrix) for cells in matrix.values()):
        raise Unreadable(f"no square matrix of GPUs: {first_line(text)}")
    return matrix


TOOLS = (
    Tool(
        file="p2p.txt",
        field="p2p",
        parse=parse,
        command=("nvidia-smi", "topo", "-p2p", "r"),
        when=lambda expected: expected.large_bar and expected.gpu_count > 1,
        document={"p2p": lambda matrix: {f"GPU{gpu}": list(cells) for gpu, cells in matrix.items()}},
    ),
)
