"""/etc/gpuprov/node.json: which roles were installed and configured on a node, and from what."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from provisioner.verify.parsers import Unreadable, first_line
from provisioner.verify.tool import Tool


@dataclass(frozen=True, slots=True)
class RoleStamp:
    """One role on a node. `digest` is of the role's text; `installed` and `configured` are digests of the variables
    that its install.yml and configure.yml ran with, None where that did not run (an image is installed only)."""

    digest: str
    installed: str | None = None
    configured: str | None = None

    def installs_as(self, other: RoleStamp) -> bool:
        """Whether install.yml of both is the same, with the same variables."""
        return (self.digest, self.installed) == (other.digest, other.installed)

    def to_json(self) -> dict[str, str | None]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Stamp:
    """`roles` is empty where no role has run. `fingerprint` is what gpuprov wrote before it recorded each role: one
    digest of all roles and variables; None on any other node."""

    fingerprint: str | None = None
    node: str | None = None
    roles: Mapping[str, RoleStamp] = field(default_factory=dict)


def parse(text: str) -> Stamp:
    """The stamp; an empty text says that the node was never configured. Raises Unreadable for anything else."""
    if not text.strip():
        return Stamp()
    try:
        loaded = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"not JSON: {first_line(text)}") from error
    if not isinstance(loaded, dict):
        raise Unreadable(f"no roles in it: {first_line(text)}")
    node = loaded.get("node") if isinstance(loaded.get("node"), str) else None
    if isinstance(loaded.get("roles"), dict):
        return Stamp(node=node, roles={str(name): _role(row, text) for name, row in loaded["roles"].items()})
    if isinstance(loaded.get("fingerprint"), str):
        return Stamp(loaded["fingerprint"], node)
    raise Unreadable(f"no roles in it: {first_line(text)}")


def _role(row: Any, text: str) -> RoleStamp:
    values = [row.get(key) for key in ("digest", "installed", "configured")] if isinstance(row, dict) else [None]
    if not isinstance(values[0], str) or not all(value is None or isinstance(value, str) for value in values):
        raise Unreadable(f"a role without a digest: {first_line(text)}")
    return RoleStamp(*values)


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
