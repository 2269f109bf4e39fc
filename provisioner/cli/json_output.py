"""The one JSON document of a command that was called with `--json`.

Every command gives its document through `write`, so that a call that ends without one (an error, an interruption) is
known, and its failure told in a document as well (cli/exit.py).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

_written: list[bool] = [False]


def begin() -> None:
    """A call begins: nothing is written yet."""
    _written[0] = False


def written() -> bool:
    return _written[0]


def write(document: Any) -> None:
    """Print the document, a model of output/ or what it is made of. What JSON has no type for (a path) is printed as
    text."""
    if hasattr(document, "to_json"):  # pydantic itself is not imported here: `--help` would wait for it
        document = document.to_json()
    text = json.dumps(document, indent=2, default=str)
    _written[0] = True
    print(text)


def requested(arguments: Sequence[str], verbatim: Sequence[str]) -> bool:
    """Whether a call asks for JSON. `verbatim`: the commands whose options are the nodes' own."""
    command = next((argument for argument in arguments if not argument.startswith("-")), "")
    ours = list(arguments)[: list(arguments).index("--")] if "--" in arguments else arguments
    return command not in verbatim and "--json" in ours
