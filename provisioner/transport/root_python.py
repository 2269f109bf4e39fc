"""How a program runs as root on a node: Python, sent to its standard input. Only the standard library: nodes have this
module, too (verify/archive.py)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

ROOT_PYTHON = 'if [ "$(id -u)" = 0 ]; then exec python3 -I -; else exec sudo -n python3 -I -; fi'
"""The command on the node. -I: neither the user's site packages nor the working directory reach the program."""
PREFIX = "gpuprov:"
"""Before the answer: what else a login prints is no part of it."""


def text_of(source: str, request: Mapping[str, Any]) -> str:
    """A program, which defines `main`, and its request: a JSON text inside a Python literal, which no value can end."""
    return f"{source}\nmain(json.loads({json.dumps(json.dumps(request))}))\n"
