"""/etc/gpuprov/node.json: what the roles left as the last thing that they did on a node."""

from __future__ import annotations

import json
from dataclasses import dataclass

from provisioner.verify.parsers import Unreadable, first_line
from provisioner.verify.tool import Tool


@dataclass(frozen=True, slots=True)
class Stamp:
    """`fingerprint` is of the roles and variables that ran; None where the node was never configured."""

    fingerprint: str | None = None
    node: str | None = None


def parse(text: str) -> Stamp:
    """An empty text is a real answer: never configured."""
    if not text.strip():
        return Stamp()
    try:
        loaded = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"not JSON: {first_line(text)}") from error
    if not isinstance(loaded, dict) or not isinstance(loaded.get("fingerprint"), str):
        raise Unreadable(f"no fingerprint in it: {first_line(text)}")
    node = loaded.get("node")
    return Stamp(loaded["fingerprint"], node if isinstance(node, str) else None)


TOOLS = (
    Tool(
        file="stamp.json",
        field="stamp",
        parse=parse,
        paths=("/etc/gpuprov/node.json",),
        seconds=5,
        configured=True,
        empty=True,
    ),
)
