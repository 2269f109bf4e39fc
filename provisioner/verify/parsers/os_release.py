"""/etc/os-release: the distribution (os-release(5))."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from provisioner.verify.document import plain
from provisioner.verify.parsers import Unreadable, first_line, lines
from provisioner.verify.tool import Tool


@dataclass(frozen=True, slots=True)
class System:
    """A distribution as it says of itself; None where it does not (a rolling one has no version)."""

    id: str
    version: str | None = None
    codename: str | None = None
    pretty: str | None = None

    @property
    def name(self) -> str:
        """As cluster.yaml writes it: ubuntu-24.04."""
        return f"{self.id}-{self.version}" if self.version else self.id


def parse(text: str) -> System:
    """The distribution of the node. Raises Unreadable for a file without ID."""
    values = {m[1]: _unquoted(m[2]) for line in lines(text) if (m := re.match(r"^\s*([A-Z][A-Z0-9_]*)=(.*)$", line))}
    name = values.get("ID")
    if not name or not re.fullmatch(r"[a-z0-9._-]+", name):
        raise Unreadable(f"it names no distribution: {first_line(text)}")
    version = values.get("VERSION_ID")
    return System(name, version or None, values.get("VERSION_CODENAME") or None, values.get("PRETTY_NAME") or None)


def _unquoted(text: str) -> str:
    """A value without a shell's quotes; as it stands where the quotes don't close."""
    try:
        return " ".join(shlex.split(text, comments=False))
    except ValueError:
        return text.strip()


TOOLS = (
    Tool(
        file="os-release.txt",
        field="system",
        parse=parse,
        paths=("/etc/os-release",),
        seconds=5,
        drift=True,
        document={"os": lambda system: plain(system) | {"name": system.name}},
    ),
)
